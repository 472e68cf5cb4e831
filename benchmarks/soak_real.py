"""Soak with real training: certification killed again and again, env runners that raise or hang; see ``soak.py``."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.soak_books import books, compare_with_mlflow, read_records
from benchmarks.soak_storm import HERE, NAME, PATIENCE_S, kill, launch, pause, start, until

SEEDS, TRIALS = 3, 3
RUNS = "sweep_trials where kind = 'certify'"
REPORTS = "reports join sweep_trials t on t.id = trial_id where kind = 'certify'"
# An environment of a person's own, whose steps go wrong where they are taken.
STUMBLING = """
import time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Stumbling(CartPoleEnv):
    def __init__(self, fault="raise", **kwargs):
        super().__init__(**kwargs)
        self.fault, self.taken = fault, 0

    def step(self, action):
        self.taken += 1
        if self.taken > 100:
            if self.fault == "hang":
                time.sleep(3600)
            raise ValueError("the pole broke")
        return super().step(action)

gymnasium.register("Stumbling-v0", Stumbling, max_episode_steps=500)
"""


def certification(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """A driver killed while it retrains the winner, and while it registers it."""
    draw = random.Random(seed)
    words = [f"name={NAME}", "algo=ppo", "env=cartpole", f"budget.trials={TRIALS}", "budget.env_steps=20000"]
    words += ["certify.top=2", f"certify.seeds={SEEDS}", "certify.episodes=5", "certify.champion_episodes=10"]
    words += ["cluster.num_cpus=2", "resources.max_concurrent=2", "report=false", "scheduler=none"]
    ledger, store = folder / "outputs" / NAME / "ledger.db", folder / "mlflow.db"
    moments: list[Callable[[], bool]] = [
        lambda ended=ended: _count(ledger, f"{RUNS} and state = 'COMPLETE'") >= ended  # type: ignore[misc]
        for ended in sorted(draw.choices(range(2 * SEEDS), k=max(0, kills - 2)))
    ]
    moments += [lambda: _count(store, "registered_models") > 0, lambda: _count(store, "model_versions") > 0][:kills]
    process, killed, trained = launch(folder, "-m", "rltune", "run", *words), 0, -1
    for number, come in enumerate(moments):
        last = number >= kills - 2  # in these two there is nothing left to train
        _train_on(process, ledger, -1 if last else trained)
        until(process, come, 0.005)
        pause(process, draw.uniform(0.0, 0.2 if last else 2.0))
        trained = _count(ledger, REPORTS)
        killed += kill(process)
        process = launch(folder, "-m", "rltune", "resume", f"sweep={NAME}")
    code = process.wait(PATIENCE_S)
    return {"killed": killed, "last_exit": code, **_certified(folder)}


def _train_on(process: subprocess.Popen[str], ledger: Path, trained: int) -> None:
    """Until this driver has trained certification's runs further."""
    until(process, lambda: _count(ledger, RUNS) > 0 and _count(ledger, REPORTS) > trained, 0.02)


def _count(path: Path, what: str) -> int:
    address = f"file:{path}?mode=ro"  # what is not there yet is not to be made
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as store:
        return int(store.execute(f"select count(*) from {what}").fetchone()[0])
    return 0


def _certified(folder: Path) -> dict[str, Any]:
    """What certification's books, MLflow and its registry say at the end."""
    from rltune.ledger.storage import open_ledger

    sweep = folder / "outputs" / NAME
    ledger = open_ledger(sweep)
    records, searched = ledger.runs.records(), [record.params for record in ledger.trials.records()]
    ledger.close()
    keys = Counter(record.key for record in records)
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
        runs = store.execute(
            "select r.name, r.status from runs r where r.lifecycle_stage = 'active' and r.name != ?", [NAME]
        ).fetchall()
        versions = store.execute("select count(*) from model_versions").fetchone()[0]
        aliases = store.execute("select alias, version from registered_model_aliases").fetchall()
    summary = json.loads((sweep / "summary.json").read_text())
    names = Counter(name for name, _ in runs)
    wanted = {record.name for record in records} | {f"trial-{n:03d}" for n in range(TRIALS)}
    if any(record.of_trial is None and record.params not in searched for record in records):
        wanted.add("baseline")  # Otherwise the runs of the baseline stand below the trial that has its values.
    points = compare_with_mlflow(sweep, None, f"sqlite:///{folder / 'mlflow.db'}")
    return {
        "runs": len(records),
        "of": SEEDS * len({str(record.params) for record in records}),
        "doubled": sum(count - 1 for count in keys.values()),
        "complete": sum(record.state == "COMPLETE" and len(record.returns) == 5 for record in records),
        **{key: points[key] for key in ("reports", "metrics", "missing_points", "doubled_points", "best_shown")},
        "mlflow_missing": sorted(wanted - set(names)),
        "mlflow_more": sorted(set(names) - wanted),
        "mlflow_doubled": sum(count - 1 for count in names.values()),
        "mlflow_not_finished": sum(status != "FINISHED" for _, status in runs),
        "versions": versions,
        "aliases": aliases,
        "summary_champion": (summary["model"] or {}).get("champion"),
        "left": sorted(path.name for path in sweep.iterdir() if path.name == ".tune"),
    }


def remote(folder: Path, whole: bool) -> dict[str, Any]:
    """An env runner in a process of its own that raises or hangs, under both engines: how its trial ends."""
    wanted = {
        ("raise", "fast"): "env runner died: ValueError: the pole broke",
        ("raise", "rllib"): "env runner died: ValueError: the pole broke",
        ("hang", "rllib"): "no progress for 60 s",
        ("hang", "fast"): "none of 1 env runners returned a fragment",
    }
    folder.mkdir(parents=True)
    (folder / "stumbling.py").write_text(STUMBLING)
    right, answers = 0, {}
    for (fault, engine), reason in list(wanted.items())[: None if whole else 2]:
        name = f"{fault}-{engine}"
        words = [f"name={name}", "algo=ppo", "env=gym", "env.id=stumbling:Stumbling-v0", "env.vectorize=sync"]
        words += [f"+env.kwargs.fault={fault}", f"engine={engine}", "algo.env_runners.num_env_runners=1"]
        words += ["budget.trials=1", "budget.env_steps=20000", "failures.max_retries=0", "failures.stall_s=60"]
        words += ["+algo.env_runners.sample_timeout_s=15", "certify=off", "report=false", "tracking=off"]
        code = launch(folder, "-m", "rltune", "run", *words, "cluster.num_cpus=2").wait(PATIENCE_S)
        (record,) = read_records(folder / "outputs" / name)
        found = f"{record.state}, {record.stop_reason}"
        right += reason in found and code == 1
        answers[name] = f"exit {code}: {found}".replace(str(folder), "")
    return {"cases": len(answers), "right": right, "answers": answers}


# -- limits of the machine ----------------------------------------------------------------------------------------


def full_disk(folder: Path) -> dict[str, Any]:
    """A sweep in a file system that fills up, and again with more room."""
    place = folder / "outputs"
    place.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", place], capture_output=True).returncode:
        return {"skipped": "only root may mount a small file system"}
    try:
        words = [f"name={NAME}", "budget.trials=8", "+space.ballast=1000000", "+space.seconds=0.02"]
        code = start(folder, "soak_sweep.py", "run", *words).wait(PATIENCE_S)
        said = "no room is left on the disk" in (folder / "output.txt").read_text()
        before = _whole(place / NAME)
        subprocess.run(["mount", "-o", "remount,size=200m", place], check=True)
        again = start(folder, "soak_sweep.py", "resume", NAME).wait(PATIENCE_S)
        after = books(place / NAME, 8, 0.02)
    finally:
        subprocess.run(["umount", place], check=False)
    return {"exit": code, "said_so": said, **before, "resume_exit": again, **after}


def _whole(sweep: Path) -> dict[str, Any]:
    """Whether what the ledger names is whole, and whom it blames."""
    from rltune.checkpoints.store import open_store

    with contextlib.closing(sqlite3.connect(sweep / "ledger.db")) as ledger:
        verdict = ledger.execute("pragma quick_check").fetchone()[0]
    records = read_records(sweep)
    written = [one for record in records for one in (record.latest, record.checkpoint) if one]
    return {
        "ledger": verdict,
        "checkpoints_damaged": sum(open_store(sweep).open(one) is None for one in written),
        "trials_blamed": sum(record.state == "FAIL" for record in records),
    }


def memory_limit(folder: Path) -> dict[str, Any]:
    """A trial that takes more and more memory until Ray kills its process, beside one that does not."""
    import psutil

    memory = psutil.virtual_memory()
    share = (memory.total - memory.available + 3e9) / memory.total
    words = [f"name={NAME}", "budget.trials=2", "warm_start=[{fault:null,quality:0.5},{fault:grow,quality:0.5}]"]
    words += ["+space.fault=[choice,null,grow]", "failures.max_retries=0", "+space.seconds=0.2"]
    limits = {"RAY_memory_usage_threshold": f"{share:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    code = launch(folder, str(HERE / "soak_sweep.py"), "run", *words, environment=limits).wait(PATIENCE_S)
    records = read_records(folder / "outputs" / NAME)
    ends = {str(record.params["fault"]): (record.state, record.stop_reason) for record in records}
    return {"exit": code, "ends": ends}
