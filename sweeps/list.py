"""``python -m sweeps.list``: the sweeps in a folder, or with a word (envs, algos, spaces) what can be chosen."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING, DictConfig

from rltune.errors import ConfigError, choices
from rltune.reporting.available import KINDS, show_available
from sweeps._command import StudyConfig, command, conf_dir, leave


@dataclass
class ListConfig:
    """The settings of conf/list.yaml."""

    output_dir: str = MISSING
    storage: str | None = None
    study: StudyConfig = field(default_factory=StudyConfig)


def work(settings: DictConfig) -> int:
    """Print one line a sweep, the newest last."""
    from rltune.reporting.tables import list_sweeps

    list_sweeps(settings.output_dir, storage=settings.study.storage, bucket=settings.storage)
    return 0


def catalogue(words: list[str]) -> bool:
    """Show what can be chosen, when the command line asks for it: ``envs [--config-dir DIR]``."""
    if not words or "=" in words[0] or words[0].startswith("-"):
        return False
    if words[0] not in KINDS:
        leave(ConfigError(f"{words[0]}: nothing to list", choices(words[0], KINDS), "python -m sweeps.list envs"))
    own = [Path(words[place + 1]) for place, word in enumerate(words[:-1]) if word == "--config-dir"]
    show_available(words[0], [*own, conf_dir()])
    return True


if __name__ == "__main__" and not catalogue(sys.argv[1:]):
    command("list", ListConfig, work)
