"""The figures as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ended import make_certification, write_sweep

from rltune.reporting.html import write_report

pytestmark = pytest.mark.slow  # Optuna and Plotly draw every page anew


def test_pictures_are_written_beside_the_page(tmp_path: Path) -> None:
    folder = write_report(write_sweep(tmp_path / "s", certified=make_certification()))
    pictures = {path.stem for path in folder.glob("*.png") if path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"}
    assert pictures == {"curves", "best", "certification", "parallel", "slices", "importance", "cost"}
