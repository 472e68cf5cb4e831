"""The commands for a trained policy: evaluate it, export it, and record a dataset with it."""

from __future__ import annotations

import atexit
import functools
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import PolicyConfig, RequestConfig, command, make_source, use_tracking
from rltune.cli.application.composed import ComposedCommand
from rltune.cli.submitted import find_remote_sweep
from rltune.config.bounds import bounded
from rltune.config.validation import to_typed
from rltune.envs.child import Child, call_again
from rltune.errors import ConfigError, GuestError, RltuneError, UnexpectedError
from rltune.formatting import format_objective, spell_command
from rltune.ledger.sweep_ref import name_start

if TYPE_CHECKING:
    from rltune.policies.policy import AnyPolicy

EVALUATED = ("id", "kwargs", "wrappers", "per_copy", "max_copies", "restarts", "evaluation_steps")
"""The keys of an environment that an evaluation takes; only training reads the others."""


def take_remote_policy(settings: PolicyConfig) -> None:
    """Unpack ``policy=sweep:<name>`` or ``sweep:<name>/<trial>`` if the service in RLTUNE_SERVICE has that sweep.

    The temporary folder is named in the settings then, and deleted when this process ends.
    """
    name, _, trial = settings.policy.removeprefix("sweep:").partition("/")
    served = RequestConfig(sweep=name, output_dir=settings.output_dir, storage=settings.storage, study=settings.study)
    is_asked = settings.policy.startswith("sweep:") and (trial.isdecimal() or not trial)
    if is_asked and (remote := find_remote_sweep(served)):
        folder = tempfile.mkdtemp(prefix="rltune-policy-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        settings.policy = str(remote.client.policy(remote.name, folder, int(trial) if trial else None))


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
    policy = settings.policy
    take_remote_policy(settings)
    source = make_source(settings, trust=settings.trust)
    use_tracking(settings)
    played = _call_in_child(evaluate_policy, settings)
    from rltune.policies.result import Evaluation
    from rltune.policies.uri import keep_with_run
    from rltune.views.tables import show_evaluation

    spec, result = played["env"], Evaluation.from_dict(played["result"])
    show_evaluation(policy, played["info"], result, spec)
    data: dict[str, Any] = {
        "policy": policy,
        "environment": spec["id"],
        "env_kwargs": spec["kwargs"],
        "episodes": len(result.returns),
        "seed": settings.seed,
        **result.to_dict(),
    }
    films = []
    if settings.video:
        try:
            films = _call_in_child(film_policy, settings, evaluation=played["result"])["films"]
        except RltuneError as error:  # The evaluation is done, whatever the environment does in front of a camera.
            print(f"no film: {error.what}; {error.fix}")
            data["film_error"] = error.what
    for film in films:
        value = format_objective(film["episode_return"])
        print(f"{film['which']:<8}return {value}, environment seed {film['seed']}: {film['path']}")
    if others := [film["which"] for film in films if not film["is_repeated"]]:
        print(f"not the episodes of the evaluation ({', '.join(others)}): the environment does not follow its seed")
    if films:
        folder = Path(films[0]["path"]).parent
        artifacts = f"videos/{folder.name}"
        run = keep_with_run(source, folder, artifacts)
        data |= {"films": films, "mlflow_run": run}
        print(
            f"kept under {artifacts}/ of MLflow run {run}"
            if run
            else "not kept in MLflow: this policy has no run there"
        )
    return Answer(data)


def evaluate_policy(settings: Mapping[str, Any], progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Evaluate a policy in a process of its own.

    Args:
        settings: Those of `EvaluateConfig`.
        progress: As for `rltune.policies.evaluation.evaluate`.

    Returns:
        ``info`` of the policy, ``env``, the specification of the environment, and ``result``.
    """
    typed = to_typed(EvaluateConfig, settings)
    from rltune.policies import evaluation
    from rltune.policies.policy import load_playable
    from rltune.policies.video import check_filmable

    policy = load_playable(make_source(typed, trust=typed.trust))
    env = _read_environment(typed, policy)
    if typed.video:
        check_filmable(policy, env)
    result = evaluation.evaluate(policy, typed.episodes, typed.seed, env, typed.deterministic, progress)
    spec = dict(evaluation.environment_of(policy, env))
    return {"info": policy.info, "env": spec, "result": result.to_dict()}


def film_policy(
    settings: Mapping[str, Any], evaluation: Mapping[str, Any], progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Film episodes of a policy's evaluation in a process of its own, whose end costs only the film.

    Args:
        settings: Those of `EvaluateConfig`.
        evaluation: The evaluation's ``result``, from `evaluate_policy`.
        progress: Not called.

    Returns:
        ``films``.
    """
    typed = to_typed(EvaluateConfig, settings)
    from rltune.policies.policy import load_playable
    from rltune.policies.result import Evaluation
    from rltune.policies.video import film_episodes

    policy = load_playable(make_source(typed, trust=typed.trust))
    env = _read_environment(typed, policy)
    out = Path(typed.out).expanduser().absolute()
    films = film_episodes(policy, Evaluation.from_dict(evaluation), out, typed.seed, env)
    return {"films": [{**vars(film), "path": str(film.path)} for film in films]}


def _call_in_child(function: Callable[..., dict[str, Any]], settings: PlayConfig, **more: Any) -> dict[str, Any]:
    """Call a function with a command's settings in a process of its own, which Ctrl-C ends whatever runs in it.

    The environment may hang in a library's code, where Python handles no signal. What it prints goes to standard error.
    If its process dies, it is called once again.

    Raises:
        UnexpectedError: Its process has died twice.
    """

    def print_output(printed: bytes) -> None:
        sys.stderr.write(printed.decode(errors="backslashreplace"))
        sys.stderr.flush()

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done:,} of {total:,} episodes", end="\r\033[K" * (done == total), file=sys.stderr, flush=True)

    def say(error: GuestError) -> None:
        print(f"{error.what}; trying once again", file=sys.stderr, flush=True)

    name, arguments = f"{__name__}:{function.__name__}", {"settings": asdict(settings), **more}
    start = functools.partial(Child, print_output=print_output)
    sweep = settings.policy.removeprefix("sweep:").partition("/")[0]
    try:
        with name_start(replace(make_source(settings).sweeps, name=sweep)):
            answer: dict[str, Any] = call_again(start, 1, say, name, arguments, limit_s=math.inf, progress=show)
            return answer
    except GuestError as error:
        if not error.is_chance:
            raise
        raise UnexpectedError(f"{error.problem}, twice", error.allowed, error.fix) from None


def _read_environment(settings: EvaluateConfig, policy: AnyPolicy) -> Mapping[str, Any] | None:
    """Return the typed changes of the environment to evaluate a policy in, after a check; None without any.

    Raises:
        RltuneError: The environment cannot be built, or a key has no effect on an evaluation.
    """
    from rltune.envs.pettingzoo import SEPARATE
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
    # Which policy acts for which agent is the policy's own; whether it knows all agents is compared by their spaces.
    check_env(spec_of({**spec, "policies": SEPARATE if spec.get("policies") else None}))
    return env


@dataclass
class ExportConfig(PolicyConfig):
    """The settings of conf/export.yaml."""

    out: str | None = None
    format: str = bounded(choices=("onnx", "torch"))
    trust: bool = MISSING


@command("export policy=<uri>", ExportConfig)
def export(settings: ExportConfig) -> Answer:
    """Export a policy as one file that needs neither rltune nor RLlib."""
    take_remote_policy(settings)
    source = make_source(settings, trust=settings.trust)
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
    take_remote_policy(settings)
    make_source(settings, trust=settings.trust)
    use_tracking(settings)
    summary = _call_in_child(record_policy, settings)
    out = Path(settings.out).expanduser().absolute()
    mean = format_objective(summary["return_mean"])
    print(f"{out}: {settings.episodes} episodes, {summary['steps']:.0f} steps, mean return {mean}")
    if summary["cut"]:
        print(summary["cut"])
    print("next:", spell_command(f"run algo=bc env=... algo.offline_data.input_={settings.out}"))
    return Answer({"out": out, "episodes": settings.episodes, **summary})


def record_policy(settings: Mapping[str, Any], progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Record a dataset in a process of its own, and return `rltune.algorithms.datasets.record_episodes`'s summary.

    Args:
        settings: Those of `PlayConfig`.
        progress: Not called.
    """
    typed = to_typed(PlayConfig, settings)
    from rltune.algorithms.datasets import record_episodes
    from rltune.policies.evaluation import seed_globally
    from rltune.policies.policy import load_bundle, require_single_agent

    policy = require_single_agent(load_bundle(make_source(typed, trust=typed.trust)), "a dataset")
    out = Path(typed.out).expanduser().absolute()
    with seed_globally(typed.seed):
        return record_episodes(policy, out, typed.episodes, typed.seed, typed.deterministic)
