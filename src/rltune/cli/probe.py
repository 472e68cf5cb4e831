"""``rltune probe algo=ppo env=cartpole``: measure how to use this machine's cores best."""

import functools
import sys

from omegaconf import DictConfig

from rltune.cli.application.command import command
from rltune.probe import ProbeConfig, parse_probe_config, print_result, run_probe


@command("probe", ProbeConfig)
def main(settings: DictConfig) -> int:
    """Measure, and print the table with its recommendation; progress goes to standard error."""
    probe = run_probe(parse_probe_config(settings), functools.partial(print, file=sys.stderr, flush=True))
    print_result(probe)
    return 130 if probe.interrupted else 0


if __name__ == "__main__":
    main()
