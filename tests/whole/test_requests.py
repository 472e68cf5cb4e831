"""One real sweep of which others ask something while it runs: enqueue, retry, watch, stop; then it goes on."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from listener import Listener, listen
from real import Command, Project

from rltune.ledger.storage import open_ledger
from rltune.records import TrialRecord

ENV = """
import time
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

STEPS = [0]


class Flaky(CartPoleEnv):
    def step(self, action):
        STEPS[0] += 1
        if STEPS[0] > 200 and Path({broken!r}).exists():  # before its first checkpoint
            Path({slow!r}).touch()  # The next trial takes minutes, so that requests come in time on any machine.
            Path({broken!r}).unlink()
            raise RuntimeError("the simulator's licence has run out")
        if STEPS[0] == 300:  # In the third process since the failure: the next trial and the first request have ended.
            with Path({counted!r}).open("a") as file:
                file.write(".")
            if Path({counted!r}).stat().st_size == 3:
                Path({slow!r}).touch()
        if Path({slow!r}).exists():
            time.sleep(0.05)
        return super().step(action)


gymnasium.register("Flaky-v0", Flaky, max_episode_steps=500)
"""
SWEEP = (
    *("algo=ppo", "env.id=flaky:Flaky-v0", "name=mine", "budget.trials=3", "budget.env_steps=2000", "tracking=off"),
    *("failures.max_retries=0", "scheduler=none", "resources.max_concurrent=1", "report=false"),
    *("certify=off", "certify.top=0", "space.train_batch_size_per_learner=256", "space.minibatch_size=64"),
    "tracking.kinds=[own_code:Log]",
)
OWN_CODE = """
from pathlib import Path

from rltune.tracking.tracker import Tracker


class Log(Tracker):
    close_s = 10.0

    def write(self, trial, reports):
        with Path({notified!r}).open("a") as file:
            file.write(f"{{trial.number}} {{trial.state}}\\n")

    def end(self, status, outcome):
        raise ValueError("which ends nothing")
"""


@dataclass
class Requested:
    """What came of the commands, in their order."""

    folder: Path
    enqueued: Command
    retried: Command
    stopped: Command
    again: Command
    ran: Command
    watched: Command
    between: list[TrialRecord]
    notified: str
    summary: str
    resumed: Command
    late: Command

    def records(self) -> list[TrialRecord]:
        with closing(open_ledger(self.folder / "outputs/mine")) as ledger:
            return ledger.trials.records()


def read_ledger(folder: Path, query: str) -> list[str]:
    file = folder / "outputs/mine/ledger.db"
    if not file.exists():  # SQLite would make an empty one, in the driver's way
        return []
    try:
        with closing(sqlite3.connect(file, timeout=30)) as opened:
            return [row[0] for row in opened.execute(query)]
    except sqlite3.Error:
        return []


def read_states(folder: Path) -> list[str]:
    return read_ledger(folder, "select state from sweep_trials order by number")


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, process.kill()
        time.sleep(0.2)


def read_end(process: subprocess.Popen[str]) -> Command:
    out, _ = process.communicate(timeout=120)
    return Command(process.returncode, out)


@pytest.fixture(scope="module")
def server() -> Iterator[Listener]:
    with listen() as listener:
        yield listener


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory, server: Listener) -> Requested:
    folder = tmp_path_factory.mktemp("asked")
    project, broken, slow, notified = Project(folder), folder / "broken", folder / "slow", folder / "told.txt"
    (folder / "flaky.py").write_text(ENV.format(broken=str(broken), slow=str(slow), counted=str(folder / "counted")))
    (folder / "own_code.py").write_text(OWN_CODE.format(notified=str(notified)))
    broken.touch()
    run = project.start("-m", "sweeps.run", *SWEEP, f"notify=http://{server.host}/")
    wait_for(run, lambda: read_states(folder)[:1] == ["FAIL"])
    wait_for(
        run, lambda: notified.exists() and "0 FAIL" in notified.read_text()
    )  # some seconds after, by a thread of its own
    watch = project.start("-m", "sweeps.watch", "sweep=mine")
    enqueued = project.call("enqueue", "sweep=mine", "space.lr=0.00125", "space.num_epochs=5")
    retried = project.call("retry", "sweep=mine")
    slow.unlink()
    wait_for(run, lambda: bool(read_ledger(folder, "select trial from requests where trial is not null")))
    wait_for(run, lambda: read_states(folder)[:1] not in ([], ["FAIL"]))  # the other request is seen to, too
    stopped = project.type("-m", "sweeps.stop", "sweep=mine")
    again = project.call("stop", "sweep=mine")
    ran, watched = read_end(run), read_end(watch)
    slow.unlink(missing_ok=True)
    with closing(open_ledger(folder / "outputs/mine")) as ledger:
        between = ledger.trials.records()
    summary = (folder / "outputs/mine/summary.json").read_text()
    late = project.call("enqueue", "sweep=mine", "space.lr=0.0025")
    resumed = project.type("-m", "sweeps.resume", "sweep=mine", "budget.trials=4")
    return Requested(
        folder, enqueued, retried, stopped, again, ran, watched, between, notified.read_text(), summary, resumed, late
    )


def test_a_stop_from_elsewhere_ends_it_as_an_interrupt(requested: Requested) -> None:
    assert requested.stopped.code == 0, requested.stopped.out
    assert "mine: interrupted, " in requested.stopped.out
    assert "resume sweep=mine" in requested.stopped.out
    assert requested.ran.code == 130, requested.ran.out
    assert "mine: interrupted" in requested.ran.out
    assert '"status": "interrupted"' in requested.summary
    assert '"reason": "stopped' in requested.summary
    assert requested.again.code == 2
    assert "(interrupted)" in requested.again.out


def test_who_watched_saw_it_to_its_end(requested: Requested) -> None:
    assert requested.watched.code == 130, requested.watched.out
    assert "begun so far: " in requested.watched.out
    assert "mine: interrupted" in requested.watched.out


def test_what_was_enqueued_was_the_next_trial(requested: Requested) -> None:
    assert requested.enqueued.code == 0, requested.enqueued.out
    by_hand = [record for record in requested.records() if record.enqueued_by]
    assert [record.params["lr"] for record in by_hand] == [0.00125, 0.0025]
    assert by_hand[0].params["num_epochs"] == 5
    assert f"trial {by_hand[0].number} is the configuration that " in requested.ran.out
    assert "resume sweep=mine" in requested.late.out, "nobody drove it then"
    assert f"trial {by_hand[1].number} is the configuration that " in requested.resumed.out


def test_what_failed_goes_on_with_its_number_and_values(requested: Requested) -> None:
    assert requested.retried.code == 0, requested.retried.out
    lines = requested.ran.out.splitlines()
    assert [line for line in lines if "trial 0 failed" in line and "RuntimeError" in line]
    assert [line for line in lines if "trial 0" in line and ": tried" in line], "with any that failed meanwhile"


def test_resumed_it_has_each_trial_once(requested: Requested) -> None:
    assert requested.resumed.code == 0, requested.resumed.out
    records = requested.records()
    assert [(record.number, record.state) for record in records] == [(number, "COMPLETE") for number in range(4)]
    assert all(list(record.reports) == sorted(set(record.reports)) for record in records)
    assert [record.params for record in records[: len(requested.between)]] == [one.params for one in requested.between]


def test_own_code_is_told_and_its_error_ends_nothing(requested: Requested) -> None:
    assert "0 FAIL" in requested.notified.splitlines()
    lines = requested.ran.out.splitlines()
    assert len([line for line in lines if "Log refused" in line and "ends nothing" in line]) == 1


def test_the_notified_address_is_told_of_each_end(requested: Requested, server: Listener) -> None:
    assert requested.resumed.code == 0, requested.resumed.out
    assert [(end["name"], end["status"]) for end in server.contents] == [("mine", "interrupted"), ("mine", "complete")]
