"""Soak: bad trials, best checkpoints, damaged files, and what 500 trials leave behind; see ``benchmarks/soak.py``."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.soak_books import read_records
from benchmarks.soak_storm import HERE, NAME, PATIENCE_S, start, wait_for
from benchmarks.soak_sweep import TOY, SoakTrial, curve

REASONS = {
    "raise": "ValueError: the pole broke",
    "build": "ValueError: a network of size 0",
    "nan_loss": "non-finite numbers: total_loss=nan",
    "nan_return": "non-finite numbers: return_mean=nan",
    "hang": "no progress for 3 s",
    "die": "worker died: Worker unexpectedly exits",
    "stall": "no environment step in 50 iterations",
    "memory": "MemoryError: no room for the replay buffer",
}


def faults(folder: Path) -> dict[str, Any]:
    """Eight healthy trials and one of each fault, in turns: how each ended, and whether its reason is right."""
    kinds = [kind for fault in REASONS for kind in ("null", fault)]
    warm = ",".join(f"{{fault:{kind},quality:0.5}}" for kind in kinds)
    words = [f"name={NAME}", f"budget.trials={len(kinds)}", f"warm_start=[{warm}]", "failures.stall_s=3"]
    words += [f"+space.fault=[choice,null,{','.join(REASONS)}]", "failures.stop_after=100", "+space.seconds=0.02"]
    code = start(folder, "soak_sweep.py", "run", *words).wait(PATIENCE_S)
    right, wrong = 0, []
    for record in read_records(folder / "outputs" / NAME):
        fault, reason = record.params["fault"], str(record.stop_reason)
        state = "COMPLETE" if fault is None else "PRUNED" if fault.startswith("nan_") else "FAIL"
        good = record.state == state and record.diverged == (state == "PRUNED")
        if fault is not None:
            good = good and REASONS[fault] in reason and (folder / "outputs" / NAME / str(record.log)).is_file()
        right += good
        wrong += [] if good else [f"{fault}: {record.state}, {reason}"]
    return {"exit": code, "trials": len(kinds), "as_they_should": right, "wrong": wrong}


def best(folder: Path, curves: int) -> dict[str, Any]:
    """Curves that go up and down: the kept checkpoint is the best report's."""
    warm = ",".join(f"{{curve:{seed}}}" for seed in range(1, curves + 1))
    words = [f"name={NAME}", f"budget.trials={curves}", f"warm_start=[{warm}]", f"+space.curve=[randint,1,{curves}]"]
    start(folder, "soak_sweep.py", "run", *words, "tracking=off").wait(PATIENCE_S)
    right = 0
    for record in read_records(folder / "outputs" / NAME):
        steps = max(range(100, 2001, 100), key=lambda step: curve(int(record.params["curve"]), step))
        kept = json.loads((folder / "outputs" / NAME / record.checkpoint.path / "toy.json").read_text())
        right += kept["env_steps"] == steps
    return {"curves": curves, "best_kept": right}


# -- damaged files ------------------------------------------------------------------------------------------------


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xfe\xedgarbage" * 300)


def _inside(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 3
    content[middle : middle + max(4, len(content) // 4)] = b"\xff" * max(4, len(content) // 4)
    path.write_bytes(bytes(content))


def _gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _cases(sweep: Path) -> list[tuple[str, Path, Callable[[Path], None]]]:
    """24 of them: a name, the file, what is done to it."""
    running = next(record for record in read_records(sweep) if record.state == "RUNNING" and record.latest)
    newest = sweep / running.latest.path
    places: list[tuple[Path, tuple[Callable[[Path], None], ...]]] = [
        (sweep / "config.yaml", (_emptied, _zeroed, _cut, _garbage, _inside)),
        (sweep / "ledger.db", (_emptied, _zeroed, _cut, _garbage, _inside, _gone)),
        (sweep / "study.db", (_zeroed, _garbage, _gone)),
        (newest / "toy.json", (_emptied, _cut, _inside, _gone)),
        (newest / "state.json", (_emptied, _cut)),
        (newest, (_gone,)),
        (sweep.parents[1] / "mlflow.db", (_zeroed, _garbage)),
        (sweep / "summary.json", (_cut,)),
    ]
    return [(f"{path.name} {damage.__name__[1:]}", path, damage) for path, damages in places for damage in damages]


def damaged(folder: Path, every: int) -> dict[str, Any]:
    """An interrupted sweep, copied for each case or every so many, damaged and resumed."""
    words = [f"name={NAME}", "budget.trials=4", "+space.seconds=0.1", "checkpoint.every_s=0"]
    driver = start(folder / "whole", "soak_sweep.py", "run", *words)
    wait_for(driver, folder / "whole", "training", 1.0, "")
    driver.send_signal(signal.SIGTERM)
    driver.wait(60)
    return _alone("damaged", folder, str(every))


def _all_damaged(folder: Path, every: int) -> dict[str, Any]:
    """In a process with a Ray of its own, which all cases share."""
    from rltune.cluster.ray_cluster import connect_ray, prepare_environment
    from rltune.config.schema import ClusterConfig
    from rltune.pipeline import plan

    plan.preflight = lambda made: None
    whole = folder / "whole"
    cases = _cases(whole / "outputs" / NAME)[::every]
    names = [(name, path.relative_to(whole), damage) for name, path, damage in cases]
    answers = {}
    prepare_environment()
    with connect_ray(ClusterConfig(num_cpus=2)):
        for number, (name, place, damage) in enumerate(names):
            copy = folder / f"case-{number}"
            shutil.copytree(whole, copy)
            damage(copy / place)
            os.chdir(copy)
            answers[name] = _answer(copy, place)
            print(f"{name}: {answers[name]}", file=sys.stderr, flush=True)
    silent = [name for name, answer in answers.items() if answer not in ("refused", "named", "made again")]
    return {"cases": len(answers), "detected": len(answers) - len(silent), "silent": silent, "answers": answers}


def _answer(copy: Path, place: Path) -> str:
    """Refused, named, or for what is derived from the ledger: made again. Silent when nobody was told."""
    import optuna

    import rltune
    from rltune.errors import RltuneError
    from rltune.pipeline.run import resume_sweep

    stream = io.StringIO()
    named = place.name if place.name not in ("toy.json", "state.json") else place.parent.name
    try:
        if place.name == "summary.json":
            rltune.load_policy(f"sweep:{NAME}")
        resume_sweep(NAME, stream=stream, trainable=SoakTrial)
    except RltuneError as error:
        return "refused" if named in error.pretty() else "silent"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"[:200]
    if place.name == "study.db":
        study = optuna.load_study(study_name=NAME, storage=f"sqlite:///{copy / place}")
        wanted = [record.state for record in read_records(copy / place.parent)]
        return "made again" if [trial.state.name for trial in study.trials] == wanted else "silent"
    return "named" if named in stream.getvalue() else "silent"


# -- what is left behind ------------------------------------------------------------------------------------------


def memory(folder: Path, trials: int) -> dict[str, Any]:
    """One Ray, many short trials: memory, processes, descriptors and threads before and after.

    Ray itself (2.60) keeps a dead connection open for each time that it is started in a process, with or without us.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return _alone("memory", folder, str(trials))


def _memory(trials: int) -> dict[str, Any]:
    import psutil

    from rltune.cluster.ray_cluster import connect_ray, prepare_environment
    from rltune.config.schema import ClusterConfig

    me = psutil.Process()
    prepare_environment()
    with connect_ray(ClusterConfig(num_cpus=2)):
        found = _left_by(trials, me)
    _until_no_more(me, 0)
    return {**found, "processes_after_ray": len(me.children(recursive=True))}


def _until_no_more(me: Any, processes: int) -> None:
    deadline = time.monotonic() + 20
    while len(me.children(recursive=True)) > processes and time.monotonic() < deadline:
        time.sleep(0.2)


def _left_by(trials: int, me: Any) -> dict[str, Any]:
    """What a sweep of so many trials leaves behind in this process, after a small one that pays for the imports."""
    from benchmarks.driver import request, resident_mb
    from benchmarks.instant import InstantTrial
    from rltune.pipeline import plan
    from rltune.pipeline.run import run_sweep
    from rltune.pipeline.tune.recorder import Recorder

    plan.preflight = lambda made: None
    run_sweep(request(*TOY, "budget.trials=4", "name=warm-up"), stream=io.StringIO(), trainable=InstantTrial)
    seen: list[float] = []
    plain = Recorder.on_trial_complete

    def measured(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        seen.append(resident_mb())

    Recorder.on_trial_complete = measured  # type: ignore[method-assign]
    before, open_before = (len(me.children(recursive=True)), me.num_fds(), threading.active_count()), _open_files()
    run_sweep(request(*TOY, f"budget.trials={trials}", "name=many"), stream=io.StringIO(), trainable=InstantTrial)
    gc.collect()
    _until_no_more(me, before[0])
    after = (len(me.children(recursive=True)), me.num_fds(), threading.active_count())
    keys = ("processes", "descriptors", "threads")
    grown = {key: late - early for key, early, late in zip(keys, before, after, strict=True)}
    grown_mb = round(seen[-1] - seen[min(20, len(seen) // 5)], 1)
    left = sorted((_open_files() - open_before).elements())
    return {"trials": len(seen), "memory_grown_mb": grown_mb, "more": grown, "opened": left}


def _open_files() -> Counter[str]:
    """What this process has open, by name; sockets and pipes have numbers, which say nothing."""
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[os.readlink(link).partition(":[")[0]] += 1
    return found


def _alone(part: str, folder: Path, *words: str) -> dict[str, Any]:
    paths = os.pathsep.join((str(HERE.parent / "src"), str(HERE.parent), str(HERE.parent / "tests" / "support")))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak_faults", part, str(folder), *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    answer: dict[str, Any] = json.loads(lines[-1]) if done.returncode == 0 else {"failed": done.stderr[-1500:]}
    return answer


if __name__ == "__main__":
    number = int(sys.argv[3])
    found = _all_damaged(Path(sys.argv[2]), number) if sys.argv[1] == "damaged" else _memory(number)
    print(json.dumps(found), flush=True)
