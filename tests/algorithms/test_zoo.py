"""Settings out in rl_zoo3's form: the tuned settings, which came from there, become what was published."""

from __future__ import annotations

import pytest
import yaml
from composing import compose
from omegaconf import OmegaConf

from rltune.algorithms.zoo import format_zoo_settings
from rltune.errors import ConfigError

# rl_zoo3 2.9, hyperparams/{ppo,dqn,sac}.yml, as far as rltune has a counterpart.
PUBLISHED = {
    ("ppo", "cartpole", 100_000): {
        "n_envs": 8, "n_timesteps": 100_000, "policy": "MlpPolicy", "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8,
        "gamma": 0.98, "n_epochs": 20, "learning_rate": 0.001, "clip_range": 0.2,
    },
    ("dqn", "cartpole", 50_000): {
        "n_timesteps": 50_000, "policy": "MlpPolicy", "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000,
        "learning_starts": 1000, "gamma": 0.99, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04, "policy_kwargs": "dict(net_arch=[256, 256], activation_fn=nn.ReLU)",
    },
    ("sac", "pendulum", 20_000): {"n_timesteps": 20_000, "policy": "MlpPolicy", "learning_rate": 1e-3},
    ("ppo", "walker2d", 1_000_000): {"normalize": True, "n_envs": 1, "n_steps": 512, "batch_size": 32},
}  # fmt: skip


@pytest.mark.parametrize(("algo", "env", "steps"), PUBLISHED)
def test_tuned_settings_become_the_published_ones(algo, env, steps):
    config = compose("run", f"algo={algo}", f"env={env}", f"budget.env_steps={steps}")
    settings = OmegaConf.to_container(config, resolve=True)
    tuned = settings["warm_start"][0] if settings.get("warm_start") else {}
    ((env_id, found),) = yaml.safe_load(format_zoo_settings(settings, tuned)).items()
    assert env_id == settings["env"]["id"]
    wanted = PUBLISHED[algo, env, steps]
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)


def test_sampled_values_win_and_unknown_ones_are_named():
    settings = OmegaConf.to_container(compose("run", "algo=dqn", "~tuned"), resolve=True)
    text = format_zoo_settings(settings, {"lr": 0.25, "n_step": 3})
    assert "Left out, because Stable-Baselines3 has no counterpart: n_step" in text
    (found,) = yaml.safe_load(text).values()
    assert (found["learning_rate"], found["train_freq"], found["gradient_steps"]) == (0.25, 4, 1)
    assert "n_step" not in found


def test_an_algorithm_that_the_zoo_lacks_is_refused():
    with pytest.raises(ConfigError, match="algo=dreamerv3"):
        format_zoo_settings({"algo": {"name": "dreamerv3"}, "env": {}}, {})
