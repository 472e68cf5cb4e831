"""For the same weights and the same batch, our PPO update is RLlib's own learner's, to 1e-5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from rltune.engine.on_policy.ppo import PPOUpdate
from rltune.engine.sampling.action_distributions import count_parts
from tests.engine.drawn_batches import (
    ALWAYS_CROSSED,
    DRAWS,
    LOSS_CROSSED,
    MODELS,
    LearnerPair,
    between,
    draw_clipping,
    draw_schedule,
    one_of,
)
from tests.engine.engine_toy import ppo_config
from tests.engine.ppo_learner import ROWS, SPACES, add_flags, make_config, random_batch, rllib_learner, train_batch
from tests.engine.whole_iterations import compare_iterations


def parameters(learner: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return list(learner.module["default_policy"].named_parameters())


def train_both(
    config: PPOConfig, space: str, masked: bool = False
) -> tuple[Any, Any, dict[str, Any], dict[str, float]]:
    theirs, ours = rllib_learner(config), rllib_learner(config)
    ours.module.set_state(theirs.module.get_state())
    columns = add_flags(space, random_batch(space)) if masked else random_batch(space)
    rllib_stats = theirs.update(
        batch=MultiAgentBatch({"default_policy": SampleBatch(columns)}, env_steps=ROWS),
        timesteps={"num_env_steps_sampled_lifetime": 500},
        num_epochs=config.num_epochs,
        minibatch_size=config.minibatch_size,
        shuffle_batch_per_epoch=False,
    )["default_policy"]
    with torch.no_grad():
        our_stats = PPOUpdate(ours, config, 0).update(train_batch(space, columns), 500)
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
    "legal actions": ({}, {"masked": True, "entropy_coeff": 0.01}),
}


@pytest.mark.slow  # RLlib's own learner trains, too.
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("case", CASES)
def test_weights_and_statistics_equal_rllibs_learner(case: str, space: str) -> None:
    model, training = CASES[case]
    if (masked := "masked" in training) and not count_parts(SPACES[space])[0]:
        return
    config = make_config(space, model, **training)
    theirs, ours, rllib_stats, our_stats = train_both(config, space, masked)
    for (name, expected), (_, weight) in zip(parameters(theirs), parameters(ours), strict=True):
        torch.testing.assert_close(weight, expected, atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
    for name, value in our_stats.items():
        assert value == pytest.approx(float(rllib_stats[name].peek()), abs=1e-5, rel=1e-5), name


def test_a_free_log_std_is_trained_as_rllib_trains_it() -> None:
    config = make_config("continuous", {"free_log_std": True}, entropy_coeff=0.01)
    theirs, ours, _, _ = train_both(config, "continuous")
    expected = dict(parameters(theirs))
    log_std = [name for name in expected if name.endswith("log_std")]
    assert log_std
    assert bool((expected[log_std[0]] != 0).all())
    for name, weight in parameters(ours):
        torch.testing.assert_close(weight, expected[name], atol=1e-5, rtol=0)


def test_the_optimizer_state_is_rllibs_after_the_update() -> None:
    theirs, ours, _, _ = train_both(make_config("discrete", {}), "discrete")
    expected, state = (
        x._get_optimizer_state()["default_policy_default_optimizer"]["state"]["state"] for x in (theirs, ours)
    )
    assert expected.keys() == state.keys()
    for key, moments in expected.items():
        assert state[key]["step"] == moments["step"]
        np.testing.assert_allclose(state[key]["exp_avg"], moments["exp_avg"], atol=1e-5)
        np.testing.assert_allclose(state[key]["exp_avg_sq"], moments["exp_avg_sq"], atol=1e-5)


@pytest.mark.slow  # RLlib's own learner trains, too.
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_whole_iterations_equal_rllibs_learner(env: str, shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same episodes: as many gradient steps over the same rows, to the same weights."""
    config = ppo_config(env, envs=5, minibatch_size=32, num_epochs=3, shuffle_batch_per_epoch=shuffle)
    compare_iterations(config, monkeypatch)


def test_a_minibatch_of_artificial_steps_alone_is_left_out() -> None:
    config = make_config("discrete", {}, minibatch_size=4, num_epochs=1)
    batch = train_batch("discrete", random_batch("discrete"))
    batch.loss_mask = torch.ones(ROWS + 6, dtype=torch.bool)
    batch.loss_mask[8:14] = False  # the third minibatch, and a half of the fourth
    update = PPOUpdate(rllib_learner(config), config, 0)
    _, sizes = update._order_rows(batch)
    assert sizes[:4].tolist() == [4, 4, 2, 4]
    assert sizes.sum() == ROWS + 2  # the last one is completed from the beginning


def draw_settings(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "clip_param": between(rng, 0.02, 0.4),
        "vf_clip_param": between(rng, 0.1, 30.0),
        "vf_loss_coeff": between(rng, 0.05, 1.0),
        "entropy_coeff": one_of(rng, 0.0, draw_schedule(rng, 1e-3, 0.1)),
        "use_kl_loss": one_of(rng, True, True, False),
        "kl_coeff": between(rng, 0.05, 3.0),
        "kl_target": between(rng, 1e-4, 0.3),
        "lr": draw_schedule(rng, 1e-5, 1e-3),
        "num_epochs": one_of(rng, 1, 1, 2),
        "minibatch_size": one_of(rng, None, 20, 32),
        **draw_clipping(rng),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", MODELS)
def test_drawn_batches_give_rllibs_loss_and_weights(model: str) -> None:
    space, network = MODELS[model]
    pair = LearnerPair(space, lambda **settings: make_config(space, network, **settings))
    for draw in range(DRAWS):
        pair.compare(draw, draw_settings(np.random.default_rng(draw)))
    pair.assert_crossed(ALWAYS_CROSSED | LOSS_CROSSED)
