"""Soak: drivers killed, signalled and doubled; see ``benchmarks/soak.py``."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.soak_books import books

HERE = Path(__file__).resolve().parent
NAME = "soak"
PATIENCE_S = 300


def start(folder: Path, script: str, *words: str) -> subprocess.Popen[str]:
    """Start a driver of this folder's scripts."""
    return launch(folder, str(HERE / script), *words)


def launch(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Type ``python <words>`` in a folder, whose modules it finds; what it writes goes to ``output.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(HERE.parent / "src"), str(HERE.parent), str(HERE.parent / "tests" / "support"), str(folder)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_", "TUNE_"))}
    kept |= {"PYTHONPATH": os.pathsep.join(paths), "MLFLOW_DISABLE_TELEMETRY": "true", **(environment or {})}
    with (folder / "output.txt").open("a") as out:
        out.write(f"== {' '.join(words)}\n")
        out.flush()
        return subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=kept, stdout=out, stderr=out, text=True, start_new_session=True
        )


def moments(kills: int, seed: int) -> list[tuple[str, float]]:
    """When each driver is killed: early, while a checkpoint is being written, or after so many seconds of training."""
    draw = random.Random(seed)
    kinds = [("early", draw.uniform(0.1, 2.0)) for _ in range(kills // 4)]
    kinds += [("writing", draw.uniform(0.0, 1.0)) for _ in range(kills // 4)]
    kinds += [("training", draw.uniform(0.0, 3.0)) for _ in range(kills - len(kinds))]
    draw.shuffle(kinds)
    return kinds


def _iterations(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("trained/*"))


def wait_for(process: subprocess.Popen[str], folder: Path, kind: str, seconds: float, drafts: str) -> None:
    """Until the moment has come, or the driver has ended by itself."""
    if kind == "early":
        pause(process, seconds)
        return
    before = _iterations(folder)
    until(process, lambda: _iterations(folder) > before + 1)
    pause(process, seconds)
    if kind == "writing":
        until(process, lambda: any(folder.glob(drafts)), 0.001)


def pause(process: subprocess.Popen[str], seconds: float) -> None:
    """So long, or until the driver has ended by itself."""
    deadline = time.monotonic() + seconds
    until(process, lambda: time.monotonic() >= deadline)


def until(process: subprocess.Popen[str], true: Callable[[], bool], every_s: float = 0.02) -> None:
    """Until it is true, or the driver has ended by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and not true():
        if time.monotonic() > deadline:
            raise TimeoutError("a driver came no further")
        time.sleep(every_s)


def kill(process: subprocess.Popen[str]) -> bool:
    """SIGKILL to the driver alone; False when it had ended."""
    alive = process.poll() is None
    if alive:
        process.kill()
    process.wait()
    return alive


def ours(
    folder: Path, trials: int, kills: int, seconds: float, seed: int, storage: str | None = None
) -> dict[str, Any]:
    """Our sweep through the storm, its ledger in its folder or in ``storage``."""
    saving, where = 0.05, [f"study.storage={storage}"] if storage else []
    words = [
        f"name={NAME}",
        f"budget.trials={trials}",
        f"algo.training.learner_config_dict.seconds={seconds}",
        "checkpoint.every_s=1",
    ]
    words += ["+space.seconds=" + str(seconds), f"+space.saving={saving}", *where]
    process = start(folder, "soak_sweep.py", "run", *words)
    killed, sweep = 0, folder / "outputs" / NAME
    for kind, moment in moments(kills, seed):
        wait_for(process, folder, kind, moment, f"outputs/{NAME}/trials/*/.*-*")
        killed += kill(process)
        born = (sweep / "config.yaml").exists()
        process = start(folder, "soak_sweep.py", *(("resume", NAME, *where) if born else ("run", *words)))
    code = process.wait(PATIENCE_S)
    text = (folder / "output.txt").read_text()
    failed = [line for line in text.splitlines() if line.startswith(("error:", "Traceback"))]
    told = {"kills": kills, "killed": killed, "last_exit": code, "failed_resumes": failed}
    return {**told, **books(sweep, trials, seconds + saving, storage)}


def ours_in_postgres(folder: Path, trials: int, kills: int, seconds: float, seed: int) -> dict[str, Any]:
    """Our sweep through the storm, its ledger and Optuna's study in a PostgreSQL server."""
    import postgres

    if reason := postgres.missing():
        return {"skipped": reason}
    with postgres.server() as address:
        return ours(folder, trials, kills, seconds, seed, postgres.database(address, "studies"))


def signals(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """First signals at drawn moments: exit codes and seconds; each driver goes on with the last one's sweep.

    Every fourth comes while the driver starts its Ray. The last driver is left alone until the sweep has ended.
    """
    draw, trials = random.Random(seed), 2 * count
    words = [f"name={NAME}", f"budget.trials={trials}", "+space.seconds=0.1"]
    codes, took, told = [], [], 0
    process = start(folder, "soak_sweep.py", "run", *words)
    for turn in range(count):
        number = draw.choice((signal.SIGINT, signal.SIGTERM))
        if turn % 4 == 3:
            until(process, lambda process=process: _starts_ray(process))  # type: ignore[misc]
            pause(process, draw.uniform(0.0, 1.0))
        else:
            wait_for(process, folder, "training", draw.uniform(0.0, 1.0), "")
        began = time.monotonic()
        process.send_signal(number)
        code = process.wait(60)
        took.append(time.monotonic() - began)
        codes.append(code == 128 + number)
        told += f"resume sweep={NAME}" in (folder / "output.txt").read_text().rpartition("== ")[2]
        process = start(folder, "soak_sweep.py", "resume", NAME)
    told_all = {"signals": count, "right_codes": sum(codes), "resume_named": told, "longest_s": round(max(took), 1)}
    last = process.wait(PATIENCE_S)
    return {**told_all, "last_exit": last, **books(folder / "outputs" / NAME, trials, 0.1)}


def _starts_ray(process: subprocess.Popen[str]) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return any("gcs_server" in child.name() for child in psutil.Process(process.pid).children(recursive=True))
    return False
