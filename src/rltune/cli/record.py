"""``rltune record policy=<uri> episodes=100``: record a dataset for the offline algorithms."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING, DictConfig

from rltune.cli.application.command import PolicyConfig, command, make_source, use_tracking
from rltune.config.bounds import bounded
from rltune.formatting import spell_command


@dataclass
class RecordConfig(PolicyConfig):
    """The settings of conf/record.yaml."""

    episodes: int = bounded(minimum=1, example=100)
    seed: int = MISSING
    deterministic: bool = MISSING
    out: str = MISSING
    trust: bool = MISSING


@command("record", RecordConfig)
def main(settings: DictConfig) -> int:
    """Play the episodes, write them to a file and print a summary."""
    source = make_source(settings, "record")
    use_tracking(settings)
    from rltune.algorithms.datasets import record_episodes
    from rltune.policies.multi_agent import require_single_agent
    from rltune.policies.policy import load_bundle

    policy = require_single_agent(load_bundle(source), "a dataset")
    out = Path(settings.out).expanduser().absolute()
    summary = record_episodes(policy, out, settings.episodes, settings.seed, settings.deterministic)
    print(
        f"{out}: {settings.episodes} episodes, {summary['steps']:.0f} steps, mean return {summary['return_mean']:.1f}"
    )
    print("next:", spell_command(f"run algo=bc env=... algo.offline_data.input_={settings.out}"))
    return 0


if __name__ == "__main__":
    main()
