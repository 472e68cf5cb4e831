"""Sweeps side by side."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from ended import make_certification, write_sweep

from rltune.errors import StudyError
from rltune.ledger.storage import open_ledger
from rltune.views.comparison import compare_sweeps


def test_certified_sweeps_are_compared_with_the_first(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 3, make_certification())
    write_sweep(tmp_path / "two", 3, make_certification(38.0))
    (tmp_path / "one" / "summary.json").write_text(
        '{"name": "one", "status": "complete", "trials": {}, "winner": {}, "model": null,'
        ' "cost": {"env_steps": 3000, "certify_env_steps": 4000}}'
    )
    found = compare_sweeps(["one", "two"], tmp_path)
    assert [(row.name, row.score) for row in found.rows] == [("one", 99.0), ("two", 119.0)]
    differences = [row.difference for row in found.rows]
    assert differences[0] is None
    assert differences[1] == pytest.approx((20, 17.694, 22.306), abs=1e-3)
    table = [[cell.strip() for cell in line.split("|")] for line in found.markdown().splitlines()]
    assert [row[6] for row in table[4:6]] == ["7,000", "0"], "search and certification"
    with closing(open_ledger(tmp_path / "one")) as ledger:
        ledger.change_sweep(status="running")
    extended = compare_sweeps(["one", "two"], tmp_path)
    assert extended.cells() == found.cells(), "the winner is that of the last end, and so is the cost"
    assert table[4][1:6] == ["one", "ppo, trial 3", "99", "97 to 101", "-"]
    assert table[5][1:6] == ["two", "ppo, baseline", "119", "117 to 121", "+20 (17.69 to 22.31)"]
    text, page = found.save(tmp_path / "comparison")
    assert text.read_text() == found.markdown()
    assert "Plotly.newPlot" in page.read_text()


def test_what_cannot_be_compared_is_refused_by_its_key(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 3, make_certification())
    write_sweep(tmp_path / "bare", 3)
    write_sweep(tmp_path / "other", 3, make_certification(), "complete", "env=acrobot")
    cost = ("objective.kind=info", "objective.key=energy", "objective.direction=min")
    write_sweep(tmp_path / "cost", 3, make_certification(), "complete", *cost)
    for names in ([], ["onee"], ["one", "bare"], ["one", "other"], ["one", "cost"]):
        with pytest.raises(StudyError) as refused:
            compare_sweeps(names, tmp_path)
        assert refused.value.key == "sweeps", names
        assert all(name in refused.value.what for name in names[1:])
        assert refused.value.fix
