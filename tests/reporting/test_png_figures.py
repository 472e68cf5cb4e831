"""The figures as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ended import make_certification, write_sweep

from rltune.reporting.html import write_report
from rltune.reporting.plotly_figures import draw_intervals
from rltune.reporting.png_figures import save_figures

pytestmark = pytest.mark.slow  # Optuna and Plotly draw every page anew


def test_pictures_are_written_beside_the_page(tmp_path: Path) -> None:
    folder = write_report(write_sweep(tmp_path / "s", certified=make_certification()))
    pictures = {path.stem for path in folder.glob("*.png") if path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"}
    assert pictures == {"curves", "best", "certification", "parallel", "slices", "importance", "cost"}


def test_a_row_without_a_seeds_result_is_painted(tmp_path: Path) -> None:
    rows = [
        {"name": "trial 1", "iqm": 5.0, "low": 4.0, "high": 6.0, "per_seed": [{"mean": 5.0}]},
        {"name": "baseline", "iqm": 1.0, "low": 1.0, "high": 1.0, "per_seed": []},
    ]
    save_figures({"rows": [draw_intervals(rows, "trial 1", "return")]}, tmp_path)
    assert (tmp_path / "rows.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
