"""``python -m sweeps.evaluate policy=<uri>``: a policy on episodes that it has never seen."""

from dataclasses import dataclass

from omegaconf import MISSING, DictConfig, OmegaConf

from rltune.errors import ConfigError
from sweeps._command import command


@dataclass
class EvaluateConfig:
    """The settings of conf/evaluate.yaml."""

    policy: str = MISSING
    episodes: int = MISSING
    seed: int = MISSING
    deterministic: bool = MISSING
    env: str | None = None
    output_dir: str = MISSING


def work(settings: DictConfig) -> int:
    """Evaluate and print a table."""
    if OmegaConf.is_missing(settings, "policy"):
        raise ConfigError(
            "policy has no value",
            "models:/<name>@champion, sweep:<name>, sweep:<name>/<trial>, runs:/<id> or a checkpoint folder",
            "python -m sweeps.evaluate policy=sweep:latest",
        )
    if settings.episodes < 1:
        raise ConfigError(f"episodes={settings.episodes} is out of range", "at least 1", "episodes=100")
    from rltune.overview import show_evaluation
    from rltune.policy import evaluate, load_policy

    policy = load_policy(settings.policy, output_dir=settings.output_dir)
    result = evaluate(policy, settings.episodes, settings.seed, env=settings.env, deterministic=settings.deterministic)
    show_evaluation(settings.policy, policy.info, result)
    return 0


if __name__ == "__main__":
    command("evaluate", EvaluateConfig, work)
