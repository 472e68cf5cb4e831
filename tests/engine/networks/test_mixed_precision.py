"""Products in bfloat16: what learns with them learns, and weights, losses and gradients stay float32."""

from __future__ import annotations

import pytest
import torch

from rltune.engine import build_algorithm, check_precision
from rltune.engine.on_policy.ppo import PPOUpdate
from rltune.errors import ConfigError
from tests.engine.engine_toy import CONFIGS, dqn_config, ppo_config, sac_config
from tests.engine.ppo_learner import make_config, random_batch, rllib_learner, train_batch


@pytest.mark.slow
@pytest.mark.parametrize("space", ["discrete", "continuous"])
@pytest.mark.parametrize("model", [{}, {"vf_share_layers": True}, {"fcnet_activation": "silu"}])
def test_ppos_gradient_is_that_of_float32_but_for_rounding(space, model):
    """float32 by kernels where they know the activation, bfloat16 by autograd."""
    gradients, losses = [], []
    for precision in ("float32", "bfloat16"):
        config = make_config(space, model, minibatch_size=None, num_epochs=1)
        update = PPOUpdate(rllib_learner(config), config, 0, precision)
        with torch.no_grad():
            losses.append(update.update(train_batch(space, random_batch(space)), 0)["total_loss"])
        gradients.append(update.flat.grad.clone())
        assert update.flat.data.dtype == update.flat.grad.dtype == torch.float32
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    exact, rounded = gradients
    assert not torch.equal(exact, rounded)
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.99
    assert rounded.norm() / exact.norm() == pytest.approx(1.0, abs=0.1)


def train_until(algorithm, wanted, most_steps):
    """Train until the mean return is reached; return it, or the best so far."""
    best = -1.0
    while algorithm.counters["num_env_steps_sampled_lifetime"] < most_steps and best < wanted:
        best = max(best, algorithm.train()["env_runners"].get("episode_return_mean", -1.0))
    algorithm.stop()
    return best


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wanted"), [("PPO", 120.0), pytest.param("DQN", 80.0, marks=pytest.mark.nightly)])
def test_cartpole_is_learned_in_mixed_precision(name, wanted):
    """A random policy balances for 22 steps."""
    if name == "PPO":
        config = ppo_config(train_batch_size_per_learner=512, num_epochs=8, lr=2.5e-3, gamma=0.98, lambda_=0.9)
    else:
        config = dqn_config(
            train_batch_size_per_learner=64, lr=2e-3, epsilon=[[0, 1.0], [4000, 0.05]], target_network_update_freq=250,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 20_000},
        )  # fmt: skip
    config.reporting(metrics_num_episodes_for_smoothing=20)
    algorithm = build_algorithm(config, "fast", "bfloat16")
    assert {param.dtype for param in algorithm.learner_module.parameters()} == {torch.float32}
    assert train_until(algorithm, wanted, most_steps=40_000) >= wanted


@pytest.mark.parametrize(
    ("config", "engine", "why"),
    [
        (sac_config(), "fast", "algo.class=SACConfig"),
        (ppo_config(), "rllib", "engine=rllib"),
        (ppo_config().env_runners(num_gpus_per_env_runner=1), "fast", "num_gpus_per_env_runner=1"),
    ],
)
def test_what_is_trained_in_float32_alone_refuses_bfloat16(config, engine, why):
    for refuse in (check_precision, build_algorithm):
        with pytest.raises(ConfigError) as refused:
            refuse(config, engine, "bfloat16")
        assert refused.value.key == "precision"
        assert why in refused.value.what
        assert refused.value.fix == "precision=float32"
    for known in CONFIGS.values():
        check_precision(known(), "rllib", "float32")
