"""A checkpoint trains on, if its author may be trusted."""

from __future__ import annotations

import pytest

from rltune.algorithms.restore import load_algorithm
from rltune.errors import PolicyError


def test_an_algorithm_can_be_trained_on(checkpoint, outputs):
    algorithm = load_algorithm("sweep:cartpole-done/2", output_dir=outputs)
    try:
        # The first half was sampled before; a rollout may be a few steps longer than asked for.
        assert 2 * 512 <= algorithm.train()["num_env_steps_sampled_lifetime"] < 2 * 512 + 16
    finally:
        algorithm.stop()


def test_a_checkpoint_with_pickles_from_elsewhere_needs_trust(checkpoint, store):
    with pytest.raises(PolicyError, match="trust=True"):
        load_algorithm("models:/cartpole-ppo@champion")
    with pytest.raises(PolicyError, match=str(checkpoint)):
        load_algorithm(checkpoint)
