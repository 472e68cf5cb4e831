"""What is recorded of trials: the ledger first, and nothing of it lost when somebody else fails."""

from __future__ import annotations

import errno
import math
import os
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opened import TuneTrial, make_assignments, make_proposals
from saved import open_checkpoint, write_checkpoint

from rltune.checkpoints.clients import STORAGE_AWAY, StoreUnavailableError
from rltune.checkpoints.store import open_store
from rltune.driver.stopper import SweepStopper
from rltune.driver.sweep import Sweep
from rltune.driver.tune.attempts import Attempts
from rltune.driver.tune.recorder import Recorder
from rltune.driver.tune.scheduler import StoppingRuleScheduler
from rltune.envs.guest import FOLLOWS_SEED
from rltune.ledger.disk_full import DISK_FULL
from rltune.records import TARGET_HELD, CheckpointRecord, TrialRecord
from rltune.search.schedulers import NoStopping, Stop
from rltune.secrets import reveal
from rltune.tracking.tracker import get_certified_score
from rltune.trial.supervisor import STACK_FILE

BUDGET = 1000


class Retries:
    """A kind of trials that keeps which of them were to be tried again."""

    def __init__(self, stage: Any) -> None:
        self.stage, self.table, self.retried = stage, stage.table, list[int]()

    def retry(self, record: TrialRecord) -> None:
        self.retried.append(record.number)
        self.stage.retry(record)

    def learn(self, record: TrialRecord) -> None:
        self.stage.learn(record)


class Trials:
    """Tune's trials of a sweep, and what Tune tells the recorder about them."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.ledger, self.stopper, self.folder = sweep, sweep.ledger, sweep.stopper, sweep.plan.folder
        self.stages = {"trials": Retries(make_proposals(sweep)), "certify": Retries(sweep.retraining)}
        self.scheduler = StoppingRuleScheduler(NoStopping(BUDGET))
        attempts = Attempts(sweep.plan.failures.max_retries, sweep.plan.failures.stop_after)
        self.recorder = Recorder(sweep, [*self.stages.values()], self.scheduler, attempts, make_assignments(sweep))

    @property
    def retried(self) -> list[int]:
        """The trials of the search that were to be tried again."""
        return self.stages["trials"].retried

    def begin(self, kind: str = "trials") -> TuneTrial:
        """Begin the trial that is proposed next: a new one, or one that is tried again."""
        record = self.stages[kind].stage.propose(False)
        task = {"number": record.number, "kind": kind, "build": {"gpus": 0.0}}
        trial = TuneTrial({"assignment": task})
        self.recorder.on_trial_start(0, [], trial)
        return trial

    def read_study(self) -> list[Any]:
        """What the sampler knows."""
        return self.sweep.search.study._study.trials

    def lose(self, trial: TuneTrial, said: str = "") -> None:
        """End its process; Tune writes what Ray says of it."""
        trial.error_file = str(self.folder / "error.txt")
        Path(trial.error_file).write_text(f"Failure # 1 (occurred at noon)\n{said}")
        self.recorder.on_trial_error(0, [], trial)

    def report(self, trial: TuneTrial, mark: int, objective: float, overshoot: int = 0, **more: Any) -> None:
        task = trial.config["assignment"]
        numbers = {"score": objective, "env_steps_per_s": 7.0, "learner/loss": 0.5, "train_s": 1.0}
        steps = {"nominal_steps": mark, "env_steps": mark + overshoot}
        trial.last_result = {"number": task["number"], **steps, **numbers, **more}
        self.recorder.on_trial_result(0, [], trial, trial.last_result)
        self.sweep.retention.drop_pending()

    def hand_back(self, trial: TuneTrial, env_steps: int, **more: Any) -> None:
        """A result that is no report."""
        trial.last_result = {"number": trial.config["assignment"]["number"], "env_steps": env_steps, "train_s": 1.0}
        self.recorder.on_trial_result(0, [], trial, trial.last_result | more)

    def end(self, trial: TuneTrial, **more: Any) -> None:
        trial.last_result |= more
        self.recorder.on_trial_complete(0, [], trial)
        self.sweep.retention.drop_pending()

    def save_report(self, trial: TuneTrial) -> None:
        """Report 100 steps more than the last time, with a checkpoint."""
        reached = max(self.ledger.trials.record(trial.config["assignment"]["number"]).reports, default=0) + 100
        self.report(trial, reached, 5.0, records={"latest": self.save(trial, reached).to_dict()})

    def save(self, trial: TuneTrial, env_steps: int) -> CheckpointRecord:
        state = {"env_steps": env_steps, "objective": 1.0}
        number = trial.config["assignment"]["number"]
        return write_checkpoint(self.folder, f"trials/{number}", "best", state)


@pytest.fixture
def trials(make_sweep: Callable[..., Sweep]) -> Trials:
    words = (
        "algo.env_runners.num_envs_per_env_runner=4",
        "budget.trials=64",
        f"budget.env_steps={BUDGET}",
        "failures.stop_after=3",
        "searcher=random",
    )
    return Trials(make_sweep(*words))


def test_a_report_is_kept_whole(trials):
    trial = trials.begin()
    trials.report(trial, 100, 5.0, overshoot=30, node="here")
    (kept,) = trials.ledger.trials.read_reports(0)
    assert kept.numbers == {
        "score": 5.0, "env_steps": 130, "env_steps_per_s": 7.0, "learner/loss": 0.5, "train_s": 1.0
    }  # fmt: skip
    assert (kept.nominal_steps, kept.env_steps) == (100, 130), "where it counts, and what it cost"
    assert abs(kept.time_s - time.time()) < 60
    assert (trials.ledger.trials.record(0).node, trials.stopper.env_steps) == ("here", 130)


def test_a_checkpoint_between_two_reports_is_no_report(trials):
    trial = trials.begin()
    trials.report(trial, 100, 5.0)
    saved = trials.save(trial, 150)
    trials.hand_back(trial, 150, records={"latest": saved.to_dict()})
    record = trials.ledger.trials.record(0)
    assert (record.env_steps, trials.stopper.env_steps) == (150, 150), "but it was paid for"
    assert (record.latest.path, list(record.reports)) == (saved.path, [100])


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_workers_wrong_clock_drops_and_swaps_no_checkpoint(trials, monkeypatch, ahead_s):
    """The first and the last worker's clocks differ by an hour from the one in between, and from the driver's."""
    trial, saved = trials.begin(), []
    for env_steps, wrong_s in ((100, ahead_s), (200, 0.0), (300, ahead_s)):
        now = time.time() + wrong_s
        with monkeypatch.context() as worker:
            worker.setattr(time, "time", lambda now=now: now)
            saved.append(trials.save(trial, env_steps))
        for path in (trials.folder / saved[-1].path).rglob("*"):
            os.utime(path, (now, now))
        trials.report(trial, env_steps, 5.0, records={"latest": saved[-1].to_dict()})
        assert trials.ledger.trials.record(0).latest.path == saved[-1].path
        assert [open_checkpoint(trials.folder, record) is not None for record in saved] == [
            record is saved[-1] for record in saved
        ]


def test_a_replaced_checkpoint_is_dropped_after_its_report(trials):
    trial = trials.begin()
    best, latest, newer = (trials.save(trial, env_steps) for env_steps in (100, 200, 300))
    unnamed = trials.save(trial, 50)
    trials.report(trial, 100, 5.0, records={"best": best.to_dict(), "latest": best.to_dict()})
    trials.report(trial, 200, 4.0, records={"latest": latest.to_dict()})
    trials.report(trial, 300, 3.0, records={"latest": newer.to_dict()})
    saved = (best, latest, newer, unnamed)
    assert [open_checkpoint(trials.folder, record) is not None for record in saved] == [True, False, True, True]
    trials.end(trial, failed="OSError: no state", cause="diverged")
    assert [open_checkpoint(trials.folder, record) is not None for record in saved] == [True, False, True, False]


def test_a_driver_without_its_lease_drops_nothing(trials, monkeypatch):
    def lose() -> None:
        raise RuntimeError("another driver has taken the sweep over")

    trial = trials.begin()
    trials.sweep.retention._check_lease = lose
    saved = [trials.save(trial, env_steps) for env_steps in (100, 200)]
    for record in saved:
        trials.report(trial, record.env_steps, 5.0, records={"latest": record.to_dict()})
    trials.end(trial, failed="OSError: no state", cause="diverged")
    assert all(open_checkpoint(trials.folder, record) for record in saved)


def save_replay(trials: Trials, trial: TuneTrial, env_steps: int) -> CheckpointRecord:
    home, state = f"trials/{trial.config['assignment']['number']}", {"env_steps": env_steps, "objective": 1.0}

    def fill(folder: Path) -> None:
        (folder / "replay" / "0").mkdir(parents=True)
        (folder / "replay" / "0" / "rows.npy").write_text("memory")

    return write_checkpoint(trials.folder, home, "latest", state, fill)


def test_a_trials_replay_memory_goes_when_it_has_ended(trials):
    kept = []
    for env_steps in (100, BUDGET):
        trial = trials.begin()
        kept.append(save_replay(trials, trial, env_steps))
        trials.report(trial, env_steps, 5.0, records={"latest": kept[-1].to_dict()})
        trials.end(trial)
    assert [record.state for record in trials.ledger.trials.records()] == ["RUNNING", "COMPLETE"]
    assert [(trials.folder / one.path / "replay").is_dir() for one in kept] == [True, False]
    assert open_checkpoint(trials.folder, kept[1])


def test_what_a_restore_could_not_bring_back_is_shown(trials):
    lost = "continues without its replay memory"
    trials.report(trials.begin(), 100, 5.0, notes=[lost])
    assert trials.sweep.console.notes == [f"trial 0 {lost}"]


def test_steps_that_are_trained_again_are_charged_once(trials):
    trial = trials.begin()
    for env_steps, objective in ((100, 1.0), (200, 2.0), (100, 9.0), (300, 3.0)):
        trials.report(trial, env_steps, objective)
    assert trials.ledger.trials.record(0).reports == {100: 1.0, 200: 2.0, 300: 3.0}
    assert trials.stopper.env_steps == 300


@pytest.mark.parametrize("how", [{"interrupted": True}, {"failed": "OSError: no state", "cause": "diverged"}])
def test_an_end_before_the_last_report_loses_no_costs(trials, how):
    """A resumed trial that is interrupted at once, or whose state cannot be restored, is back at an earlier step."""
    trial = trials.begin()
    trials.report(trial, 900, 5.0, train_s=90.0)
    trials.report(trial, 500, 4.0, train_s=50.0, **how)
    trials.end(trial)
    (record,) = trials.ledger.trials.records()
    assert (record.env_steps, record.train_s) == (900, 90.0)


@pytest.mark.parametrize(
    ("returns", "state", "score"),
    [([1.0, 3.0], "COMPLETE", 2.0), ([1.0, float("nan")], "FAIL", None), ([], "FAIL", None)],
)
def test_a_run_without_a_finite_return_has_failed(trials, returns, state, score):
    run = trials.begin("certify")
    trials.report(run, BUDGET, 5.0)
    trials.end(run, returns=returns)
    record = trials.ledger.runs.record(0)
    assert (record.state, record.score) == (state, score)
    assert trials.read_study() == [], "the sampler knows nothing of certification"
    assert trials.stopper.env_steps == 0, "the budget is the search's"


def test_a_run_keeps_the_returns_that_choose_beside_those_reported(trials):
    trial = trials.begin("certify")
    trials.report(trial, BUDGET, 5.0)
    trials.end(trial, returns=[1.0, 3.0], choice_returns=[7.0, 9.0])
    trials.ledger.runs.clear_cache()
    record = trials.ledger.runs.record(0)
    assert (record.returns, record.choice_returns, record.score) == ((1.0, 3.0), (7.0, 9.0), 2.0)


@pytest.mark.parametrize("kind", ["trials", "certify"])
def test_a_trial_that_ends_early_by_itself_is_complete(trials, kind):
    trial = trials.begin(kind)
    trials.report(trial, 400, 5.0)
    trials.end(trial, ended=TARGET_HELD, returns=[5.0, 7.0])
    record = trials.stages[kind].table.record(0)
    assert (record.state, record.stop_reason, record.target_steps) == ("COMPLETE", TARGET_HELD, 400)


def test_a_trial_without_an_episode_has_failed(trials):
    trial = trials.begin()
    trials.report(trial, BUDGET, float("nan"))
    trials.end(trial)
    record = trials.ledger.trials.record(0)
    assert record.state == "FAIL"
    assert "episode" in record.stop_reason
    assert trials.read_study()[0].state.is_finished()


def test_a_trial_that_diverged_is_stopped_at_once(trials):
    trial = trials.begin()
    trials.report(trial, 100, 5.0)
    trials.end(trial, failed="non-finite numbers: loss=nan", traceback="Traceback ...", cause="diverged")
    record = trials.ledger.trials.record(0)
    assert (record.state, record.diverged, record.traceback) == ("PRUNED", True, "Traceback ...")
    assert (trials.folder / record.log).is_file()
    assert trials.retried == [], "it would diverge again"


def test_an_exception_without_progress_counts_against_its_trial(trials):
    trial = trials.begin()
    for _ in range(4):  # Each of these attempts comes further than the one before.
        trials.save_report(trial)
        trials.end(trial, failed="ValueError: it broke", traceback="")
        trial = trials.begin()
    assert trials.retried == [0] * 4
    trials.end(trial, failed="ValueError: it broke", traceback="")
    assert (len(trials.retried), trials.ledger.trials.record(0).state) == (5, "RUNNING"), "failures.max_retries=1"
    trials.end(trials.begin(), failed="ValueError: it broke", traceback="")
    assert (len(trials.retried), trials.ledger.trials.record(0).state) == (5, "FAIL")
    assert not trials.stopper.is_requested()


def test_a_trial_fails_whose_attempts_end_no_episode(trials):
    for num_before in range(3):  # failures.stop_after=3; each of them comes further than the one before.
        trial = trials.begin()
        assert trials.retried == [0] * num_before
        trials.save_report(trial)
        trials.end(trial, failed="ConnectionResetError: gone", cause="environment", num_ended=0)
    record = trials.ledger.trials.record(0)
    assert (record.state, record.stop_reason, record.cause) == ("FAIL", "ConnectionResetError: gone", "environment")
    assert not trials.stopper.is_requested()


def test_the_attempt_after_a_failed_one_saves_early(trials):
    assignments = trials.recorder._assignments
    trial = trials.begin()
    assert not assignments.build(trials.ledger.trials.record(0)).saves_early
    trials.end(trial, failed="ValueError: it broke", traceback="")
    assert assignments.build(trials.ledger.trials.record(0)).saves_early


@pytest.mark.parametrize("kind", ["trials", "certify"])
def test_attempts_without_progress_interrupt_the_sweep(trials, kind):
    for number in range(3):
        assert not trials.stopper.is_requested()
        trials.end(trials.begin(kind), failed=f"non-finite numbers: loss=nan at {number}", cause="diverged")
    assert trials.stopper.interrupted
    assert "loss=nan" in trials.stopper.reason


def test_progress_of_any_trial_keeps_the_sweep_going(trials):
    other = trials.begin()
    for _ in range(4):
        trials.save_report(other)
        trials.end(trials.begin(), failed="non-finite numbers: loss=nan", cause="diverged")
    assert not trials.stopper.is_requested()


def test_what_the_rule_stopped_is_pruned(trials):
    trial = trials.begin()
    trials.report(trial, 200, 5.0)
    trials.scheduler._reasons[0] = Stop(150).reason
    trials.end(trial)
    record = trials.ledger.trials.record(0)
    assert record.state == "PRUNED"
    assert " 150 " in record.stop_reason
    assert trials.read_study()[0].state.is_finished()


def test_an_interrupted_trial_stays_running(trials):
    trial = trials.begin()
    trials.report(trial, 100, 5.0)
    trials.end(trial, interrupted=True)
    record = trials.ledger.trials.record(0)
    assert (record.state, record.stop_reason) == ("RUNNING", "interrupted")


def test_a_full_disk_ends_the_sweep_and_no_trial(trials, monkeypatch):
    trial = trials.begin()

    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trials.ledger.trials, "add_report", refuse)
    trials.report(trial, 100, 5.0)
    assert trials.stopper.reason == DISK_FULL
    assert trials.ledger.trials.record(0).state == "RUNNING"


@pytest.mark.parametrize("how", [{"interrupted": True}, {}, {"failed": "OSError: No space left on device"}])
def test_room_that_comes_back_too_late_leaves_no_hole(trials, monkeypatch, how):
    """The first report was lost: a later one must not be kept, or nobody would train the first one's steps again."""
    trial = trials.begin()
    trials.report(trial, 100, 5.0)

    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(trials.ledger.trials, "add_report", refuse)
        trials.report(trial, 200, 5.0)
    trials.report(trial, BUDGET, 6.0, records={"latest": trials.save(trial, BUDGET).to_dict()})
    trials.end(trial, **how)
    record = trials.ledger.trials.record(0)
    assert (record.state, record.stop_reason, list(record.reports)) == ("RUNNING", "interrupted", [100])
    assert (record.env_steps, record.latest) == (100, None)


def test_what_tune_keeps_of_the_stopper_holds_no_login(tmp_path: Path, request_of: Callable[..., Any]) -> None:
    config = request_of("tracking=server", "tracking.uri=http://me:s3cret@127.0.0.1:9")
    assert "s3cret" in reveal(config.tracking.uri)
    assert b"s3cret" not in pickle.dumps(SweepStopper(open_store(tmp_path), config.budget))


DIED = "Worker exit detail: SIGKILL\n\tip: 10.0.0.7\n"


def test_a_lost_process_counts_only_without_progress(trials):
    """With a step in between, however often; and no exception of an earlier attempt counts any more."""
    trial = trials.begin()
    for _ in range(6):
        trials.save_report(trial)
        trials.lose(trial, DIED)
        trial = trials.begin()
    trials.lose(trial, DIED)
    trials.lose(trials.begin(), DIED)
    assert trials.retried == [0] * 8
    assert not trials.stopper.is_requested()
    trials.lose(trials.begin(), DIED)
    assert (trials.stopper.has_failed, len(trials.retried)) == (True, 8)
    record = trials.ledger.trials.record(0)
    assert (record.state, record.cause) == ("FAIL", "lost process")
    assert "SIGKILL" in trials.stopper.reason


def test_a_trial_fails_that_dies_while_others_make_progress(trials):
    other, trial = trials.begin(), trials.begin()
    for _ in range(2):
        trials.lose(trial, DIED)
        trial = trials.begin()
    trials.save_report(other)
    trials.lose(trial, DIED)
    assert [trials.ledger.trials.record(number).state for number in (0, 1)] == ["RUNNING", "FAIL"]
    assert not trials.stopper.is_requested()


@pytest.mark.parametrize("said", ["OutOfMemoryError: killed", None])
def test_a_process_that_hung_or_took_all_memory_counts(trials, said):
    trial = trials.begin()
    if said is None:
        stack = trials.folder / "trials" / "0" / STACK_FILE
        stack.parent.mkdir(parents=True)
        stack.write_text("no progress for 2 s\nThread 0x1\n")
    trials.lose(trial, said or DIED)
    trials.lose(trials.begin(), said or DIED)
    assert (len(trials.retried), trials.ledger.trials.record(0).state) == (1, "FAIL"), "failures.max_retries=1"


def test_processes_that_all_end_alike_fail_the_sweep(trials):
    """An environment that ends its process would do so again, so that the same command must not be typed again."""
    for _ in range(3):
        trials.lose(trials.begin(), DIED)
    assert trials.stopper.is_requested()
    assert (trials.stopper.interrupted, trials.stopper.has_failed) == (False, True)
    record = trials.ledger.trials.record(0)
    assert (record.state, record.cause) == ("FAIL", "lost process")


@pytest.mark.parametrize("cause", ["environment", "reward", "observation", "unknown", "stalled"])
def test_the_ledger_has_the_cause_of_a_failure(trials, cause):
    for _ in range(2):
        trials.end(trials.begin(), failed="no", cause=cause, traceback="x: disk is full, StoreUnavailableError")
    record = trials.ledger.trials.record(0)
    assert (record.state, record.cause) == ("FAIL", cause)
    assert not trials.stopper.is_requested()


def test_a_worker_that_sees_a_full_disk_ends_the_sweep(trials):
    trials.end(trials.begin(), failed="OSError: x", cause="disk full")
    assert trials.stopper.reason == DISK_FULL
    assert trials.ledger.trials.record(0).state == "RUNNING"


def test_a_process_lost_while_the_sweep_ends_is_interrupted(trials):
    trial = trials.begin()
    trials.stopper.request("interrupted", 15)
    trials.lose(trial, DIED)
    record = trials.ledger.trials.record(0)
    assert (record.state, record.stop_reason, trials.retried) == ("RUNNING", "interrupted", [])


def test_a_lost_env_runner_does_not_count_against_its_trial(trials):
    died = {"failed": "ActorDiedError: The actor died", "cause": "lost process"}
    for _ in range(2):
        trials.end(trials.begin(), **died)
    assert len(trials.retried) == 2


def test_a_node_that_sees_nothing_costs_no_trial(trials):
    for _ in range(3):
        trial = trials.begin()
        trials.hand_back(trial, 0)
        trials.end(trial, failed="output_dir=/shared: not on node far", cause="outage", node="far")
    assert {record.state for record in trials.ledger.trials.records()} == {"RUNNING"}
    assert trials.stopper.interrupted
    assert "/shared: not on node far" in trials.stopper.reason


def test_a_bad_node_fails_no_trial_while_others_make_progress(trials):
    other, trial = trials.begin(), trials.begin()
    for _ in range(4):
        trials.hand_back(trial, 0)
        trials.end(trial, failed="output_dir=/shared: not on node far", cause="outage", node="far")
        trials.save_report(other)
        trial = trials.begin()
    assert len(trials.retried) == 4
    assert not trials.stopper.is_requested()


def test_a_bucket_that_only_one_node_cannot_reach_ends_nothing(trials, monkeypatch):
    monkeypatch.setattr(trials.sweep.store, "read", lambda name, is_quick: None)
    for _ in range(2):
        trial = trials.begin()
        trials.end(trial, failed="StoreUnavailableError: x", cause="outage", node="n2")
    assert trials.retried == [0, 0]
    assert not trials.stopper.is_requested()


def test_a_bucket_that_does_not_answer_is_no_trials_fault(trials, monkeypatch):
    def read(name, is_quick):
        raise StoreUnavailableError("", "a storage", "later", key="storage", value="s3://x")

    monkeypatch.setattr(trials.sweep.store, "read", read)
    trial = trials.begin()
    trials.hand_back(trial, 0)
    trials.end(trial, failed="StoreUnavailableError: storage=s3://x", cause="outage")
    assert trials.stopper.reason == STORAGE_AWAY
    assert trials.ledger.trials.record(0).stop_reason == "interrupted"


def test_a_checkpoint_that_lies_elsewhere_interrupts_the_sweep(trials):
    """Whatever the trial reports afterwards is not recorded, as nobody could go on from there."""
    trial = trials.begin()
    elsewhere = CheckpointRecord("trials/0/first/best-100", 100, 5.0, "digest").to_dict()
    trials.report(trial, 100, 5.0, records={"best": elsewhere}, node="far")
    assert trials.stopper.interrupted
    assert "node far" in trials.stopper.reason
    trials.report(trial, BUDGET, 6.0)
    trials.end(trial)
    record = trials.ledger.trials.record(0)
    assert (record.state, record.stop_reason, list(record.reports)) == ("RUNNING", "interrupted", [])


@pytest.mark.parametrize("name", ["add_report", "end"])
def test_what_the_ledger_does_not_take_interrupts_the_sweep(trials, monkeypatch, name):
    def refuse(*args: Any, **more: Any) -> None:
        raise RuntimeError("no answer")

    trial = trials.begin()
    with monkeypatch.context() as broken:
        broken.setattr(trials.ledger.trials, name, refuse)
        trials.report(trial, BUDGET, 5.0)
        trials.end(trial)
    assert trials.stopper.interrupted
    assert "no answer" in trials.stopper.reason
    assert trials.ledger.trials.record(0).state == "RUNNING"


def test_steps_since_the_last_report_are_charged(trials, monkeypatch):
    """One that does not hand back in time, in the midst of its first iteration, has cost what it has cost."""
    trials.begin()
    trials.begin()
    read = iter([{"trials/0": 480, "trials/1": 7}, {"trials/0": 500}])
    monkeypatch.setattr("rltune.driver.display.read_steps", lambda *_: next(read))
    trials.sweep.search.heartbeats.update()
    assert trials.ledger.trials.record(0).env_steps == 0
    trials.sweep.search.heartbeats.update()
    trials.recorder.on_experiment_end([])
    assert [trials.ledger.trials.record(number).env_steps for number in (0, 1)] == [500, 0]
    assert trials.stopper.env_steps == 500


def test_no_episode_has_ended_is_noted_once_and_early(trials):
    """With the copies and the steps of each, and what to type; the trial's own reason says it at its end."""
    first, second = trials.begin(), trials.begin()
    trials.report(first, 100, math.nan)
    assert not trials.sweep.console.notes
    for trial in (first, second):
        trials.report(trial, 200, math.nan)
    (note,) = trials.sweep.console.notes
    assert all(word in note for word in ("50 steps", "4 copies", "max_episode_steps=25 ", "num_envs_per_env_runner=1"))
    trials.report(first, BUDGET, math.nan)
    trials.end(first)
    record = trials.ledger.trials.record(0)
    assert (record.state, "each of 4 copies has taken 250 steps" in record.stop_reason) == ("FAIL", True)


def test_a_trial_that_fails_in_each_episode_names_its_failure(trials):
    """And not the missing time limit: the environment's own failure ends each episode before it ends."""
    trial = trials.begin()
    trials.report(trial, 100, math.nan, records={"latest": trials.save(trial, 100).to_dict()})
    trials.end(trial, failed="the reward is None by step 30", cause="reward")
    again = trials.begin()
    trials.report(again, BUDGET, math.nan)
    trials.end(again)
    record = trials.ledger.trials.record(0)
    assert (record.state, record.cause) == ("FAIL", "reward")
    assert record.stop_reason.startswith("the reward is None by step 30")


UNSCORED = {"episodes": 40, "recent_episodes": 20, "scored_episodes": 0}


def test_a_trial_whose_episodes_have_no_score_says_what_to_type(trials):
    trial = trials.begin()
    trials.report(trial, BUDGET, math.nan, **UNSCORED)
    trials.end(trial)
    record = trials.ledger.trials.record(0)
    assert (record.state, "objective.missing=0" in record.stop_reason) == ("FAIL", True)
    (note,) = trials.sweep.console.notes
    assert "objective.missing=0" in note


def test_episodes_without_a_score_are_noted_once(trials):
    first, second = trials.begin(), trials.begin()
    for trial in (first, second):
        trials.report(trial, 100, 5.0, **UNSCORED | {"scored_episodes": 15})
    (note,) = trials.sweep.console.notes
    assert "15 of 20" in note
    assert "objective.missing=0" in note
    trials.report(first, BUDGET, 5.0)
    trials.end(first)
    assert trials.ledger.trials.record(0).state == "COMPLETE"


def test_a_run_keeps_the_metrics_of_its_episodes(trials):
    run = trials.begin("certify")
    trials.report(run, BUDGET, 5.0, **{"episode/energy": 2.0, "episodes_with/energy": 9, "recent_episodes": 9})
    trials.end(run, returns=[1.0, 3.0], metrics={"episode/energy": [None, 4.0]})
    trials.ledger.runs.clear_cache()
    record = trials.ledger.runs.record(0)
    assert record.metrics == {"episode/energy": [None, 4.0]}
    assert record.numbers["episode/energy"] == 2.0
    assert get_certified_score(record) == {"certified_score": 2.0, "certified_episode/energy": 4.0}


def test_nothing_is_noted_once_an_episode_has_ended(trials):
    first, second = trials.begin(), trials.begin()
    trials.report(first, 100, 5.0)
    trials.report(second, 500, math.nan)
    assert not trials.sweep.console.notes


@pytest.mark.parametrize(
    ("cause", "is_named"), [("environment", True), ("diverged", False), ("lost process", False), ("repeated", False)]
)
def test_a_failure_of_the_environment_names_restarts_once(trials, cause, is_named):
    for trial in (trials.begin(), trials.begin()):
        trials.hand_back(trial, 50)
        trials.end(trial, failed="ValueError: no", cause=cause)
    notes = trials.sweep.console.notes
    named = [note for note in notes if "env.restarts=3" in note]
    assert len(named) == is_named
    assert all(re.search(r"retry sweep=\S+( output_dir=\S+)? env.restarts=3$", note) for note in named)
    assert sum(FOLLOWS_SEED[1] in note for note in notes) == (cause == "repeated")
