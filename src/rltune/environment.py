"""One environment, from its config to Gymnasium: single, vectorised, and under a name that RLlib knows.

The same specification builds it in the trial, in an evaluation and in a downstream script. Runs anywhere;
gymnasium is imported inside the functions, so that a typing error on the command line need not wait for it.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rltune import agents
from rltune.errors import ConfigError, nearest

if TYPE_CHECKING:
    import gymnasium

EXTRAS = {"ale_py": "atari", "cv2": "atari", "minigrid": "minigrid"}
"""The extra of ours that brings a module; Gymnasium's own families are told by their entry points."""

AS_THEY_ARE = {"normalise": False, "scale": 1.0, "clip": None}
"""The rewards that are the environment's own."""


@dataclass(frozen=True)
class EnvSpec:
    """An environment that can be built again elsewhere; plain values only.

    Attributes:
        id: Gymnasium id; ``module:Name-v0`` imports the module first, as Gymnasium does.
        kwargs: Arguments of the environment.
        wrappers: Applied in order, each ``{"entry_point": "module:Class", "kwargs": {...}}``.
        normalise_observations: Whether training keeps running means and deviations; they travel with the policy.
        rewards: ``normalise``, ``scale``, ``clip``: what is learned from; empty for the rewards as they are.
        policies: Who acts by which policy, where there are several agents; see `rltune.agents`. None: one agent.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Mapping[str, Any], ...] = ()
    normalise_observations: bool = False
    rewards: Mapping[str, Any] = field(default_factory=dict)
    policies: str | Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        plain: dict[str, Any] = {
            "id": self.id,
            "kwargs": dict(self.kwargs),
            "wrappers": [dict(w) for w in self.wrappers],
        }
        plain |= {"normalise_observations": self.normalise_observations, "rewards": dict(self.rewards)}
        if self.policies is not None:
            plain["policies"] = self.policies if isinstance(self.policies, str) else dict(self.policies)
        return plain


def spec_of(config: Any) -> EnvSpec:
    """The specification inside a config (mapping or dataclass with the fields of `EnvSpec`)."""
    if isinstance(config, EnvSpec):
        return config
    raw = asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)
    given = (raw.get("rewards") or {}).items()
    rewards = {key: value for key, value in given if value != AS_THEY_ARE.get(key)}
    return EnvSpec(
        raw["id"],
        raw.get("kwargs") or {},
        tuple(raw.get("wrappers") or ()),
        bool(raw.get("normalise_observations")),
        rewards,
        raw.get("policies"),
    )


def make(spec: EnvSpec | Mapping[str, Any], **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build one environment with its wrappers, compound spaces made flat; its rewards are the true ones.

    Args:
        spec: What to build.
        kwargs: Further arguments of the environment, such as ``render_mode``.

    Returns:
        Gymnasium's; PettingZoo's where there are several agents.
    """
    spec = spec_of(spec)
    if spec.policies is not None:
        return agents.make(spec, **kwargs)
    return _wrapped(_bare(spec, **kwargs), spec)


def _bare(spec: EnvSpec, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    import gymnasium

    return gymnasium.make(spec.id, **{**spec.kwargs, **kwargs})


def _wrapped(env: Any, spec: EnvSpec) -> Any:
    for wrap in wrappers_of(spec):
        env = wrap(env)
    from rltune.wrappers import FlatAction, FlatObservation, acts_plainly, observes_plainly

    if not observes_plainly(env.observation_space):
        env = FlatObservation(env)
    return env if acts_plainly(env.action_space) else FlatAction(env)


def make_training(spec: EnvSpec, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build one environment as `make` does, with the rewards that are learned from."""
    from rltune.wrappers import ShapedReward

    env = make(spec, **kwargs)
    return ShapedReward(env, spec.rewards) if spec.rewards else env


class Creator:
    """What RLlib builds an environment with, by the name that `rllib_name` registers.

    Args:
        spec: The environment.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    def __call__(self, context: Mapping[str, Any]) -> Any:
        """One environment."""
        return make_training(self.spec, **dict(context))

    def together(self, num_envs: int) -> Any:
        """As many in one native vector environment, for the engine's sampling; None where there is none."""
        from rltune import atari

        return atari.native(self.spec, num_envs)


def is_plain(spec: EnvSpec) -> bool:
    """Whether Gymnasium alone builds this environment, from its id and arguments."""
    return (
        spec.policies is None
        and not spec.wrappers
        and not spec.rewards
        and _has_flat_spaces(json.dumps(spec.to_dict()))
    )


@functools.lru_cache(maxsize=64)
def _has_flat_spaces(spec_as_json: str) -> bool:
    from rltune.wrappers import acts_plainly, observes_plainly

    env = _bare(spec_of(json.loads(spec_as_json)))
    try:
        return observes_plainly(env.observation_space) and acts_plainly(env.action_space)
    finally:
        env.close()


def make_vec(
    spec: EnvSpec | Mapping[str, Any], num_envs: int, **kwargs: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Build ``num_envs`` copies that step together in this process, wrappers included."""
    import gymnasium

    spec = spec_of(spec)
    return gymnasium.vector.SyncVectorEnv([functools.partial(make, spec, **kwargs) for _ in range(num_envs)])


def wrappers_of(spec: EnvSpec) -> list[Callable[[Any], Any]]:
    """The wrappers as functions of an environment.

    Raises:
        ConfigError: An entry has no entry point, or it names no wrapper.
    """
    return [_wrapper(entry, number) for number, entry in enumerate(spec.wrappers)]


def _wrapper(entry: Any, number: int) -> Callable[[Any], Any]:
    import gymnasium

    key = f"env.wrappers[{number}]"
    usage = "{entry_point: 'module:Class', kwargs: {...}}"
    if not isinstance(entry, Mapping) or set(entry) - {"entry_point", "kwargs"} or "entry_point" not in entry:
        raise ConfigError(f"{key}={entry} is no wrapper", usage, "see gymnasium.wrappers for names")
    module, _, name = str(entry["entry_point"]).rpartition(":")
    try:
        cls = getattr(importlib.import_module(module or "gymnasium.wrappers"), name)
    except (ImportError, AttributeError):
        known = [n for n in dir(gymnasium.wrappers) if n[0].isupper()]
        close = nearest(name, known)
        raise ConfigError(
            f"{key}: cannot import {entry['entry_point']}",
            f"an importable class, given as {usage}",
            f"did you mean gymnasium.wrappers:{close}?" if close else "install its package",
        ) from None
    if not (isinstance(cls, type) and issubclass(cls, gymnasium.Wrapper)):
        # YAML must not be able to name any callable of any module.
        raise ConfigError(
            f"{key}: {entry['entry_point']} is no gymnasium.Wrapper",
            usage,
            "see gymnasium.wrappers for names",
        )
    return functools.partial(cls, **dict(entry.get("kwargs") or {}))


def check(spec: EnvSpec) -> None:
    """Build it once, so that a wrong id, argument or wrapper is known before the first trial.

    Raises:
        ConfigError: With the nearest id, or the extra to install.
    """
    if spec.policies is not None:
        agents.check(spec)
        return
    module, colon, _ = spec.id.rpartition(":")
    if colon and not module:
        raise ConfigError(
            f"env.id={spec.id} names no module before its colon", "Name-v0 or module:Name-v0", "env.id=CartPole-v1"
        )
    if module:
        _import_module(module, spec.id)
    env = _checked_bare(spec)
    try:
        env = _wrapped(env, spec)
    except ConfigError as error:
        raise (
            error
            if error.what.startswith("env.")
            else ConfigError(f"env.id={spec.id}: {error.what}", error.allowed, error.fix)
        ) from None
    except Exception as error:  # a wrapper raises whatever it likes
        raise ConfigError(
            f"env.wrappers of {spec.id}: {_named(error)}", "arguments that the wrappers take", "env.wrappers=[]"
        ) from None
    _check_first_step(env, spec)
    _check_normalisation(env, spec)
    env.close()


def _check_first_step(env: Any, spec: EnvSpec) -> None:
    """Refuse what would fail in every trial: a wrapper whose observations are not of the space that it declares."""
    key = f"env.wrappers of {spec.id}" if spec.wrappers else f"env.id={spec.id}"
    space = env.observation_space
    try:
        obs, _ = env.reset(seed=0)
        env.action_space.seed(0)
        seen = [obs, env.step(env.action_space.sample())[0]]
    except Exception as error:
        raise ConfigError(
            f"{key}: the first step fails with {_named(error)}", "an environment that steps", "env.wrappers=[]"
        ) from None
    for one in seen:
        array = np.asarray(one)
        if array.shape != (space.shape or ()) or not np.can_cast(array.dtype, space.dtype or object, "same_kind"):
            raise ConfigError(
                f"{key}: observations have shape {array.shape} and type {array.dtype}, their space is {space}",
                "wrappers that declare the observation_space of what they return",
                "correct the wrapper, or env.wrappers=[]",
            )
        if not np.isfinite(array).all():
            raise ConfigError(f"{key}: observations are not finite: {array}", "finite numbers", "env.wrappers=[]")


def _check_normalisation(env: Any, spec: EnvSpec) -> None:
    if spec.normalise_observations and len(env.observation_space.shape or ()) != 1:
        raise ConfigError(
            f"env.normalise_observations=true: the observations of {spec.id} are {env.observation_space}",
            "vectors",
            "env.normalise_observations=false",
        )
    clip = spec.rewards.get("clip", 1.0)
    if not clip > 0 or not spec.rewards.get("scale", 1.0) > 0:
        raise ConfigError(
            f"env.rewards: scale={spec.rewards.get('scale', 1.0)}, clip={clip}", "numbers above 0", "env.rewards.clip=1"
        )


def _import_module(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:
        package = module.split(".")[0]
        install = f"'rltune[{EXTRAS[package]}]'" if package in EXTRAS else package.replace("_", "-")
        raise ConfigError(
            f"env.id={env_id}: module '{module}' cannot be imported ({error})",
            "an installed package",
            f"pip install {install}",
        ) from None


def _checked_bare(spec: EnvSpec) -> Any:
    import gymnasium

    try:
        return _bare(spec)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"env.id={spec.id} needs a package: {error}", "its extra installed", _extra(spec.id)
        ) from None
    except gymnasium.error.NamespaceNotFound as error:
        fix = "pip install 'rltune[atari]'" if spec.id.startswith("ALE/") else "install the package that registers it"
        raise ConfigError(
            f"env.id={spec.id}: {_named(error)}", "an installed package, or module:Name-v0", fix
        ) from None
    except gymnasium.error.Error as error:  # unknown, or no id at all
        close = nearest(spec.id.rpartition(":")[2], gymnasium.envs.registration.registry)
        raise ConfigError(
            f"env.id={spec.id}: {_named(error)}",
            f"did you mean '{close}'?" if close else "a registered Gymnasium id, or module:Name-v0",
            f"env.id={close or 'CartPole-v1'}",
        ) from None
    except Exception as error:  # an environment raises whatever it likes
        raise ConfigError(
            f"env.id={spec.id} with env.kwargs={dict(spec.kwargs)}: {_named(error)}",
            "arguments that the environment takes",
            "env.kwargs={}",
        ) from None


def _named(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _extra(env_id: str) -> str:
    """What to install for an environment whose package is missing."""
    import gymnasium

    entry = gymnasium.envs.registration.registry.get(env_id)
    point = str(entry.entry_point) if entry else ""
    extra = next((name for name in ("box2d", "mujoco", "atari") if name in point), None)
    return f"pip install 'rltune[{extra}]'" if extra else "install the package that the message names"


def check_rewards(spec: EnvSpec, env_runners: int, vectorize: str) -> None:
    """True returns, which are the objective, do not come back from another process where rewards are shaped.

    Raises:
        ConfigError: Rewards are shaped, and other processes would sample.
    """
    key = "algo.env_runners.num_env_runners" if env_runners else "env.vectorize"
    value, own = (env_runners, 0) if env_runners else (vectorize, "sync")
    if spec.rewards and (env_runners or vectorize == "async"):
        raise ConfigError(
            f"env.rewards={dict(spec.rewards)} with {key}={value}: the true returns would stay in other processes",
            "shaped rewards where the trial's own process samples",
            f"{key}={own}",
        )


def rllib_name(spec: EnvSpec) -> str:
    """The name under which RLlib builds this environment.

    A plain Gymnasium id keeps its name, so that its native vector version can be used; anything else is registered
    with Ray under a name that holds the whole specification.
    """
    if is_plain(spec):
        return spec.id
    from ray.tune.registry import register_env

    name = "rltune:" + json.dumps(spec.to_dict(), sort_keys=True)
    if spec.policies is None:
        register_env(name, Creator(spec))
        return name
    from rltune.multi_agent import Parallel

    register_env(name, lambda context: Parallel(make(spec)))
    return name
