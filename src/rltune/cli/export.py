"""``rltune export policy=<uri>``: export a policy as one file that needs neither rltune nor RLlib."""

from dataclasses import dataclass

from omegaconf import DictConfig

from rltune.cli.application.command import PolicyConfig, command, make_source, use_tracking
from rltune.config.bounds import bounded


@dataclass
class ExportConfig(PolicyConfig):
    """The settings of conf/export.yaml."""

    out: str | None = None
    format: str = bounded(choices=("onnx", "torch"))


@command("export", ExportConfig)
def main(settings: DictConfig) -> int:
    """Export the policy and print how the file was checked."""
    source = make_source(settings, "export")
    use_tracking(settings)
    from rltune.policies.export import default_export_name, export_policy
    from rltune.policies.policy import load_bundle

    policy = load_bundle(source)
    export = export_policy(policy, settings.out or default_export_name(policy, settings.format), settings.format)
    print(
        f"{export.path}: acts as the policy on {export.num_checked:,} observations, difference {export.difference:.2g}"
    )
    return 0


if __name__ == "__main__":
    main()
