"""Running moments against NumPy's, and against RLlib's filter."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from ray.rllib.connectors.env_to_module import MeanStdFilter

from rltune.engine.sampling.observation_filter import RunningMoments

RNG = np.random.default_rng(0)


def test_running_moments_equal_numpys_and_survive_rllibs_filter() -> None:
    moments = RunningMoments((3,), 4)
    data = RNG.normal([1.0, -5.0, 300.0], [1.0, 0.1, 50.0], size=(700, 4, 3))
    out = np.zeros((4, 3), np.float32)
    for raw in data:
        moments(raw, out)
    stats, flat = moments.stats(), data.reshape(-1, 3).astype(np.float32)
    np.testing.assert_allclose(stats["mean"], flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats["var"], flat.var(0, ddof=1), rtol=1e-4)
    assert stats["count"] == 2800
    connector = MeanStdFilter()
    connector.input_action_space = gym.spaces.Discrete(2)
    connector.input_observation_space = gym.spaces.Box(-1, 1, (3,))
    moments.to_filter(connector)
    expected = connector._filters[None](data[0, 0], update=False)
    moments.apply(data[0], out)
    np.testing.assert_allclose(out[0], expected, atol=1e-4)
    other = RunningMoments((3,), 2)
    other.from_filter(connector)
    np.testing.assert_allclose(other.stats()["mean"], stats["mean"])
