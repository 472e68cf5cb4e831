"""A policy in one line: it loads quickly, acts, and knows its environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from checkpoints import OBSERVATIONS

from rltune.errors import PolicyError
from rltune.policies.policy import load_policy


@pytest.mark.parametrize("part", ["", "policy"])
def test_a_checkpoint_folder_and_its_bundle_load_the_same_policy(checkpoint, actions, part):
    policy = load_policy(checkpoint / part)
    assert (policy.act(OBSERVATIONS) == actions).all()
    assert policy.info["params"] == {"lr": 1e-3}


def test_loading_is_quick_and_imports_neither_ray_nor_mlflow(checkpoint):
    code = f"""
import sys, time
sys.modules["ray"] = sys.modules["mlflow"] = None
from rltune.policies.policy import load_policy
began = time.perf_counter()
policy = load_policy({str(checkpoint)!r})
env = policy.env()
action = policy.act(env.reset(seed=0)[0])
print(time.perf_counter() - began, env.action_space.contains(action))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds, allowed = done.stdout.split()
    assert float(seconds) < 1
    assert allowed == "True"


def test_a_damaged_bundle_is_refused_with_its_address(checkpoint, tmp_path):
    shutil.copytree(checkpoint / "policy", tmp_path / "policy")
    (tmp_path / "policy" / "weights.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(PolicyError, match=str(tmp_path)):
        load_policy(tmp_path)


def test_a_wrong_observation_names_the_right_shape(checkpoint):
    with pytest.raises(PolicyError, match=r"shape \(4,\)"):
        load_policy(checkpoint).act(np.zeros(5))


def test_the_environment_comes_with_its_arguments_and_wrappers(checkpoint, tmp_path):
    shutil.copytree(checkpoint / "policy", tmp_path / "policy")
    spec = json.loads((tmp_path / "policy" / "policy.json").read_text())
    wrapper = {"entry_point": "gymnasium.wrappers:TimeAwareObservation", "kwargs": {}}
    spec["info"]["env"] = {
        "id": "CartPole-v1",
        "kwargs": {"sutton_barto_reward": True},
        "wrappers": [wrapper],
    }
    (tmp_path / "policy" / "policy.json").write_text(json.dumps(spec))
    env = load_policy(tmp_path).env(render_mode="rgb_array")
    assert env.render_mode == "rgb_array"
    assert env.unwrapped._sutton_barto_reward
    assert env.observation_space.shape == (5,)
