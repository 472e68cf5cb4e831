"""``rltune evaluate policy=<uri>``: a policy on episodes that it has never seen."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from rltune.commands.application.command import PolicyConfig, command, make_source, use_tracking
from rltune.errors import ConfigError


@dataclass
class EvaluateConfig(PolicyConfig):
    """The settings of conf/evaluate.yaml."""

    episodes: int = MISSING
    seed: int = MISSING
    deterministic: bool = MISSING
    env: dict[str, Any] = field(default_factory=dict)
    video: bool = MISSING
    out: str = MISSING
    trust: bool = MISSING


def work(settings: DictConfig) -> int:
    """Evaluate and print a table."""
    source = make_source(settings, "evaluate")
    use_tracking(settings)
    if settings.episodes < 1:
        raise ConfigError(f"episodes={settings.episodes} is out of range", "at least 1", "episodes=100")
    if settings.video and not settings.deterministic:
        raise ConfigError(
            "video=true with deterministic=false: sampled episodes cannot be played a second time for the film",
            "deterministic=true, or no video",
            "video=true deterministic=true",
        )
    from rltune.policies.evaluation import evaluate
    from rltune.policies.policy import load_playable
    from rltune.policies.uri import keep_with_run
    from rltune.policies.video import check_filmable, film_episodes
    from rltune.reporting.tables import show_evaluation

    env = _other(settings)
    policy = load_playable(source)
    if settings.video:
        check_filmable(policy, env)
    result = evaluate(policy, settings.episodes, settings.seed, env=env, deterministic=settings.deterministic)
    show_evaluation(settings.policy, policy.info, result, settings.env.get("id"))
    if settings.video:
        films = film_episodes(policy, result, Path(settings.out).expanduser().absolute(), settings.seed, env)
        for film in films:
            print(f"{film.which:<8}return {film.episode_return:.2f}, environment seed {film.seed}: {film.path}")
        kept = f"videos/{films[0].path.parent.name}"  # the policy is the run's
        run = keep_with_run(source, films[0].path.parent, kept)
        print(f"kept under {kept}/ of MLflow run {run}" if run else "not kept in MLflow: this policy has no run there")
    return 0


def _other(settings: DictConfig) -> Any:
    """The environment that was asked for: a file of conf/env whole, a bare id under the policy's own wrappers."""
    given: Any = OmegaConf.to_container(settings.env)
    if not given.get("id"):
        return None
    return given if set(given) > {"id"} else given["id"]


def main() -> None:
    """Run the command."""
    command("evaluate", EvaluateConfig, work)


if __name__ == "__main__":
    main()
