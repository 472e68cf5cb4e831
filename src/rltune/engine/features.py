"""Find the setting of an RLlib config that the fast engine does not support.

No setting is ignored in silence. The lists name what the hot loops honour and what cannot change what is learned; any
other setting that differs from its default forces stock RLlib, and is named in the log.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rltune.engine.sampling.observation_filter import wants_normalisation


class UnsupportedError(Exception):
    """Raised during a build for a feature that the fast engine lacks; `build_algorithm` then uses stock RLlib.

    Args:
        feature: The feature in words, as the fallback's log line names it.
    """

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature


HARMLESS_EVENTS = {"on_algorithm_init", "on_train_result", "on_checkpoint_loaded"}
"""Callbacks that see the algorithm and never an episode or a sample."""

Check = Callable[[Any], Any]

# Rules that involve more than the value of one field: the feature's name in the log, and a test of the config. Private
# fields are read where RLlib 2.60 has no public one.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("multi-agent environments", lambda c: c.is_multi_agent),
    ("offline data", lambda c: c.is_offline or c.input_ != "sampler"),
    (
        "a user's env-to-module connector",
        lambda c: c._env_to_module_connector is not None and not wants_normalisation(c),
    ),
    ("a user's RLModule", lambda c: c._rl_module_spec is not None and not _is_plain_spec(c._rl_module_spec)),
    ("recurrent modules (use_lstm)", lambda c: _model_setting(c, "use_lstm")),
    ("callbacks that see episodes or samples", lambda c: _has_episode_callbacks(c)),
    ("a range of n_step", lambda c: not isinstance(getattr(c, "n_step", 1), int)),
)

CHECKED = """
    policies policy_mapping_fn input_ offline_data_class _env_to_module_connector _rl_module_spec _model_config
    callbacks_class _learner_class
"""
"""Fields that the rows above decide on, and `find_unserved_setting` itself."""

HONOURED = """
    algo_class env env_config observation_space action_space _is_atari normalize_actions clip_actions explore seed
    num_env_runners num_envs_per_env_runner gym_env_vectorize_mode sample_timeout_s
    validate_env_runners_after_construction restart_failed_env_runners ignore_env_runner_failures
    max_num_env_runner_restarts delay_between_env_runner_restarts_s num_consecutive_env_runner_failures_tolerance
    env_runner_health_probe_timeout_s env_runner_restore_timeout_s
    gamma lr grad_clip grad_clip_by train_batch_size _train_batch_size_per_learner num_gpus_per_learner local_gpu_idx
    torch_compile_learner torch_compile_learner_dynamo_backend torch_compile_learner_dynamo_mode
    min_time_s_per_iteration min_sample_timesteps_per_iteration metrics_num_episodes_for_smoothing
    checkpoint_trainable_policies_only _use_msgpack_checkpoints _validate_config
"""
"""Fields that every hot loop honours, or RLlib's code around it."""

OFF_POLICY = """
    rollout_fragment_length num_steps_sampled_before_learning_starts target_network_update_freq tau n_step
    training_intensity replay_buffer_config store_buffer_in_checkpoints
"""

HONOURED_BY = {
    "PPOConfig": """
        num_epochs minibatch_size shuffle_batch_per_epoch lambda_ clip_param vf_clip_param vf_loss_coeff entropy_coeff
        use_kl_loss kl_coeff kl_target
    """,
    "A2CConfig": "rmsprop_alpha rmsprop_epsilon",
    "DQNConfig": OFF_POLICY + "epsilon double_q dueling td_error_loss_fn",
    "SACConfig": OFF_POLICY + "actor_lr critic_lr alpha_lr initial_alpha target_entropy twin_q",
    "PlainSACConfig": "td_error_loss_fn",
}
"""The same for one config class and those that inherit from it."""

WITHOUT_EFFECT = """
    v_min v_max custom_evaluation_function
    num_gpus placement_strategy num_cpus_for_main_process custom_resources_for_main_process num_cpus_per_env_runner
    custom_resources_per_env_runner num_cpus_per_learner custom_resources_per_learner
    extra_python_environs_for_driver extra_python_environs_for_worker
    log_level log_sys_usage disable_env_checking torch_compile_learner_what_to_compile
    torch_compile_worker torch_compile_worker_dynamo_backend torch_compile_worker_dynamo_mode
    simple_optimizer _is_frozen _per_module_overrides
"""
"""Fields that cannot change what is learned: places, logs, caches, the old API stack, and such as need another one."""

IDLE_PREFIXES = ("callbacks_on_", "evaluation_", "offline_", "input_", "output_", "prelearner_")
"""Of fields that are read by callbacks, evaluation, input and output alone, each of which one field turns on."""

SWITCHES = ("evaluation_interval", "evaluation_num_env_runners", "offline_evaluation_interval")
"""Fields with such a prefix that turn something on."""


def find_unserved_setting(config: Any) -> str | None:
    """Name the first setting in ``config`` that the fast engine does not support; None if it supports all."""
    for feature, is_set in CHECKS:
        if is_set(config):
            return feature
    served, default = list_served_fields(type(config)), vars(config.algo_class.get_default_config())
    for name, value in vars(config).items():
        idle = name.startswith(IDLE_PREFIXES) and name not in SWITCHES
        # A field that RLlib's default config for this algorithm lacks is not read by RLlib either.
        if name in served or idle or name not in default or value is default[name] or value == default[name]:
            continue
        # The name of a class or function is shown, because its repr contains a memory address.
        return f"{name.lstrip('_')}={getattr(value, '__name__', None) or reprlib.repr(value)}"
    stock = config.get_default_learner_class()
    # A user may set the stock learner class explicitly, which changes nothing.
    if config._learner_class is not None and config._learner_class is not stock:
        return f"a user's learner class ({config._learner_class.__name__})"
    return None


def list_served_fields(config_class: type) -> set[str]:
    """List the fields of a config class that the engine supports with any value, except as rules in ``CHECKS`` say."""
    honoured = (HONOURED_BY.get(cls.__name__, "") for cls in config_class.__mro__)
    return set(" ".join((CHECKED, HONOURED, WITHOUT_EFFECT, *honoured)).split())


def _is_plain_spec(spec: Any) -> bool:
    """Return whether a module spec has no class or weights of a user, only a model config or rltune's catalog."""
    catalog = getattr(spec, "catalog_class", None)
    is_ours = catalog is None or catalog.__module__.startswith("rltune.")
    module = getattr(spec, "module_class", object)
    is_ours &= module is None or module.__module__.startswith("rltune.compat.")
    return is_ours and not getattr(spec, "load_state_path", None)


def _model_setting(config: Any, name: str) -> Any:
    return config.model_config.get(name) if isinstance(config.model_config, dict) else None


def _has_episode_callbacks(config: Any) -> bool:
    """Return whether a user's callback handles episodes or samples, which do not exist in the engine's array loops."""
    events = [name for name in dir(RLlibCallback) if name.startswith("on_")]
    for event in set(events) - HARMLESS_EVENTS:
        if getattr(config, f"callbacks_{event}", None):
            return True
        classes = config.callbacks_class
        for cls in classes if isinstance(classes, list | tuple) else [classes]:
            # RLlibCallback defines an empty method for each event, so a handled event is one whose method is
            # overridden.
            if getattr(cls, event, None) is not getattr(RLlibCallback, event):
                return True
    return False
