"""``rltune evaluate policy=<uri>``: evaluate a policy on fresh episodes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from rltune.cli.application.command import PolicyConfig, command, make_source, use_tracking
from rltune.config.bounds import bounded
from rltune.errors import ConfigError


@dataclass
class EvaluateConfig(PolicyConfig):
    """The settings of conf/evaluate.yaml."""

    episodes: int = bounded(minimum=1, example=100)
    seed: int = MISSING
    deterministic: bool = MISSING
    env: dict[str, Any] = field(default_factory=dict)
    video: bool = MISSING
    out: str = MISSING
    trust: bool = MISSING


@command("evaluate", EvaluateConfig)
def main(settings: DictConfig) -> int:
    """Evaluate the policy and print the result."""
    source = make_source(settings, "evaluate")
    use_tracking(settings)
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
    from rltune.views.tables import show_evaluation

    env = _read_environment(settings)
    policy = load_playable(source)
    if settings.video:
        check_filmable(policy, env)
    result = evaluate(policy, settings.episodes, settings.seed, env=env, deterministic=settings.deterministic)
    show_evaluation(settings.policy, policy.info, result, settings.env.get("id"))
    if settings.video:
        films = film_episodes(policy, result, Path(settings.out).expanduser().absolute(), settings.seed, env)
        for film in films:
            print(f"{film.which:<8}return {film.episode_return:.2f}, environment seed {film.seed}: {film.path}")
        artifacts = f"videos/{films[0].path.parent.name}"
        run = keep_with_run(source, films[0].path.parent, artifacts)
        print(
            f"kept under {artifacts}/ of MLflow run {run}"
            if run
            else "not kept in MLflow: this policy has no run there"
        )
    return 0


def _read_environment(settings: DictConfig) -> Any:
    """Return the environment to evaluate in: None for the policy's own, a file of conf/env, or an id alone.

    An id alone is wrapped by the policy's own wrappers.
    """
    env: Any = OmegaConf.to_container(settings.env)
    if not env.get("id"):
        return None
    return env if set(env) > {"id"} else env["id"]


if __name__ == "__main__":
    main()
