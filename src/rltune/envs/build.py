"""Build environments from their specification: one or several, with the original or with shaped rewards.

Trials, evaluations and downstream scripts build the same environment from the same specification. Gymnasium is imported
inside the functions, so that a typo on the command line is answered at once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rltune.envs.closing import close_env
from rltune.envs.copies import Copy, build_copy, build_own, take_copies
from rltune.envs.guest import find_outdated, import_guest
from rltune.envs.ids import find_class
from rltune.envs.missing import suggest_installation
from rltune.envs.pettingzoo import make_parallel_env
from rltune.envs.spec import EXTRAS, WRAPPER_USAGE, EnvSpec, are_resolved, parse_wrapper, resolve_arguments, spec_of
from rltune.errors import ABSENT, ConfigError, GuestError, nearest

if TYPE_CHECKING:
    import gymnasium

    from rltune.envs.facts import EnvFacts
    from rltune.envs.rewards import RewardScale


def make_env(spec: EnvSpec | Mapping[str, Any], copy: Copy | None = None, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build one environment with its wrappers, its original rewards and its own observations.

    Args:
        spec: An `EnvSpec`, or a mapping with its fields.
        copy: Which copy of it to build, for the caller to release; None is one of its own, which is released when the
            environment is closed.
        kwargs: Further arguments of the environment, such as ``render_mode``, which override the specification's.

    Returns:
        A Gymnasium environment; for several agents a ``pettingzoo.ParallelEnv``.
    """
    spec = spec_of(spec)
    if spec.policies is not None:
        return make_parallel_env(spec, copy, **kwargs)
    return _build(spec, copy, kwargs)


def make_bare_env(spec: EnvSpec, copy: Copy | None = None, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build the environment as `make_env` does, but without the wrappers of its specification.

    Gymnasium's checker, which looks at each step, is left out: the check before a sweep says what matters.
    """
    import gymnasium

    def make(copy: Copy) -> Any:
        if module := spec.registration.module:
            import_guest(module)  # Gymnasium imports it, too, but shows it the command line of this process.
        arguments = {**resolve_arguments(spec.kwargs), **copy.make_arguments(), **kwargs}
        return gymnasium.make(find_class(spec.id) or spec.id, **{"disable_env_checker": True, **arguments})

    return build_copy(spec, copy, make)


def _build(
    spec: EnvSpec, copy: Copy | None, kwargs: Mapping[str, Any], finish: Callable[[Any], Any] = lambda env: env
) -> Any:
    """Build an environment with its wrappers, and finish it; it is closed if one of its wrappers cannot be made."""

    def build(copy: Copy) -> Any:
        wrappers = import_wrappers(spec)
        env = bare = make_bare_env(spec, copy, **kwargs)
        try:
            for wrap in wrappers:
                env = wrap(env)
            return finish(env)
        except BaseException:
            close_env(bare)
            raise

    return build_copy(spec, copy, build)


def make_flat_env(
    spec: EnvSpec | Mapping[str, Any], copy: Copy | None = None, /, *, view: bool = True, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """Build one environment as `make_env` does, but with rows as observations and the actions that networks choose.

    Args:
        spec: The environment, of one agent.
        copy: As for `make_env`.
        view: Whether observations are what networks see of rows, one vector of float32, and not the rows themselves.
        kwargs: Further arguments of the environment.
    """
    spec = spec_of(spec)
    return _build(spec, copy, kwargs, functools.partial(_flatten_for_networks, spec, view))


def _flatten_for_networks(spec: EnvSpec, view: bool, env: Any) -> Any:
    from rltune.envs.masks import MaskSource
    from rltune.envs.observations import RowObservation, find_layout
    from rltune.envs.spaces import NetworkAction, read_actions

    layout = find_layout(env.observation_space, spec)
    if not layout.is_row:
        env = RowObservation(env, layout, view, MaskSource.parse(spec.action_mask))
    actions = read_actions(env.action_space, joint=spec.joint_actions)
    return env if actions.is_identity else NetworkAction(env, actions)


def make_training_env(
    spec: EnvSpec,
    reward_discount: float | None = None,
    reward_deviation: RewardScale | None = None,
    copy: Copy | None = None,
    /,
    *,
    view: bool = True,
    **kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Build one environment for training: as `make_flat_env` does, but with shaped rewards and records of its episodes.

    Args:
        spec: The environment.
        reward_discount: That of the algorithm, by which rewards are normalised; None is `rltune.envs.rewards.DISCOUNT`.
        reward_deviation: As ``deviation`` of `rltune.envs.rewards.ShapedReward`.
        copy: As for `make_env`.
        view: As for `make_flat_env`.
        kwargs: Further arguments of the environment.
    """
    from rltune.envs.rewards import DISCOUNT, ShapedReward

    def build(copy: Copy) -> Any:
        env = make_restarting(spec, functools.partial(make_flat_env, spec, copy, view=view, **kwargs))
        if not spec.needs_single_copies:
            return env
        discount = DISCOUNT if reward_discount is None else reward_discount
        try:
            return ShapedReward(env, spec, discount, reward_deviation)
        except BaseException:
            close_env(env)
            raise

    return build_copy(spec, copy, build)


def make_restarting(spec: EnvSpec, make: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    """Build one environment that is made again when it fails, as often as its specification says."""
    from rltune.envs.restarts import RestartingEnv

    return RestartingEnv(make, spec.restarts) if spec.restarts else make()


def is_plain(spec: EnvSpec, facts: EnvFacts) -> bool:
    """Return whether `gymnasium.make` alone builds this environment: nothing is wrapped, shaped or flattened."""
    from rltune.envs.observations import find_layout
    from rltune.envs.spaces import read_actions

    return (
        spec.policies is None
        and not spec.may_be_class
        and are_resolved(spec.kwargs)
        and not spec.is_numbered
        and not spec.needs_context
        and not spec.wrappers
        and not spec.needs_single_copies
        and find_layout(facts.observation_space, spec).is_row
        and read_actions(facts.action_space, joint=spec.joint_actions).is_identity
    )


def make_vector_env(
    spec: EnvSpec | Mapping[str, Any], num_envs: int, **kwargs: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Build ``num_envs`` environments as `make_env` does; they step together in this process."""
    import gymnasium

    spec = spec_of(spec)
    with contextlib.ExitStack() as stack:
        copies = take_copies(spec, num_envs)
        for copy in copies:
            stack.callback(copy.release)
        envs = [build_own(copy, lambda copy: make_env(spec, copy, **kwargs)) for copy in copies]
        stack.pop_all()  # Each environment releases its own copy from now on.
    return gymnasium.vector.SyncVectorEnv([functools.partial(lambda env: env, env) for env in envs])


def import_wrappers(spec: EnvSpec) -> list[Callable[[Any], Any]]:
    """Import the wrappers of a specification; each is a function that takes an environment and returns the wrapped one.

    Raises:
        ConfigError: An entry lacks an entry point, or its entry point is not a wrapper.
    """
    return [_import_wrapper(wrapper, index) for index, wrapper in enumerate(spec.wrappers)]


def _import_wrapper(wrapper: Any, index: int) -> Callable[[Any], Any]:
    import gymnasium

    key = f"env.wrappers[{index}]"
    module, name = parse_wrapper(wrapper, index)
    try:
        cls = getattr(import_guest(module), name)
    except (GuestError, AttributeError) as error:
        if isinstance(error, GuestError) and not isinstance(error.__cause__, ImportError):
            raise
        close = nearest(name, [wrapper for wrapper in dir(gymnasium.wrappers) if wrapper[0].isupper()])
        raise ConfigError(
            key,
            ABSENT,
            f": cannot import {wrapper['entry_point']}",
            f"an importable class, given as {WRAPPER_USAGE}",
            f"gymnasium.wrappers:{close}, if that was meant" if close else "install its package",
        ) from None
    if not (isinstance(cls, type) and issubclass(cls, gymnasium.Wrapper)):
        # Only wrapper classes are accepted, so that a YAML file cannot call any function of any module.
        raise ConfigError(
            key,
            ABSENT,
            f": {wrapper['entry_point']} is no gymnasium.Wrapper",
            WRAPPER_USAGE,
            "see gymnasium.wrappers for names",
        )
    return functools.partial(cls, **resolve_arguments(wrapper.get("kwargs") or {}))


def import_env_module(module: str, env_id: str) -> None:
    """Import the module that registers an environment's id with Gymnasium.

    Raises:
        ConfigError: It cannot be imported; names the extra, the nearest module, or where to put it.
    """
    try:
        import_guest(module)
    except GuestError as fault:
        error = fault.__cause__
        if not isinstance(error, Exception):
            raise
        if find_outdated(error) is not None:
            raise fault.rewrite(f": {fault.problem}", key="env.id", value=env_id) from error
        package = module.split(".")[0]
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == package
        close = nearest(package, EXTRAS) if is_missing else None
        allowed, fix = "an installed package, or a file that Python finds", f"python -c 'import {module}' says where"
        if package in EXTRAS:
            fix = f"pip install 'rltune[{EXTRAS[package]}]'"
        elif close:
            allowed, fix = f"{allowed}; did you mean '{close}'?", f"env.id={env_id.replace(package, close, 1)}"
        elif is_missing:
            fix = fault.fix
        elif isinstance(error, ModuleNotFoundError) and error.name:
            fix = suggest_installation(error)
        raise ConfigError("env.id", env_id, f": module '{module}' cannot be imported ({error})", allowed, fix) from None
