"""A sweep's folder is made, claimed and given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltune.errors import StudyError
from rltune.study.sweep_folder import lock_sweep
from rltune.sweep.context import SweepContext
from rltune.sweep.folder import claim_folder, is_half_made


def context_of(folder: Path) -> SweepContext:
    return SweepContext(plan=None, name=folder.name, folder=folder, resumed=True, began=0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["config.yaml", "ledger.db", "trials"])
def test_a_folder_is_half_made_until_something_would_be_lost(name: str, tmp_path: Path) -> None:
    assert not is_half_made(tmp_path / "absent")
    assert is_half_made(tmp_path)
    (tmp_path / ".lock").touch()
    assert is_half_made(tmp_path)
    (tmp_path / name).touch()
    assert not is_half_made(tmp_path)


def test_one_driver_at_a_time_has_a_folder(tmp_path: Path) -> None:
    with lock_sweep(tmp_path), pytest.raises(StudyError, match="another driver is working on it"):  # noqa: SIM117
        with claim_folder(context_of(tmp_path)):
            pass


def test_a_claim_clears_what_a_killed_driver_left(tmp_path: Path) -> None:
    draft, whole = tmp_path / "trials/7/.best-4711", tmp_path / "trials/7/best-100"
    for folder in (tmp_path / ".tune", draft, whole):
        folder.mkdir(parents=True)
    with claim_folder(context_of(tmp_path)):
        assert not (tmp_path / ".tune").exists()
        assert not draft.exists()
        assert whole.is_dir()
