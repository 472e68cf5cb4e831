"""The one end of a sweep: the same command repairs it after a kill, and it needs no cluster."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joined import clean_environment
from mlflow import MlflowClient
from saved import write_checkpoint
from server import put_store

from rltune.config.settings_file import write_settings
from rltune.driver import end as module
from rltune.driver.end import SweepEnd, register_winner, save_outcome, select_winner
from rltune.driver.publish import publish_outcome
from rltune.driver.starting import find_end
from rltune.driver.sweep import Sweep
from rltune.envs.child import CallGivenUpError
from rltune.ledger.outcome import load_outcome
from rltune.policies.policy import load_policy
from rltune.policies.result import Evaluation
from rltune.records import Report
from rltune.tracking.mlflow_tracker import MLflowTracker
from rltune.tracking.model_registry import RegistryError
from tests.policies.bundles import BOX, write_linear

# The functions of the end, in their order; the driver is killed just before one of them runs.
STEPS = (
    "rltune.driver.end.select_winner",
    "rltune.driver.end.register_winner",
    "rltune.driver.end.save_outcome",
    "rltune.driver.end.publish_outcome",
    "rltune.views.html.try_report",
    "rltune.driver.publish._describe_sweep",
    "rltune.tracking.notification.describe_outcome",
    "rltune.driver.publish.describe_end",
    "rltune.driver.end._drop_training_states",
    "rltune.ledger.ledger.Ledger.change_sweep",
)
# This types one command again and again. Each run is forked, so that there is one import, and is killed just before one
# of the steps, except for the last two. No run needs a Ray: the first one finds its trials trained.
SCRIPT = """
import contextlib
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
import rltune.driver.run
import rltune.driver.tune.fit
import rltune.policies.mlflow_model
import rltune.views.plotly_figures
from composing import compose
from listener import listen
from rltune.cluster.resources import Machine
from rltune.config.validation import parse_config
from rltune.records import Report
from saved import write_checkpoint
from tests.policies.bundles import BOX, write_linear
from toy import TOY

rltune.driver.plan.preflight = lambda *_: ()
rltune.driver.run.RayStart.nodes = [Machine(2, 0)]
rltune.driver.run.RayStart.start = lambda ray, *called: called
steps, *words = sys.argv[1:]


def run_trials(sweep):
    env, steps = sweep.plan.build.env.to_dict(), sweep.plan.budget.env_steps
    for number, objective in enumerate((10.0, 30.0)):
        sweep.ledger.trials.add({}, [1], drawn={})
        sweep.ledger.trials.start(number)
        state = {"env_steps": steps, "objective": objective}
        folder = sweep.plan.folder
        saved = write_checkpoint(
            folder, f"trials/{number}", "best", state, lambda folder: write_linear(folder / "policy", BOX, env)
        )
        sweep.ledger.trials.add_report(Report(number, steps, objective), {"checkpoint": saved}, train_s=1.0)
        sweep.ledger.trials.end(number, "COMPLETE", "whole budget")


rltune.driver.tune.fit.run_trials = run_trials


def kill_before(step):
    owner, _, name = step.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    function = getattr(owner, name)

    def kill(*args, **values):
        if name != "change_sweep" or values.get("status", "running") != "running":
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **values)

    setattr(owner, name, kill)


def run(config, step):
    if step:
        kill_before(step)
    sys.exit(rltune.driver.run.run_sweep(config).exit_code)


ends = []
with listen() as server:
    config = parse_config(compose("run", *TOY, "name=toy", "resume=auto", *words, f"notify=http://{server.host}/"))
    for step in (*steps.split(), "", ""):
        process = multiprocessing.get_context("fork").Process(target=run, args=(config, step))
        process.start()
        process.join()
        with sqlite3.connect("outputs/toy/ledger.db") as ledger:
            (status,) = ledger.execute("SELECT status FROM sweeps").fetchone()
        ends.append((process.exitcode, status, [end["status"] for end in server.contents].count("complete")))
with open("ends", "w") as file:
    json.dump(ends, file)
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [pytest.param(STEPS, marks=pytest.mark.nightly), (STEPS[1], STEPS[4], *STEPS[-3:])])
def test_the_same_command_repairs_a_kill_at_every_step(tmp_path: Path, steps: tuple[str, ...]) -> None:
    put_store(tmp_path)
    words = ("budget.trials=2", "report=true", "tracking.register=true", "certify.champion_episodes=2")
    command = [sys.executable, "-c", SCRIPT, " ".join(steps), *words]
    env = clean_environment(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = json.loads((tmp_path / "ends").read_text())
    assert ends == [
        *([-9, "running", 0] for _ in steps[:-3]),
        *([-9, "running", number] for number in (1, 2, 3)),  # These drivers were killed after the notification.
        [0, "complete", 4],
        [0, "complete", 4],  # A sweep that has ended does not end a second time.
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

    monkeypatch.setattr("os._exit", leave)
    return codes


def add_running_trial(sweep: Sweep) -> None:
    """A trial that has reported once."""
    sweep.ledger.trials.add({}, [1], drawn={})
    sweep.ledger.trials.start(0)
    state = {"env_steps": 100, "objective": 1.0}
    saved = write_checkpoint(sweep.plan.folder, "trials/0", "best", state, lambda folder: None)
    sweep.ledger.trials.add_report(Report(0, 100, 1.0), {"checkpoint": saved})


def test_a_sweep_ends_without_the_head_of_its_cluster(
    open_mine: Callable[..., Any], exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = []
    monkeypatch.setattr("rltune.driver.signals._calls_at_exit", [errors.append])
    with open_mine("certify=off") as sweep:
        add_running_trial(sweep)
        folder = sweep.plan.folder
        with pytest.raises(Exited):
            SweepEnd(sweep).leave_without_head()
    assert exits == [75]
    assert [error.exit_code for error in errors] == [75], "so that a command can print it"
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
            SweepEnd(sweep).leave_without_head()
        assert time.monotonic() - began < 30.0
        released.set()
    assert exits == [75]


def test_an_end_that_has_begun_may_come_to_its_end(open_mine: Callable[..., Any], exits: list[int]) -> None:
    with open_mine("certify=off", "report=false") as sweep:
        end = SweepEnd(sweep)
        outcome = end.run()
        end.leave_without_head()
        assert (outcome.status, sweep.ledger.sweep().status) == ("failed", "failed")
        assert outcome.reason, "why there is no winner"
    assert exits == []


def add_trial(
    sweep: Sweep,
    number: int,
    objective: float,
    fill: Callable[[Path], Any] = lambda folder: None,
    train_s: float = 1.0,
) -> None:
    """A whole trial; without files, nobody can play its policy, so that the search's word is all there is."""
    sweep.ledger.trials.add({}, [1], drawn={})
    steps = sweep.plan.budget.env_steps
    state = {"env_steps": steps, "objective": objective}
    saved = write_checkpoint(sweep.plan.folder, f"trials/{number}", "best", state, fill)
    sweep.ledger.trials.add_report(Report(number, steps, objective), {"checkpoint": saved}, train_s=train_s)
    sweep.ledger.trials.end(number, "COMPLETE", "whole budget")


@pytest.mark.parametrize("signal", [None, 2])
def test_the_searchs_best_wins_where_none_can_be_evaluated(open_mine: Callable[..., Any], signal: int | None) -> None:
    with open_mine("certify=off") as sweep:
        for number, objective in enumerate((10.0, 30.0)):
            add_trial(sweep, number, objective)
        if signal:
            sweep.stopper.request("interrupted", signal)
        winner, certification = select_winner(sweep, sweep.ledger.trials.records())
        assert winner is not None
        assert (winner.trial, winner.evaluation, certification) == (1, None, None)
        if signal:
            assert register_winner(sweep, winner, None) == (None, None)


@pytest.mark.parametrize(("signal", "exit_code"), [(2, 130), (15, 143)])
def test_a_signal_leaves_the_evaluation_to_a_resume(
    open_mine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, signal: int, exit_code: int
) -> None:
    class Process:
        def __init__(self, *_: Any) -> None:
            """Stand in for a process that plays for ever."""

        def call(self, *_: Any, is_given_up: Callable[[], bool], **__: Any) -> None:
            sweep.stopper.request("interrupted", signal)
            while not is_given_up():
                time.sleep(0.01)
            raise CallGivenUpError

    monkeypatch.setattr("rltune.driver.end.Child", Process)
    with open_mine("certify=off", "certify.top=1") as sweep:
        add_trial(sweep, 0, 10.0, lambda folder: write_linear(folder / "policy", BOX))
        records = sweep.ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        assert winner is not None
        assert (winner.trial, winner.evaluation, certification) == (0, None, None)
        outcome = save_outcome(sweep, records, winner, certification, None)
    assert (outcome.status, outcome.exit_code) == ("interrupted", exit_code)


def test_a_finalist_that_samples_does_so_wherever_it_is_loaded(
    open_mine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has the checkpoint that says so, and so has the winner."""
    decision = {"deterministic": False, "episodes": 20, "deterministic_mean": -9.0, "sampled_mean": 1.0, "cut": 0}

    def fill(folder: Path) -> None:
        write_linear(folder / "policy", BOX)
        (folder / "episodes.json").write_text('{"evaluated": 0, "recent": [[1, 1.0, 1, 1.0], [2, 1.0, 1, 1.0]]}')

    decided = []

    class Process:
        def __init__(self, *_: Any) -> None:
            """Stand in for a process of its own."""

        def call(self, function: str, arguments: Any, **_: Any) -> dict[str, Any]:
            if function.endswith(":choose_acting"):
                decided.append(arguments["folder"])
                return decision
            episodes = arguments["episodes"]
            return Evaluation((1.0,) * episodes, (1,) * episodes, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0).to_dict()

    monkeypatch.setattr("rltune.driver.end.Child", Process)
    with open_mine("certify=off", "certify.top=1") as sweep:
        add_trial(sweep, 0, 10.0, fill)
        records = sweep.ledger.trials.records()
        winner, _ = select_winner(sweep, records)
        kept = sweep.store.open(sweep.ledger.trials.record(0).checkpoint)
        assert kept is not None
        assert not load_policy(kept).deterministic
        again, _ = select_winner(sweep, sweep.ledger.trials.records())
        assert winner is not None
        assert again is not None
        assert again.folder == winner.folder == kept
        assert len(decided) == 1, "once"


def test_a_budget_that_left_nothing_for_certification_is_named(
    open_mine: Callable[..., Any], stream: io.StringIO
) -> None:
    with open_mine("certify.seeds=2", "budget.wall_time_s=1") as sweep:
        add_trial(sweep, 0, 10.0)
        sweep.stopper.request("budget.wall_time_s is spent")
        winner, certification = select_winner(sweep, sweep.ledger.trials.records())
        assert (winner is None, certification) == (False, None)
    lines = stream.getvalue().splitlines()
    assert any("not certified" in line and "budget.wall_time_s" in line for line in lines)


@pytest.mark.parametrize(
    ("kinds", "is_registered"),
    [("mlflow", True), ("rltune.tracking.mlflow_tracker:MLflowTracker", True), ("tensorboard", False)],
)
def test_a_winner_is_registered_however_mlflow_is_named(
    open_mine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kinds: str, is_registered: bool
) -> None:
    monkeypatch.setattr(module, "register_champion", lambda *_: {"version": "1"})
    monkeypatch.setattr(MLflowTracker, "open", lambda _: pytest.fail("no server is needed"))
    with open_mine("certify=off", f"tracking.kinds=[{kinds}]", "tracking.register=true") as sweep:
        add_trial(sweep, 0, 10.0)
        winner, _ = select_winner(sweep, sweep.ledger.trials.records())
        model, unregistered = register_winner(sweep, winner, None)
        assert (bool(model), unregistered) == (is_registered, None)
        sweep.tracker.abandon()


def test_a_winner_that_mlflow_does_not_take_is_registered_later(
    open_mine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RegistryError("no answer in time")

    monkeypatch.setattr(module, "register_champion", refuse)
    monkeypatch.setattr(MLflowTracker, "open", lambda _: pytest.fail("no server is needed"))
    with open_mine("certify=off", "tracking.kinds=[mlflow]", "tracking.register=true") as sweep:
        add_trial(sweep, 0, 10.0)
        records = sweep.ledger.trials.records()
        winner, _ = select_winner(sweep, records)
        model, unregistered = register_winner(sweep, winner, None)
        outcome = save_outcome(sweep, records, winner, None, model, unregistered)
        sweep.tracker.abandon()
        sweep.ledger.change_sweep(status=outcome.status)
        assert (outcome.status, outcome.exit_code, outcome.model) == ("complete", 0, None)
        write_settings(sweep.plan.folder, sweep.plan.given_settings)
        assert json.loads((sweep.plan.folder / "summary.json").read_text())["unregistered"] == "no answer in time"
        assert find_end(sweep.plan.folder, None) is None, "the same command has this left to do"
        save_outcome(sweep, records, winner, None, {"version": "1"})
        assert find_end(sweep.plan.folder, None) is not None


def test_an_interrupted_sweep_registers_nothing_yet(open_mine: Callable[..., Any]) -> None:
    with open_mine("certify=off") as sweep:
        add_trial(sweep, 0, 10.0)
        sweep.stopper.interrupt("nothing works")
        records = sweep.ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        assert winner is not None
        assert register_winner(sweep, winner, certification) == (None, None)
        outcome = save_outcome(sweep, records, winner, certification, None)
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("interrupted", 75, "nothing works")


@pytest.mark.parametrize(
    ("reason", "signal", "wins", "status", "exit_code"),
    [
        (None, None, True, "complete", 0),
        ("budget.wall_time_s is spent", None, True, "stopped", 0),
        ("no trial has reported a return, so there is no winner", None, False, "failed", 1),
        ("interrupted", 15, True, "interrupted", 143),
        ("interrupted", 2, False, "interrupted", 130),
    ],
)
def test_the_outcome_says_how_a_sweep_ended(
    open_mine: Callable[..., Any],
    reason: str | None,
    signal: int | None,
    wins: bool,
    status: str,
    exit_code: int,
) -> None:
    with open_mine("certify=off") as sweep:
        if wins:
            add_trial(sweep, 0, 10.0)
        records = sweep.ledger.trials.records()
        winner, _ = select_winner(sweep, records)
        if reason and status != "failed":
            sweep.stopper.request(reason, signal)
        outcome = save_outcome(sweep, records, winner, None, None)
        assert (outcome.status, outcome.exit_code, outcome.reason) == (status, exit_code, reason)
        assert json.loads((sweep.plan.folder / "summary.json").read_text())["status"] == status


def test_a_time_limit_without_a_winner_is_no_success(open_mine: Callable[..., Any]) -> None:
    with open_mine("certify=off") as sweep:
        sweep.ledger.trials.add({}, [1], drawn={})  # It has not reported.
        sweep.stopper.request("budget.wall_time_s is spent")
        records = sweep.ledger.trials.records()
        outcome = save_outcome(sweep, records, *select_winner(sweep, records), None)
        loaded = load_outcome(sweep.plan.folder)
    assert (outcome.status, outcome.winner, outcome.exit_code) == ("stopped", None, 1)
    assert loaded is not None
    assert loaded.exit_code == 1, "by watch and by a resume that has nothing to do, too"


def test_without_the_clusters_head_a_sweep_is_interrupted(open_mine: Callable[..., Any]) -> None:
    with open_mine("certify=off") as sweep:
        add_trial(sweep, 0, 10.0)
        sweep.stopper.lose_head()
        records = sweep.ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        assert register_winner(sweep, winner, None) == (None, None), "there are seconds left"
        outcome = save_outcome(sweep, records, winner, certification, None)
    assert (outcome.status, outcome.exit_code) == ("interrupted", 75)
    assert "head" in outcome.reason


def add_seconds(sweep: Sweep, *seconds: float) -> None:
    """Whole trials that took so long; the longer, the better."""
    for number, train_s in enumerate(seconds):
        add_trial(sweep, number, objective=train_s, train_s=train_s)


def test_the_best_that_keeps_the_constraint_wins(open_mine: Callable[..., Any], stream: io.StringIO) -> None:
    criteria = ('constraints.train_s="< 60"', "objective.second.key=train_s")
    with open_mine("certify=off", "report=false", *criteria) as sweep:
        add_seconds(sweep, 30.0, 60.0, 59.0, 90.0)
        records = sweep.ledger.trials.records()
        winner, _ = select_winner(sweep, records)
        assert winner is not None
        assert winner.trial == 2
        outcome = save_outcome(sweep, records, winner, None, None)
        assert (outcome.status, outcome.reason) == ("complete", None)
        assert [(one["trial"], one["train_s"]) for one in outcome.front or ()] == [(2, 59.0), (0, 30.0)]
        publish_outcome(sweep, records, outcome, None)
    page = " ".join(stream.getvalue().split())
    assert "4 complete" in page
    assert "2 of them" in page, "those that break the constraint"
    assert re.findall(r"\b(\d+) complete(?:, winner)? \d+ \d+ \*", page) == ["2", "0"], "the front"


def test_a_sweep_ends_with_the_nearest_where_all_break_it(open_mine: Callable[..., Any], stream: io.StringIO) -> None:
    with open_mine("certify=off", "report=false", 'constraints.train_s="< 20"') as sweep:
        add_seconds(sweep, 30.0, 25.0, 90.0)
        records = sweep.ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        assert (winner, certification) == (None, None)
        outcome = save_outcome(sweep, records, winner, None, None)
        assert (outcome.status, outcome.exit_code, outcome.front) == ("failed", 1, None)
        publish_outcome(sweep, records, outcome, None)
    assert outcome.reason is not None
    assert "trial 1" in outcome.reason, "the nearest"
    assert "train_s=25" in outcome.reason
    assert outcome.reason[1:] in stream.getvalue()
