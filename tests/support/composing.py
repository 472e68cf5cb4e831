"""What Hydra composes for a command, without typing it."""

from __future__ import annotations

import copy
import functools
import pickle
import re
from collections.abc import Iterable, Sequence
from typing import Any

VALUE = re.compile(r"(?:\+\+?|~)?([a-z_]\w*)((?:\.\w+)*)(?:=|$)")


def compose(root: str, *overrides: str) -> Any:
    """What Hydra composes for a command and its overrides."""
    import hydra

    from rltune.compose.composing import conf_dir, store_schema
    from rltune.config.schema import RunConfig

    store_schema("run", RunConfig)
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return hydra.compose(root, list(overrides))


def compose_once() -> None:
    """Let Hydra compose the same files of ``conf/`` once for all tests, which takes it 0.2 s.

    Single values change no file: Hydra sets them after it has composed the files, and here sets them in a copy. It
    composes anew where it also searches another folder, whose files may change.
    """
    import hydra
    from hydra._internal import defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import open_dict

    compose_anew, composed = hydra.compose, dict[Any, bytes]()
    map_choices = getattr(defaults_list, "_create_interpolation_map", None)  # Hydra 1.4 resolves them later instead.

    def map_choices_if_read(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
        """Map the choices so far, which takes a seventh of composing, only for a file whose defaults name others."""
        return map_choices(overrides, defaults, self_added) if "${" in str(defaults) else None

    if map_choices:
        defaults_list._create_interpolation_map = map_choices_if_read

    @functools.wraps(compose_anew)
    def compose(config_name: str, overrides: Sequence[str] = (), return_hydra_config: bool = False) -> Any:
        files = [word for word in overrides if not _is_value(word)]
        values = OverridesParser.create().parse_overrides(list(filter(_is_value, overrides)))
        if not _searches_conf_alone(files) or any(value.is_sweep_override() for value in values):
            return compose_anew(config_name, list(overrides), return_hydra_config)
        key = config_name, tuple(files)
        if (*key, True) not in composed:
            settings = compose_anew(config_name, files, return_hydra_config=True)
            composed[*key, True] = pickle.dumps(settings)
            with open_dict(settings):
                del settings["hydra"]
            composed[*key, False] = pickle.dumps(settings)
        settings = pickle.loads(composed[*key, return_hydra_config])
        ConfigLoaderImpl._apply_overrides_to_config(values, settings)
        return settings

    hydra.compose = compose


def _is_value(word: str) -> bool:
    """Whether it sets, adds or deletes single settings, and chooses no file."""
    from rltune.compose.composing import conf_dir

    key = VALUE.match(word)
    return bool(key) and key[1] != "hydra" and bool(key[2] or not (conf_dir() / key[1]).is_dir())


def _searches_conf_alone(overrides: Iterable[str]) -> bool:
    from hydra.core.global_hydra import GlobalHydra

    from rltune.compose.composing import conf_dir

    entries = GlobalHydra.instance().config_loader().get_search_path().get_path()
    folders = [entry.path for entry in entries if entry.provider not in ("hydra", "schema")]
    return folders == [str(conf_dir())] and not any("hydra." in word for word in overrides)


def change_setting(settings: Any, key: str, value: Any) -> Any:
    """A copy of composed settings with one value changed or added."""
    changed = copy.deepcopy(settings)
    *above, last = key.split(".")
    section = changed
    for part in above:
        section = section[part]
    section[last] = value
    return changed
