"""Our learner for stock RLlib's SAC, where it differs from RLlib's: the critics' squared errors."""

from __future__ import annotations

import pytest
import torch
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from tests.engine.sac_learner import (
    ROWS,
    SQUARED,
    make_config,
    make_learner,
    random_columns,
    square_rllibs_losses,
    use_noise,
)


@pytest.mark.slow  # RLlib's own learner trains, too.
@pytest.mark.parametrize("case", SQUARED)
def test_squared_errors_equal_rllibs_learner_with_that_loss(case, monkeypatch):
    ours = make_learner(make_config({}, td_error_loss_fn="mse", **SQUARED[case]))
    theirs = make_learner(make_config({}, **SQUARED[case]))
    square_rllibs_losses(monkeypatch)
    noise = [torch.empty(0)]
    use_noise(monkeypatch, noise)
    for index in range(3):
        noise[0] = torch.randn(2, ROWS, 2, generator=torch.Generator().manual_seed(index))
        columns = random_columns(theirs.config.n_step, index)
        tensors = {name: torch.from_numpy(value) for name, value in columns.items()}
        losses, expected = (
            learner.update(
                batch=MultiAgentBatch({"default_policy": SampleBatch(dict(tensors))}, env_steps=ROWS),
                timesteps={"num_env_steps_sampled_lifetime": 10 * index},
            )["default_policy"]
            for learner in (ours, theirs)
        )
        for name in ("qf_loss", "total_loss", *(["qf_twin_loss"] if theirs.config.twin_q else [])):
            assert float(losses[name].peek()) == pytest.approx(float(expected[name].peek()), rel=1e-5)
        weights = dict(ours.module["default_policy"].named_parameters())
        for name, param in theirs.module["default_policy"].named_parameters():
            torch.testing.assert_close(weights[name], param, atol=1e-5, rtol=0)
