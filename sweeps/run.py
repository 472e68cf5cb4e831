"""``python -m sweeps.run algo=ppo env=cartpole``: search, choose the winner, register it."""

import sys
from collections.abc import Sequence

from omegaconf import DictConfig

from rltune.cluster.fork_server import begin_fork_server
from rltune.config.schema import RunConfig
from rltune.config.validation import parse_config
from rltune.errors import ConfigError
from sweeps._command import command


def read_request(settings: DictConfig) -> RunConfig:
    """Turn the settings into a request.

    Raises:
        ConfigError: A key is wrong, or certification was turned off and is asked for all the same.
    """
    config = parse_config(settings)
    if config.certify.seeds and "certify=off" in sys.argv[1:]:
        raise ConfigError(
            f"certify.seeds={config.certify.seeds} with certify=off, which retrains nothing",
            "certify=on with seeds, or certify=off without them",
            f"certify=on certify.seeds={config.certify.seeds}",
        )
    return config


def work(settings: DictConfig) -> int:
    """Run the sweep that the settings describe."""
    config = read_request(settings)
    # At once: what is imported next takes seconds, and Ray's start some more.
    print(f"{config.algo['name']} in {config.env.id}: checking the request, starting Ray ...", flush=True)
    from rltune.pipeline.run import run_sweep

    return run_sweep(config).exit_code


def check(requests: Sequence[DictConfig]) -> None:
    """Refuse the sweeps of one command line together, before the first of them starts.

    Raises:
        RltuneError: One of them cannot be carried out, or two have one name.
    """
    from rltune.pipeline.run import check_request

    configs = [read_request(settings) for settings in requests]
    taken = set()
    for config in configs:
        if config.name and (config.output_dir, config.name) in taken:
            raise ConfigError(
                f"name={config.name}: {len(requests)} sweeps of one command line cannot share a name",
                "no name, so that each sweep gets its own, or a name for each",
                "leave name= out; sweeps.list shows the names",
            )
        taken.add((config.output_dir, config.name))
    for config in configs:
        check_request(config)


if __name__ == "__main__":
    command("run", RunConfig, work, early=begin_fork_server, check=check)
