"""What a driver works on does not change under it."""

from __future__ import annotations

import dataclasses

import pytest


def test_a_driver_cannot_rename_its_sweep(open_mine):
    with open_mine() as sweep, pytest.raises(dataclasses.FrozenInstanceError):
        sweep.context.name = "other"


def test_notes_of_the_checks_go_into_a_context_of_their_own(open_mine):
    with open_mine() as sweep:
        noted = dataclasses.replace(sweep.context, plan=dataclasses.replace(sweep.plan, notes=("one",)))
        assert (noted.plan.notes, sweep.plan.notes) == (("one",), ())
        assert noted.folder == sweep.context.folder
