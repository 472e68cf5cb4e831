"""What Hydra composes for a command, without typing it."""

from __future__ import annotations

import copy
from typing import Any


def compose(root: str, *overrides: str) -> Any:
    """What Hydra composes for a command and its overrides."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore

    from rltune.composition.composing import conf_dir
    from rltune.config.schema import RunConfig

    ConfigStore.instance().store("base_run", RunConfig)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return hydra_compose(root, list(overrides))


def change_setting(settings: Any, key: str, value: Any) -> Any:
    """A copy of composed settings with one value changed or added."""
    changed = copy.deepcopy(settings)
    *above, last = key.split(".")
    section = changed
    for part in above:
        section = section[part]
    section[last] = value
    return changed
