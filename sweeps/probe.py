"""``python -m sweeps.probe algo=ppo env=cartpole``: the best use of this machine's cores, measured."""

from omegaconf import DictConfig

from rltune.probe import ProbeConfig, from_mapping, progress, run_probe, show
from sweeps._command import command


def work(settings: DictConfig) -> int:
    """Measure and print the table with what follows from it."""
    config = from_mapping(settings)
    with progress() as say:
        findings = run_probe(config, say)
    show(findings)
    return 130 if findings.interrupted else 0


if __name__ == "__main__":
    command("probe", ProbeConfig, work)
