"""Compose settings by Hydra, from our configs and those of a person's own."""

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
from rltune.compose.explaining import explain
from rltune.compose.overrides import quote_free_text, spell_value, write_whole_numbers
from rltune.config.schema import RunConfig
from rltune.config.uris import redact_address
from rltune.config.validation import parse_config
from rltune.errors import ConfigError, RltuneError
from rltune.formatting import spell_command

OWN = "conf"  # the folder of a person's own groups, in the folder where they work
COMPOSED = "--composed"  # of `rltune run`: the composed settings come on standard input, as a service passes them
_composing = threading.Lock()  # Hydra has one state for the whole process


def conf_dir() -> Path:
    """The folder of the configs: inside the installed package, else that of the checkout."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parents[1] / "conf"


def find_own_dir() -> Path | None:
    """Find a person's own ``conf/`` in the present folder: one with a group's folder in it; None without."""
    own, ours = Path.cwd() / OWN, conf_dir()
    if not own.is_dir() or own.resolve() == ours.resolve():
        return None
    groups = {folder.name for folder in ours.iterdir() if folder.is_dir()}
    return own if any(folder.is_dir() and folder.name in groups for folder in own.iterdir()) else None


def list_conf_dirs() -> list[Path]:
    """List the folders of the groups as Hydra searches them: that of rltune, and the user's own ``conf/`` if any."""
    return [conf_dir(), *filter(None, [find_own_dir()])]


def use_own_dir() -> None:
    """Let Hydra look into a person's own ``conf/``, after our configs, as it does with ``--config-dir``."""
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
    """Let Hydra know the schema under a command's file, ``base_<root>``."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(f"base_{root}", schema)


def tell_unused(hydra: Any) -> None:
    """Say which of a person's own files are not used because ours have their names.

    Args:
        hydra: Hydra's own settings.
    """
    ours = conf_dir()
    for source in hydra.runtime.config_sources:
        if source.schema != "file" or source.provider == "main":
            continue
        for group, option in hydra.runtime.choices.items():
            name = f"{group}/{option}.yaml"
            if (Path(source.path) / name).is_file() and (ours / name).is_file():
                print(
                    f"{Path(source.path) / name} is not used: {group}={option} is one of rltune's own; "
                    f"give the file another name",
                    file=sys.stderr,
                )


def compose_settings(root: str, schema: type, words: Sequence[str], config_dir: str | Path | None = None) -> DictConfig:
    """Compose a command's settings inside a running program, which may use Hydra itself.

    Args:
        root: The command.
        schema: The dataclass under its file.
        words: Overrides, as they are typed.
        config_dir: What ``--config-dir`` names.

    Raises:
        RltuneError: A word is wrong.
    """
    return compose_with_choices(root, schema, words, config_dir)[0]


def compose_with_choices(
    root: str, schema: type, words: Sequence[str], config_dir: str | Path | None = None
) -> tuple[DictConfig, dict[str, str]]:
    """Compose as `compose_settings` does, and say which file of each group was taken for it: ``{"certify": "on"}``."""
    import hydra
    from hydra.errors import HydraException

    if config_dir is not None and not Path(config_dir).expanduser().is_dir():
        raise ConfigError(
            f"config_dir={config_dir}: no such folder", "a folder with groups in it, such as env/", "config_dir=conf"
        )
    folders = [] if config_dir is None else [f"file://{Path(config_dir).expanduser().absolute()}"]
    where = str(conf_dir())
    try:
        with _composing:
            store_schema(root, schema)
            use_own_dir()
            with _other_hydra_aside(), hydra.initialize_config_dir(version_base="1.3", config_dir=where):
                typed = [write_whole_numbers(quote_free_text(word), schema) for word in words]
                added = [f"hydra.searchpath={spell_value('config_dir', folders)}"] if folders else []
                settings = hydra.compose(root, [*typed, *added], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, root, schema, words) from None
    except ValueError as error:
        raise explain_group(error, root) from None
    tell_unused(settings.hydra)
    choices = {str(group): str(option) for group, option in settings.hydra.runtime.choices.items()}
    with open_dict(settings):
        del settings["hydra"]
    return settings, choices


def change_settings(settings: str, words: Sequence[str]) -> DictConfig:
    """Apply overrides to settings that were composed before; ``conf/`` is not read again.

    Args:
        settings: As YAML.
        words: Overrides of single keys, as they are typed.

    Raises:
        RltuneError: An override cannot be read, names no key that there is, or chooses a file of ``conf/``.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    changed, parser = OmegaConf.create(settings), OverridesParser.create()
    assert isinstance(changed, DictConfig)
    OmegaConf.set_struct(changed, True)
    for word in words:
        try:
            override = parser.parse_override(write_whole_numbers(quote_free_text(word), RunConfig))
            key, is_new = override.key_or_group, override.is_add() or override.is_force_add()
            if override.is_delete() or override.is_sweep_override() or (conf_dir() / key).is_dir():
                raise ConfigError(
                    f"{redact_address(word)}: the settings were composed when the sweep was submitted",
                    "single keys, such as budget.trials; a file of conf/ is chosen by a new submission",
                    "budget.trials=40",
                )
            OmegaConf.update(changed, key, override.value(), force_add=is_new)
        except (HydraException, OmegaConfBaseException) as error:
            raise explain(error, "resume", RunConfig, words) from None
    return changed


def explain_group(error: ValueError, root: str) -> RltuneError:
    """Explain what Hydra's parser of groups raises, which is nothing of its own, as for ``tuned=null``."""
    return RltuneError(str(error), "group=option; ~group leaves it out", spell_command(f"{root} --help"))


@contextlib.contextmanager
def _other_hydra_aside() -> Iterator[None]:
    """Put the Hydra of the program that calls us aside: there can be one at a time."""
    from hydra.core.global_hydra import GlobalHydra

    theirs, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = theirs


def read_request(settings: DictConfig, words: Sequence[str]) -> RunConfig:
    """Turn the settings of a sweep into a request.

    Args:
        settings: As composed.
        words: What was typed.

    Raises:
        ConfigError: A key is wrong, the space is another algorithm's, no trial fits into the steps of all, or
            certification was turned off and is asked for all the same.
    """
    config = parse_config(settings)
    _check_space(config, words)
    total, of_one = config.budget.total_env_steps, config.budget.env_steps * config.replicates
    if total is not None and total < of_one:
        raise ConfigError(
            f"budget.total_env_steps={total} is less than one trial takes: budget.env_steps={config.budget.env_steps}"
            + (f" with replicates={config.replicates}" if config.replicates > 1 else ""),
            f"at least {of_one}, for all trials together, or null",
            f"budget.total_env_steps={of_one * config.budget.trials}",
        )
    if config.certify.seeds and "certify=off" in words:
        raise ConfigError(
            f"certify.seeds={config.certify.seeds} with certify=off, which retrains nothing",
            "certify=on with seeds, or certify=off without them",
            f"certify=on certify.seeds={config.certify.seeds}",
        )
    return config


def _check_space(config: RunConfig, words: Sequence[str]) -> None:
    """Refuse another algorithm's space in one line, where each of its parameters would be refused alone.

    Raises:
        ConfigError: Names the spaces of this algorithm, and the algorithm of this space.
    """
    chosen = next((word.partition("=")[2].strip("'") for word in words if word.startswith("space=")), "")
    algos = (path.stem for path in (conf_dir() / "algo").glob("*.yaml"))
    owner = next((name for name in algos if name == chosen.partition("_")[0]), None)
    ours, known = config.algo["name"], list_arguments(config.algo)
    strange = [name for name in config.space if name.rpartition(".")[2] not in known]
    if owner and owner != ours and strange:
        raise ConfigError(
            f"space={chosen}: {', '.join(strange)} {'is no parameter' if len(strange) == 1 else 'are no parameters'} "
            f"of {ours}",
            f"space={ours}, which algo={ours} takes by itself, or a file of your own in conf/space",
            f"algo={ours} without space=, or algo={owner} for space={chosen}",
        )
