"""``rltune run algo=ppo env=cartpole``: run a sweep, certify its winner and register it."""

import json
import sys
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from rltune.cli.application.command import carry_out, command
from rltune.cluster.fork_server import begin_fork_server
from rltune.compose.composing import COMPOSED, read_request
from rltune.config.schema import RunConfig
from rltune.config.validation import parse_config
from rltune.errors import ConfigError
from rltune.formatting import spell_command


def work_composed() -> int:
    """Run a sweep whose composed settings a service passes on standard input."""
    request = json.load(sys.stdin)
    return _run(parse_config(OmegaConf.create(request["settings"])), request["typed"])


def _run(config: RunConfig, typed: str | None = None) -> int:
    # Printed at once, because the next imports and the start of Ray take seconds.
    print(f"{config.algo['name']} in {config.env.id}: checking the request, starting Ray ...", flush=True)
    from rltune.driver.run import run_sweep

    return run_sweep(config, typed=typed).exit_code


def check(requests: Sequence[DictConfig]) -> None:
    """Refuse the sweeps of one command line together, before the first of them starts.

    Raises:
        RltuneError: One of them cannot be carried out, or two have one name.
    """
    from rltune.driver.starting import check_request

    configs = [read_request(settings, sys.argv[1:]) for settings in requests]
    taken = set()
    for config in configs:
        if config.name and (config.output_dir, config.name) in taken:
            raise ConfigError(
                f"name={config.name}: {len(requests)} sweeps of one command line cannot share a name",
                "no name, so that each sweep gets its own, or a name for each",
                f"leave name= out; {spell_command('list')} shows the names",
            )
        taken.add((config.output_dir, config.name))
    for config in configs:
        check_request(config)


@command("run", RunConfig, early=begin_fork_server, check=check)
def run(settings: DictConfig) -> int:
    """Run the sweep that the settings describe."""
    return _run(read_request(settings, sys.argv[1:]))


def main() -> None:
    """Run the command."""
    if sys.argv[1:2] == [COMPOSED]:
        begin_fork_server()
        carry_out(work_composed)
    run()


if __name__ == "__main__":
    main()
