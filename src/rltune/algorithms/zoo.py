"""Write a configuration as rl_zoo3 has it: the inverse of the files in ``conf/tuned/`` that were taken from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from rltune.algorithms.arguments import apply_params
from rltune.errors import ConfigError

ACTIVATIONS = {"tanh": "nn.Tanh", "relu": "nn.ReLU", "elu": "nn.ELU", "silu": "nn.SiLU"}
SHARED = {"gamma": "gamma", "grad_clip": "max_grad_norm"}
ON_POLICY = SHARED | {
    "lr": "learning_rate", "lambda_": "gae_lambda", "entropy_coeff": "ent_coef", "vf_loss_coeff": "vf_coef",
}  # fmt: skip
OFF_POLICY = {
    "gamma": "gamma", "tau": "tau", "train_batch_size_per_learner": "batch_size",
    "num_steps_sampled_before_learning_starts": "learning_starts",
}  # fmt: skip
NAMES: Mapping[str, Mapping[str, str]] = {
    "ppo": ON_POLICY | {"minibatch_size": "batch_size", "num_epochs": "n_epochs", "clip_param": "clip_range"},
    "a2c": ON_POLICY,
    "dqn": OFF_POLICY
    | {"lr": "learning_rate", "target_network_update_freq": "target_update_interval"}
    | {"grad_clip": "max_grad_norm"},
    "sac": OFF_POLICY | {"actor_lr": "learning_rate"},
    "tqc": OFF_POLICY | {"actor_lr": "learning_rate", "top_quantiles_to_drop_per_net": "top_quantiles_to_drop_per_net"},
}
"""rl_zoo3's names, which are Stable-Baselines3's, by ours, for the algorithms that both have."""


def format_zoo_settings(settings: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    """Format a configuration as the content of a file for rl_zoo3's ``--conf-file``.

    Args:
        settings: The sweep's.
        params: The sampled values.

    Raises:
        ConfigError: rl_zoo3 has no such algorithm.
    """
    name, env = settings["algo"]["name"], settings["env"]
    if name not in NAMES:
        raise ConfigError(
            f"format=rl_zoo3: Stable-Baselines3 has no counterpart of algo={name}", ", ".join(NAMES), "format=onnx"
        )
    algo = apply_params(settings["algo"], params)
    training, made = algo["training"], {"n_timesteps": int(settings["budget"]["env_steps"])}
    runners = algo["env_runners"]
    n_envs = int(runners["num_envs_per_env_runner"]) * max(1, int(runners.get("num_env_runners") or 0))
    made |= {"n_envs": n_envs, **_make_policy(name, algo["rl_module"]["model_config"]), **_make_normalize(env)}
    made |= {theirs: training[ours] for ours, theirs in NAMES[name].items() if training.get(ours) is not None}
    rest = {"ppo": _make_batch, "a2c": _make_batch}.get(name, _make_replay)
    made |= rest(algo, made)
    known = {*NAMES[name], "train_batch_size_per_learner", "epsilon", "training_intensity", "replay_buffer_config"}
    left_out = [one for one in params if one not in known and one in training]
    head = f"# python -m rl_zoo3.train --algo {name} --env {env['id']} --conf-file <this file>\n"
    if left_out:
        head += f"# Left out, because Stable-Baselines3 has no counterpart: {', '.join(left_out)}\n"
    return head + yaml.safe_dump({env["id"]: made}, sort_keys=False)


def _make_policy(name: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy's class and its layers, as text that rl_zoo3 evaluates."""
    hidden = [*(model.get("fcnet_hiddens") or []), *(model.get("head_fcnet_hiddens") or [])]
    layers = str([int(size) for size in hidden])
    arch = f"dict(pi={layers}, vf={layers})" if name in ("ppo", "a2c") else layers
    activation = ACTIVATIONS.get(model.get("fcnet_activation", "tanh"), "nn.Tanh")
    kind = "CnnPolicy" if model.get("conv_filters") else "MlpPolicy"
    return {"policy": kind, "policy_kwargs": f"dict(net_arch={arch}, activation_fn={activation})"}


def _make_normalize(env: Mapping[str, Any]) -> dict[str, Any]:
    obs, rewards = bool(env.get("normalise_observations")), bool((env.get("rewards") or {}).get("normalise"))
    if not (obs or rewards):
        return {}
    return {"normalize": True if obs and rewards else f"dict(norm_obs={obs}, norm_reward={rewards})"}


def _make_batch(algo: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps of each environment between two updates."""
    return {"n_steps": max(1, int(algo["training"]["train_batch_size_per_learner"]) // made["n_envs"])}


def _make_replay(algo: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return how often is learned, how much, and from what; of DQN how it explores."""
    training = algo["training"]
    train_freq = int(algo["env_runners"].get("rollout_fragment_length") or 1)
    intensity = training.get("training_intensity")  # steps learned for each step sampled
    updates = round(intensity * train_freq * made["n_envs"] / made["batch_size"]) if intensity else 1
    found: dict[str, Any] = {"train_freq": train_freq, "gradient_steps": max(1, updates)}
    found["buffer_size"] = int(training["replay_buffer_config"]["capacity"])
    if epsilon := training.get("epsilon"):
        (last, final) = epsilon[-1] if isinstance(epsilon, list) else (0, epsilon)
        found |= {"exploration_fraction": min(1.0, last / made["n_timesteps"]), "exploration_final_eps": final}
    return found
