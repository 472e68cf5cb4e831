"""What is recorded of trials: the ledger first, and nothing of it lost when somebody else fails."""

from __future__ import annotations

import errno
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger import make_ledger
from saved import open_checkpoint, write_checkpoint

from rltune.checkpoints.clients import STORAGE_AWAY, StoreUnavailableError
from rltune.checkpoints.retention import Retention
from rltune.checkpoints.store import open_store
from rltune.cluster.resources import Share
from rltune.driver.stopper import SweepStopper
from rltune.driver.tune import recorder as module
from rltune.driver.tune.assignments import Assignments
from rltune.driver.tune.attempts import Attempts
from rltune.driver.tune.recorder import Recorder
from rltune.driver.tune.scheduler import StoppingRuleScheduler
from rltune.ledger.disk_full import DISK_FULL
from rltune.records import CheckpointRecord, TrialRecord
from rltune.search.schedulers import NoStopping, Stop
from rltune.secrets import reveal
from rltune.trial.supervisor import STACK_FILE

BUDGET = 1000
AWAY, UNSHARED = (f"rltune.checkpoints.clients.{name}: ..." for name in ("StoreUnavailableError", "UnsharedStoreError"))


class Sweep:
    """A recorder over a real ledger."""

    def __init__(self, folder: Path, config: Any, ledger: Any = None) -> None:
        self.folder, self.config, self.notes, self.told, self.retried = folder, config, [], [], []
        self.ledger = ledger or make_ledger(folder)
        self.stopper = SweepStopper(open_store(folder), config)
        self.store = open_store(folder)
        self.scheduler = StoppingRuleScheduler(NoStopping(BUDGET))
        self.retention = Retention(open_store(folder), lambda: None)
        self.tracker = SimpleNamespace(wake=lambda connect=False: None, opening=True, warnings=lambda: [])
        self.study = SimpleNamespace(tell=self.told.append)
        self.beats: dict[str, int] = {}
        self.heartbeats = SimpleNamespace(read=lambda: self.beats)
        self.console = SimpleNamespace(note=self.notes.append)
        tables = (self.ledger.trials, self.ledger.runs)
        stages = [SimpleNamespace(table=table, retry=self.retried.append) for table in tables]
        self.attempts = Attempts(config.failures.max_retries, config.failures.stop_after)
        self.share = Share(1.0, 0.0, 0)
        self.recorder = Recorder(self, stages, self.scheduler, self.attempts, Assignments(self))

    def begin(self, kind: str = "trials") -> Any:
        """Tune's trial, begun."""
        return self._start(self.ledger.table(kind).add({"lr": 0.1, "clip": 0.2}, [1], drawn={"lr": 0.1}))

    def _start(self, record: TrialRecord) -> Any:
        task = {"number": record.number, "kind": record.kind, "latest": None, "older": None, "best": None}
        task["build"] = {"gpus": 0.0}
        meta = SimpleNamespace(metric_analysis={}, metric_n_steps={}, last_result={})
        trial = SimpleNamespace(
            config={"assignment": task}, last_result={}, run_metadata=meta, error_file=None, trial_id=record.name,
        )  # fmt: skip
        self.recorder.on_trial_start(0, [], trial)
        return trial

    def begin_again(self, number: int = 0) -> Any:
        """Tune's trial of the next attempt."""
        return self._start(self.ledger.trials.record(number))

    def lose(self, trial: Any, said: str = "") -> None:
        """End its process; Tune writes what Ray says of it."""
        trial.error_file = str(self.folder / "error.txt")
        Path(trial.error_file).write_text(f"Failure # 1 (occurred at noon)\n{said}")
        self.recorder.on_trial_error(0, [], trial)

    def report(self, trial: Any, mark: int, objective: float, overshoot: int = 0, **more: Any) -> None:
        task = trial.config["assignment"]
        numbers = {"score": objective, "env_steps_per_s": 7.0, "learner/loss": 0.5, "train_s": 1.0}
        steps = {"nominal_steps": mark, "env_steps": mark + overshoot}
        trial.last_result = {"number": task["number"], **steps, **numbers, **more}
        self.recorder.on_trial_result(0, [], trial, trial.last_result)
        self.retention.drop_pending()

    def hand_back(self, trial: Any, env_steps: int, **more: Any) -> None:
        """A result that is no report."""
        trial.last_result = {"number": trial.config["assignment"]["number"], "env_steps": env_steps, "train_s": 1.0}
        self.recorder.on_trial_result(0, [], trial, trial.last_result | more)

    def end(self, trial: Any, **more: Any) -> None:
        trial.last_result |= more
        self.recorder.on_trial_complete(0, [], trial)
        self.retention.drop_pending()

    def save_report(self, trial: Any) -> None:
        """Report 100 steps more than the last time, with a checkpoint."""
        reached = max(self.ledger.trials.record(trial.config["assignment"]["number"]).reports, default=0) + 100
        self.report(trial, reached, 5.0, records={"latest": self.save(trial, reached).to_dict()})

    def save(self, trial: Any, env_steps: int) -> CheckpointRecord:
        state = {"env_steps": env_steps, "objective": 1.0}
        number = trial.config["assignment"]["number"]
        return write_checkpoint(self.folder, f"trials/{number}", "best", state)


@pytest.fixture(autouse=True)
def living_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "wait_for_head", lambda: None)


@pytest.fixture
def sweep(tmp_path: Path, request_of: Callable[..., Any]) -> Sweep:
    words = ("tracking=off", f"budget.env_steps={BUDGET}", "failures.stop_after=3", "cluster=address")
    return Sweep(tmp_path, request_of(*words))


def test_a_report_is_kept_whole(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0, overshoot=30, node="here")
    (kept,) = sweep.ledger.trials.read_reports(0)
    assert kept.numbers == {
        "score": 5.0, "env_steps": 130, "env_steps_per_s": 7.0, "learner/loss": 0.5, "train_s": 1.0
    }  # fmt: skip
    assert (kept.nominal_steps, kept.env_steps) == (100, 130), "where it counts, and what it cost"
    assert abs(kept.time_s - time.time()) < 60
    assert (sweep.ledger.trials.record(0).node, sweep.stopper.env_steps) == ("here", 130)


def test_a_checkpoint_between_two_reports_is_no_report(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0)
    saved = sweep.save(trial, 150)
    sweep.hand_back(trial, 150, records={"latest": saved.to_dict()})
    record = sweep.ledger.trials.record(0)
    assert (record.env_steps, sweep.stopper.env_steps) == (150, 150), "but it was paid for"
    assert (record.latest.path, list(record.reports)) == (saved.path, [100])


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_workers_wrong_clock_drops_and_swaps_no_checkpoint(sweep, monkeypatch, ahead_s):
    """The first and the last worker's clocks differ by an hour from the one in between, and from the driver's."""
    trial, saved = sweep.begin(), []
    for env_steps, wrong_s in ((100, ahead_s), (200, 0.0), (300, ahead_s)):
        now = time.time() + wrong_s
        with monkeypatch.context() as worker:
            worker.setattr(time, "time", lambda now=now: now)
            saved.append(sweep.save(trial, env_steps))
        for path in (sweep.folder / saved[-1].path).rglob("*"):
            os.utime(path, (now, now))
        sweep.report(trial, env_steps, 5.0, records={"latest": saved[-1].to_dict()})
        assert sweep.ledger.trials.record(0).latest.path == saved[-1].path
        assert [open_checkpoint(sweep.folder, record) is not None for record in saved] == [
            record is saved[-1] for record in saved
        ]


def test_a_replaced_checkpoint_is_dropped_after_its_report(sweep):
    trial = sweep.begin()
    best, latest, newer = (sweep.save(trial, env_steps) for env_steps in (100, 200, 300))
    unnamed = sweep.save(trial, 50)
    sweep.report(trial, 100, 5.0, records={"best": best.to_dict(), "latest": best.to_dict()})
    sweep.report(trial, 200, 4.0, records={"latest": latest.to_dict()})
    sweep.report(trial, 300, 3.0, records={"latest": newer.to_dict()})
    saved = (best, latest, newer, unnamed)
    assert [open_checkpoint(sweep.folder, record) is not None for record in saved] == [True, False, True, True]
    sweep.end(trial, failed="OSError: no state", diverged=True)
    assert [open_checkpoint(sweep.folder, record) is not None for record in saved] == [True, False, True, False]


def test_a_driver_without_its_lease_drops_nothing(sweep, monkeypatch):
    def lose() -> None:
        raise RuntimeError("another driver has taken the sweep over")

    trial = sweep.begin()
    sweep.retention._check_lease = lose
    saved = [sweep.save(trial, env_steps) for env_steps in (100, 200)]
    for record in saved:
        sweep.report(trial, record.env_steps, 5.0, records={"latest": record.to_dict()})
    sweep.end(trial, failed="OSError: no state", diverged=True)
    assert all(open_checkpoint(sweep.folder, record) for record in saved)


def save_replay(sweep: Sweep, trial: Any, env_steps: int) -> CheckpointRecord:
    home, state = f"trials/{trial.config['assignment']['number']}", {"env_steps": env_steps, "objective": 1.0}

    def fill(folder: Path) -> None:
        (folder / "replay" / "0").mkdir(parents=True)
        (folder / "replay" / "0" / "rows.npy").write_text("memory")

    return write_checkpoint(sweep.folder, home, "latest", state, fill)


def test_a_trials_replay_memory_goes_when_it_has_ended(sweep):
    kept = []
    for env_steps in (100, BUDGET):
        trial = sweep.begin()
        kept.append(save_replay(sweep, trial, env_steps))
        sweep.report(trial, env_steps, 5.0, records={"latest": kept[-1].to_dict()})
        sweep.end(trial)
    assert [record.state for record in sweep.ledger.trials.records()] == ["RUNNING", "COMPLETE"]
    assert [(sweep.folder / one.path / "replay").is_dir() for one in kept] == [True, False]
    assert open_checkpoint(sweep.folder, kept[1])


def test_what_a_restore_could_not_bring_back_is_shown(sweep):
    lost = "continues without its replay memory"
    sweep.report(sweep.begin(), 100, 5.0, notes=[lost])
    assert sweep.notes == [f"trial 0 {lost}"]


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
    assert sweep.told[0].state == "FAIL"
    assert "episode" in sweep.told[0].stop_reason


def test_a_trial_that_diverged_is_stopped_at_once(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0)
    sweep.end(trial, failed="non-finite numbers: loss=nan", traceback="Traceback ...", diverged=True)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.diverged, record.traceback) == ("PRUNED", True, "Traceback ...")
    assert (sweep.folder / record.log).is_file()
    assert sweep.retried == [], "it would diverge again"


def test_an_exception_without_progress_counts_against_its_trial(sweep):
    trial = sweep.begin()
    for _ in range(4):  # Each of these attempts comes further than the one before.
        sweep.save_report(trial)
        sweep.end(trial, failed="ValueError: it broke", traceback="")
        trial = sweep.begin_again()
    assert [record.number for record in sweep.retried] == [0] * 4
    sweep.end(trial, failed="ValueError: it broke", traceback="")
    assert (len(sweep.retried), sweep.ledger.trials.record(0).state) == (5, "RUNNING"), "failures.max_retries=1"
    sweep.end(sweep.begin_again(), failed="ValueError: it broke", traceback="")
    assert (len(sweep.retried), sweep.ledger.trials.record(0).state) == (5, "FAIL")
    assert not sweep.stopper.is_requested()


@pytest.mark.parametrize("kind", ["trials", "certify"])
def test_attempts_without_progress_interrupt_the_sweep(sweep, kind):
    for number in range(3):
        assert not sweep.stopper.is_requested()
        sweep.end(sweep.begin(kind), failed=f"non-finite numbers: loss=nan at {number}", diverged=True)
    assert sweep.stopper.interrupted
    assert "loss=nan" in sweep.stopper.reason


def test_progress_of_any_trial_keeps_the_sweep_going(sweep):
    other = sweep.begin()
    for _ in range(4):
        sweep.save_report(other)
        sweep.end(sweep.begin(), failed="non-finite numbers: loss=nan", diverged=True)
    assert not sweep.stopper.is_requested()


def test_what_the_rule_stopped_is_pruned(sweep):
    trial = sweep.begin()
    sweep.report(trial, 200, 5.0)
    sweep.scheduler._reasons[0] = Stop(150).reason
    sweep.end(trial)
    assert sweep.told[0].state == "PRUNED"
    assert " 150 " in sweep.told[0].stop_reason


def test_an_interrupted_trial_stays_running(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0)
    sweep.end(trial, interrupted=True)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.stop_reason) == ("RUNNING", "interrupted")


def test_a_full_disk_ends_the_sweep_and_no_trial(sweep, monkeypatch):
    trial = sweep.begin()

    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sweep.ledger.trials, "add_report", refuse)
    sweep.report(trial, 100, 5.0)
    assert sweep.stopper.reason == DISK_FULL
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
    assert "s3cret" in reveal(config.tracking.uri)
    assert b"s3cret" not in pickle.dumps(SweepStopper(open_store(tmp_path), config))


DIED = "Worker exit detail: SIGKILL\n\tip: 10.0.0.7\n"


def test_a_lost_process_does_not_count_against_its_trial(sweep):
    """With a step in between, however often; and no exception of an earlier attempt counts any more."""
    trial = sweep.begin()
    for _ in range(6):
        sweep.save_report(trial)
        sweep.lose(trial, DIED)
        trial = sweep.begin_again()
    sweep.lose(trial, DIED)
    sweep.lose(sweep.begin_again(), DIED)
    assert [record.number for record in sweep.retried] == [0] * 8
    assert not sweep.stopper.is_requested()
    sweep.lose(sweep.begin_again(), DIED)
    assert (sweep.stopper.interrupted, len(sweep.retried)) == (True, 8)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.stop_reason) == ("RUNNING", "interrupted")
    assert "SIGKILL" in sweep.stopper.reason


def test_a_trial_fails_that_dies_while_others_make_progress(sweep):
    other, trial = sweep.begin(), sweep.begin()
    for _ in range(2):
        sweep.lose(trial, DIED)
        trial = sweep.begin_again(1)
    sweep.save_report(other)
    sweep.lose(trial, DIED)
    assert [sweep.ledger.trials.record(number).state for number in (0, 1)] == ["RUNNING", "FAIL"]
    assert not sweep.stopper.is_requested()


@pytest.mark.parametrize("said", ["OutOfMemoryError: killed", None])
def test_a_process_that_hung_or_took_all_memory_counts(sweep, said):
    trial = sweep.begin()
    if said is None:
        stack = sweep.folder / "trials" / "0" / STACK_FILE
        stack.parent.mkdir(parents=True)
        stack.write_text("no progress for 2 s\n")
    sweep.lose(trial, said or DIED)
    sweep.lose(sweep.begin_again(), said or DIED)
    assert (len(sweep.retried), sweep.ledger.trials.record(0).state) == (1, "FAIL"), "failures.max_retries=1"


def test_a_process_lost_while_the_sweep_ends_is_interrupted(sweep):
    trial = sweep.begin()
    sweep.stopper.request("interrupted", 15)
    sweep.lose(trial, DIED)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.stop_reason, sweep.retried) == ("RUNNING", "interrupted", [])


def test_a_lost_env_runner_does_not_count_against_its_trial(sweep):
    died = {"failed": "ActorDiedError: The actor died", "traceback": "ray.exceptions.ActorDiedError: it died"}
    for _ in range(2):
        sweep.end(sweep.begin() if not sweep.retried else sweep.begin_again(), **died)
    assert len(sweep.retried) == 2


def test_a_node_that_sees_nothing_costs_no_trial(sweep):
    for _ in range(3):
        trial = sweep.begin()
        sweep.hand_back(trial, 0)
        sweep.end(trial, failed="output_dir=/shared: not on node far", traceback=UNSHARED, node="far")
    assert {record.state for record in sweep.ledger.trials.records()} == {"RUNNING"}
    assert sweep.stopper.interrupted
    assert "/shared: not on node far" in sweep.stopper.reason


def test_a_bad_node_fails_no_trial_while_others_make_progress(sweep):
    other, trial = sweep.begin(), sweep.begin()
    for _ in range(4):
        sweep.hand_back(trial, 0)
        sweep.end(trial, failed="output_dir=/shared: not on node far", traceback=UNSHARED, node="far")
        sweep.save_report(other)
        trial = sweep.begin_again(1)
    assert len(sweep.retried) == 4
    assert not sweep.stopper.is_requested()


def test_a_bucket_that_only_one_node_cannot_reach_ends_nothing(sweep, monkeypatch):
    monkeypatch.setattr(sweep.store, "read", lambda name, is_quick: None)
    for _ in range(2):
        trial = sweep.begin() if not sweep.retried else sweep.begin_again()
        sweep.end(trial, failed="StoreUnavailableError: x", traceback=AWAY, node="n2")
    assert [record.number for record in sweep.retried] == [0, 0]
    assert not sweep.stopper.is_requested()


def test_a_bucket_that_does_not_answer_is_no_trials_fault(sweep, monkeypatch):
    def read(name, is_quick):
        raise StoreUnavailableError("", "a storage", "later", key="storage", value="s3://x")

    monkeypatch.setattr(sweep.store, "read", read)
    trial = sweep.begin()
    sweep.hand_back(trial, 0)
    sweep.end(trial, failed="StoreUnavailableError: storage=s3://x", traceback=AWAY)
    assert sweep.stopper.reason == STORAGE_AWAY
    assert sweep.ledger.trials.record(0).stop_reason == "interrupted"


def test_a_checkpoint_that_lies_elsewhere_interrupts_the_sweep(sweep):
    """Whatever the trial reports afterwards is not recorded, as nobody could go on from there."""
    trial = sweep.begin()
    elsewhere = CheckpointRecord("trials/0/first/best-100", 100, 5.0, "digest").to_dict()
    sweep.report(trial, 100, 5.0, records={"best": elsewhere}, node="far")
    assert sweep.stopper.interrupted
    assert "node far" in sweep.stopper.reason
    sweep.report(trial, BUDGET, 6.0)
    sweep.end(trial)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.stop_reason, list(record.reports)) == ("RUNNING", "interrupted", [])


@pytest.mark.parametrize("name", ["add_report", "end"])
def test_what_the_ledger_does_not_take_interrupts_the_sweep(sweep, monkeypatch, name):
    def refuse(*args: Any, **more: Any) -> None:
        raise RuntimeError("no answer")

    trial = sweep.begin()
    with monkeypatch.context() as broken:
        broken.setattr(sweep.ledger.trials, name, refuse)
        sweep.report(trial, BUDGET, 5.0)
        sweep.end(trial)
    assert sweep.stopper.interrupted
    assert "no answer" in sweep.stopper.reason
    assert sweep.ledger.trials.record(0).state == "RUNNING"


def test_steps_since_the_last_report_are_charged(sweep):
    """One that does not hand back in time, in the midst of its first iteration, has cost what it has cost."""
    sweep.begin()
    sweep.begin()
    sweep.beats = {"trials/0": 480, "trials/1": 7}
    assert sweep.ledger.trials.record(0).env_steps == 0
    sweep.beats = {"trials/0": 500}
    sweep.recorder.on_experiment_end([])
    assert [sweep.ledger.trials.record(number).env_steps for number in (0, 1)] == [500, 0]
    assert sweep.stopper.env_steps == 500
