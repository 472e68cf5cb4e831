"""``python -m sweeps.run algo=ppo env=cartpole``: search, choose the winner, register it."""

from omegaconf import DictConfig

from rltune import nursery
from rltune.config import RunConfig, from_mapping
from sweeps._command import command


def work(settings: DictConfig) -> int:
    """Run the sweep that the settings describe."""
    config = from_mapping(settings)
    from rltune.sweep import run_sweep

    return run_sweep(config).exit_code


if __name__ == "__main__":
    command("run", RunConfig, work, early=nursery.begin)
