"""Compose a command's settings with Hydra, from rltune's config files, the user's own and overrides."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from rltune.algorithms.arguments import list_arguments
from rltune.compose.explaining import explain, explain_option, refuse_hydra_words, split_word
from rltune.compose.groups import find_options, find_own_dir
from rltune.compose.overrides import expand_group, replace_mapping, spell_value, spell_word
from rltune.config.bounds import find_type
from rltune.config.changes import LOCAL, drop_cluster_limits
from rltune.config.names import conf_dir as conf_dir
from rltune.config.schema import RunConfig
from rltune.config.settings_file import load_settings
from rltune.config.validation import parse_config
from rltune.envs.searched import is_of_env
from rltune.errors import ConfigError, RltuneError, choices
from rltune.formatting import flatten_settings, spell_command

OmegaConf.register_new_resolver("rltune.command", spell_command, replace=True)  # For Hydra's help.
COMPOSED = "--composed"  # With this flag, `rltune run` reads composed settings from its standard input, for a service.
_composing = threading.Lock()  # Hydra's state is global, so only one thread may compose at a time.


def spell_words(words: Sequence[str], schema: type) -> list[str]:
    """Translate typed settings to Hydra's grammar, and add ``env=gym`` if only an environment's id is given.

    An environment's id alone means ``env=gym``. With another option it would keep that option's name and settings, so
    that somebody's own environment would be tuned and registered as CartPole.

    Args:
        words: The settings, as they are typed.
        schema: The dataclass of the command's settings.

    Raises:
        RltuneError: Values are typed where a group takes an option's name, for which Hydra raises TypeError; or a
            setting of Hydra's own is typed.
    """
    refuse_hydra_words(words)
    words = [part for word in words for part in expand_group(word, schema)]
    spelled = [part for word in words for part in replace_mapping(spell_word(word, schema))]
    values = {key: value for key, _, value in (word.lstrip("+").partition("=") for word in words)}
    for key, value in values.items():
        if value.startswith(("{", "[{")) and (options := list(find_options(key))):
            fix = "'warm_start=[{lr: 3e-4}]'" if key == "portfolio" else f"{key}.NAME=VALUE"
            raise RltuneError(
                ": this setting takes the name of a file", choices("", options), fix, key=key, value=value
            )
    if "env.id" in values and "env" not in values and find_type(schema, "env.id") and not _chooses_env(words):
        spelled.append("env=gym")
    return spelled


def _chooses_env(words: Sequence[str]) -> bool:
    """Return whether an ``experiment=`` file on the command line overrides the ``env`` group."""
    names = [word.partition("=")[2] for word in words if word.startswith("experiment=")]
    paths = [path for name in names for path in find_options("experiment").get(name, [])]
    return any("override /env:" in path.read_text() for path in paths)


def use_own_dir() -> None:
    """Let Hydra also search the user's ``conf/`` in the working directory, as if it were typed as ``--config-dir``."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class OwnConfigs(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            if own := find_own_dir():
                search_path.append("own", f"file://{own}")

    plugins = Plugins.instance()
    if not any(plugin.__name__ == OwnConfigs.__name__ for plugin in plugins.discover(SearchPathPlugin)):
        plugins.register(OwnConfigs)


def store_schema(root: str, schema: type) -> None:
    """Register a command's settings dataclass in Hydra's config store as ``base_<root>``."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    # The schema is registered only once, because its conversion takes a sixth of the time of composing.
    if f"base_{root}.yaml" not in store.repo:
        store.store(f"base_{root}", schema)


def check_options(hydra: Any) -> None:
    """Refuse an option of an optional group without a file, and warn about user files that a file of rltune's shadows.

    Hydra leaves an optional group out without a word if its option has no file.

    Args:
        hydra: The settings of Hydra itself.

    Raises:
        RltuneError: The typed option has no file.
    """
    ours, choices = conf_dir(), hydra.runtime.choices
    folders = [Path(source.path) for source in hydra.runtime.config_sources if source.schema == "file"]
    typed = {word.partition("=")[0].lstrip("+") for word in hydra.overrides.task}
    for group in typed & {"tuned", "portfolio", "recipe"}:
        option = choices.get(group)
        options = sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})
        if option not in options:
            raise explain_option(f"{group}/{option}", options, spell_command(f"{hydra.job.config_name} --help"))
    for folder in folders:
        for group, option in choices.items() if folder != ours else ():
            name = f"{group}/{option}.yaml"
            if (folder / name).is_file() and (ours / name).is_file():
                print(
                    f"{folder / name} is not used: {group}={option} is one of rltune's own; give the file another name",
                    file=sys.stderr,
                )


def compose_settings(root: str, schema: type, words: Sequence[str], config_dir: str | Path | None = None) -> DictConfig:
    """Compose a command's settings from Python, in a program that may itself use Hydra.

    Args:
        root: The command.
        schema: The dataclass of its settings.
        words: The overrides, as they are typed.
        config_dir: A further folder with groups, as for ``--config-dir``.

    Raises:
        RltuneError: An override is wrong.
    """
    import hydra
    from hydra.errors import HydraException

    if config_dir is not None and not (isinstance(config_dir, str | Path) and Path(config_dir).expanduser().is_dir()):
        raise ConfigError(
            "config_dir", config_dir, ": no such folder", "a folder with groups in it, such as env/", "config_dir=conf"
        )
    folders = [] if config_dir is None else [f"file://{Path(config_dir).expanduser().absolute()}"]
    try:
        with _composing:
            store_schema(root, schema)
            use_own_dir()
            with _set_other_hydra_aside(), hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
                typed = spell_words(words, schema)
                added = [f"hydra.searchpath={spell_value('config_dir', folders)}"] if folders else []
                settings = hydra.compose(root, [*typed, *added], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        raise explain(error, root, schema, words) from None
    check_options(settings.hydra)
    with open_dict(settings):
        del settings["hydra"]
    return settings


def change_settings(settings: str, words: Sequence[str]) -> DictConfig:
    """Apply overrides to composed settings, such as a submitted sweep's, without reading ``conf/`` again.

    Args:
        settings: The settings as YAML.
        words: Overrides of single keys, as they are typed.

    Raises:
        RltuneError: An override cannot be read, names an unknown key, or chooses an option of a group.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    try:
        overrides = [parser.parse_override(spell_word(word, RunConfig)) for word in words]
        keys = [override.key_or_group for override in overrides]
        changed = OmegaConf.create(drop_cluster_limits(load_settings(settings), keys))
        OmegaConf.set_struct(changed, True)
        for word, override, key in zip(words, overrides, keys, strict=True):
            if override.is_delete() or override.is_sweep_override() or (conf_dir() / key).is_dir():
                raise ConfigError(
                    *split_word(word),
                    ": the settings were composed when the sweep was submitted",
                    "single keys, such as budget.trials; an option of a group needs a new submission",
                    "budget.trials=40",
                )
            value = None if key == "cluster.address" and override.value() == LOCAL else override.value()
            OmegaConf.update(changed, key, value, force_add=override.is_add() or override.is_force_add())
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, "resume", RunConfig, words) from None
    return changed


@contextlib.contextmanager
def _set_other_hydra_aside() -> Iterator[None]:
    """Save and restore the Hydra instance of the calling program, because a process can have only one."""
    from hydra.core.global_hydra import GlobalHydra

    theirs, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = theirs


def read_request(settings: DictConfig, words: Sequence[str]) -> RunConfig:
    """Convert the composed settings of a sweep to a `RunConfig`, and check them.

    Args:
        settings: The composed settings.
        words: The overrides, as they were typed.

    Raises:
        ConfigError: A setting is wrong, the space belongs to another algorithm, or ``certify=off`` contradicts
            ``certify.seeds``.
    """
    config = parse_config(settings)
    _check_space(config, words)
    if config.certify.seeds and "certify=off" in words:
        raise ConfigError(
            "certify.seeds",
            config.certify.seeds,
            "with certify=off, which retrains nothing",
            "certify=on with seeds, or certify=off without them",
            f"certify=on certify.seeds={config.certify.seeds}",
        )
    return config


def _check_space(config: RunConfig, words: Sequence[str]) -> None:
    """Refuse a ``space`` file that belongs to another algorithm, with one error for all its unknown parameters.

    Raises:
        ConfigError: Names the space of this algorithm, and the algorithm of this space.
    """
    space = next((word.partition("=")[2].strip("'") for word in words if word.startswith("space=")), "")
    algo, owner, arguments = config.algo["name"], space.partition("_")[0], list_arguments(config.algo)
    names = [name for name, _ in flatten_settings(config.space) if not is_of_env(name)]
    unknown = [name for name in names if name.rpartition(".")[2] not in arguments]
    if unknown and owner != algo and (conf_dir() / "algo" / f"{owner}.yaml").is_file():
        raise ConfigError(
            "space",
            space,
            f": {algo} has no parameter{'s' * (len(unknown) > 1)} {', '.join(unknown)}",
            f"space={algo}, the default for algo={algo}, or a file of your own in conf/space",
            f"algo={algo} without space=, or algo={owner} for space={space}",
        )
