"""The commands for a trained policy: evaluate it, export it, and record a dataset with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import PolicyConfig, command, make_source, use_tracking
from rltune.cli.application.composed import ComposedCommand
from rltune.config.bounds import bounded
from rltune.errors import ConfigError
from rltune.formatting import format_objective, spell_command

if TYPE_CHECKING:
    from rltune.policies.policy import AnyPolicy

EVALUATED = ("id", "kwargs", "wrappers", "evaluation_steps")
"""The keys of an environment that an evaluation takes; only training reads the others."""


@dataclass
class PlayConfig(PolicyConfig):
    """The settings of commands that let a policy play episodes, and all settings of conf/record.yaml."""

    episodes: int = bounded(minimum=1, example=100)
    seed: int = MISSING
    deterministic: bool | None = None
    out: str = MISSING
    trust: bool = MISSING


@dataclass
class EvaluateConfig(PlayConfig):
    """The settings of conf/evaluate.yaml."""

    env: dict[str, Any] = field(default_factory=dict)
    video: bool = MISSING


@command("evaluate policy=<uri>", EvaluateConfig, ComposedCommand)
def evaluate(settings: EvaluateConfig) -> Answer:
    """Evaluate a policy on fresh episodes."""
    source = make_source(settings, trust=settings.trust)
    use_tracking(settings)
    from rltune.policies import evaluation
    from rltune.policies.policy import load_playable
    from rltune.policies.uri import keep_with_run
    from rltune.policies.video import check_filmable, film_episodes
    from rltune.views.tables import show_evaluation

    policy = load_playable(source)
    env = _read_environment(settings, policy)
    if settings.video:
        check_filmable(policy, env)
    result = evaluation.evaluate(
        policy, settings.episodes, settings.seed, env=env, deterministic=settings.deterministic
    )
    spec = evaluation.environment_of(policy, env)
    show_evaluation(settings.policy, policy.info, result, spec)
    data: dict[str, Any] = {
        "policy": settings.policy,
        "environment": spec["id"],
        "env_kwargs": spec["kwargs"],
        "episodes": len(result.returns),
        "seed": settings.seed,
        **result.to_dict(),
    }
    if settings.video:
        films = film_episodes(policy, result, Path(settings.out).expanduser().absolute(), settings.seed, env)
        for film in films:
            value = format_objective(film.episode_return)
            print(f"{film.which:<8}return {value}, environment seed {film.seed}: {film.path}")
        artifacts = f"videos/{films[0].path.parent.name}"
        run = keep_with_run(source, films[0].path.parent, artifacts)
        data |= {"films": films, "mlflow_run": run}
        print(
            f"kept under {artifacts}/ of MLflow run {run}"
            if run
            else "not kept in MLflow: this policy has no run there"
        )
    return Answer(data)


def _read_environment(settings: EvaluateConfig, policy: AnyPolicy) -> Mapping[str, Any] | None:
    """Return the typed changes of the environment to evaluate a policy in, after a check; None without any.

    Raises:
        RltuneError: The environment cannot be built, or a key has no effect on an evaluation.
    """
    from rltune.envs.spec import spec_of
    from rltune.envs.validation import check_env
    from rltune.policies.evaluation import environment_of

    env = {key: value for key, value in settings.env.items() if value is not None and value != {}}
    if not env:
        return None
    spec = environment_of(policy, env)
    # Of these keys, which only training reads, a file of conf/env may have some. Such a file has a name, too.
    if "name" not in env and (key := next((key for key in env if key not in EVALUATED), None)):
        raise ConfigError(
            f"env.{key}",
            env[key],
            ": an evaluation does not take it",
            f"{', '.join(f'env.{name}' for name in EVALUATED)}; a policy has its own normaliser, and its returns are "
            "the true ones",
            f"leave env.{key} out",
        )
    check_env(spec_of(spec))
    return env


@dataclass
class ExportConfig(PolicyConfig):
    """The settings of conf/export.yaml."""

    out: str | None = None
    format: str = bounded(choices=("onnx", "torch"))


@command("export policy=<uri>", ExportConfig)
def export(settings: ExportConfig) -> Answer:
    """Export a policy as one file that needs neither rltune nor RLlib."""
    source = make_source(settings)
    use_tracking(settings)
    from rltune.policies.export import default_export_name, export_policy
    from rltune.policies.policy import load_bundle

    policy = load_bundle(source)
    file = export_policy(policy, settings.out or default_export_name(policy, settings.format), settings.format)
    print(f"{file.path}: acts as the policy on {file.num_checked:,} observations, difference {file.difference:.2g}")
    return Answer({"file": file.path, "checked_observations": file.num_checked, "difference": file.difference})


@command("record policy=<uri> episodes=100", PlayConfig)
def record(settings: PlayConfig) -> Answer:
    """Record a dataset for the offline algorithms."""
    source = make_source(settings, trust=settings.trust)
    use_tracking(settings)
    from rltune.algorithms.datasets import record_episodes
    from rltune.policies.policy import load_bundle, require_single_agent

    policy = require_single_agent(load_bundle(source), "a dataset")
    out = Path(settings.out).expanduser().absolute()
    summary = record_episodes(policy, out, settings.episodes, settings.seed, settings.deterministic)
    mean = format_objective(summary["return_mean"])
    print(f"{out}: {settings.episodes} episodes, {summary['steps']:.0f} steps, mean return {mean}")
    if summary["cut"]:
        print(summary["cut"])
    print("next:", spell_command(f"run algo=bc env=... algo.offline_data.input_={settings.out}"))
    return Answer({"out": out, "episodes": settings.episodes, **summary})
