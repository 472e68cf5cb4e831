"""Find the setting of an RLlib config that the fast engine does not serve.

No setting is ignored in silence: each one that the hot loops do not know forces stock RLlib, and is named in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rltune.engine.sampling.observation_filter import wants_normalisation


class UnsupportedError(Exception):
    """A feature that only stock RLlib serves, found while building; `build_algorithm` falls back then.

    Args:
        feature: The feature in words, as the fallback's log line names it.
    """

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature


HARMLESS_EVENTS = {"on_algorithm_init", "on_train_result", "on_checkpoint_loaded"}
"""Callbacks that see the algorithm and never an episode or a sample."""

Check = Callable[[Any], Any]

# Each row: the feature as the log names it, and whether a config has it. Private fields of the config are read where
# RLlib 2.60 has no public one.
CHECKS: tuple[tuple[str, Check], ...] = (
    (
        "the old API stack",
        lambda c: not (c.enable_rl_module_and_learner and c.enable_env_runner_and_connector_v2),
    ),
    ("multi-agent environments", lambda c: c.is_multi_agent),
    ("remote learners (num_learners > 0)", lambda c: c.num_learners > 0),
    ("offline data", lambda c: c.is_offline or c.input_ != "sampler"),
    ("recording to files (output)", lambda c: c.output),
    ("evaluation during training", lambda c: c.evaluation_interval or c.evaluation_num_env_runners),
    ("batch_mode 'complete_episodes'", lambda c: c.batch_mode != "truncate_episodes"),
    ("a user's env runner class", lambda c: c.env_runner_cls is not None),
    ("a user's learner connector", lambda c: c._learner_connector is not None),
    ("a user's module-to-env connector", lambda c: c._module_to_env_connector is not None),
    (
        "a user's env-to-module connector",
        lambda c: c._env_to_module_connector is not None and not wants_normalisation(c),
    ),
    ("add_default_connectors_* turned off", lambda c: not _has_default_connectors(c)),
    ("a user's RLModule", lambda c: c._rl_module_spec is not None and not _is_plain_spec(c._rl_module_spec)),
    ("recurrent modules (use_lstm)", lambda c: _model_setting(c, "use_lstm")),
    ("per-module config overrides", lambda c: c.algorithm_config_overrides_per_module),
    ("distributional values (num_atoms > 1)", lambda c: getattr(c, "num_atoms", 1) > 1),
    ("torch learning rate schedulers", lambda c: c._torch_lr_scheduler_classes),
    ("gradient scalers", lambda c: c._torch_grad_scaler_class),
    ("aggregator actors", lambda c: c.num_aggregator_actors_per_learner),
    ("restart_failed_sub_environments", lambda c: c.restart_failed_sub_environments),
    ("callbacks that see episodes or samples", lambda c: _has_episode_callbacks(c)),
    ("counting steps by agent", lambda c: c.count_steps_by != "env_steps"),
    ("policies_to_train", lambda c: c.policies_to_train is not None),
    (
        "training without a critic or GAE",
        lambda c: not (getattr(c, "use_critic", True) and getattr(c, "use_gae", True)),
    ),
)


def find_unserved_setting(config: Any) -> str | None:
    """Name the first feature in ``config`` that only stock RLlib serves; None without one. Builds no environment."""
    for feature, present in CHECKS:
        if present(config):
            return feature
    stock = config.get_default_learner_class()
    # To name the stock class explicitly changes nothing.
    if config._learner_class is not None and config._learner_class is not stock:
        return f"a user's learner class ({config._learner_class.__name__})"
    return None


def _has_default_connectors(config: Any) -> bool:
    return bool(
        config.add_default_connectors_to_env_to_module_pipeline
        and config.add_default_connectors_to_module_to_env_pipeline
        and config.add_default_connectors_to_learner_pipeline
    )


def _is_plain_spec(spec: Any) -> bool:
    """Whether a module spec only carries a model config or our own catalog."""
    catalog = getattr(spec, "catalog_class", None)
    known = catalog is None or catalog.__name__ == "ConcatSACCatalog"
    return known and getattr(spec, "module_class", True) is None and not getattr(spec, "load_state_path", None)


def _model_setting(config: Any, name: str) -> Any:
    return config.model_config.get(name) if isinstance(config.model_config, dict) else None


def _has_episode_callbacks(config: Any) -> bool:
    """Whether a callback sees episodes or samples, which the array loops never build."""
    events = [name for name in dir(RLlibCallback) if name.startswith("on_")]
    for event in set(events) - HARMLESS_EVENTS:
        if getattr(config, f"callbacks_{event}", None):
            return True
        classes = config.callbacks_class
        for cls in classes if isinstance(classes, list | tuple) else [classes]:
            # RLlibCallback defines every event as an empty method: a user's is one that overrides it.
            if getattr(cls, event, None) is not getattr(RLlibCallback, event):
                return True
    return False
