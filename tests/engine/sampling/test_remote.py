"""What needs Ray: remote env runners, and checkpoints that stock RLlib opens and the reverse."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPO

from rltune.engine import build_algorithm
from rltune.engine.sampling import remote
from rltune.engine.sampling.observation_filter import normalise_observations
from rltune.errors import GuestError
from tests.engine.engine_toy import dqn_config, ppo_config, sac_config


def learner_weights(algorithm: Any) -> torch.Tensor:
    module = algorithm.learner_group._learner.module["default_policy"]
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("make", [ppo_config, dqn_config, pytest.param(sac_config, marks=pytest.mark.nightly)])
def test_remote_env_runners_hand_back_what_the_learner_trains_on(make: Any) -> None:
    config = normalise_observations(make(envs=2).env_runners(num_env_runners=1))
    algorithm = build_algorithm(config)
    before = learner_weights(algorithm).clone()
    algorithm.train()
    result = algorithm.train()
    stats = algorithm.observation_stats()
    assert not torch.equal(learner_weights(algorithm), before)
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] >= 200
    assert stats is not None
    assert stats["count"] >= 200
    assert all(np.isfinite(value) for value in result["learners"]["default_policy"].values())
    algorithm.stop()


def list_seeds(algorithm: Any) -> list[int]:
    """Of the environments' first resets, over all remote env runners."""
    group = algorithm.env_runner_group
    answers = group.foreach_env_runner(lambda runner: runner.derive_seeds(), local_env_runner=False)
    return [seed for seeds in answers for seed in seeds]


@pytest.mark.usefixtures("ray_cluster")
def test_remote_env_runners_begin_other_episodes_after_a_restore(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Theirs are in no checkpoint, and the first ones again would teach nothing new."""
    config = ppo_config(envs=2).env_runners(num_env_runners=1)
    source = build_algorithm(config)
    source.train()
    source.save_to_path(tmp_path)
    begun = list_seeds(source)
    source.stop()
    target = build_algorithm(config)
    assert list_seeds(target) == begun
    target.restore_from_path(tmp_path)
    assert "new episode" in caplog.text
    assert len({*begun, *list_seeds(target)}) == 4
    target.train()
    target.stop()


@pytest.mark.usefixtures("ray_cluster")
def test_stock_rllib_and_we_open_each_others_checkpoints(tmp_path: Path) -> None:
    """And train on from them."""
    config = normalise_observations(ppo_config())
    ours = build_algorithm(config)
    ours.train()
    ours.save_to_path(tmp_path / "ours")
    stock = Algorithm.from_checkpoint(str(tmp_path / "ours"))
    assert type(stock) is PPO
    assert torch.equal(learner_weights(stock), learner_weights(ours))
    stat = stock.env_runner._env_to_module.connectors[0]._filters[None].running_stats
    np.testing.assert_allclose(stat.mean_array, ours.observation_stats()["mean"])
    result = stock.train()
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] >= 512
    stock.save_to_path(tmp_path / "stock")
    back = build_algorithm(config)
    back.restore_from_path(tmp_path / "stock")
    assert torch.equal(learner_weights(stock), learner_weights(back))
    assert back.counters["num_env_steps_sampled_lifetime"] == result["num_env_steps_sampled_lifetime"]
    expected = stock.env_runner._env_to_module.connectors[0]._filters[None].running_stats
    np.testing.assert_allclose(back.observation_stats()["mean"], expected.mean_array)
    back.train()
    for algorithm in (ours, stock, back):
        algorithm.stop()


def test_what_runners_are_asked_travels_by_name() -> None:
    """Pickled by value, a function that says "ray" took 9 ms for each runner and fragment."""
    assert len(ray.cloudpickle.dumps(remote._call_method)) < 100


def test_an_env_runner_closes_what_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """RLlib ends its process then, and a simulator's own processes would outlive it. A close that hangs is ended."""
    done: list[object] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda limit_s, **options: done.append(limit_s))

    class Runner:
        def collect(self) -> None:
            raise GuestError("step 3 fails")

        def stop(self) -> None:
            done.append("closed")

    with pytest.raises(GuestError):
        remote._call_method(Runner(), "collect")
    assert done == [remote.CLOSE_S, "closed"]
