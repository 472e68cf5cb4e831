"""The one description of a sweep for programs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from ended import make_certification, write_cost_sweep, write_sweep

from rltune.ledger.outcome import Outcome
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.views.description import describe, summarize
from rltune.views.page import describe_sweep
from rltune.views.tables import read_sweep


def test_a_sweep_is_described_by_numbers(tmp_path: Path) -> None:
    write_sweep(tmp_path / "first", certified=make_certification())
    view = read_sweep(SweepRef("first", tmp_path))
    sweep = summarize(view)
    unfinished = {"failed": 0, "interrupted": 0, "running": 0}
    assert sweep["trials"] == {"planned": 24, "ended": 12, "total": 12, "complete": 6, "pruned": 6, **unfinished}
    assert isinstance(sweep["best"]["score"], float)
    assert (sweep["certified"]["winner"], sweep["certified"]["configurations"][0]["median"]) == ("trial 3", 99.0)
    whole = describe(view)
    assert whole["verdict"]
    assert [trial["trial"] for trial in whole["trials_best_first"]] == [trial.number for trial in view.ordered]
    assert len(whole["certified"]["configurations"][0]["scores"]) == 5


def test_a_description_has_the_address_of_the_charts(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "first")
    assert summarize(read_sweep(SweepRef("first", tmp_path)))["mlflow"] is None
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(mlflow={"uri": "http://me:hunter22@host", "experiment": "7"})
    view = read_sweep(SweepRef("first", tmp_path))
    charts = summarize(view)["mlflow"]["charts"]
    assert charts.startswith("http://host/#/experiments/7/runs?")
    (files,) = (section for section in describe_sweep(view) if section.name == "files")
    assert dict(files.facts)["charts"] == charts


def test_running_trials_are_counted_by_themselves(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "first", 2, None, "running")
    with closing(open_ledger(folder)) as ledger:
        numbers = [ledger.trials.add({"lr": 1e-3}, [1]).number for _ in range(3)]
        for number in numbers[:2]:
            ledger.trials.start(number)
        ledger.trials.interrupt(numbers[0])
    counts = summarize(read_sweep(SweepRef("first", tmp_path)))["trials"]
    assert (counts["total"], counts["interrupted"], counts["running"]) == (5, 1, 2), "one of them waits"


def test_costs_keep_their_sign(tmp_path: Path) -> None:
    write_cost_sweep(tmp_path / "cost")
    view = read_sweep(SweepRef("cost", tmp_path))
    scores = [trial["score"] for trial in describe(view)["trials_best_first"]]
    assert summarize(view)["best"]["score"] == scores[0]


def test_the_description_has_each_key_of_the_summary(tmp_path: Path) -> None:
    shown = describe(read_sweep(SweepRef("s", write_sweep(tmp_path / "s", 2).parent)))
    assert set(Outcome("s", "complete", {}, None, None, {}).to_dict()) <= set(shown)
