"""Recorded episodes: every step as the environment gave it, and no file overwritten."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest

from rltune.algorithms.build import make_inputs_absolute
from rltune.algorithms.datasets import check_dataset, read_episodes, record_episodes
from rltune.errors import ConfigError, GuestError, PolicyError


def test_a_dataset_holds_every_step_as_the_environment_gave_it(recorded, pusher):
    columns = read_episodes(recorded)
    assert columns["obs"].shape == (120, 2)
    assert columns["action"].shape == (120, 1)
    assert np.unique(columns["episode"], return_counts=True)[1].tolist() == [30] * 4
    inside = ~columns["truncated"]
    assert inside.sum() == 116
    assert np.array_equal(columns["next_obs"][:-1][inside[:-1]], columns["obs"][1:][inside[:-1]])
    assert check_dataset(recorded)["env"] == pusher.info["env"]


def test_a_dataset_is_readable_by_its_owner_alone(recorded):
    assert recorded.stat().st_mode & 0o777 == 0o600


def test_a_dataset_is_not_overwritten(recorded, pusher):
    with pytest.raises(PolicyError, match="exists"):
        record_episodes(pusher, recorded, episodes=1, seed=0, deterministic=True)


class Failing(gymnasium.Wrapper):
    """Raises once, in the 40th step of all copies."""

    num_steps = 0

    def step(self, action):
        Failing.num_steps += 1
        if Failing.num_steps == 40:
            raise ValueError("the simulator lost its licence")
        return self.env.step(action)


@pytest.mark.fast
@pytest.mark.parametrize("restarts", [1, 0])
def test_a_fault_leaves_no_step_in_a_dataset(tmp_path, pusher, recorded, monkeypatch, restarts):
    monkeypatch.setattr(Failing, "num_steps", 0)
    policy = copy.copy(pusher)
    policy.info = {"env": pusher.info["env"] | {"restarts": restarts}}
    policy.env = lambda: Failing(pusher.env())
    path = tmp_path / "data.parquet"
    if not restarts:
        with pytest.raises(GuestError):
            record_episodes(policy, path, episodes=4, seed=0, deterministic=False)
        assert not path.exists()
        return
    record_episodes(policy, path, episodes=4, seed=0, deterministic=False)
    before, after = read_episodes(recorded), read_episodes(path)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_file_that_is_no_dataset_is_refused_with_the_command(tmp_path):
    other = tmp_path / "other.parquet"
    for make in (lambda: None, lambda: other.write_text("no parquet")):
        make()
        with pytest.raises(ConfigError, match=r"algo\.offline_data\.input_=") as refused:
            make_inputs_absolute({"name": "bc", "offline_data": {"input_": str(other)}})
        assert "sweeps.record" in refused.value.fix
