"""For the same weights and the same batch, our PPO update is RLlib's own learner's, to 1e-5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ppo_learner import ROWS, SPACES, make_config, our_batch, random_batch, rllib_learner
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from rltune.engine.on_policy.ppo import PPOUpdate


def parameters(learner: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return list(learner.module["default_policy"].named_parameters())


def train_both(config: PPOConfig, space: str) -> tuple[Any, Any, dict[str, Any], dict[str, float]]:
    theirs, ours = rllib_learner(config), rllib_learner(config)
    ours.module.set_state(theirs.module.get_state())
    columns = random_batch(space)
    rllib_stats = theirs.update(
        batch=MultiAgentBatch({"default_policy": SampleBatch(columns)}, env_steps=ROWS),
        timesteps={"num_env_steps_sampled_lifetime": 500},
        num_epochs=config.num_epochs,
        minibatch_size=config.minibatch_size,
        shuffle_batch_per_epoch=False,
    )["default_policy"]
    with torch.no_grad():
        our_stats = PPOUpdate(ours, config, 0).update(our_batch(space, columns), 500)
    return theirs, ours, rllib_stats, our_stats


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "global norm": ({}, {"grad_clip": 0.3, "grad_clip_by": "global_norm"}),
    "norm of each tensor": ({}, {"grad_clip": 0.1, "grad_clip_by": "norm"}),
    "clip by value": ({}, {"grad_clip": 0.02, "grad_clip_by": "value"}),
    "no KL": ({}, {"use_kl_loss": False}),
    "tight clips, strong KL": (
        {},
        {"clip_param": 0.05, "vf_clip_param": 4.0, "kl_coeff": 3.0, "kl_target": 1e-3},
    ),
    "schedules": ({}, {"entropy_coeff": [[0, 0.05], [1000, 0.0]], "lr": [[0, 1e-3], [1000, 0.0]]}),
    "minibatches that epochs cut": ({}, {"minibatch_size": 40, "num_epochs": 2}),
    "shared encoder, relu, heads": (
        {"vf_share_layers": True, "fcnet_activation": "relu", "head_fcnet_hiddens": [8]},
        {"vf_loss_coeff": 0.3},
    ),
    "layer norm (autograd)": ({"fcnet_use_layernorm": True}, {"grad_clip": 0.5}),
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("case", CASES)
def test_weights_and_statistics_equal_rllibs_learner(case: str, space: str) -> None:
    model, training = CASES[case]
    theirs, ours, rllib_stats, our_stats = train_both(make_config(space, model, **training), space)
    for (name, expected), (_, found) in zip(parameters(theirs), parameters(ours), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
    for name, value in our_stats.items():
        assert value == pytest.approx(float(rllib_stats[name].peek()), abs=1e-5, rel=1e-5), name


def test_a_free_log_std_is_trained_as_rllib_trains_it() -> None:
    config = make_config("continuous", {"free_log_std": True}, entropy_coeff=0.01)
    theirs, ours, _, _ = train_both(config, "continuous")
    expected = dict(parameters(theirs))
    log_std = [name for name in expected if name.endswith("log_std")]
    assert log_std
    assert bool((expected[log_std[0]] != 0).all())
    for name, found in parameters(ours):
        torch.testing.assert_close(found, expected[name], atol=1e-5, rtol=0)


def test_the_optimizer_state_is_rllibs_after_the_update() -> None:
    theirs, ours, _, _ = train_both(make_config("discrete", {}), "discrete")
    expected, found = (
        x._get_optimizer_state()["default_policy_default_optimizer"]["state"]["state"] for x in (theirs, ours)
    )
    assert expected.keys() == found.keys()
    for key, moments in expected.items():
        assert found[key]["step"] == moments["step"]
        np.testing.assert_allclose(found[key]["exp_avg"], moments["exp_avg"], atol=1e-5)
        np.testing.assert_allclose(found[key]["exp_avg_sq"], moments["exp_avg_sq"], atol=1e-5)
