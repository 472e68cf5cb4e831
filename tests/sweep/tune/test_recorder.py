"""What is recorded of trials: the ledger first, and nothing of it lost when somebody else fails."""

from __future__ import annotations

import errno
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger import make_ledger

from rltune.records import CheckpointRecord
from rltune.search.schedulers import Exploit, Stop
from rltune.study.checkpoints import is_whole, write_checkpoint
from rltune.sweep.stopper import SweepStopper
from rltune.sweep.tune.recorder import Recorder
from rltune.sweep.tune.stages import Stage

BUDGET = 1000


class Sweep:
    """A recorder over a real ledger; who shows trials keeps only what it was asked for."""

    def __init__(self, folder: Path, config: Any) -> None:
        self.folder, self.notes, self.told, self.retried = folder, [], [], []
        self.ledger = make_ledger(folder)
        self.stopper = SweepStopper(folder, config)
        self.scheduler = SimpleNamespace(decisions={})
        self.tracker = SimpleNamespace(wake=lambda connect=False: None, opening=True, warnings=lambda: [])
        self.study = SimpleNamespace(tell=self.told.append)
        console = SimpleNamespace(
            show_start=lambda record: None, show_report=lambda report: None, show_end=lambda record, where="": None
        )
        proposer = SimpleNamespace(retry=self.retried.append)
        self.stages = [Stage(table, proposer, console) for table in (self.ledger.trials, self.ledger.runs)]
        self.recorder = Recorder(
            self.stages, self.study, self.scheduler, self.tracker, self.stopper, config, self.notes.append, lambda: None
        )

    def begin(self, kind: str = "trials") -> Any:
        """Tune's trial, begun."""
        record = self.ledger.table(kind).add({"lr": 0.1, "clip": 0.2}, [1], drawn={"lr": 0.1})
        task = {"number": record.number, "kind": kind, "latest": None, "best_objective": None, "best_path": None}
        meta = SimpleNamespace(metric_analysis={}, metric_n_steps={}, last_result={})
        trial = SimpleNamespace(config={"assignment": task}, last_result={}, run_metadata=meta, error_file=None)
        self.recorder.on_trial_start(0, [], trial)
        return trial

    def report(self, trial: Any, env_steps: int, objective: float, **more: Any) -> None:
        task = trial.config["assignment"]
        numbers = {"objective": objective, "env_steps_per_s": 7.0, "learner/loss": 0.5, "train_s": 1.0}
        trial.last_result = {"number": task["number"], "env_steps": env_steps, **numbers, **more}
        self.recorder.on_trial_result(0, [], trial, trial.last_result)

    def end(self, trial: Any, **more: Any) -> None:
        trial.last_result |= more
        self.recorder.on_trial_complete(0, [], trial)

    def save(self, trial: Any, env_steps: int) -> CheckpointRecord:
        state = {"env_steps": env_steps, "objective": 1.0}
        number = trial.config["assignment"]["number"]
        return write_checkpoint(self.folder, f"trials/{number}", "best", state, lambda folder: None)


@pytest.fixture
def sweep(tmp_path: Path, request_of: Callable[..., Any]) -> Sweep:
    return Sweep(tmp_path, request_of("tracking=off", f"budget.env_steps={BUDGET}", "failures.stop_after=2"))


def test_a_report_is_kept_whole(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0, node="here")
    (kept,) = sweep.ledger.trials.read_reports(0)
    assert kept.numbers == {"objective": 5.0, "env_steps_per_s": 7.0, "learner/loss": 0.5, "train_s": 1.0}
    assert abs(kept.time_s - time.time()) < 60
    assert (sweep.ledger.trials.record(0).node, sweep.stopper.env_steps) == ("here", 100)


def test_a_checkpoint_between_two_reports_is_no_report(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0)
    saved = sweep.save(trial, 150)
    sweep.report(trial, 150, 5.0, between=True, records={"latest": saved.to_dict()})
    record = sweep.ledger.trials.record(0)
    assert (record.latest.path, list(record.reports)) == (saved.path, [100])
    assert trial.config["assignment"]["latest"] == record.latest.to_dict(), "a worker that dies starts again from it"


def test_the_newer_checkpoint_is_the_one_that_came_later(sweep):
    """Clocks of a cluster's nodes differ: that of the first worker runs an hour ahead."""
    trial = sweep.begin()
    for env_steps, ahead_s in ((100, 3600.0), (200, 0.0)):
        saved = sweep.save(trial, env_steps).to_dict()
        sweep.report(trial, env_steps, 5.0, records={"latest": saved | {"saved_s": saved["saved_s"] + ahead_s}})
    assert trial.config["assignment"]["latest"]["env_steps"] == 200
    assert sweep.ledger.trials.record(0).latest.saved_s < time.time() + 60


def test_steps_that_are_trained_again_are_charged_once(sweep):
    trial = sweep.begin()
    for env_steps, objective in ((100, 1.0), (200, 2.0), (100, 9.0), (300, 3.0)):
        sweep.report(trial, env_steps, objective)
    assert sweep.ledger.trials.record(0).reports == {100: 1.0, 200: 2.0, 300: 3.0}
    assert sweep.stopper.env_steps == 300


@pytest.mark.parametrize("how", [{"interrupted": True}, {"failed": "OSError: no state", "diverged": True}])
def test_an_end_before_the_last_report_loses_no_costs(sweep, how):
    """A resumed trial that is interrupted at once, or whose state cannot be restored, is back at an earlier step."""
    trial = sweep.begin()
    sweep.report(trial, 900, 5.0, train_s=90.0)
    sweep.report(trial, 500, 4.0, train_s=50.0, **how)
    sweep.end(trial)
    (record,) = sweep.ledger.trials.records()
    assert (record.env_steps, record.train_s) == (900, 90.0)


@pytest.mark.parametrize(
    ("returns", "state", "score"),
    [([1.0, 3.0], "COMPLETE", 2.0), ([1.0, float("nan")], "FAIL", None), ([], "FAIL", None)],
)
def test_a_run_without_a_finite_return_has_failed(sweep, returns, state, score):
    run = sweep.begin("certify")
    sweep.report(run, BUDGET, 5.0)
    sweep.end(run, returns=returns)
    record = sweep.ledger.runs.record(0)
    assert (record.state, record.score) == (state, score)
    assert sweep.told == [], "the sampler knows nothing of certification"
    assert sweep.stopper.env_steps == 0, "the budget is the search's"


def test_a_trial_without_an_episode_has_failed(sweep):
    trial = sweep.begin()
    sweep.report(trial, BUDGET, float("nan"))
    sweep.end(trial)
    assert (sweep.told[0].state, sweep.told[0].stop_reason[:16]) == ("FAIL", "no episode ended")


def test_a_trial_that_diverged_is_stopped_at_once(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0)
    sweep.end(trial, failed="non-finite numbers: loss=nan", traceback="Traceback ...", diverged=True)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.diverged, record.traceback) == ("PRUNED", True, "Traceback ...")
    assert (sweep.folder / record.log).is_file()
    assert sweep.retried == [], "it would diverge again"


def test_a_failure_is_tried_once_more(sweep):
    trial = sweep.begin()
    sweep.end(trial, failed="ValueError: it broke", traceback="")
    assert [record.number for record in sweep.retried] == [0]
    assert sweep.ledger.trials.record(0).state == "RUNNING"


def test_the_sweep_is_given_up_when_all_fail_alike(sweep):
    for number in range(2):
        trial = sweep.begin()
        sweep.end(trial, failed=f"non-finite numbers: loss=nan at {number}", diverged=True)
    assert sweep.stopper.failed


def test_a_run_that_fails_says_nothing_about_the_search(sweep):
    for _ in range(2):
        sweep.end(sweep.begin("certify"), failed="non-finite numbers", diverged=True)
    assert not sweep.stopper.failed


def test_what_the_rule_stopped_is_pruned(sweep):
    trial = sweep.begin()
    sweep.report(trial, 200, 5.0)
    sweep.scheduler.decisions[0] = Stop(150)
    sweep.end(trial)
    assert (sweep.told[0].state, sweep.told[0].stop_reason[-34:]) == ("PRUNED", "scheduler at 150 environment steps")


def test_a_trial_exploits_another(sweep):
    source, trial = sweep.begin(), sweep.begin()
    best = sweep.save(source, 100)
    sweep.report(source, 100, 9.0, records={"best": best.to_dict()})
    sweep.report(trial, 100, 1.0)
    sweep.scheduler.decisions[1] = Exploit(0, {"lr": 0.3})
    sweep.end(trial)
    (record,) = sweep.retried
    assert (record.number, record.state, dict(record.params)) == (1, "RUNNING", {"lr": 0.3, "clip": 0.2})
    assert record.latest.path.startswith("trials/1/latest-")
    assert is_whole(sweep.folder, record.latest)
    assert sweep.told == [], "it has not ended"


def test_nothing_to_exploit_costs_the_trial_nothing(sweep):
    _, trial = sweep.begin(), sweep.begin()
    sweep.scheduler.decisions[1] = Exploit(0, {"lr": 0.3})
    sweep.end(trial)
    (record,) = sweep.retried
    assert (record.params["lr"], record.latest) == (0.1, None)


def test_an_interrupted_trial_stays_running(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0)
    sweep.end(trial, interrupted=True)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.stop_reason) == ("RUNNING", "interrupted")


def test_optuna_that_fails_costs_nothing(sweep, monkeypatch):
    def tell(record: Any) -> None:
        raise RuntimeError("database is locked")

    monkeypatch.setattr(sweep.study, "tell", tell)
    trial = sweep.begin()
    sweep.report(trial, BUDGET, 5.0)
    sweep.end(trial)
    assert sweep.ledger.trials.record(0).state == "COMPLETE"
    assert "Optuna was not told of trial 0" in sweep.notes[0]


def test_a_full_disk_ends_the_sweep_and_no_trial(sweep, monkeypatch):
    trial = sweep.begin()

    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sweep.ledger.trials, "add_report", refuse)
    sweep.report(trial, 100, 5.0)
    assert sweep.stopper.reason == "no room is left on the disk"
    assert sweep.ledger.trials.record(0).state == "RUNNING"


@pytest.mark.parametrize("how", [{"interrupted": True}, {}, {"failed": "OSError: No space left on device"}])
def test_room_that_comes_back_too_late_leaves_no_hole(sweep, monkeypatch, how):
    """The first report was lost: a later one must not be kept, or nobody would train the first one's steps again."""
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0)

    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(sweep.ledger.trials, "add_report", refuse)
        sweep.report(trial, 200, 5.0)
    sweep.report(trial, BUDGET, 6.0, records={"latest": sweep.save(trial, BUDGET).to_dict()})
    sweep.end(trial, **how)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.stop_reason, list(record.reports)) == ("RUNNING", "interrupted", [100])
    assert (record.env_steps, record.latest) == (100, None)


def test_what_tune_keeps_of_the_stopper_holds_no_login(tmp_path: Path, request_of: Callable[..., Any]) -> None:
    config = request_of("tracking=server", "tracking.uri=http://me:s3cret@127.0.0.1:9")
    assert "s3cret" in config.tracking.uri
    assert b"s3cret" not in pickle.dumps(SweepStopper(tmp_path, config))
