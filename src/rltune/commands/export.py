"""``rltune export policy=<uri>``: a policy as one file that needs neither rltune nor RLlib."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig

from rltune.commands.application.command import StudyConfig, TrackingConfig, command, need_policy, use_tracking


@dataclass
class ExportConfig:
    """The settings of conf/export.yaml."""

    policy: str = MISSING
    out: str | None = None
    format: str = MISSING
    output_dir: str = MISSING
    storage: str | None = None
    study: StudyConfig = field(default_factory=StudyConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


def work(settings: DictConfig) -> int:
    """Export and say what was checked."""
    need_policy(settings, "export")
    use_tracking(settings)
    if settings.format == "rl_zoo3":
        return _write_zoo_settings(settings)
    from rltune.policies.export import default_export_name, export_policy
    from rltune.policies.policy import load_policy

    policy = load_policy(
        settings.policy, output_dir=settings.output_dir, storage=settings.study.storage, bucket=settings.storage
    )
    done = export_policy(policy, settings.out or default_export_name(policy, settings.format), settings.format)
    print(f"{done.path}: acts as the policy on {done.num_checked:,} observations, difference {done.difference:.2g}")
    return 0


def _write_zoo_settings(settings: DictConfig) -> int:
    from omegaconf import OmegaConf

    from rltune.algorithms.zoo import format_zoo_settings
    from rltune.config.settings_file import read_settings
    from rltune.policies.uri import Source, read_values

    where = Path(settings.output_dir)
    folder, params = read_values(
        Source(settings.policy, where, storage=settings.study.storage, bucket=settings.storage)
    )
    config: Any = OmegaConf.to_container(read_settings(folder))
    path = Path(settings.out or f"{config['env']['name']}-{config['algo']['name']}.yml")
    path.write_text(format_zoo_settings(config, params))
    algo, env = config["algo"]["name"], config["env"]["id"]
    print(f"{path}: python -m rl_zoo3.train --algo {algo} --env {env} --conf-file {path}")
    return 0


def main() -> None:
    """Run the command."""
    command("export", ExportConfig, work)


if __name__ == "__main__":
    main()
