"""``rltune export policy=<uri>``: a policy as one file that needs neither rltune nor RLlib."""

from dataclasses import dataclass, field

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
    from rltune.policies.export import default_export_name, export_policy
    from rltune.policies.policy import load_policy

    policy = load_policy(
        settings.policy, output_dir=settings.output_dir, storage=settings.study.storage, bucket=settings.storage
    )
    done = export_policy(policy, settings.out or default_export_name(policy, settings.format), settings.format)
    print(f"{done.path}: acts as the policy on {done.num_checked:,} observations, difference {done.difference:.2g}")
    return 0


def main() -> None:
    """Run the command."""
    command("export", ExportConfig, work)


if __name__ == "__main__":
    main()
