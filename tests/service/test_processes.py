"""Sweeps as processes: they outlive the service, and no sweep runs twice."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ended import write_sweep

from rltune.cluster.resources import available_cpus
from rltune.errors import StudyUnavailableError
from rltune.ledger.lease import take_lease
from rltune.ledger.outcome import Outcome
from rltune.ledger.storage import open_ledger
from rltune.records import STOP
from rltune.service import processes as processes_module
from rltune.service.dispatcher import decide_state
from rltune.service.folder import ServiceFolder
from rltune.service.processes import START_S, Ending, SweepProcesses, share_machine
from rltune.service.submissions import FAILED, RUNNING, Submission
from rltune.views.description import describe
from rltune.views.sweep_view import load_view

ONE = Submission(1, "one", ("algo=ppo",), RUNNING, 1, settings="seed: 3\n")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ServiceFolder]:
    with ServiceFolder(tmp_path / "out puts").hold():
        yield ServiceFolder(tmp_path / "out puts")


def python(code: str) -> tuple[str, ...]:
    """A program in the sweep's place."""
    return (sys.executable, "-c", code)


def start(processes: SweepProcesses, submission: Submission = ONE) -> Submission:
    processes.start(submission)
    return submission


def wait(processes: SweepProcesses, one: Submission) -> Ending:
    deadline = time.monotonic() + 30
    while (ending := processes.find_ending(one)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return ending


def test_a_sweep_reads_its_settings_and_shows_none(folder: ServiceFolder, tmp_path: Path) -> None:
    code = f"import sys; open({str(tmp_path / 'read')!r}, 'w').write(sys.stdin.read()); print(sys.argv[1:])"
    processes = SweepProcesses(folder, {"num_cpus": 1}, python(code))
    ending = wait(processes, start(processes, replace(ONE, name="1.10", overrides=("seed=3", "name=a b"))))
    assert ending.message == str(["--composed", "name='1.10'"])
    request = json.loads((tmp_path / "read").read_text())
    assert yaml.safe_load(request["settings"]) == {
        "seed": 3,
        "output_dir": str(folder.sweeps),
        "cluster": {"num_cpus": 1},
    }
    assert request["typed"].endswith(" seed=3 'name=a b'")
    heading = folder.log_of("1.10").read_text().splitlines()[0]
    assert shlex.split(heading.partition(": ")[2])[-3:] == ["seed=3", "name=a b", "name=1.10"], "a person can type it"
    assert "num_cpus" not in heading


def test_variables_stay_unresolved_on_the_way(folder: ServiceFolder) -> None:
    secret = replace(ONE, settings="notify: ${oc.env:NO_SUCH_VARIABLE}\n")
    request = json.loads(SweepProcesses(folder, {"num_cpus": 1}).format_request(secret))
    assert yaml.safe_load(request["settings"])["notify"] == "${oc.env:NO_SUCH_VARIABLE}"


@pytest.mark.parametrize(
    ("overrides", "cluster"),
    [
        (("cluster.num_cpus=3",), {"num_cpus": 3}),
        (("cluster=local",), {"address": None}),
        (("experiment=ours",), {"address": "head:6379"}),
    ],
)
def test_a_sweep_that_chooses_its_cluster_gets_it(
    overrides: tuple[str, ...], cluster: dict[str, Any], folder: ServiceFolder
) -> None:
    asks = replace(ONE, overrides=overrides, settings=yaml.dump({"cluster": cluster}))
    request = json.loads(SweepProcesses(folder, {"num_cpus": 1}).format_request(asks))
    assert yaml.safe_load(request["settings"])["cluster"] == cluster


def test_sweeps_at_the_same_time_share_the_machine() -> None:
    assert share_machine(1, None) == {}
    assert share_machine(2, None) == {"num_cpus": max(1, available_cpus() // 2)}
    assert share_machine(1000, None) == {"num_cpus": 1}
    assert share_machine(2, "head:6379") == {"address": "head:6379"}


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("print('all is well')", Ending(0, None, "all is well")),
        (
            "print('starting'); print('error: lr=-1\\n  allowed: above 0\\n  try:     lr=1'); raise SystemExit(2)",
            Ending(2, None, "lr=-1\n  allowed: above 0\n  try:     lr=1"),
        ),
        (r"print('error: \x1b[31mred\x1b[2J\x07'); raise SystemExit(2)", Ending(2, message=r"red\x07")),
        ("import os; os.kill(os.getpid(), 9)", Ending(-9)),
        ("import sys; sys.stdin.read(); sys.exit('' if sys.stdin.read() else 7)", Ending(7)),
    ],
)
def test_how_it_ends_and_what_it_said_last_is_known(folder: ServiceFolder, code: str, ending: Ending) -> None:
    processes = SweepProcesses(folder, {}, python(code))
    assert wait(processes, start(processes)) == ending


def test_an_earlier_commands_error_is_not_the_next_ones(folder: ServiceFolder) -> None:
    wrong = SweepProcesses(folder, {}, python("print('error: old'); raise SystemExit(2)"))
    wait(wrong, start(wrong))
    right = SweepProcesses(folder, {}, python("raise SystemExit(1)"))
    assert wait(right, start(right)).message == ""


def test_a_process_gets_the_signal_that_ends_it_and_no_other_service_waits_for_it_long(folder: ServiceFolder) -> None:
    first, fresh = SweepProcesses(folder, {}, python("import time; time.sleep(60)")), SweepProcesses(folder, {}, ())
    submission = start(first, replace(ONE, started_s=time.time()))
    (child,) = first._children.values()
    assert os.getsid(child.pid) == child.pid, "what ends the service's session does not reach it"
    assert (first.find_ending(submission), fresh.find_ending(submission)) == (None, None), "it has no lease yet"
    late = replace(submission, started_s=time.time() - START_S)
    assert (first.find_ending(late), fresh.find_ending(late)) == (None, Ending(None))
    fresh.stop(submission)  # Neither a signal nor a request reaches it from there until it has a lease.
    assert child.poll() is None
    first.stop(submission)
    assert wait(first, submission).code == -signal.SIGTERM


@pytest.mark.parametrize("is_adopted", [True, False])
def test_a_sweep_that_another_process_drives_runs_until_it_ends(folder: ServiceFolder, is_adopted: bool) -> None:
    processes = SweepProcesses(folder, {}, ())
    submission = replace(ONE, is_adopted=is_adopted, started_s=time.time())
    with closing(open_ledger(write_sweep(folder.sweeps / "one", 2, None, "running"))) as ledger:
        assert (processes.find_ending(submission) is None) == (not is_adopted), "what a service starts may come"
        with take_lease(ledger):
            for _ in range(3):
                assert processes.is_driven(submission) is True
                assert processes.find_ending(submission) is None
        ledger.change_sweep(status="complete")
        ending = processes.find_ending(submission)
        assert ending is not None
        assert (ending.code, ending.status) == (None, "complete")


def test_a_refused_second_driver_leaves_the_sweep_running(folder: ServiceFolder) -> None:
    processes = SweepProcesses(folder, {}, python("print('error: another driver'); raise SystemExit(75)"))
    with closing(open_ledger(write_sweep(folder.sweeps / "one", 2, None, "running"))) as ledger, take_lease(ledger):
        ending = wait(processes, start(processes))
        assert (ending.code, ending.is_driven) == (75, True)


def test_a_driver_that_the_service_has_not_started_is_stopped_by_a_request(folder: ServiceFolder) -> None:
    processes = SweepProcesses(folder, {}, ())
    with closing(open_ledger(write_sweep(folder.sweeps / "one", 2, None, "running"))) as ledger, take_lease(ledger):
        for _ in range(2):
            processes.stop(ONE)
            (request,) = ledger.read_requests(STOP)
            assert processes.read_history(ONE)["last_request"] == request.id


def test_a_driver_that_starts_after_the_request_is_stopped_nevertheless(folder: ServiceFolder) -> None:
    processes = SweepProcesses(folder, {}, ())
    with closing(open_ledger(write_sweep(folder.sweeps / "one", 2, None, "interrupted"))) as ledger:
        processes.stop(ONE)
        assert ledger.read_requests(STOP) == [], "its driver would withdraw it"
        with take_lease(ledger):
            processes.request_stop(ONE)
            (request,) = ledger.read_requests(STOP)
            ledger.take_request(request.id)
            processes.request_stop(ONE)
        assert ledger.read_requests(STOP) == [], "a driver is asked once"


@pytest.mark.parametrize("is_later", [False, True])
def test_a_request_to_stop_counts_for_the_run_it_was_made_to(folder: ServiceFolder, is_later: bool) -> None:
    processes = SweepProcesses(folder, {}, ())
    with closing(open_ledger(write_sweep(folder.sweeps / "one", 2, None, "interrupted"))) as ledger:
        ledger.add_request(STOP, {}, "maria@host")
        history = processes.read_history(ONE)
        if is_later:
            ledger.add_request(STOP, {}, "maria@host")
        assert processes.find_ending(replace(ONE, **history)).status is None, "the status is that of an earlier end"
        with take_lease(ledger):
            ledger.change_sweep(status="interrupted")
    ending = processes.find_ending(replace(ONE, **history))
    assert ending is not None
    assert (ending.code, ending.status, ending.is_stop_requested) == (None, "interrupted", is_later)
    assert ending.progress > 0


def test_a_sweep_that_fails_says_why_as_show_does(folder: ServiceFolder) -> None:
    sweep = write_sweep(folder.sweeps / "one", 2, None, "failed")
    counts = {"total": 2, "complete": 0, "pruned": 0, "failed": 2, "interrupted": 0}
    reason = "every trial has failed, so there is no winner; 2 of 2: RuntimeError: sensor unplugged"
    Outcome("one", "failed", counts, None, None, {}, reason=reason, folder=sweep).save()
    processes = SweepProcesses(folder, {}, python("print('correct it, then\\n  rltune retry'); raise SystemExit(1)"))
    with closing(open_ledger(sweep)) as ledger, take_lease(ledger):
        ledger.change_sweep(status="failed")
    ending = wait(processes, start(processes))
    assert decide_state(ONE, ending) == (FAILED, describe(load_view(sweep))["reason"]) == (FAILED, reason)


def test_a_database_that_is_down_leaves_the_exit_code(folder: ServiceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise StudyUnavailableError(
            "cannot be opened", "a server", "start it", key="study.storage", value="postgresql://host"
        )

    monkeypatch.setattr(processes_module, "open_ledger", fail)
    processes = SweepProcesses(folder, {}, python("raise SystemExit(75)"))
    assert processes.is_driven(ONE) is False
    assert wait(processes, start(processes)) == Ending(75)
    assert processes.find_ending(ONE) is None, "whether another process drives it cannot be known"


def test_a_damaged_ledger_hides_no_exit_code(folder: ServiceFolder) -> None:
    write_sweep(folder.sweeps / "one", 2, None, "interrupted")
    with closing(sqlite3.connect(folder.sweeps / "one" / "ledger.db")) as database, database:
        database.execute("DROP TABLE sweep_trials")
    processes = SweepProcesses(folder, {}, python("raise SystemExit(75)"))
    assert wait(processes, start(processes)) == Ending(75)


@pytest.mark.slow
def test_it_outlives_the_service_that_is_killed(folder: ServiceFolder, tmp_path: Path) -> None:
    code = f"""
import sys, os, signal
from rltune.service.folder import ServiceFolder
from rltune.service.processes import SweepProcesses
from rltune.service.submissions import Submission
program = (sys.executable, "-c", "import time; time.sleep(1); open('done', 'w')")
one = Submission(1, "one", (), "running", 1)
SweepProcesses(ServiceFolder({str(folder.sweeps)!r}), {{}}, program).start(one)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
