"""A2C is PPO's loop on advantages as they are, with RLlib's loss and torch's RMSProp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rltune.algorithms.a2c import A2CConfig
from rltune.engine import build_algorithm
from rltune.engine.on_policy.a2c import FastA2C
from tests.engine.drawn_batches import (
    ALWAYS_CROSSED,
    DRAWS,
    MODELS,
    LearnerPair,
    between,
    draw_clipping,
    draw_schedule,
    one_of,
)
from tests.engine.ppo_learner import make_config
from tests.engine.whole_iterations import compare_iterations


@pytest.mark.parametrize("standardise", [False, True])
def test_only_ppo_standardises_the_advantages(standardise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = A2CConfig().environment("CartPole-v1").env_runners(num_env_runners=0).debugging(seed=0)
    algorithm: Any = build_algorithm(config)
    assert type(algorithm) is FastA2C
    assert not FastA2C.standardise_advantages
    monkeypatch.setattr(FastA2C, "standardise_advantages", standardise)
    seen: list[np.ndarray] = []
    update = algorithm.loop.update

    def spy(batch: Any, timestep: int) -> Any:
        seen.append(batch.rows.advantages.numpy().copy())
        return update(batch, timestep)

    monkeypatch.setattr(algorithm.loop, "update", spy)
    algorithm.train()
    algorithm.stop()
    assert (abs(seen[0].mean()) < 0.1) == standardise


def draw_settings(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "num_epochs": 1,
        "minibatch_size": None,
        "lr": draw_schedule(rng, 1e-5, 1e-3),
        "entropy_coeff": one_of(rng, 0.0, draw_schedule(rng, 1e-3, 0.1)),
        "vf_loss_coeff": between(rng, 0.05, 1.0),
        "rmsprop_alpha": one_of(rng, 0.9, 0.99),
        "rmsprop_epsilon": between(rng, 1e-5, 1e-2),
        **draw_clipping(rng),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", MODELS)
def test_drawn_batches_give_rllibs_loss_and_weights(model: str) -> None:
    """In pairs, so that the second one finds RMSProp's average."""
    space, network = MODELS[model]
    pair = LearnerPair(space, lambda **settings: make_config(space, network, A2CConfig, **settings))
    for draw in range(0, DRAWS, 2):
        pair.compare(draw, draw_settings(np.random.default_rng(draw)), updates=2)
    pair.assert_crossed(ALWAYS_CROSSED)


@pytest.mark.slow  # RLlib's own learner trains, too.
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_whole_iterations_equal_rllibs_learner(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = A2CConfig().environment(env).env_runners(num_env_runners=0, num_envs_per_env_runner=5)
    config.training(train_batch_size_per_learner=64).rl_module(model_config={"fcnet_hiddens": [16, 16]})
    compare_iterations(config.debugging(seed=0), monkeypatch)
