"""What Tune leaves behind when it cannot go on."""

from __future__ import annotations

import errno

import pytest
from ray import tune

from rltune.errors import StudyError
from rltune.study.disk_full import DISK_FULL
from rltune.sweep.tune.run import run_trials


def test_a_full_disk_is_no_trials_fault(open_mine, monkeypatch):
    def fit(tuner):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tune.Tuner, "fit", fit)
    with open_mine("certify=off") as sweep:
        with pytest.raises(StudyError, match=DISK_FULL):
            run_trials(sweep)
        assert sweep.stopper.reason == DISK_FULL
        assert not (sweep.context.folder / ".tune").exists()


def test_another_error_of_tunes_is_not_swallowed(open_mine, monkeypatch):
    def fit(tuner):
        raise ValueError("Tune broke")

    monkeypatch.setattr(tune.Tuner, "fit", fit)
    with open_mine("certify=off") as sweep, pytest.raises(ValueError, match="Tune broke"):
        run_trials(sweep)


def test_a_second_signal_ends_the_search_at_once(open_mine, monkeypatch):
    def fit(tuner):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune.Tuner, "fit", fit)
    with open_mine("certify=off") as sweep:
        run_trials(sweep)
        assert (sweep.stopper.reason, sweep.stopper.signal) == ("interrupted at once", 2)
