"""optuna-dashboard on a sweep that runs, was killed, and has finished: it shows the trials that have ended."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from joined import finish, free_port, start_sweep
from toy import HURRY
from waiting import wait_until

from rltune.errors import StudyError
from rltune.ledger.storage import open_ledger
from rltune.records import TrialRecord
from rltune.views.study import write_study
from rltune.views.sweep_view import load_view

pytestmark = pytest.mark.nightly

PATIENCE_S = 300.0
WARM = (
    "{quality:0.9,fault:null,seconds:0.0}",
    "{quality:0.8,fault:raise,seconds:0.0}",
    "{quality:0.8,fault:nan_loss,seconds:0.0}",
    "{quality:0.1,fault:null,seconds:0.0}",
    "{quality:0.95,fault:null,seconds:1.5}",
    "{quality:0.97,fault:null,seconds:1.5}",
)
NUM_QUICK = 4  # the others still run when the first of these have ended
WORDS = (
    "scheduler.args.grace_fraction=0.3",  # at step 600: the two that break at step 500 are not stopped before
    "cluster.address=null", "cluster.num_cpus=2", "failures.max_retries=0", f"budget.trials={len(WARM)}",
    "+space.fault=[choice,null,raise,nan_loss]", "+space.seconds=[choice,0.0,1.5]", f"warm_start=[{','.join(WARM)}]",
)  # fmt: skip
RUN_DASHBOARD = "import sys, optuna_dashboard as od; od.run_server(sys.argv[1], '127.0.0.1', int(sys.argv[2]))"

Shown = tuple[list[TrialRecord], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    """The ledger's trials and the dashboard's, at three moments of one sweep."""
    folder = tmp_path_factory.mktemp("dashboard")
    sweep, readings = folder / "outputs" / "toy", {}
    driver = start_sweep("run", folder, *WORDS)
    try:
        wait_until(lambda: driver.poll() is not None or is_half_done(sweep))
        readings["running"] = read_moment(sweep)
        assert driver.poll() is None
        driver.kill()
        driver.wait()
        readings["killed"] = read_moment(sweep)
        code, said = finish(start_sweep("resume", folder, **{HURRY: "1"}))
        assert code == 0, said
        readings["finished"] = read_moment(sweep)
    finally:
        driver.kill()
    return readings


def read_records(sweep: Path) -> list[TrialRecord]:
    """The ledger's trials; none where it is not there yet."""
    try:
        ledger = open_ledger(sweep)
    except StudyError:
        return []
    records = ledger.trials.records()
    ledger.close()
    return records


def read_moment(sweep: Path) -> Shown:
    """The ledger's trials, and those that a dashboard shows of the file that a command writes now."""
    records, study = read_records(sweep), write_study(load_view(sweep))
    with run_dashboard(study) as read_trials:
        return records, read_trials()


def is_half_done(sweep: Path) -> bool:
    """Whether the quick trials have ended and the others have a curve."""
    records = read_records(sweep)
    ended = [record.number for record in records if record.state != "RUNNING"]
    return ended == list(range(NUM_QUICK)) and all(record.reports for record in records[NUM_QUICK:])


@contextmanager
def run_dashboard(study: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A dashboard in a process of its own; what it answers about the trials of its only study."""
    port = free_port()
    address = f"http://127.0.0.1:{port}/api/studies"
    process = subprocess.Popen([sys.executable, "-c", RUN_DASHBOARD, f"sqlite:///{study}", str(port)])

    def ask(address: str) -> Any:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)

    def answers() -> bool:
        try:
            return bool(ask(address))
        except OSError:
            assert process.poll() is None
            return False

    def read_trials() -> list[dict[str, Any]]:
        (summary,) = ask(address)["study_summaries"]
        assert (summary["study_name"], summary["directions"]) == ("toy", ["maximize"])
        return list(ask(f"{address}/{summary['study_id']}")["trials"])

    try:
        wait_until(answers)
        yield read_trials
    finally:
        process.terminate()
        process.wait()


def describe_record(record: TrialRecord) -> dict[str, Any]:
    """What a person should see of a trial: a stopped one's value is what it had reached, a diverged one has none."""
    values = [record.score] if record.state in ("COMPLETE", "PRUNED") else []
    return {
        "number": record.number,
        "state": record.state,
        "params": {name: str(value) for name, value in (record.drawn or {}).items()},
        "values": [] if record.diverged else values,
    }


def read_number(trial: dict[str, Any]) -> int:
    """Read the ledger's number of a trial; Optuna counts trials in the order in which they were added."""
    (number,) = [json.loads(one["value"]) for one in trial["user_attrs"] if one["key"] == "trial"]
    return int(number)


def describe_shown(trial: dict[str, Any]) -> dict[str, Any]:
    return {
        "number": read_number(trial),
        "state": trial["state"].upper(),
        "params": {one["name"]: one["param_external_value"] for one in trial["params"]},
        "values": trial.get("values") or [],
    }


@pytest.mark.parametrize("moment", ["running", "killed", "finished"])
def test_the_dashboard_shows_the_ledgers_trials(shown: dict[str, Shown], moment: str) -> None:
    records, trials = shown[moment]
    ended = [record for record in records if record.state != "RUNNING"]
    assert [describe_shown(trial) for trial in sorted(trials, key=read_number)] == list(map(describe_record, ended))
    assert len(trials) == (len(WARM) if moment == "finished" else NUM_QUICK)


def score_at(record: TrialRecord, mark: int) -> float | None:
    return record.reports[mark]


def test_the_curve_of_a_trial_that_has_ended_is_shown(shown: dict[str, Shown]) -> None:
    records, trials = shown["finished"]
    trials = sorted(trials, key=read_number)
    curves = [{point["step"]: point["value"] for point in trial["intermediate_values"]} for trial in trials]
    for record, curve in zip(records, curves, strict=True):
        scores = {mark: score_at(record, mark) for mark in record.reports}
        assert curve == pytest.approx({mark: scores[mark] for mark in curve})
        assert max(curve) == max(record.reports)
    assert list(curves[0]) == list(range(200, 2001, 200)), "ten points of twenty"
    assert "Running" not in {trial["state"] for trial in trials}
