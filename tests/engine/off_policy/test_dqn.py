"""For the same weights and the same batch, our DQN update is RLlib's own learner's, to 1e-5: 500 drawn batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from rltune.engine import build_algorithm
from tests.engine.dqn_learner import (
    ROWS,
    add_flags,
    make_config,
    make_learner,
    make_update,
    our_rows,
    random_columns,
)
from tests.engine.engine_toy import CueEnv, dqn_config
from tests.engine.rllib_learners import follow

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "double, dueling, huber": ({}, {}),
    "plain": ({}, {"double_q": False, "dueling": False, "grad_clip": None}),
    "double only, mse": ({"fcnet_activation": "relu"}, {"dueling": False, "td_error_loss_fn": "mse"}),
    "dueling only, 3 steps": ({}, {"double_q": False, "n_step": 3}),
    "global norm": ({}, {"grad_clip": 0.3}),
    "clip by value": ({}, {"grad_clip": 0.01, "grad_clip_by": "value"}),
    "norm of each tensor": ({}, {"grad_clip": 0.02, "grad_clip_by": "norm"}),
    "schedule": ({}, {"lr": [[0, 1e-2], [100, 1e-3]]}),
    "soft targets": ({}, {"tau": 0.1}),
    "layer norm (autograd)": ({"fcnet_use_layernorm": True}, {}),
    "legal actions": ({}, {"masked": True}),
    "legal actions, 3 steps": ({}, {"masked": True, "double_q": False, "n_step": 3}),
}


BATCHES = 50  # of each case


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_weights_targets_and_statistics_equal_rllibs_learner(case: str) -> None:
    model, training = CASES[case]
    config = make_config(model, target_network_update_freq=20, **training)
    n_step = training.get("n_step", 1)
    theirs, ours = make_learner(config), make_learner(config)
    masked = "masked" in training
    update = make_update(ours, config)
    updated_at, within, below = 0, [], []
    for index in range(BATCHES):
        clock, columns = 10 * index, random_columns(n_step, index)  # targets are updated at every second batch
        columns = add_flags(columns, index) if masked else columns
        expected = theirs.update(
            batch=MultiAgentBatch(
                {"default_policy": SampleBatch({k: torch.from_numpy(v) for k, v in columns.items()})}, env_steps=ROWS
            ),
            timesteps={"num_env_steps_sampled_lifetime": clock},
        )["default_policy"]
        with torch.no_grad():
            update.step(our_rows(columns, n_step), columns["weights"])
            errors = update.read_errors()
            if clock - updated_at >= 20:
                update.targets.update(config.tau)
                updated_at = clock
            stats = update.statistics()
            update.advance(clock)
        td_errors = np.concatenate([np.atleast_1d(np.asarray(x)) for x in expected["td_error"].peek()])
        np.testing.assert_allclose(errors, td_errors, atol=1e-5, rtol=1e-5)
        for name, value in stats.items():
            if name != "default_optimizer_learning_rate":
                assert value == pytest.approx(float(expected[name].peek()), abs=1e-5, rel=1e-5), (name, index)
        weights = dict(ours.module["default_policy"].named_parameters())
        for name, param in theirs.module["default_policy"].named_parameters():
            at = f"{name}, batch {index}: "
            torch.testing.assert_close(weights[name], param, atol=1e-5, rtol=0, msg=lambda m, at=at: at + m)
        follow(ours, theirs)
        within.append(float(np.mean(td_errors < 1.0)))
        below.append(stats.get("gradients_default_optimizer_global_norm", 0.0) <= (config.grad_clip or 0.0))
    assert min(within) < 0.2, "beyond Huber's bend"
    assert max(within) > 0.8, "and on this side of it"
    if case == "global norm":
        assert 0.1 < np.mean(below) < 0.9, "clipped and not clipped"


@pytest.mark.slow
@pytest.mark.parametrize("buffer", ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_last_action_of_an_episode_is_learned(n_step: int, buffer: str) -> None:
    algorithm = build_algorithm(
        dqn_config(
            "cue",
            lr=3e-3,
            n_step=n_step,
            epsilon=[[0, 1.0], [2000, 0.0]],
            target_network_update_freq=50,
            replay_buffer_config={"type": buffer, "capacity": 2000},
        )
    )
    returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(15)]
    # The mean is over the last 100 episodes, the last 400 steps of 3,000.
    assert returns[-1] > 1.2
    assert CueEnv.best_return == pytest.approx(1.3)
    algorithm.stop()


@pytest.mark.parametrize("truncate", [False, True])
def test_episodes_shorter_than_n_steps_train(truncate: bool) -> None:
    config = dqn_config("count", n_step=3).environment("count", env_config={"length": 2, "truncate": truncate})
    algorithm = build_algorithm(config)
    result = algorithm.train()
    assert algorithm.replay.size == result["num_env_steps_sampled_lifetime"]
    assert result["learners"]["default_policy"]["qf_loss"] >= 0.0
    algorithm.stop()
