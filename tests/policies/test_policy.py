"""A policy in one line: it loads quickly, acts, and knows its environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from checkpoints import OBSERVATIONS
from composing import compose
from omegaconf import OmegaConf

from rltune.cli.policies import EvaluateConfig, evaluate_policy
from rltune.compose.composing import compose_settings
from rltune.config.settings_file import redact_config, write_settings
from rltune.config.validation import parse_config
from rltune.errors import PolicyError, RltuneError
from rltune.policies.evaluation import evaluate
from rltune.policies.policy import load_policy
from tests.policies.bundles import BOX, write_linear


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
began = time.process_time()
policy = load_policy({str(checkpoint)!r})
env = policy.env()
action = policy.act(env.reset(seed=0)[0])
print(time.process_time() - began, env.action_space.contains(action))
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
    with pytest.raises(PolicyError, match=r"shape \(4,\)") as refused:
        load_policy(checkpoint).act(np.zeros(5))
    assert "reset()[0]" in refused.value.fix, "reset returns the info, too, which is no observation"


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


FOREIGN = [  # environments that would import a module of the author's choice
    {"id": "chosen:CartPole-v1"},
    {"id": "CartPole-v1", "wrappers": [{"entry_point": "chosen:Wrapper", "kwargs": {}}]},
    {"id": "chosen", "policies": "shared"},
    {"id": "CartPole-v1", "objective": {"kind": "chosen:score"}},
]
MALFORMED = [  # what the code that builds an environment could read in another way than the code that asks for trust
    {"id": "CartPole-v1", "objective": {"kind": "chosen"}},
    {"id": "CartPole-v1", "objective": {"kind": "chosen:"}},
    {"id": "CartPole-v1", "objective": {"kind": ":chosen"}},
    {"id": "CartPole-v1", "objective": {"kind": "chosen:a:b"}},
    {"id": "CartPole-v1", "objective": "chosen"},
    {"id": "CartPole-v1", "wrappers": [{"entry_point": "chosen:Wrapper", "module": "gymnasium"}]},
    {"id": "CartPole-v1", "wrappers": ["chosen:Wrapper"]},
    {"id": "CartPole-v1", "wrappers": {"chosen:Wrapper": 1}},
    {"id": "chosen:a:CartPole-v1"},
    {"id": "chosen:CartPole-v1", "policies": ""},
    {"id": ["chosen:CartPole-v1"]},
]


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """A module that leaves a file when it is imported."""
    (tmp_path / "chosen.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "ran"
    sys.modules.pop("chosen", None)


@pytest.mark.parametrize("spec", FOREIGN)
def test_no_module_of_a_strangers_choice_is_imported(spec, chosen, tmp_path):
    policy = load_policy(write_linear(tmp_path / "best" / "policy", BOX, spec))
    for use in (policy.env, lambda: evaluate(policy, 1)):
        with pytest.raises(PolicyError, match="'chosen'") as refused:
            use()
        assert "trust=True" in refused.value.fix
    assert not chosen.exists()


@pytest.mark.parametrize("spec", MALFORMED)
def test_no_spelling_of_a_module_passes_without_trust(spec, chosen, tmp_path):
    policy = load_policy(write_linear(tmp_path / "best" / "policy", BOX, spec))
    for use in (policy.env, lambda: evaluate(policy, 1)):
        with pytest.raises(RltuneError):
            use()
    assert not chosen.exists()


def test_a_strangers_file_named_as_a_known_package_is_refused(tmp_path, monkeypatch):
    (tmp_path / "minigrid.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.delitem(sys.modules, "minigrid", raising=False)
    monkeypatch.chdir(tmp_path)
    sys.path.append(str(tmp_path))
    policy = load_policy(write_linear(tmp_path / "best" / "policy", BOX, {"id": "minigrid:CartPole-v1"}))
    with pytest.raises(PolicyError, match="'minigrid'"):
        policy.env()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", ["kwargs", "wrappers"])
def test_no_variable_of_a_strangers_choice_is_read(key, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t-value")
    arguments = {"max_episode_steps": 5, "render_mode": "${oc.env:SECRET_TOKEN}"}
    given = arguments if key == "kwargs" else [{"entry_point": "TimeLimit", "kwargs": arguments}]
    policy = load_policy(write_linear(tmp_path / "best" / "policy", BOX, {"id": "CartPole-v1", key: given}))
    for use in (policy.env, lambda: evaluate(policy, 1)):
        with pytest.raises(PolicyError, match="variables") as refused:
            use()
        assert "s3cr3t" not in refused.value.what
    with pytest.raises(PolicyError, match="variables"):
        evaluate(policy, 1, env={"kwargs": {"max_episode_steps": 9}})


@pytest.mark.parametrize("way", ["trust", "own", "imported"])
def test_a_module_is_imported_for_ones_own_and_for_trust(way, chosen, tmp_path):
    folder = write_linear(tmp_path / "mine" / "trials" / "7" / "first" / "best-1" / "policy", BOX, FOREIGN[0])
    if way == "own":
        write_settings(tmp_path / "mine", redact_config(parse_config(compose("run"))))
    elif way == "imported":
        __import__("chosen")
    assert load_policy(folder, trust=way == "trust").env().reset(seed=0)[0].shape == (4,)
    assert chosen.exists()


def test_an_environment_that_the_caller_names_needs_no_trust(chosen, tmp_path):
    policy = load_policy(write_linear(tmp_path / "best" / "policy", BOX, FOREIGN[0]))
    assert evaluate(policy, 1, env="CartPole-v1").lengths[0] > 0
    assert not chosen.exists()
    assert evaluate(policy, 1, env="chosen:CartPole-v1").lengths[0] > 0


def test_agents_that_the_policy_does_not_know_are_named(tmp_path):
    """The policy's own assignment names none of them, and an evaluation cannot change it."""
    owners = {f"agent_{number}": "all" if number else "first" for number in range(3)}
    env = {"id": "mpe2.simple_spread_v3", "kwargs": {"max_cycles": 2}, "policies": owners}
    for name in ("first", "all"):
        write_linear(tmp_path / "policies" / name, BOX, env)
    (tmp_path / "policy.json").write_text(json.dumps({"format": 1, "owners": owners}))
    typed = [f"policy={tmp_path}", "trust=true", "episodes=1", "+env.kwargs.N=4"]
    settings = OmegaConf.to_container(compose_settings("evaluate", EvaluateConfig, typed))
    with pytest.raises(PolicyError) as refused:
        evaluate_policy(settings, lambda *parts: None)
    assert refused.value.key == "env"
    assert "agent_3" in refused.value.what
    assert "agent_3" not in refused.value.allowed
