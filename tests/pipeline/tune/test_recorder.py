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

from rltune.checkpoints.clients import STORAGE_AWAY
from rltune.checkpoints.retention import Retention
from rltune.checkpoints.store import open_store
from rltune.cluster.losses import Place
from rltune.pipeline.stopper import SweepStopper
from rltune.pipeline.tune import recorder as module
from rltune.pipeline.tune.recorder import Recorder
from rltune.pipeline.tune.stages import Stage
from rltune.records import CheckpointRecord
from rltune.search.schedulers import Stop
from rltune.study.disk_full import DISK_FULL

BUDGET = 1000
AWAY = "rltune.checkpoints.clients.StoreUnavailableError: ..."  # a traceback


class Sweep:
    """A recorder over a real ledger."""

    def __init__(self, folder: Path, config: Any, ledger: Any = None) -> None:
        self.folder, self.notes, self.told, self.retried, self.placed = folder, [], [], [], []
        self.ledger = ledger or make_ledger(folder)
        self.stopper = SweepStopper(open_store(folder), config)
        self.scheduler = SimpleNamespace(decisions={})
        self.retention = Retention(open_store(folder), lambda: None, lambda drop: drop())
        self.tracker = SimpleNamespace(wake=lambda connect=False: None, opening=True, warnings=lambda: [])
        self.study = SimpleNamespace(tell=self.told.append)
        self.beats: dict[str, int] = {}
        proposer = SimpleNamespace(retry=self.retried.append)
        self.stages = [Stage(table, proposer) for table in (self.ledger.trials, self.ledger.runs)]
        self.recorder = Recorder(
            self.stages, self.study, self.scheduler, self.tracker, self.stopper, config, open_store(folder),
            self.retention, self.notes.append, lambda: self.beats, place=self.placed.append,
        )  # fmt: skip

    def begin(self, kind: str = "trials") -> Any:
        """Tune's trial, begun."""
        record = self.ledger.table(kind).add({"lr": 0.1, "clip": 0.2}, [1], drawn={"lr": 0.1})
        task = {"number": record.number, "kind": kind, "latest": None, "older": None, "best": None}
        meta = SimpleNamespace(metric_analysis={}, metric_n_steps={}, last_result={})
        actor = SimpleNamespace(ray_actor=f"{record.name}'s")
        trial = SimpleNamespace(
            config={"assignment": task}, last_result={}, run_metadata=meta, temporary_state=actor, error_file=None,
            pickled_error_file=None, trial_id=record.name,
        )  # fmt: skip
        self.recorder.on_trial_start(0, [], trial)
        return trial

    def lose(self, trial: Any) -> None:
        """Its process is gone."""
        self.recorder.on_trial_error(0, [], trial)
        trial.config["assignment"] = {"number": 0, "kind": "trials"}  # as Tune has it again for the next attempt

    def report(self, trial: Any, mark: int, objective: float, overshoot: int = 0, **more: Any) -> None:
        task = trial.config["assignment"]
        numbers = {"objective": objective, "env_steps_per_s": 7.0, "learner/loss": 0.5, "train_s": 1.0}
        steps = {"nominal_steps": mark, "env_steps": mark + overshoot}
        trial.last_result = {"number": task["number"], **steps, **numbers, **more}
        self.recorder.on_trial_result(0, [], trial, trial.last_result)

    def hand_back(self, trial: Any, env_steps: int, **more: Any) -> None:
        """A result that is no report."""
        trial.last_result = {"number": trial.config["assignment"]["number"], "env_steps": env_steps, "train_s": 1.0}
        self.recorder.on_trial_result(0, [], trial, trial.last_result | more)

    def end(self, trial: Any, **more: Any) -> None:
        trial.last_result |= more
        self.recorder.on_trial_complete(0, [], trial)

    def save(self, trial: Any, env_steps: int) -> CheckpointRecord:
        state = {"env_steps": env_steps, "objective": 1.0}
        number = trial.config["assignment"]["number"]
        return write_checkpoint(self.folder, f"trials/{number}", "best", state)


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """All is well with every machine, unless a test says what became of it."""
    lost: dict[str, str] = {}
    monkeypatch.setattr(module, "find_place", lambda actor: Place("ab12", "n2") if actor else None)
    monkeypatch.setattr(module, "explain_loss", lambda place, error: place and lost.get(place.host))
    monkeypatch.setattr(module, "GATHER_S", -1.0)
    monkeypatch.setattr(module, "wait_for_head", lambda: None)
    return lost


@pytest.fixture
def sweep(tmp_path: Path, request_of: Callable[..., Any]) -> Sweep:
    words = ("tracking=off", f"budget.env_steps={BUDGET}", "failures.stop_after=2", "cluster=address")
    return Sweep(tmp_path, request_of(*words))


def test_a_trial_has_its_place_when_it_begins(sweep):
    trial = sweep.begin()
    assert sweep.placed == [trial.trial_id]


def test_a_report_is_kept_whole(sweep):
    trial = sweep.begin()
    sweep.report(trial, 100, 5.0, overshoot=30, node="here")
    (kept,) = sweep.ledger.trials.read_reports(0)
    assert kept.numbers == {
        "objective": 5.0, "env_steps": 130, "env_steps_per_s": 7.0, "learner/loss": 0.5, "train_s": 1.0
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
    lost = "goes on without its replay memory"
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


def test_failures_after_a_resume_are_not_the_first(sweep):
    """As when trials are tried again that had failed: the sweep has others, and a winner."""
    done = sweep.begin()
    sweep.report(done, BUDGET, 5.0)
    sweep.end(done)
    resumed = Sweep(sweep.folder, sweep.recorder._config, sweep.ledger)
    for _ in range(2):
        resumed.end(resumed.begin(), failed="non-finite numbers: loss=nan", diverged=True)
    assert not resumed.stopper.failed


def test_a_run_that_fails_says_nothing_about_the_search(sweep):
    for _ in range(2):
        sweep.end(sweep.begin("certify"), failed="non-finite numbers", diverged=True)
    assert not sweep.stopper.failed


def test_what_the_rule_stopped_is_pruned(sweep):
    trial = sweep.begin()
    sweep.report(trial, 200, 5.0)
    sweep.scheduler.decisions[0] = Stop(150)
    sweep.end(trial)
    assert sweep.told[0].state == "PRUNED"
    assert " 150 " in sweep.told[0].stop_reason


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
    (note,) = sweep.notes
    assert "trial 0" in note


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
    assert "s3cret" in config.tracking.uri
    assert b"s3cret" not in pickle.dumps(SweepStopper(open_store(tmp_path), config))


def test_where_a_trial_runs_is_known_from_its_start(sweep):
    sweep.begin()
    assert sweep.ledger.trials.record(0).node == "n2"


def test_a_lost_machine_is_no_trials_fault(sweep, machines):
    """However often: each time the trial comes further, and failures.max_retries stays as it was."""
    machines["n2"], trial = "node n2 is gone", sweep.begin()
    for env_steps in range(100, 700, 100):
        sweep.report(trial, env_steps, 5.0, records={"latest": sweep.save(trial, env_steps).to_dict()})
        sweep.lose(trial)
        sweep.recorder.on_trial_start(0, [], trial)
    assert [record.number for record in sweep.retried] == [0] * 6
    assert sweep.ledger.trials.record(0).state == "RUNNING"
    machines.clear()
    sweep.lose(trial)
    assert len(sweep.retried) == 7, "its one retry is still there"
    sweep.lose(trial)
    assert sweep.ledger.trials.record(0).state == "FAIL"


def test_a_trial_that_ends_machine_after_machine_fails(sweep, machines):
    machines["n2"], trial = "node n2 is gone", sweep.begin()
    sweep.report(trial, 100, 5.0, records={"latest": sweep.save(trial, 100).to_dict()})
    for _ in range(4):
        sweep.recorder.on_trial_start(0, [], trial)
        sweep.lose(trial)
    assert len(sweep.retried) == 3
    record = sweep.ledger.trials.record(0)
    assert record.state == "FAIL"
    assert "n2" in record.stop_reason
    assert " 3 " in record.stop_reason, "the machines before"


def test_a_lost_machine_is_told_in_one_plain_line(sweep, machines):
    machines["n2"] = "node n2 is gone"
    trials = [sweep.begin() for _ in range(2)]
    sweep.report(trials[0], 500, 5.0, overshoot=15106, records={"latest": sweep.save(trials[0], 15606).to_dict()})
    for trial in trials:
        sweep.recorder.on_trial_error(0, [], trial)
    assert sweep.notes == []
    sweep.recorder.on_step_end(0, [])
    (note,) = sweep.notes
    assert [part for part in ("node n2", "trial 0", "15,606", "trial 1") if part not in note] == []
    sweep.recorder.on_step_end(1, [])
    assert len(sweep.notes) == 1


def test_a_machine_lost_while_the_sweep_ends_interrupts(sweep, machines):
    machines["n2"], trial = "node n2 is gone", sweep.begin()
    sweep.stopper.request("interrupted", 15)
    sweep.lose(trial)
    record = sweep.ledger.trials.record(0)
    assert (record.state, record.stop_reason, sweep.retried) == ("RUNNING", "interrupted", [])


def test_a_process_that_dies_and_one_that_raises_count_alike(sweep):
    trial = sweep.begin()
    sweep.end(trial, failed="ValueError: it broke", traceback="")
    again = sweep.begin()
    again.config["assignment"]["number"] = 0
    sweep.lose(again)
    assert len(sweep.retried) == 1
    assert sweep.ledger.trials.record(0).state == "FAIL", "failures.max_retries is 1"
    (note,) = sweep.notes
    assert note.startswith("trial 0: ValueError: ")


def test_an_env_runner_whose_machine_was_lost_is_no_fault(sweep, machines):
    machines["n2"], trial = "node n2 is gone", sweep.begin()
    trace = f"ray.exceptions.ActorDiedError: The actor died\n\tactor_id: {'0a' * 16}\n"
    for _ in range(2):
        sweep.end(trial, failed="ActorDiedError: The actor died", traceback=trace)
        trial.config["assignment"] = {"number": 0, "kind": "trials"}
    assert len(sweep.retried) == 2


def go_blind(sweep: Sweep, monkeypatch: pytest.MonkeyPatch, others: bool) -> Any:
    """A trial that a node could not begin."""
    monkeypatch.setattr("rltune.pipeline.tune.recorder.has_other_nodes", lambda refused: others)
    trial = sweep.begin()
    sweep.hand_back(trial, 0)
    sweep.end(trial, failed="BlindNodeError: x", blind="/shared cannot be seen there", node="far", node_id="ab12")
    return trial


def test_a_node_that_sees_nothing_costs_its_trial_nothing(sweep, monkeypatch):
    go_blind(sweep, monkeypatch, others=True)
    (note,) = sweep.notes
    assert [part for part in ("node far", "/shared", "trial 0") if part not in note] == []
    assert [record.number for record in sweep.retried] == [0]
    assert sweep.stopper.blind == {"ab12": "far"}
    assert not sweep.stopper.is_requested()
    assert sweep.ledger.trials.record(0).state == "RUNNING"


def test_without_another_node_the_sweep_ends_and_can_go_on(sweep, monkeypatch):
    go_blind(sweep, monkeypatch, others=False)
    assert sweep.stopper.reason.endswith(str(sweep.folder))
    assert sweep.stopper.lost == {"trial 0's work": "far"}
    assert sweep.retried == []
    assert sweep.ledger.trials.record(0).stop_reason == "interrupted"


def test_a_bucket_that_only_one_node_cannot_reach_ends_nothing(sweep, monkeypatch):
    monkeypatch.setattr(sweep.recorder, "_is_storage_away", lambda: False)
    trial = sweep.begin()
    sweep.end(
        trial,
        failed="StoreUnavailableError: x",
        traceback=AWAY,
        node="n2",
    )
    sweep.recorder.on_step_end(0, [])
    (note,) = sweep.notes
    assert "node n2" in note
    assert "trial 0" in note
    assert [record.number for record in sweep.retried] == [0]
    assert not sweep.stopper.is_requested()


def test_a_bucket_that_does_not_answer_is_no_trials_fault(sweep, monkeypatch):
    monkeypatch.setattr(sweep.recorder, "_is_storage_away", lambda: True)
    trial = sweep.begin()
    sweep.hand_back(trial, 0)
    sweep.end(
        trial,
        failed="StoreUnavailableError: storage=s3://x",
        traceback=AWAY,
    )
    assert sweep.stopper.reason == STORAGE_AWAY
    assert sweep.ledger.trials.record(0).stop_reason == "interrupted"


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
