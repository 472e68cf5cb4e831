"""``python -m sweeps.list``: the sweeps in a folder with their state, best and cost."""

from dataclasses import dataclass

from omegaconf import MISSING, DictConfig

from sweeps._command import command


@dataclass
class ListConfig:
    """The settings of conf/list.yaml."""

    output_dir: str = MISSING


def work(settings: DictConfig) -> int:
    """Print one line a sweep, the newest last."""
    from rltune.overview import list_sweeps

    list_sweeps(settings.output_dir)
    return 0


if __name__ == "__main__":
    command("list", ListConfig, work)
