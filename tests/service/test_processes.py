"""Sweeps as processes: nothing begins before the queue knows its number, and all outlives the service."""

from __future__ import annotations

import json
import os
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

import psutil
import pytest
import yaml
from ended import write_sweep

from rltune.cluster.resources import available_cpus
from rltune.records import STOP
from rltune.service.dispatcher import Ending
from rltune.service.folder import ServiceFolder
from rltune.service.processes import SweepProcesses, share_machine
from rltune.service.submissions import RUNNING, Submission
from rltune.study.storage import open_ledger

ONE = Submission(1, "one", ("algo=ppo",), RUNNING, 1, settings="seed: 3\n")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ServiceFolder]:
    with ServiceFolder(tmp_path / "out puts").hold():
        yield ServiceFolder(tmp_path / "out puts")


def python(code: str) -> tuple[str, ...]:
    """A program in the sweep's place."""
    return (sys.executable, "-c", code)


def start(processes: SweepProcesses, one: Submission = ONE, agree: bool = True) -> Submission:
    """Start one; the row as the queue has it then."""
    marks: list[Any] = []
    processes.start(one, lambda mark: (marks.append(mark), agree)[1])
    return replace(one, process=marks[0])


def wait(processes: SweepProcesses, one: Submission) -> Ending:
    deadline = time.monotonic() + 30
    while (ending := processes.look(one)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return ending


def test_a_sweep_reads_its_settings_and_shows_none(folder: ServiceFolder, tmp_path: Path) -> None:
    code = f"import sys; open({str(tmp_path / 'read')!r}, 'w').write(sys.stdin.read()); print(sys.argv[1:])"
    processes = SweepProcesses(folder, {"num_cpus": 1}, python(code))
    ending = wait(processes, start(processes, replace(ONE, name="1.10", words=("seed=3", "name=a b"))))
    assert ending.message == str(["--composed", "name='1.10'"])
    request = json.loads((tmp_path / "read").read_text())
    assert yaml.safe_load(request["settings"]) == {"seed": 3, "cluster": {"num_cpus": 1}}
    assert request["typed"].endswith(" seed=3 'name=a b'")
    assert "seed" not in folder.log_of("1.10").read_text()


def test_variables_stay_unresolved_on_the_way(folder: ServiceFolder) -> None:
    secret = replace(ONE, settings="notify: ${oc.env:NO_SUCH_VARIABLE}\n")
    request = json.loads(SweepProcesses(folder, {"num_cpus": 1}).format_request(secret))
    assert yaml.safe_load(request["settings"])["notify"] == "${oc.env:NO_SUCH_VARIABLE}"


def test_a_sweep_that_asks_for_cpus_gets_them(folder: ServiceFolder) -> None:
    asks = replace(ONE, words=("cluster.num_cpus=3",), settings="cluster: {num_cpus: 3}\n")
    request = json.loads(SweepProcesses(folder, {"num_cpus": 1}).format_request(asks))
    assert yaml.safe_load(request["settings"]) == {"cluster": {"num_cpus": 3}}


def test_sweeps_at_the_same_time_share_the_machine() -> None:
    assert share_machine(1, None) == {}
    assert share_machine(2, None) == {"num_cpus": max(1, available_cpus() // 2)}
    assert share_machine(1000, None) == {"num_cpus": 1}
    assert share_machine(2, "head:6379") == {"address": "head:6379"}


def test_nothing_begins_before_the_queue_has_its_number(folder: ServiceFolder, tmp_path: Path) -> None:
    touch = python(f"open({str(tmp_path / 'begun')!r}, 'w')")
    processes = SweepProcesses(folder, {}, touch)

    def claim(mark: Any) -> bool:
        time.sleep(0.3)
        assert psutil.pid_exists(mark["pid"])
        assert not (tmp_path / "begun").exists()
        return False

    processes.start(ONE, claim)
    (child,) = processes._children.values()
    assert child.wait(10) != 0
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("print('all is well')", Ending(0, None, "all is well")),
        (
            "print('starting'); print('error: lr=-1\\n  allowed: above 0\\n  try:     lr=1'); raise SystemExit(2)",
            Ending(2, None, "lr=-1\n  allowed: above 0\n  try:     lr=1"),
        ),
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


def test_the_next_service_finds_it_by_number_and_starting_time(folder: ServiceFolder) -> None:
    first = SweepProcesses(folder, {}, python("import time; time.sleep(60)"))
    one = start(first)
    pid = one.process["pid"]
    assert os.getsid(pid) == pid, "what ends the service's session does not reach it"
    fresh = SweepProcesses(folder, {}, ())
    assert fresh.look(one) is None
    later = replace(one, process={"pid": pid, "started": one.process["started"] - 60})
    assert SweepProcesses(folder, {}, ()).look(later) == Ending(None), "the system uses numbers again"
    fresh.stop(later)
    assert psutil.pid_exists(pid)
    fresh.stop(one)
    assert wait(first, one).code == -signal.SIGTERM
    assert fresh.look(one) == Ending(None)


@pytest.mark.parametrize(("asked_s", "stop_requested"), [(99.0, False), (101.0, True)])
def test_a_request_to_stop_counts_for_the_run_it_was_made_to(
    folder: ServiceFolder, asked_s: float, stop_requested: bool
) -> None:
    with closing(open_ledger(write_sweep(folder.sweeps / "one", 2, None, "interrupted"))) as ledger:
        ledger.ask(STOP, {}, "maria@host")
    with closing(sqlite3.connect(folder.sweeps / "one" / "ledger.db")) as database, database:
        database.execute("UPDATE requests SET asked_s = ?, taken_s = ?", (asked_s, asked_s + 1))
    ending = SweepProcesses(folder, [], ()).look(replace(ONE, begun_s=100.0))
    assert ending is not None
    assert (ending.code, ending.status, ending.stop_requested) == (None, "interrupted", stop_requested)
    assert ending.progress > 0


def test_a_damaged_ledger_hides_no_exit_code(folder: ServiceFolder) -> None:
    write_sweep(folder.sweeps / "one", 2, None, "interrupted")
    with closing(sqlite3.connect(folder.sweeps / "one" / "ledger.db")) as database, database:
        database.execute("DROP TABLE sweep_trials")
    processes = SweepProcesses(folder, {}, python("raise SystemExit(75)"))
    assert wait(processes, start(processes)) == Ending(75)


def test_it_outlives_the_service_that_is_killed(folder: ServiceFolder, tmp_path: Path) -> None:
    code = f"""
import sys, os, signal
from rltune.service.folder import ServiceFolder
from rltune.service.processes import SweepProcesses
from rltune.service.submissions import Submission
program = (sys.executable, "-c", "import time; time.sleep(1); open('done', 'w')")
one = Submission(1, "one", (), "running", 1)
SweepProcesses(ServiceFolder({str(folder.sweeps)!r}), {{}}, program).start(one, lambda mark: True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
