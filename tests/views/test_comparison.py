"""Sweeps side by side."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ended import make_certification, write_sweep

from rltune.certification.result import Configuration, SeedResult, judge_configurations
from rltune.errors import CONTROLS, StudyError
from rltune.ledger.storage import open_ledger
from rltune.records import BASELINE
from rltune.views.comparison import compare_sweeps


def test_certified_sweeps_are_compared_with_the_first(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 3, make_certification())
    write_sweep(tmp_path / "two", 3, make_certification(38.0))
    (tmp_path / "one" / "summary.json").write_text(
        '{"name": "one", "status": "complete", "trials": {}, "winner": {}, "model": null,'
        ' "cost": {"env_steps": 3000, "certify_env_steps": 4000}}'
    )
    comparison = compare_sweeps(["one", "two"], tmp_path)
    assert [(row.name, row.score) for row in comparison.rows] == [("one", 99.0), ("two", 119.0)]
    assert [(row.num_wins, row.num_pairs, row.wins_needed, row.verdict) for row in comparison.rows] == [
        (0, 0, None, ""),
        (5, 5, None, ""),
    ], "either of two configurations may have been chosen by these runs"
    table = [[cell.strip() for cell in line.split("|")] for line in comparison.markdown().splitlines()]
    assert [row[7] for row in table[4:6]] == ["7,000", "0"], "search and certification"
    with closing(open_ledger(tmp_path / "one")) as ledger:
        ledger.change_sweep(status="running")
    extended = compare_sweeps(["one", "two"], tmp_path)
    assert extended.cells() == comparison.cells(), "the winner is that of the last end, and so is the cost"
    assert table[4][1:7] == ["one", "ppo, trial 3", "99", "97 to 101", "-", "-"]
    assert table[5][1:7] == ["two", "ppo, baseline", "119", "117 to 121", "5 of 5", "-"]
    text, page = comparison.save(tmp_path / "comparison")
    assert text.read_text() == comparison.markdown()
    assert "Plotly.newPlot" in page.read_text()


@pytest.mark.parametrize("names", [np.array(["one", "two"]), pd.Series(["one", "two"]), iter(["one", "two"])])
def test_the_names_may_be_in_any_collection(names: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_sweep(tmp_path / name, 3, make_certification())
    assert [row.name for row in compare_sweeps(names, tmp_path).rows] == ["one", "two"]
    with pytest.raises(StudyError) as refused:
        compare_sweeps(names[:0] if hasattr(names, "size") else names, tmp_path)
    assert refused.value.key == "sweeps"


def test_names_of_others_change_neither_terminal_nor_page(tmp_path: Path) -> None:
    evil = "one\x1b]0;title\x07\u202e<script>"
    write_sweep(tmp_path / evil, 3, make_certification())
    write_sweep(tmp_path / "two", 3, make_certification(38.0))
    comparison = compare_sweeps([evil, "two"], tmp_path)
    text, _ = comparison.save(tmp_path / "comparison")
    assert not CONTROLS.search(comparison.markdown() + text.read_text())
    assert "<script>" not in text.read_text()


def test_what_cannot_be_compared_is_refused_by_its_key(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 3, make_certification())
    write_sweep(tmp_path / "bare", 3)
    write_sweep(tmp_path / "other", 3, make_certification(), "complete", "env=acrobot")
    write_sweep(tmp_path / "longer", 3, make_certification(), "complete", "+env.kwargs.max_episode_steps=60")
    limit = "env.wrappers=[{entry_point: 'gymnasium.wrappers:TimeLimit', kwargs: {max_episode_steps: 60}}]"
    write_sweep(tmp_path / "wrapped", 3, make_certification(), "complete", limit)
    cost = ("objective.kind=info", "objective.key=energy", "objective.direction=min")
    write_sweep(tmp_path / "cost", 3, make_certification(), "complete", *cost)
    others = ("bare", "other", "longer", "wrapped", "cost")
    for names in ([], ["onee"], *(["one", other] for other in others)):
        with pytest.raises(StudyError) as refused:
            compare_sweeps(names, tmp_path)
        assert refused.value.key == "sweeps", names
        assert all(name in refused.value.what for name in names[1:])
        assert refused.value.fix


def test_the_same_environment_may_be_written_in_two_ways(tmp_path: Path) -> None:
    limit = "env.wrappers=[{entry_point: 'gymnasium.wrappers:TimeLimit', kwargs: {max_episode_steps: 60}}%s]"
    ways = (limit % ", {entry_point: 'a:B'}", limit % ", {entry_point: 'a:B', kwargs: {}}")
    typed = (("+env.kwargs.a=1", "+env.kwargs.b=2"), ("+env.kwargs.b=2", "+env.kwargs.a=1"))
    for name, words, wrappers in zip(("one", "two"), typed, ways, strict=True):
        write_sweep(tmp_path / name, 3, make_certification(), "complete", *words, wrappers)
    assert len(compare_sweeps(["one", "two"], tmp_path).rows) == 2


def test_sweeps_are_compared_where_their_results_were_measured(tmp_path: Path) -> None:
    """However they have learned and chosen."""
    test = "++certify.env.kwargs.part=test"
    write_sweep(tmp_path / "one", 3, make_certification(), "complete", test, "+env.kwargs.part=training")
    write_sweep(tmp_path / "two", 3, make_certification(), "complete", test, "++score.env.kwargs.part=validation")
    write_sweep(tmp_path / "three", 3, make_certification(), "complete", "++score.env.kwargs.part=test")
    write_sweep(tmp_path / "other", 3, make_certification(), "complete", "++score.env.kwargs.part=validation")
    assert len(compare_sweeps(["one", "two", "three"], tmp_path).rows) == 3
    with pytest.raises(StudyError):
        compare_sweeps(["one", "other"], tmp_path)


def test_other_budgets_and_episodes_are_named(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 3, make_certification())
    write_sweep(tmp_path / "two", 3, make_certification(), "complete", "budget.env_steps=5000")
    assert compare_sweeps(["one", "one"], tmp_path).notes == ()
    (note,) = compare_sweeps(["one", "two"], tmp_path).notes
    assert "one 1,000" in note
    assert "two 5,000" in note
    longer = make_certification() | {"episodes": 9}
    write_sweep(tmp_path / "three", 3, longer)
    (note,) = compare_sweeps(["one", "three"], tmp_path).notes
    assert "three 9 episodes" in note


@pytest.mark.parametrize(("num_seeds", "num_won", "verdict"), [(10, 9, ""), (10, 10, "better"), (20, 17, "better")])
def test_a_winner_of_two_is_better_by_more_wins(tmp_path: Path, num_seeds: int, num_won: int, verdict: str) -> None:
    """Each of the two certified configurations might have won by chance."""
    write_sweep(tmp_path / "one", 3, make_pair([0.0] * num_seeds))
    write_sweep(tmp_path / "two", 3, make_pair([1.0] * num_won + [-0.5] * (num_seeds - num_won)))
    row = compare_sweeps(["one", "two"], tmp_path).rows[1]
    assert (row.num_wins, row.num_pairs, row.verdict) == (num_won, num_seeds, verdict)


def make_pair(scores: list[float]) -> dict[str, Any]:
    """A certification that a trial with such scores has won over a far worse baseline."""
    best, other = (
        tuple(SeedResult(seed, score + worse, (score,)) for seed, score in enumerate(scores)) for worse in (0, -9)
    )
    configurations = [
        Configuration(BASELINE, None, {}, None, other),
        Configuration("trial 3", 3, {"lr": 1e-3}, 1.0, best),
    ]
    judged = judge_configurations(configurations, range(len(scores)), 1)
    assert judged is not None
    return dict(json.loads(json.dumps(judged.to_dict())))
