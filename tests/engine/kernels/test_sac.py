"""SAC's kernel where test_sac.py of off_policy, which compares updates with RLlib's learner, does not look."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rltune.engine.off_policy.sac import SACUpdate
from rltune.engine.off_policy.transitions import RowLayout
from tests.engine.finite import is_finite
from tests.engine.sac_learner import INPUTS, make_config, make_learner, our_rows, random_columns


@pytest.mark.parametrize("column", ["obs", "new_obs", "actions", "rewards", "weights"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("twin_q", [True, False])
def test_what_is_not_finite_is_seen(twin_q: bool, bad: float, column: str) -> None:
    """In the weights or in the statistics, of which either ends a trial as diverged."""
    config = make_config({}, twin_q=twin_q)
    update = SACUpdate(make_learner(config), config, RowLayout((INPUTS,), 2))
    columns = random_columns(1, 0)
    columns["terminateds"][3] = False
    columns[column][3] = bad
    with torch.no_grad():
        update.step(our_rows(columns, 1), columns["weights"])
        stats = update.statistics()
    assert not is_finite(update, stats)


@pytest.mark.parametrize("of", ["policy", "qf", "qf_twin", "alpha"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_seen(bad: float, of: str) -> None:
    config = make_config({})
    update = SACUpdate(make_learner(config), config, RowLayout((INPUTS,), 2))
    update.flats[of].params[-1].data.view(-1)[-1] = bad  # A bias of the last layer.
    columns = random_columns(1, 0)
    with torch.no_grad():
        update.step(our_rows(columns, 1), columns["weights"])
        stats = update.statistics()
    assert not is_finite(update, stats)
