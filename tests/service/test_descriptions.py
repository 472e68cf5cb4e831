"""What is shown of sweeps: their order, how far each is, and fifty of them at once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from composing import compose
from ended import make_certification, write_sweep
from ledger import add_reports

from rltune.cli.reading import list_group
from rltune.config.settings_file import format_settings, redact_config
from rltune.config.validation import parse_config
from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
from rltune.service.descriptions import SweepDescriptions
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import Submissions


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ServiceFolder]:
    with ServiceFolder(tmp_path / "outputs").hold():
        yield ServiceFolder(tmp_path / "outputs")


@pytest.fixture
def queue(folder: ServiceFolder) -> Submissions:
    return Submissions(folder.database, "here")


def test_what_runs_comes_first_then_the_queue_then_the_newest_end(folder: ServiceFolder, queue: Submissions) -> None:
    for name, state, ended_s in (
        ("old", "complete", 1.0), ("new", "failed", 2.0), ("runs", "running", None),
        ("first", "queued", None), ("second", "queued", None),
    ):  # fmt: skip
        queue.change(queue.add(name, []), state=state, ended_s=ended_s)
    shown = SweepDescriptions(folder).list(queue)
    assert [(one["name"], one["queue"]) for one in shown] == [
        ("runs", None), ("first", 1), ("second", 2), ("new", None), ("old", None),
    ]  # fmt: skip
    assert shown[-1]["ended"] == "1970-01-01T00:00:01+00:00"


def test_a_group_is_compared_in_the_order_of_its_submission(
    folder: ServiceFolder, queue: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even of one second, and even where the first one was resumed and ended last."""
    monkeypatch.setattr("rltune.service.submissions.time.time", lambda: 1000.0)
    for place, name in enumerate(("c", "b", "a")):
        queue.change(queue.add(name, []), state="complete", ended_s=2000.0 + place)
    queue.queue_again(queue.get("c"))
    queue.change(queue.get("c"), state="complete", ended_s=3000.0)
    client: Any = SimpleNamespace(list=lambda group: SweepDescriptions(folder).list(queue))
    assert list_group("all", client) == ["c", "b", "a"]


def test_progress_counts_ended_trials_and_the_steps_of_running_ones(folder: ServiceFolder, queue: Submissions) -> None:
    views = SweepDescriptions(folder)
    queue.change(queue.add("s", []), state="running", last_driver="an earlier one")

    def progress() -> tuple[Any, ...]:
        (sweep,) = views.list(queue)
        if (part := sweep["sweep"]) is None:
            return ()
        trials = part["trials"]
        return part["percent"], trials["ended"], trials["planned"], part["best"]["score"], part["env_steps"]

    assert progress() == ()
    write_sweep(folder.sweeps / "s", 2, None, "running", "budget.trials=4")
    assert progress() == (50, 2, 4, pytest.approx(10.0), 1400)
    with closing(open_ledger(folder.sweeps / "s")) as ledger:
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        add_reports(ledger, number, {200: 5.0, 400: 123.0})
    assert progress() == (60, 2, 4, pytest.approx(10.0), 1800)
    with closing(open_ledger(folder.sweeps / "s")) as ledger:
        ledger.change_sweep(status="complete")
    assert progress()[0] == 100


def test_an_extended_sweep_is_not_whole_and_starts_until_its_ledger_runs(
    folder: ServiceFolder, queue: Submissions
) -> None:
    views = SweepDescriptions(folder)
    write_sweep(folder.sweeps / "s", 4, None, "complete", "budget.trials=4")

    def change(**values: Any) -> tuple[str, int, int]:
        queue.change(queue.get("s"), **values)
        (sweep,) = views.list(queue)
        return sweep["in_words"], sweep["sweep"]["percent"], sweep["sweep"]["trials"]["planned"]

    queue.add("s", ["budget.trials=4"])
    with closing(open_ledger(folder.sweeps / "s")) as ledger:
        with take_lease(ledger):
            ledger.change_sweep(status="complete")
        last_driver = ledger.read_lease().driver_id
        assert change(state="complete") == ("complete", 100, 4)
        assert queue.queue_again(queue.get("s"), ["budget.trials=10"], "budget: {trials: 10}")
        position, *numbers = change(reason=None)
        assert " 1 " in position
        assert numbers == [40, 10]
        assert change(state="running", last_driver=last_driver) == ("starting", 40, 10)
        assert change(is_stopping=True)[0] not in ("starting", "running")
        assert change(is_stopping=False) == ("starting", 40, 10)
        extended = parse_config(compose("run", "budget.env_steps=1000", "budget.trials=10"))
        with take_lease(ledger):
            ledger.change_sweep(config=format_settings(redact_config(extended)))  # As a resume does.
            assert change(reason=None) == ("running", 40, 10)
        ledger.change_sweep(status="stopped")
        assert change(reason=None)[0] == "running", "its process ends"
        ledger.change_sweep(status="complete")
    assert change(state="complete") == ("complete", 100, 10)
    assert change(state="interrupted", reason="headless\ntraceback")[0] == "interrupted, headless"


def test_a_sweep_without_a_ledger_starts(folder: ServiceFolder, queue: Submissions) -> None:
    queue.change(queue.add("s", []), state="running", started_s=1.0)
    assert [one["in_words"] for one in SweepDescriptions(folder).list(queue)] == ["starting"]


def test_a_sweeps_page_has_its_trials_and_certified_results(folder: ServiceFolder, queue: Submissions) -> None:
    submission = queue.add("s", [])
    assert SweepDescriptions(folder).show(queue, submission.name)["sections"] == {}
    write_sweep(folder.sweeps / "s", certified=make_certification())
    described = SweepDescriptions(folder).show(queue, submission.name)
    tables = {name: section.table for name, section in described["sections"].items() if section.table}
    assert [row[0] for row in tables["certification"].rows] == ["trial 3", "baseline"]
    assert len(tables["trials"].rows) == 12
    assert described["sections"]["verdict"].notes
    assert described["parameters"] == [("lr", "loguniform 1e-4, 0.01", "0.01")], "with the value of the best trial"
    assert described["sweep"]["name"] == "s"
    assert [curve.trial for curve in described["curves"][0].curves][-1] == 11, "the best trial's is drawn last"


@pytest.mark.slow
def test_fifty_sweeps_are_listed_in_a_second_once_they_were_read(folder: ServiceFolder, queue: Submissions) -> None:
    write_sweep(folder.sweeps / "s0", 12, make_certification())
    queue.add("s0", [])
    for number in range(1, 50):
        shutil.copytree(folder.sweeps / "s0", folder.sweeps / f"s{number}")
        queue.add(f"s{number}", [])
    views = SweepDescriptions(folder)
    views.list(queue)  # as a service does when it begins
    began = time.process_time()
    shown = views.list(queue)
    assert time.process_time() - began < 1
    assert [one["sweep"]["best"]["score"] for one in shown] == pytest.approx([110.0] * 50)
