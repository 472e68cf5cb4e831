"""The list has one row for each sweep, with one state, whoever knows it."""

from __future__ import annotations

import io
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ended import write_sweep

from rltune.cli.application.program import load_command
from rltune.cli.listing import merge, sort_rows
from rltune.errors import ConfigError
from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
from rltune.service.folder import TOKEN
from rltune.views.tables import list_sweeps
from tests.service.serviced import Serviced, run_service, write_many


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serviced]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TOKEN, "a-token")
    with run_service(tmp_path / "outputs") as service:
        service.sweeps.folder.write_address(service.address)
        yield service


def type_list(words: str = "") -> Any:
    return load_command("list").answer(shlex.split(words))


def states_of(answer: Any, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The name and the state of each row that is printed; a name on two lines fails."""
    answer.show()
    lines = capsys.readouterr().out.splitlines()
    rows = [
        line.split()[:2]
        for line in lines[1 : lines.index("trials: complete/stopped/failed of all that the budget has")]
    ]
    assert len({name for name, _ in rows}) == len(rows)
    return {name: state.rstrip(",") for name, state in rows}


def submit_each(service: Serviced) -> None:
    """Leave submissions that ended, run, start again, wait and were taken from the queue, and a sweep by hand."""
    outputs, queue = service.sweeps.folder.sweeps, service.queue
    write_sweep(outputs / "by-hand", 2)
    for name, group in (("ended", "five"), ("resumed", "five"), ("finished", None)):
        write_sweep(outputs / name, 2, None, "interrupted" if name == "resumed" else "complete")
        row = queue.add(name, ["experiment=smoke", f"name={name}"], group)
        # The queue has not yet noticed that one has finished, and another was started again after its end.
        with closing(open_ledger(outputs / name)) as ledger:
            if name != "resumed":
                take_lease(ledger).release()
                ledger.change_sweep(status="complete")
        queue.change(row, state="running")
    queue.change(queue.get("ended"), state="complete", ended_s=1.0)
    for name in ("waits", "taken"):
        queue.add(name, ["experiment=smoke", "seed=1"], "five")
    service.sweeps.stop("taken")


@pytest.mark.parametrize("is_served", [True, False])
def test_each_sweep_has_one_row_with_one_state(
    service: Serviced, capsys: pytest.CaptureFixture[str], is_served: bool
) -> None:
    submit_each(service)
    if not is_served:
        service.sweeps.folder.clear_address()
    answer = type_list()
    assert states_of(answer, capsys) == {
        **{"by-hand": "complete", "ended": "complete", "finished": "complete"},
        **{"resumed": "starting", "waits": "number", "taken": "interrupted"},
    }
    assert [sweep["status"] for sweep in answer.data["sweeps"] if sweep["name"] == "resumed"] == ["running"]
    assert {each["name"] for each in answer.data["submissions"]} == {"resumed", "finished", "waits", "taken"}
    assert answer.data["service"] is is_served


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("state=complete sort=name", ["by-hand", "ended", "finished"]),
        ("state=queued", ["waits"]),
        ("state=running", ["resumed"]),
        ("group=five sort=name", ["ended", "resumed", "taken", "waits"]),
        ("group=none", []),
        ("limit=2", ["resumed", "waits"]),
        ("limit=null sort=name", ["by-hand", "ended", "finished", "resumed", "taken", "waits"]),
    ],
)
def test_the_list_is_filtered_sorted_and_cut(
    service: Serviced, capsys: pytest.CaptureFixture[str], words: str, names: list[str]
) -> None:
    submit_each(service)
    answer = type_list(words)
    listed = {each["name"] for each in (*answer.data["sweeps"], *answer.data["submissions"])}
    assert listed == set(names)
    if names:
        assert list(states_of(answer, capsys)) == names
    assert answer.data["more"] is (words == "limit=2")


@pytest.mark.parametrize(("word", "key"), [("state=runing", "state"), ("sort=best", "sort"), ("limit=0", "limit")])
def test_a_filter_that_is_none_is_refused(word: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        type_list(word)
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("status", "state", "is_starting", "merged"),
    [
        ("complete", "running", False, "complete"),
        ("interrupted", "failed", False, "failed"),
        ("interrupted", "refused", False, "refused"),
        ("interrupted", "running", True, "running"),
        ("complete", "queued", False, "queued"),
        ("failed", "failed", False, "failed"),
        ("stopped", "complete", False, "stopped"),
    ],
)
def test_the_end_in_a_ledger_counts_unless_the_queue_is_ahead(
    status: str, state: str, is_starting: bool, merged: str
) -> None:
    submission = {
        **{"name": "s", "state": state, "in_words": state, "starting": is_starting, "stopping": False, "reason": None},
        **{"group": None, "overrides": [], "submitted": None, "queue": None},
    }
    (row,) = merge({"s": {"name": "s", "status": status}}, {"s": submission})
    assert row["status"] == merged


def test_those_that_run_and_wait_come_before_the_newest() -> None:
    rows = [
        {"name": "old", "status": "complete", "began": "2026-01-01", "wall_s": 9.0},
        {"name": "new", "status": "failed", "began": "2026-01-03", "wall_s": 5.0},
        {"name": "second", "status": "queued", "queue": 2, "submitted": "2026-01-05"},
        {"name": "first", "status": "queued", "queue": 1, "submitted": "2026-01-06"},
        {"name": "runs", "status": "running", "began": "2026-01-02"},
    ]
    assert [row["name"] for row in sort_rows(rows, "newest")] == ["runs", "first", "second", "new", "old"]
    assert [row["name"] for row in sort_rows(rows, "oldest")][:2] == ["old", "runs"]
    assert [row["name"] for row in sort_rows(rows, "duration")][:2] == ["old", "new"]


def test_what_was_typed_is_whole_or_what_differs(terminal: io.StringIO) -> None:
    def print_seeds(*more: str) -> list[str]:
        typed = [" ".join(["experiment=smoke", *more, f"seed={seed}"]) for seed in range(2)]
        rows = [{"name": f"s{seed}", "state": "number 1 in the queue", "typed": typed[seed]} for seed in range(2)]
        list_sweeps(rows, "here", terminal)
        return [line.rstrip() for line in terminal.getvalue().splitlines()[-3:-1]]

    assert [line.partition("experiment")[1:] for line in print_seeds()] == [
        ("experiment", "=smoke seed=0"),
        ("experiment", "=smoke seed=1"),
    ]
    lines = print_seeds("budget.env_steps=1000000", "algo.training.entropy_coeff=0.01")
    assert [line.split()[-1] for line in lines] == ["seed=0", "seed=1"]
    assert not any("experiment" in line for line in lines)


def measure_cpu_s(act: Callable[[], object]) -> float:
    """The seconds of CPU of this process, in which the service runs, too; others may slow each of them down."""
    times = []
    for _ in range(3):
        began_s = time.process_time()
        act()
        times.append(time.process_time() - began_s)
    return min(times)


@pytest.mark.nightly
@pytest.mark.slow
def test_hundreds_of_sweeps_are_listed_within_a_second(service: Serviced, capsys: pytest.CaptureFixture[str]) -> None:
    write_many(service.sweeps.folder, 500, 20)
    assert len(service.client.list()) == 520, "as at the start of a service"
    headers = {"headers": {"Authorization": "Bearer a-token"}}
    assert measure_cpu_s(lambda: service.ask("GET", "/api/sweeps", **headers)) < 0.7
    assert measure_cpu_s(lambda: service.ask("GET", "/", headers=service.log_in())) < 1
    assert measure_cpu_s(lambda: type_list("limit=null").show()) < 1
    assert len(capsys.readouterr().out.splitlines()) > 520
    service.sweeps.folder.clear_address()
    assert measure_cpu_s(lambda: type_list().show()) < 1, "without a service, the newest ones alone are read"
    assert len(capsys.readouterr().out.splitlines()) < 3 * 60
