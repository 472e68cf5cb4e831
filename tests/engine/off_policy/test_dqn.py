"""For the same weights and the same batch, our DQN update is RLlib's own learner's, to 1e-5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dqn_learner import LAYOUT, ROWS, make_config, make_learner, our_rows, random_columns
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from rltune.engine.off_policy.dqn import DQNUpdate

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "double, dueling, huber": ({}, {}),
    "plain": ({}, {"double_q": False, "dueling": False, "grad_clip": None}),
    "double only, mse": ({"fcnet_activation": "relu"}, {"dueling": False, "td_error_loss_fn": "mse"}),
    "dueling only, 3 steps": ({}, {"double_q": False, "n_step": 3}),
    "tight global norm": ({}, {"grad_clip": 0.05}),
    "clip by value": ({}, {"grad_clip": 0.01, "grad_clip_by": "value"}),
    "norm of each tensor": ({}, {"grad_clip": 0.02, "grad_clip_by": "norm"}),
    "schedule": ({}, {"lr": [[0, 1e-2], [100, 1e-3]]}),
    "soft targets": ({}, {"tau": 0.1}),
    "layer norm (autograd)": ({"fcnet_use_layernorm": True}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_targets_and_statistics_equal_rllibs_learner(case: str) -> None:
    model, training = CASES[case]
    config = make_config(model, target_network_update_freq=20, **training)
    n_step = training.get("n_step", 1)
    theirs, ours = make_learner(config), make_learner(config)
    update = DQNUpdate(ours, config, LAYOUT)
    updated_at = 0
    for index, clock in enumerate((10, 30, 40)):  # one target update, at 30
        columns = random_columns(n_step, index)
        expected = theirs.update(
            batch=MultiAgentBatch(
                {"default_policy": SampleBatch({k: torch.from_numpy(v) for k, v in columns.items()})}, env_steps=ROWS
            ),
            timesteps={"num_env_steps_sampled_lifetime": clock},
        )["default_policy"]
        with torch.no_grad():
            errors = update.step(our_rows(columns, n_step), columns["weights"])
            if clock - updated_at >= 20:
                update.targets.update(config.tau)
                updated_at = clock
            stats = update.statistics()
            update.advance(clock)
        td_errors = np.concatenate([np.atleast_1d(np.asarray(x)) for x in expected["td_error"].peek()])
        np.testing.assert_allclose(errors.numpy(), td_errors, atol=1e-5)
        for name, value in stats.items():
            if name != "default_optimizer_learning_rate":
                assert value == pytest.approx(float(expected[name].peek()), abs=1e-5, rel=1e-5), name
    found = dict(ours.module["default_policy"].named_parameters())
    for name, param in theirs.module["default_policy"].named_parameters():
        torch.testing.assert_close(found[name], param, atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
