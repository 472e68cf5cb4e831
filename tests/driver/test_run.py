"""Whole sweeps over the toy trial: what ends up in the ledger, in MLflow, on disk and on the screen."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient
from toy import ToyTrial, ledger, run_toy

from rltune.cluster.resources import Machine
from rltune.config.schema import ClusterConfig
from rltune.config.settings_file import read_settings
from rltune.driver import run as pipeline
from rltune.driver.plan import Invocation, make_plan
from rltune.driver.requests.actions import request_retry, stop_sweep
from rltune.driver.run import resume_sweep
from rltune.driver.stopper import SweepStopper
from rltune.errors import RltuneError, StudyError, UnavailableError
from rltune.ledger.lease import take_lease
from rltune.ledger.outcome import Outcome
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import STOP

pytestmark = pytest.mark.usefixtures("ray_cluster")

# The first runs its whole budget, the third is stopped at the first rung, the fourth breaks.
FATES = (
    "warm_start=[{quality:0.9,fault:null},{quality:0.8,fault:null},{quality:0.1,fault:null},"
    "{quality:0.95,fault:raise},{quality:0.05,fault:null}]"
)


def children(outcome: Outcome, tmp_path: Path) -> list[Any]:
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cartpole")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    parents = [run for run in runs if run.info.run_name == outcome.name]
    assert len(parents) == 1
    return [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_ray_without_room_for_its_logs_names_the_folder(is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: Any) -> None:
        raise UnavailableError(": Ray did not start")

    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # The test's own folder may have a name too long for sockets.
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setattr(pipeline, "connect_ray", connect)
    monkeypatch.setattr("rltune.ledger.disk_full.MIN_FREE_BYTES", 10**18 if is_full else 0)
    with pytest.raises(UnavailableError) as failed, pipeline.RayStart(ClusterConfig(), {}, ToyTrial) as ray:
        _ = ray.nodes
    os.rmdir(folder)
    assert (folder in failed.value.fix, failed.value.exit_code) == (is_full, 75)


ENDED = ("name=mine", "scheduler=none", "report=true", "checkpoint.every_s=0")


@dataclass
class Ended:
    """A sweep that has ended, and what was seen while it ran."""

    outcome: Outcome
    worker_pids: set[int] = field(default_factory=set)
    switch_intervals: set[float] = field(default_factory=set)


@pytest.fixture(scope="module")
def ended(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A sweep without any fault, in a folder that a driver left half made when it was killed."""
    from rltune.driver.tune.recorder import Recorder

    folder, worker_pids, intervals = tmp_path_factory.mktemp("ended"), set[int](), set[float]()
    keep = Recorder.on_trial_result

    def spy(self: Recorder, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        worker_pids.add(result["worker_pid"])
        keep(self, iteration, trials, trial, result, **info)

    (folder / "outputs" / "mine").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "on_trial_result", spy)
        patch.setattr(SweepStopper, "check_wall_time", lambda self: intervals.add(sys.getswitchinterval()))
        return Ended(run_toy(folder, patch, io.StringIO(), *ENDED), worker_pids, intervals)


def test_a_half_made_folder_is_taken_by_its_name(ended: Ended) -> None:
    """A driver that was killed before it wrote its settings left nothing to resume, so the same command runs again."""
    assert (ended.outcome.exit_code, ended.outcome.folder.name) == (0, "mine")


def test_the_ledger_holds_every_report_of_every_trial(ended: Ended) -> None:
    entries = ledger(ended.outcome)
    assert [entry.state for entry in entries] == ["COMPLETE"] * 6
    for entry in entries:
        assert list(entry.reports) == list(range(100, 2001, 100))
        assert entry.reports[1000] == pytest.approx(entry.params["quality"])
        assert entry.score == pytest.approx(2.0 * entry.params["quality"]), "the last report"
        assert entry.stop_reason == "whole budget"


def test_the_winner_is_the_trial_with_the_highest_curve(ended: Ended) -> None:
    outcome = ended.outcome
    best = max(ledger(outcome), key=lambda entry: entry.params["quality"])
    assert outcome.winner is not None
    assert outcome.winner["trial"] == best.number
    assert (outcome.folder / outcome.winner["checkpoint"] / "toy.json").is_file()
    assert (outcome.folder / "report" / "index.html").is_file()


def test_the_sweeps_folder_is_private_and_holds_the_summary(ended: Ended) -> None:
    folder = ended.outcome.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "ledger.db", "summary.json", "sweep.log", "trials"} <= names
    assert ".tune" not in names
    log = (folder / "sweep.log").read_text()
    parts = ("python==", "6 trials of up to", "trial 0 begins: quality=", "trial   0 complete", "6 trials: 6 complete")
    places = [log.find(part) for part in parts]
    assert places[0] > -1
    assert places == sorted(places), "in this order"


def test_mlflow_metrics_are_stepped_by_environment_steps(ended: Ended) -> None:
    folder = ended.outcome.folder.parents[1]
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    runs = children(ended.outcome, folder)
    assert len(runs) == 6
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "score")
        assert sorted(point.step for point in history) == list(range(100, 2001, 100))


def test_each_trial_has_a_process_of_its_own(ended: Ended) -> None:
    assert len(ended.worker_pids) == len(read_trials(ended.outcome.folder))
    assert not any(map(psutil.pid_exists, ended.worker_pids))


def test_ended_trials_keep_only_their_best_policy(ended: Ended) -> None:
    outcome = ended.outcome
    assert outcome.winner is not None
    for number, state, best, sent in read_trials(outcome.folder):
        assert (state, bool(sent)) == ("COMPLETE", True)
        assert (outcome.folder / best / "toy.json").exists()
        if number != outcome.winner["trial"]:
            assert len(list((outcome.folder / "trials" / str(number)).rglob("toy.json"))) == 1


def test_a_sweep_leaves_the_programs_thread_switching_alone(ended: Ended) -> None:
    assert ended.switch_intervals == {sys.getswitchinterval()}


def test_a_second_driver_on_one_sweep_is_refused(ended: Ended, toy_run: Callable[..., Outcome]) -> None:
    folder = ended.outcome.folder
    with take_lease(open_ledger(folder)):
        with pytest.raises(UnavailableError) as refused:
            resume_sweep(SweepRef("mine", folder.parent), stream=io.StringIO(), trainable=ToyTrial)
        with pytest.raises(UnavailableError) as refused_again:
            toy_run(*ENDED, f"output_dir={folder.parent}", "resume=auto", "budget.trials=8")
    assert {(each.value.key, each.value.exit_code) for each in (refused, refused_again)} == {("sweep", 75)}


def test_a_name_that_is_taken_is_refused_with_the_resume_command(ended: Ended, toy_run: Callable[..., Outcome]) -> None:
    with pytest.raises(StudyError, match=r"sweeps\.resume sweep=mine"):
        toy_run("name=mine", "tracking=off", f"output_dir={ended.outcome.folder.parent}")


def test_a_sweep_keeps_a_constraint_and_shows_a_front(toy_run: Callable[..., Outcome], stream: io.StringIO) -> None:
    """The toy's highest return is one more than its mean, so that each better trial is worse in the second."""
    starts = "warm_start=[{quality:0.9},{quality:0.4},{quality:0.2}]"
    outcome = toy_run(
        *("scheduler=none", "tracking=off", "report=true", "budget.trials=3", "searcher=tpe", starts),
        *('+constraints.return_max="< 2"', "objective.second.key=return_max"),
    )
    entries = ledger(outcome)
    assert [[check.name for check in entry.broken] for entry in entries] == [["return_max"], [], []]
    assert outcome.winner is not None
    assert outcome.winner["trial"] == 1
    assert [(one["trial"], one["return_max"]) for one in outcome.front or ()] == [(1, 1.8), (2, pytest.approx(1.4))]
    page = " ".join(stream.getvalue().split())
    assert "return_max < 2" in page, "the constraint"
    assert "return_max=2.8" in page, "what breaks it"
    assert "Two objectives" in (outcome.folder / "report" / "index.html").read_text()


def test_mlflow_shows_one_child_per_trial_with_the_ledgers_states(
    toy_run: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = toy_run("+space.fault=[choice,null,raise]", "budget.trials=5", "failures.max_retries=0", FATES)
    runs = {int(run.data.tags["rltune.trial"]): run for run in children(outcome, tmp_path)}
    entries = ledger(outcome)
    words = {"COMPLETE": "FINISHED", "PRUNED": "FINISHED", "FAIL": "FAILED"}
    assert {entry.state for entry in entries} == {"COMPLETE", "PRUNED", "FAIL"}
    assert {n: run.info.status for n, run in runs.items()} == {e.number: words[e.state] for e in entries}
    assert all(set(run.data.params) == {"quality", "fault"} for run in runs.values())
    for entry in entries:
        assert entry.mlflow_run_id == runs[entry.number].info.run_id
        if entry.state == "FAIL":
            assert (entry.stop_reason[:12], entry.stop_reason[-10:]) == ("ValueError: ", "pole broke")
            assert "_misbehave" in entry.traceback
            assert "_misbehave" in runs[entry.number].data.tags["rltune.traceback"]
            assert "pole broke" in (outcome.folder / runs[entry.number].data.tags["rltune.log"]).read_text()


def test_a_parameter_is_drawn_in_the_trials_where_its_condition_holds_and_in_no_other(
    toy_run: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = toy_run(
        *(
            "+algo.training.learner_config_dict.luck=0.0",
            "+algo.training.learner_config_dict.worth=0.0",
            "searcher=tpe",
            "budget.trials=5",
        ),
        *("+space.luck=[choice,0.0,1.0]", "+space.worth=[when,{luck: 1.0},[uniform,5,6]]"),
    )
    entries = ledger(outcome)
    assert {entry.number: "worth" in entry.params for entry in entries} == {
        entry.number: entry.params["luck"] == 1.0 for entry in entries
    }
    assert {entry.params["luck"] for entry in entries} == {0.0, 1.0}
    runs = {int(run.data.tags["rltune.trial"]): run for run in children(outcome, tmp_path)}
    assert {number: set(run.data.params) for number, run in runs.items()} == {e.number: set(e.params) for e in entries}


FAULTS = {
    "nan_loss": ("PRUNED", "total_loss=nan"),
    "nan_return": ("PRUNED", "return_mean=nan"),
    "build": ("FAIL", "ValueError: "),
    "stall": ("FAIL", "RuntimeError: "),
    "no_episode": ("FAIL", "episode"),
}


def test_a_trial_that_goes_wrong_ends_with_its_reason(toy_run: Callable[..., Outcome]) -> None:
    starts = ",".join(f"{{fault:{fault}}}" for fault in FAULTS)
    words = (f"+space.fault=[choice,{','.join(FAULTS)}]", f"warm_start=[{starts}]", f"budget.trials={len(FAULTS)}")
    outcome = toy_run(*words, "tracking=off", "scheduler=none", "failures.stop_after=30")
    entries = {entry.params["fault"]: entry for entry in ledger(outcome)}
    assert {fault: entry.state for fault, entry in entries.items()} == {
        fault: end for fault, (end, _) in FAULTS.items()
    }
    for fault, (state, reason) in FAULTS.items():
        assert entries[fault].diverged == (state == "PRUNED")
        assert reason in entries[fault].stop_reason
    assert (outcome.exit_code, outcome.status) == (1, "failed")


def test_workers_that_die_on_and_on_fail_the_sweep(toy_run: Callable[..., Outcome]) -> None:
    outcome = toy_run(
        "+space.fault=[choice,null,die]",
        "scheduler=none",
        "tracking=off",
        "budget.trials=2",
        "warm_start=[{fault:null},{fault:die}]",
        "budget.reports=1",
        "checkpoint.every_s=0",
        "failures.stop_after=2",
        "resources.max_concurrent=1",  # Nothing else makes progress while its process ends on and on.
    )
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert {entry.params["fault"]: entry.state for entry in ledger(outcome)} == {None: "COMPLETE", "die": "FAIL"}
    assert outcome.winner is not None
    died = next(entry for entry in ledger(outcome) if entry.state == "FAIL")
    assert died.latest is not None
    assert died.latest.env_steps == 400, "what was saved before the only report counts"
    assert outcome.reason is not None
    assert "worker died: " in outcome.reason
    assert "unknown" not in outcome.reason


def test_a_trial_that_goes_wrong_once_goes_on_from_its_last_checkpoint_to_the_end(
    toy_run: Callable[..., Outcome],
) -> None:
    outcome = toy_run(
        "+space.fault=[choice,raise_once,die_once]",
        "scheduler=none",
        "tracking=off",
        "budget.trials=2",
        "warm_start=[{fault:raise_once},{fault:die_once}]",
    )
    assert [entry.state for entry in ledger(outcome)] == ["COMPLETE"] * 2, "from the beginning they would fail again"
    assert [list(entry.reports) for entry in ledger(outcome)] == [list(range(100, 2001, 100))] * 2


def test_a_trial_that_hangs_loses_its_process_and_the_sweep_goes_on(toy_run: Callable[..., Outcome]) -> None:
    outcome = toy_run(
        "+space.fault=[choice,null,hang]",
        "warm_start=[{fault:hang},{fault:null},{fault:null}]",
        "budget.trials=3",
        "failures.stall_s=2",
        "failures.max_retries=0",
        "scheduler=none",
        "tracking=off",
    )
    hung, *others = ledger(outcome)
    assert hung.state == "FAIL"
    assert "2 s" in hung.stop_reason, "failures.stall_s"
    assert "_misbehave" in hung.traceback
    assert [entry.state for entry in others] == ["COMPLETE", "COMPLETE"]


def test_the_sweep_is_interrupted_when_nothing_comes_further(toy_run: Callable[..., Outcome]) -> None:
    outcome = toy_run("+space.fault=build", "budget.trials=30", "failures.stop_after=5", "tracking=off")
    assert (outcome.status, outcome.exit_code) == ("interrupted", 75)
    assert outcome.trials["failed"] <= 2, "each failed trial took two of the first four attempts"
    assert outcome.reason is not None
    assert "a network of size 0" in outcome.reason


def test_asha_spends_less_and_keeps_the_best(toy_run: Callable[..., Outcome]) -> None:
    outcome = toy_run("budget.trials=20", "tracking=off", "seed=1")
    entries = ledger(outcome)
    best = max(entries, key=lambda entry: entry.params["quality"])
    assert best.state == "COMPLETE"
    assert outcome.winner is not None
    assert outcome.winner["trial"] == best.number
    stopped = [entry for entry in entries if entry.state == "PRUNED"]
    assert stopped
    assert outcome.cost["env_steps"] + outcome.cost["env_steps_saved"] == 20 * 2000
    assert all("scheduler" in entry.stop_reason for entry in stopped)


def _interrupt_after(reports: int, monkeypatch: Any) -> None:
    """Press Ctrl-C once so many reports have come."""
    from rltune.driver.tune.recorder import Recorder

    keep, come = Recorder.on_trial_result, iter(range(1, 1_000_000))

    def spy(self: Recorder, *args: Any, **info: Any) -> None:
        keep(self, *args, **info)
        if next(come) == reports:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Recorder, "on_trial_result", spy)


def test_an_interrupted_sweep_is_finished_by_resume_with_the_same_trials_and_runs(
    toy_run: Callable[..., Outcome], tmp_path: Path, stream: io.StringIO, monkeypatch: Any
) -> None:
    _interrupt_after(50, monkeypatch)
    slow = ("+space.seconds=0.02", "budget.trials=8", "scheduler=none")
    first = toy_run(*slow)
    assert first.exit_code == 130
    assert first.status == "interrupted"
    assert f"resume sweep={first.name}" in stream.getvalue()
    before = {entry.number: entry for entry in ledger(first)}
    assert first.trials["interrupted"] >= 1
    assert {run.info.status for run in children(first, tmp_path)} <= {"KILLED", "FINISHED"}
    with contextlib.closing(open_ledger(first.folder)) as opened:  # A service sees that a person has ended it.
        assert [request.taken_s is not None for request in opened.read_requests(STOP, waiting=False)] == [True]

    last = resume_sweep(SweepRef(first.name, tmp_path / "outputs"), stream=stream, trainable=ToyTrial)
    after = {entry.number: entry for entry in ledger(last)}
    assert last.exit_code == 0
    assert [entry.state for entry in after.values()] == ["COMPLETE"] * 8
    for number, entry in before.items():
        assert after[number].params == entry.params
        if entry.mlflow_run_id:  # One that had just begun may not be in MLflow yet.
            assert after[number].mlflow_run_id == entry.mlflow_run_id
        assert set(entry.reports) <= set(after[number].reports)
    assert len(children(last, tmp_path)) == 8
    assert {run.info.status for run in children(last, tmp_path)} == {"FINISHED"}


def test_a_stop_from_elsewhere_ends_certification_too_and_it_goes_on(
    toy_run: Callable[..., Outcome], tmp_path: Path, stream: io.StringIO
) -> None:
    """Trials that failed meanwhile are tried again by the resume, and certification chooses among all."""
    root = str(tmp_path / "outputs")

    def stop() -> None:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            time.sleep(0.1)
            with contextlib.suppress(RltuneError, OSError), contextlib.closing(SweepRef("toy").open_ledger()) as opened:
                if any(run.reports for run in opened.runs.records()):
                    break
        (tmp_path / "outputs" / "toy" / "room").touch()  # What failed works from now on.
        request_retry(SweepRef("toy", root))
        stop_sweep(SweepRef("toy", root), wait=False, stream=stream)

    starts = "warm_start=[{quality:0.5,fault:null},{quality:0.9,fault:save},{quality:0.4,fault:null}]"
    words = ("name=toy", "budget.trials=3", "scheduler=none", "tracking=off", "+space.fault=[choice,null,save]")
    certify = ("certify=on", "certify.top=1", "certify.seeds=2", "certify.episodes=2", "certify.champion_episodes=2")
    slow = ("+space.seconds=0.1", "failures.max_retries=0", "checkpoint.every_s=0")
    asking = threading.Thread(target=stop)
    asking.start()
    first = toy_run(*words, starts, *certify, *slow)
    asking.join()
    assert (first.status, first.exit_code, first.certified) == ("interrupted", 130, None)
    assert first.reason is not None
    assert first.reason.startswith("stopped by ")
    last = resume_sweep(SweepRef("toy", root), stream=stream, trainable=ToyTrial)
    assert (last.status, last.trials["complete"]) == ("complete", 3)
    assert last.certified is not None
    assert {row["trial"] for row in last.certified["configurations"]} >= {1}, "which had failed, and is the best"


def test_an_end_that_is_not_recorded_interrupts_the_sweep(
    toy_run: Callable[..., Outcome], tmp_path: Path, stream: io.StringIO
) -> None:
    first = toy_run("name=toy", "budget.trials=1", "tracking=off", "scheduler=none")
    trigger = (
        "CREATE TRIGGER no_end BEFORE UPDATE OF state ON sweep_trials"
        " WHEN NEW.number = 1 AND NEW.state != 'RUNNING' BEGIN SELECT RAISE(FAIL, 'no answer'); END"
    )
    with contextlib.closing(sqlite3.connect(first.folder / "ledger.db")) as database, database:
        database.execute(trigger)
    more = {"budget": {"trials": 2}}
    ref = SweepRef("toy", tmp_path / "outputs")
    again = resume_sweep(ref, changes=more, stream=stream, trainable=ToyTrial)
    assert [entry.state for entry in ledger(again)] == ["COMPLETE", "RUNNING"]
    assert (again.status, again.exit_code) == ("interrupted", 75)
    with contextlib.closing(open_ledger(again.folder)) as opened:
        assert opened.sweep().status == "interrupted"
    with contextlib.closing(sqlite3.connect(first.folder / "ledger.db")) as database, database:
        database.execute("DROP TRIGGER no_end")
    last = resume_sweep(ref, stream=stream, trainable=ToyTrial)
    assert (last.status, [entry.state for entry in ledger(last)]) == ("complete", ["COMPLETE"] * 2)


def test_a_second_signal_waits_for_no_trial_and_leaves_the_ledger_whole(
    toy_run: Callable[..., Outcome], tmp_path: Path, stream: io.StringIO, monkeypatch: Any
) -> None:
    from rltune.driver import stopper
    from rltune.driver.tune.recorder import Recorder

    keep, turns = Recorder.on_step_end, iter(range(1_000_000))

    def spy(self: Recorder, *args: Any, **info: Any) -> None:
        keep(self, *args, **info)
        if self.stopper.env_steps == 400 and next(turns) in (20, 21):  # it hangs by then
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "on_step_end", spy)
    monkeypatch.setattr(stopper, "GRACE_S", 600.0)  # only the supervisor would end the wait, and fail the trial
    # The process of the trial outlives the sweep in the tests' Ray, and holds one of its CPUs, until it has stalled.
    words = ("+space.fault=hang", "failures.stall_s=20", "failures.max_retries=0", "budget.trials=1")
    first = toy_run(*words, "scheduler=none")
    assert (first.exit_code, first.status) == (143, "interrupted")
    assert f"resume sweep={first.name}" in stream.getvalue()
    assert [(entry.state, list(entry.reports)) for entry in ledger(first)] == [("RUNNING", [100, 200, 300, 400])]
    assert [run.info.status for run in children(first, tmp_path)] == ["KILLED"]


def test_a_signal_waits_for_no_champion_of_an_mlflow_that_is_away(
    toy_run: Callable[..., Outcome], monkeypatch: Any
) -> None:
    waits_s = []

    def register(candidate: Any, registry: Any, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        began = time.monotonic()
        try:
            registry.look_up("toy", "champion")
        finally:
            waits_s.append(time.monotonic() - began)

    monkeypatch.setattr("rltune.tracking.mlflow_tracker.check_uri", lambda uri: None)  # It goes away after the check.
    monkeypatch.setattr("rltune.tracking.model_registry.LOOK_UP_S", 60.0)
    monkeypatch.setattr("rltune.tracking.feed.AWAY_S", 0.5)
    monkeypatch.setattr("rltune.driver.end.register_champion", register)
    away = ("tracking=server", "tracking.uri=http://127.0.0.1:9", "tracking.register=true")
    assert toy_run(*away, "budget.trials=1", "scheduler=none").exit_code == 143
    assert waits_s[0] < 30


def test_a_moved_sweep_goes_on_and_a_damaged_checkpoint_is_named_and_passed_over(
    toy_run: Callable[..., Outcome], tmp_path: Path, stream: io.StringIO, monkeypatch: Any
) -> None:
    _interrupt_after(12, monkeypatch)
    first = toy_run("+space.seconds=0.02", "budget.trials=2", "scheduler=none", "tracking=off")
    broken = next(entry for entry in ledger(first) if entry.state == "RUNNING" and len(entry.reports) > 1)
    newest = broken.latest.path
    moved = first.folder.rename(tmp_path / "elsewhere")
    (moved / newest / "toy.json").write_text("{}")
    halves = [moved / ".tune" / "tune", moved / newest / ".." / ".best-4711"]  # as a killed driver leaves them
    for half in halves:
        half.mkdir(parents=True)
        (half / "toy.json").write_text("{}")

    stream.truncate(0)
    last = resume_sweep(SweepRef("elsewhere", str(tmp_path)), stream=stream, trainable=ToyTrial)
    (line,) = [line for line in stream.getvalue().splitlines() if newest in line]
    assert f"trial {broken.number}:" in line
    assert [entry.state for entry in ledger(last)] == ["COMPLETE"] * 2
    assert all(list(entry.reports)[-1] == 2000 for entry in ledger(last))
    assert not first.folder.exists()
    assert not any(half.exists() for half in halves)


def test_a_finished_sweep_is_extended_by_a_larger_budget(toy_run: Callable[..., Outcome], tmp_path: Path) -> None:
    first = toy_run("tracking=off", "scheduler=none", "budget.trials=2")
    last = resume_sweep(
        SweepRef(first.name, tmp_path / "outputs"),
        changes={"budget": {"trials": 5}, "cluster": {"address": "local", "num_cpus": 2}},
        stream=io.StringIO(),
        trainable=ToyTrial,
    )
    assert last.trials["complete"] == 5
    kept = read_settings(last.folder)["cluster"]
    assert (kept["address"], kept["num_cpus"]) == (None, 2), "where it runs may change"
    assert [dict(e.params) for e in ledger(last)][:2] == [dict(e.params) for e in ledger(first)][:2]


def test_a_wall_time_budget_ends_the_sweep_cleanly(toy_run: Callable[..., Outcome], monkeypatch: Any) -> None:
    from rltune.driver.tune.recorder import Recorder

    keep = Recorder.on_trial_result

    def spy(self: Recorder, *args: Any, **info: Any) -> None:
        keep(self, *args, **info)
        if self.stopper.env_steps == 500:
            assert self.stopper._began
            self.stopper._began -= 4000

    monkeypatch.setattr(Recorder, "on_trial_result", spy)
    words = ("budget.wall_time_s=3600", "+space.seconds=0.2", "budget.trials=50")
    outcome = toy_run(*words, "scheduler=none", "tracking=off")
    assert outcome.exit_code == 0
    assert outcome.status == "stopped"
    assert outcome.reason is not None
    assert "budget.wall_time_s" in outcome.reason
    assert outcome.trials["interrupted"] >= 1


def test_a_total_of_environment_steps_ends_the_search_and_its_best_are_certified(
    toy_run: Callable[..., Outcome], stream: io.StringIO
) -> None:
    words = ("name=total", "budget.trials=50", "scheduler=none", "tracking=off", "certify=on", "certify.seeds=2")
    words += ("certify.top=1", "certify.episodes=1", "certify.champion_episodes=1")
    outcome = toy_run("budget.total_env_steps=5000", *words)
    assert 5000 <= outcome.cost["env_steps"] < 5000 + 2 * 2000, "what has begun comes to its end"
    assert outcome.cost["env_steps"] == 2000 * outcome.trials["complete"]
    assert outcome.status == "complete"
    assert outcome.reason is not None
    assert "budget.total_env_steps" in outcome.reason
    assert outcome.certified is not None
    lines = [line for line in stream.getvalue().splitlines() if "budget.total_env_steps" in line]
    assert ["not begun" in line for line in lines] == [False, True], "once when it is spent, and at the end"
    again = toy_run("budget.total_env_steps=5000", *words, "resume=auto")
    assert again.cost == outcome.cost, "there is nothing left to do"
    more = toy_run("budget.total_env_steps=9000", *words, "resume=auto")
    assert 9000 <= more.cost["env_steps"] < 9000 + 2 * 2000


def test_replicates_run_several_seeds_and_report_their_mean(toy_run: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = toy_run("replicates=3", "budget.trials=2", "scheduler=none")
    for entry in ledger(outcome):
        assert len(set(entry.seeds)) == 3
        assert (outcome.folder / entry.checkpoint.path / "seed-2" / "toy.json").is_file()
    assert outcome.cost["env_steps"] == 2 * 3 * 2000
    assert all("return_std_over_seeds" in run.data.metrics for run in children(outcome, tmp_path))


def list_own_threads() -> set[str]:
    """The names of the threads that run rltune's functions; TensorBoard's writer has threads of its own."""
    targets = {thread.name: getattr(thread, "_target", None) for thread in threading.enumerate()}
    return {name for name, target in targets.items() if getattr(target, "__module__", "").startswith("rltune.")}


def test_a_driver_has_one_thread_for_its_chores(toy_run: Callable[..., Outcome], monkeypatch: Any) -> None:
    before, during = list_own_threads(), list[set[str]]()
    monkeypatch.setattr(SweepStopper, "check_wall_time", lambda self: during.append(list_own_threads()))
    toy_run("budget.trials=2", "tracking.kinds=[mlflow,tensorboard]", "+space.seconds=[choice,0.1,0.15]")
    wanted = {"lease", "housekeeping", "feed-MLflow", "feed-TensorBoard"}
    assert during[len(during) // 2] - before == wanted
    assert not list_own_threads() - before


class Aside:
    """Stands in for the fork server: it notes how long it is to wait."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def call(self, function: Any, *arguments: Any, **named: Any) -> None:
        self.calls.append((function, named))


def test_the_check_may_take_longer_than_a_trial_may_hang(request_of: Callable[..., Any], tmp_path: Path) -> None:
    plan = make_plan(request_of("tracking=off", "failures.stall_s=7"))
    server: Any = Aside()
    pipeline._check(plan, server)
    ((_, checked),) = server.calls
    assert checked == {"patience_s": pipeline.PREFLIGHT_S}, "it imports RLlib first"


# -- one command, typed again and again -------------------------------------------------------------------------------

AUTO = ("name=mine", "resume=auto", "tracking=off", "scheduler=none")


def test_auto_begins_goes_on_and_finishes(
    toy_run: Callable[..., Outcome], stream: io.StringIO, monkeypatch: Any
) -> None:
    words = (*AUTO, "budget.trials=4", "+space.seconds=0.02")
    with monkeypatch.context() as once:
        _interrupt_after(20, once)
        first = toy_run(*words)
    assert (first.exit_code, first.status) == (130, "interrupted")
    second = toy_run(*words)
    assert (second.exit_code, second.status) == (0, "complete")
    before, after = ledger(first), ledger(second)
    assert [entry.state for entry in after] == ["COMPLETE"] * 4
    assert [dict(entry.params) for entry in after][: len(before)] == [dict(entry.params) for entry in before]

    def connect(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is run")

    monkeypatch.setattr(pipeline, "connect_ray", connect)
    written = len(stream.getvalue())
    third = toy_run(*words)
    assert third == second
    assert "(complete)" in stream.getvalue()[written:]


def test_auto_extends_a_sweep_by_a_larger_budget_alone(toy_run: Callable[..., Outcome]) -> None:
    toy_run(*AUTO, "budget.trials=2")
    extended = toy_run(*AUTO, "budget.trials=3")
    assert extended.trials["complete"] == 3
    with contextlib.closing(open_ledger(extended.folder)) as opened:  # As where the extension was cut off.
        opened.change_sweep(status="running")
    again = toy_run(*AUTO, "budget.trials=3")
    assert again.status == "complete"
    assert again.cost["wall_s"] > extended.cost["wall_s"], "it was opened again"
    for changed, key in ((("budget.trials=2",), "budget.trials"), (("budget.trials=3", "seed=1"), "seed")):
        with pytest.raises(StudyError) as refused:
            toy_run(*AUTO, *changed)
        assert refused.value.key == key


def test_auto_begins_in_a_half_made_folder_and_repeats_a_failure(
    toy_run: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "outputs" / "mine").mkdir(parents=True)
    words = (*AUTO, "+space.fault=raise", "budget.trials=1", "failures.max_retries=0")
    assert (toy_run(*words).exit_code, toy_run(*words).exit_code) == (1, 1)


def test_auto_heals_a_failed_sweep_once_its_cause_is_gone(toy_run: Callable[..., Outcome]) -> None:
    words = (*AUTO, "+space.fault=save", "budget.trials=2", "failures.max_retries=0")
    first = toy_run(*words)
    assert (first.exit_code, first.trials["failed"]) == (1, 2)
    (first.folder / "room").touch()  # What failed works from now on.
    second = toy_run(*words)
    assert (second.exit_code, second.status, second.trials["complete"]) == (0, "complete", 2)


def read_trials(folder: Path) -> list[tuple[int, str, str, str | None]]:
    """Return number, state, best checkpoint and what MLflow has of it, of each trial of the search."""
    with sqlite3.connect(folder / "ledger.db") as ledger:
        rows = ledger.execute(
            "SELECT number, state, sweep_trials.checkpoint, trial_deliveries.checkpoint FROM sweep_trials "
            "LEFT JOIN trial_deliveries ON trial_id = id AND tracker = 'MLflow'"
        ).fetchall()
    return [(number, state, json.loads(best)["path"], sent) for number, state, best, sent in rows]


def test_nothing_is_dropped_that_mlflow_has_not_received(toy_run: Callable[..., Any]) -> None:
    outcome = toy_run("scheduler=none", "checkpoint.every_s=0", "budget.trials=3", "tracking=off")
    for _, state, best, sent in read_trials(outcome.folder):
        assert (state, sent) == ("COMPLETE", None)
        assert (outcome.folder / best / "toy.json").exists()


OWN_TRACKER = """
from rltune.tracking.tracker import Tracker

class Lines(Tracker):
    name = "lines"

    def write(self, trial, reports):
        with open(self.sweep.folder / "lines.txt", "a") as file:
            file.writelines(f"{trial.number} {report.nominal_steps}\\n" for report in reports)
"""


def test_a_users_own_tracker_gets_every_report(
    toy_run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_lines_tracker.py").write_text(OWN_TRACKER)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = toy_run("tracking.kinds=[my_lines_tracker:Lines]", "budget.trials=2")
    with contextlib.closing(open_ledger(outcome.folder)) as ledger:
        reports = {(trial.number, mark) for trial in ledger.trials.records() for mark in trial.reports}
    lines = (outcome.folder / "lines.txt").read_text().splitlines()
    assert {tuple(map(int, line.split())) for line in lines} == reports


def test_a_driver_that_ray_holds_after_its_lease_was_lost_ends_with_75(
    request_of: Callable[..., Any], tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits, has_exited = list[int](), threading.Event()

    def exit_process(code: int) -> None:
        exits.append(code)
        has_exited.set()

    def hang(sweep: Any) -> None:
        sweep.stopper.lose_lease()
        assert has_exited.wait(30)

    monkeypatch.setattr(pipeline.RayStart, "nodes", [Machine(2, 0)])
    monkeypatch.setattr(pipeline.RayStart, "start", lambda ray, *called: called)
    monkeypatch.setattr("rltune.driver.tune.fit.run_trials", hang)
    monkeypatch.setattr(pipeline, "LEAVE_S", 0.05)
    monkeypatch.setattr("os._exit", exit_process)
    plan = make_plan(request_of("tracking=off", "certify=off", "budget.trials=2"))
    pipeline.drive(plan, Invocation(time.monotonic(), stream))
    assert exits == [75]


def test_trials_and_runs_end_at_the_target_of_their_played_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The played score is the curve's square, 0.5 of which a quality of 0.9 holds at 800 and 900 steps."""
    values = ",".join(f"{{quality:{quality},fault:null}}" for quality in (0.6, 0.9, 0.1))
    words = ("budget.trials=3", f"warm_start=[{values}]", "scheduler=none", "tracking=off", "score.episodes=10")
    certify = ("certify=on", "certify.seeds=1", "certify.top=1")
    outcome = run_toy(tmp_path, monkeypatch, io.StringIO(), *words, *certify, "budget.target=0.5")
    trials = {record.params["quality"]: record for record in ledger(outcome)}
    assert {quality: record.target_steps for quality, record in trials.items()} == {0.6: 1300, 0.9: 900, 0.1: None}
    assert {record.state for record in trials.values()} == {"COMPLETE"}
    assert trials[0.6].score == pytest.approx(0.78**2)
    assert trials[0.6].numbers["return_mean"] == pytest.approx(0.78), "of the training"
    opened = open_ledger(outcome.folder)
    runs = {run.params["quality"]: run.target_steps for run in opened.runs.records()}
    opened.close()
    assert runs == {0.9: 900, 1.0: 900}
    assert outcome.certified is not None
    assert [row["target_steps"] for row in outcome.certified["configurations"]] == [900, 900]


@pytest.mark.nightly
def test_a_resume_with_a_narrower_range_certifies_the_old_best(toy_run: Any, stream: Any, tmp_path: Path) -> None:
    """Its best trial stays in the ranking, although its value is no longer searched; no trial is repeated."""
    words = ("name=toy", "tracking=off", "scheduler=none", "certify=on", "certify.seeds=2", "certify.top=1")
    first = toy_run(*words, "budget.trials=4")
    best = max(ledger(first), key=lambda record: record.score or 0.0)
    low = {"quality": ["uniform", 0.0, 0.1]}
    changes = {"budget": {"trials": 7}, "space": low}
    last = resume_sweep(SweepRef("toy", tmp_path / "outputs"), changes=changes, stream=stream, trainable=ToyTrial)
    records = ledger(last)
    assert len({str(record.params) for record in records}) == 7
    assert all(record.params["quality"] <= 0.1 for record in records[4:])
    assert last.winner is not None
    assert best.params["quality"] > 0.1
    assert last.winner["params"] == best.params
