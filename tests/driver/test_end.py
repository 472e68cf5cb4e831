"""The one end of a sweep: the same command repairs it after a kill, and it needs no cluster."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joined import clean_environment, ray_head
from mlflow import MlflowClient
from saved import write_checkpoint
from server import put_store

from rltune.driver import end as module
from rltune.driver.end import end_sweep, leave_without_head
from rltune.driver.open_sweep import OpenSweep
from rltune.records import Report

# The functions of the end, in their order; the driver is killed just before one of them runs.
STEPS = (
    "rltune.driver.end.select_winner",
    "rltune.driver.end.register_winner",
    "rltune.driver.end.save_outcome",
    "rltune.driver.end.publish_outcome",
    "rltune.views.html.try_report",
    "rltune.driver.publish._describe_sweep",
    "rltune.driver.publish.make_closing_page",
    "rltune.driver.end._drop_training_states",
    "rltune.driver.publish.notify_end",
    "rltune.ledger.ledger.Ledger.change_sweep",
)
# This types one command again and again, with a toy in the place of a trial. Each run is forked, so that there is one
# import. Each run but the last two is killed just before one of the steps.
SCRIPT = """
import json
import multiprocessing
import os
import pkgutil
import signal
import sqlite3
import sys

import alembic.command
import mlflow.pyfunc
import rltune.driver.end
import rltune.driver.plan
import rltune.driver.tune.fit
import rltune.policies.mlflow_model
import rltune.views.plotly_figures
from composing import compose
from tests.driver.policy_toy import PolicyToyTrial
from rltune.config.validation import parse_config
from rltune.driver.run import run_sweep
from toy import TOY

rltune.driver.plan.preflight = lambda plan: None
steps, *words = sys.argv[1:]


def kill_before(step):
    owner, _, name = step.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    function = getattr(owner, name)

    def kill(*args, **values):
        if name != "change_sweep" or values.get("status", "running") != "running":
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **values)

    setattr(owner, name, kill)


def run(step):
    if step:
        kill_before(step)
    words_of_run = ("name=toy", "resume=auto", "cluster=address", *words)
    sys.exit(run_sweep(parse_config(compose("run", *TOY, *words_of_run)), trainable=PolicyToyTrial).exit_code)


ends = []
for step in (*steps.split(), "", ""):
    process = multiprocessing.get_context("fork").Process(target=run, args=(step,))
    process.start()
    process.join()
    with sqlite3.connect("outputs/toy/ledger.db") as ledger:
        (status,) = ledger.execute("SELECT status FROM sweeps").fetchone()
    with open("notified", "a+") as file:
        file.seek(0)
        ends.append((process.exitcode, status, file.read().count('"status": "complete"')))
with open("ends", "w") as file:
    json.dump(ends, file)
"""


@pytest.mark.slow
def test_the_same_command_repairs_a_kill_at_every_step(tmp_path: Path) -> None:
    put_store(tmp_path)
    with ray_head(num_cpus=2, RAY_AUTH_MODE="disabled") as address:
        words = (f"cluster.address={address}", "budget.trials=2", "report=true", "tracking.register=true")
        words += ("certify.champion_episodes=2", "notify='cat >> notified; echo >> notified'")
        env = clean_environment(tmp_path, {"RAY_AUTH_MODE": "disabled"})
        command = [sys.executable, "-c", SCRIPT, " ".join(STEPS), *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
    ends = json.loads((tmp_path / "ends").read_text())
    assert ends == [
        *([-9, "running", 0] for _ in STEPS[:-1]),
        [-9, "running", 1],  # This driver was killed after it had sent its notification.
        [0, "complete", 2],
        [0, "complete", 2],  # A sweep that has ended does not end a second time.
    ], done.stdout + done.stderr
    summary = json.loads((tmp_path / "outputs/toy/summary.json").read_text())
    assert (summary["status"], summary["model"]["version"], summary["model"]["champion"]) == ("complete", "1", True)
    assert (tmp_path / "outputs/toy/report/index.html").is_file()
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cartpole")
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 3, "one parent and two trials"
    assert len([run for run in runs if "mlflow.parentRunId" not in run.data.tags]) == 1
    (version,) = client.search_model_versions("name='cartpole-ppo'")
    assert client.get_model_version_by_alias("cartpole-ppo", "champion").version == version.version
    assert len(client.search_logged_models([experiment.experiment_id])) == 1


# -- without the head of the cluster -----------------------------------------------------------------------------------


class Exited(BaseException):
    """The process has ended."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes of the process."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Exited

    monkeypatch.setattr(module.os, "_exit", leave)
    return codes


def add_running_trial(sweep: OpenSweep) -> None:
    """A trial that has reported once."""
    sweep.ledger.trials.add({}, [1], drawn={})
    sweep.ledger.trials.start(0)
    state = {"env_steps": 100, "objective": 1.0}
    saved = write_checkpoint(sweep.context.folder, "trials/0", "best", state, lambda folder: None)
    sweep.ledger.trials.add_report(Report(0, 100, 1.0), {"checkpoint": saved})


def test_a_sweep_ends_without_the_head_of_its_cluster(open_mine: Callable[..., Any], exits: list[int]) -> None:
    with open_mine("certify=off") as sweep:
        add_running_trial(sweep)
        folder = sweep.context.folder
        with pytest.raises(Exited):
            leave_without_head(sweep)
    assert exits == [75]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["trials"]["interrupted"]) == ("interrupted", 1)
    with sqlite3.connect(folder / "ledger.db") as ledger:
        assert ledger.execute("SELECT status FROM sweeps").fetchone() == ("interrupted",)
        assert ledger.execute("SELECT released FROM leases").fetchone() == (1,)


def test_an_end_that_hangs_ends_the_process_in_time(
    open_mine: Callable[..., Any], exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(module, "LEAVE_S", 0.2)
    monkeypatch.setattr(module, "select_winner", lambda *_: released.wait(60))
    with open_mine("certify=off") as sweep:
        began = time.monotonic()
        with pytest.raises(Exited):
            leave_without_head(sweep)
        assert time.monotonic() - began < 5.0
        released.set()
    assert exits == [75]


def test_an_end_that_has_begun_may_come_to_its_end(open_mine: Callable[..., Any], exits: list[int]) -> None:
    with open_mine("certify=off", "report=false") as sweep:
        outcome = end_sweep(sweep)
        leave_without_head(sweep)
        assert (outcome.status, sweep.ledger.sweep().status) == ("failed", "failed")
    assert exits == []
