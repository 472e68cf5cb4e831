"""Check the observations of an environment, leave parts of them out, and turn a network's actions into its own.

What networks see of observations is in `rltune.envs.observations`, and what they choose in `rltune.envs.actions`;
policies give the environment's own actions.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rltune.envs.actions import NUMBERS, ActionParts
from rltune.envs.facts import describe_space, make_space, read_key
from rltune.envs.layout import Key
from rltune.envs.step_count import FINITE, MAX_NUMBER, read_reset, read_reward, read_rewards, read_step
from rltune.errors import ABSENT, Cause, ConfigError, GuestError, RewardError

MAX_OUTPUTS = 65_536  # The most outputs of a network for one action.
MAX_COMBINATIONS = 4096  # The most combinations of choices for an algorithm that chooses among all of them.
SLACK = 1e-5  # Because of rounding, an observation may exceed a bound of its space by this share of max(1, |bound|).
NOT_FINITE = "look for a division by zero, a root or a logarithm behind it"


def name_setting(error: ConfigError, key: str, value: object, place: str = "") -> ConfigError:
    """Return an error about a space or a value of it with the setting from which that came, unless it has one.

    Args:
        error: As the functions of this module raise it.
        key: The setting.
        value: Its value; ABSENT if the error need not show it.
        place: What comes between the setting and the problem, such as ``, by reset``.
    """
    return error if error.key else ConfigError(key, value, f"{place}: {error.problem}", error.allowed, error.fix)


def check_observation(space: gymnasium.Space[Any], observation: Any, part: str = "") -> str | None:
    """Refuse an observation that is not finite, of another form than its space, or a choice that its space lacks.

    What training takes is not refused: another precision, since samplers cast, another shape of a part that is
    flattened anyway, and a number of a Box that leaves its bounds, which networks get as it is.

    Args:
        space: As the environment declares it.
        observation: What its reset or its step returned.
        part: Where it lies in the whole observation, such as ``['camera']``; empty for the whole.

    Returns:
        Which number leaves its bounds; None if none does.

    Raises:
        ConfigError: Names the first component that is wrong, its value, and what the space allows.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        excesses = [check_observation(*each) for each in _split_observation(space, observation, part)]
        return next(filter(None, excesses), None)
    if isinstance(space, spaces.Text):
        if not space.contains(observation):
            raise _make_form_error(part, f"is {observation!r}", space, str(space))
        return None
    try:
        array = np.asarray(observation)
    except ValueError:  # Its rows have different lengths.
        raise _make_form_error(part, f"is a ragged {type(observation).__name__}", space, str(space)) from None
    shape = space.shape or ()
    # Parts of a whole are flattened, so that only their number counts.
    has_shape = array.shape == shape or (bool(part) and array.size == math.prod(shape))
    if not (has_shape and _can_hold(space, array)):
        problem = f"has shape {array.shape} and type {array.dtype}, its space is {space}"
        raise _make_form_error(part, problem, space, f"shape {shape} and type {space.dtype}")
    return _check_bounds(space, array.reshape(shape), part)


def _split_observation(
    space: spaces.Dict | spaces.Tuple, observation: Any, part: str
) -> list[tuple[gymnasium.Space[Any], Any, str]]:
    """List the parts of an observation, each with its space and its place."""
    if isinstance(space, spaces.Dict):
        keys: list[Any] = list(space.spaces)
        is_whole = isinstance(observation, Mapping) and all(key in observation for key in keys)
    else:
        keys = list(range(len(space.spaces)))
        is_whole = isinstance(observation, Sequence | np.ndarray) and len(observation) == len(keys)
    if not is_whole:
        has = f" with {sorted(map(str, observation))}" if isinstance(observation, Mapping) else ""
        raise _make_form_error(part, f"is a {type(observation).__name__}{has}", space, f"the parts {keys} of {space}")
    return [(space.spaces[key], observation[key], f"{part}[{key!r}]") for key in keys]


def _make_form_error(part: str, problem: str, space: gymnasium.Space[Any], allowed: str) -> ConfigError:
    return ConfigError(
        "",
        ABSENT,
        f"observation{part} {problem}",
        f"{allowed}, as the observation_space says",
        "correct the observation_space, or what reset and step return (a wrapper: what it returns)",
    )


def _can_hold(space: gymnasium.Space[Any], array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array is cast to the type of its space without a loss other than of precision."""
    if np.can_cast(array.dtype, space.dtype or object, "same_kind"):
        return True
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or array.dtype.kind not in "biuf":
        return False
    return not np.isfinite(array).all() or bool(np.array_equal(array, array.astype(space.dtype)))


def _check_bounds(space: Any, array: np.ndarray[Any, Any], part: str) -> str | None:
    """Refuse numbers that are not finite, and choices outside of their bounds; return which other one is outside."""
    low, high = (np.broadcast_to(bound, array.shape) for bound in _find_bounds(space))
    excess = np.maximum(low.astype(np.float64) - array, array - high.astype(np.float64))
    is_finite = np.abs(array.astype(np.float64)) <= MAX_NUMBER
    bound = np.where(array < low, low, high).astype(np.float64)
    for wrong in (~is_finite, excess > SLACK * np.maximum(1.0, np.abs(bound))):
        if wrong.any():
            break
    else:
        return None
    place = tuple(map(int, np.argwhere(wrong)[0]))
    name = f"observation{part}{''.join(f'[{index}]' for index in place)}"
    if not is_finite[place]:
        raise ConfigError("", ABSENT, f"{name} is {array[place]}", FINITE, NOT_FINITE)
    if isinstance(space, spaces.Box):
        return f"{name} is {array[place]}, outside of its bounds {low[place]} to {high[place]}"
    # It has no place in the one-hot vector that networks get of a choice.
    raise ConfigError(
        "",
        ABSENT,
        f"{name} is {array[place]}, outside of {space}",
        f"{low[place]} to {high[place]} in this place",
        "correct what reset and step return, or the observation_space",
    )


def _find_bounds(space: Any) -> tuple[Any, Any]:
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return space.low, space.high


def check_reward(reward: Any) -> float:
    """Return a reward as a float; refuse one that is no single finite number, from which no algorithm can learn.

    Raises:
        ConfigError: It is not finite, or something else than a number.
    """
    try:
        (number,) = read_rewards([reward])
    except RewardError as error:
        raise ConfigError("", ABSENT, error.problem, error.allowed, error.fix) from None
    return number


def find_observation_fault(space: gymnasium.Space[Any], observation: Any) -> GuestError | None:
    """Return the error for an observation that does not fit its space, which names its wrong part; None if it fits.

    Args:
        space: As the environment declares it.
        observation: What its reset or its step returned.
    """
    try:
        check_observation(space, observation)
    except ConfigError as refusal:
        return GuestError(refusal.problem, refusal.allowed, refusal.fix, cause=Cause.OBSERVATION)
    return None


class Without(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Leave leaves out of the observations, such as a text or a number that is larger than networks can take.

    Args:
        env: The environment, whose observations are a Dict or a Tuple.
        keys: Their names, such as ``mission`` or ``robot.log``.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], keys: Sequence[str]) -> None:
        super().__init__(env)
        self._names = set(map(str, keys))
        if missing := self._names.difference(_list_names(env.observation_space)):
            allowed = f"leaves of {env.observation_space}"
            raise ConfigError("", ABSENT, f"Without: there is no leaf {min(missing)}", allowed, "keys: [...]")
        self.observation_space = nest_spaces(self._leave_out(env.observation_space, env.observation_space))

    def observation(self, observation: Any) -> Any:
        """Return the observation without the leaves."""
        return self._leave_out(self.env.observation_space, observation)

    def _leave_out(self, space: Any, value: Any, above: tuple[str, ...] = ()) -> Any:
        """Return the parts of an observation, or of its space, that stay."""
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            return value
        keyed = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        parts = [(key, part, (*above, str(key))) for key, part in keyed]
        kept = {
            key: self._leave_out(part, value[key], path)
            for key, part, path in parts
            if ".".join(path) not in self._names
        }
        return kept if isinstance(space, spaces.Dict) else tuple(kept.values())


def nest_spaces(parts: Any) -> gymnasium.Space[Any]:
    """Make a space of nested dicts and tuples of spaces, with the keys in their order; Gymnasium would sort them."""
    if isinstance(parts, dict):
        return spaces.Dict(OrderedDict((key, nest_spaces(part)) for key, part in parts.items()))
    return spaces.Tuple(map(nest_spaces, parts)) if isinstance(parts, tuple) else parts


def _list_names(space: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of all parts of nested Dict and Tuple spaces."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield ".".join((*path, str(key)))
            yield from _list_names(part, (*path, str(key)))


def read_actions(space: gymnasium.Space[Any], *, joint: bool = False, clips: bool = False) -> ActionParts:
    """Describe the actions of a space by parts.

    Args:
        space: The action space of an environment; a user's subclass is read as its Gymnasium base.
        joint: As for `ActionParts`.
        clips: As for `ActionParts`.

    Raises:
        ConfigError: It has a part that no network chooses, none at all, too many values, or with ``joint`` both kinds.
    """
    wrapper = "a wrapper that offers others: env.wrappers=[{entry_point: 'module:Class'}]"
    for _, leaf in list_leaves(space):
        if not isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
            allowed = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
            raise ConfigError("", ABSENT, f"the actions {space} have a part that no network chooses", allowed, wrapper)
    actions = ActionParts(describe_space(space), joint=joint, clips=clips)
    require_names([part.name for part in actions.parts], f"the actions {space}")
    numbers = [part for part in actions.parts if part.kind == NUMBERS and part.low is not None]
    if any((part.low > part.high).any() for part in numbers):  # They were rounded to floats inside of the bounds.
        allowed = "bounds with a float64 between them; whole numbers beyond 2**53 have gaps there"
        raise ConfigError("", ABSENT, f"the actions {space} have a number that no float gives", allowed, wrapper)
    if not actions.sizes and not actions.num_numbers:
        raise ConfigError("", ABSENT, f"the actions {space} leave nothing to choose", "at least one element", wrapper)
    if joint and actions.sizes and actions.num_numbers:
        raise ConfigError(
            "",
            ABSENT,
            f"the actions {space} have choices and numbers",
            "one kind of them, for an algorithm that does not choose part by part",
            "algo=ppo or algo=a2c",
        )
    if joint and sum(actions.sizes) > MAX_COMBINATIONS:
        raise ConfigError(
            "",
            ABSENT,
            f"the actions {space} have {actions.sizes[0]} combinations",
            f"at most {MAX_COMBINATIONS} for an algorithm that chooses among all of them",
            "algo=ppo or algo=a2c, which choose each part by itself",
        )
    if (outputs := sum(actions.sizes) + actions.num_numbers) > MAX_OUTPUTS:
        problem = f"the actions {space} need {outputs} outputs of a network"
        raise ConfigError("", ABSENT, problem, f"at most {MAX_OUTPUTS}", wrapper)
    return actions


def require_names(names: Sequence[str], whose: str) -> None:
    """Refuse leaves with one name, since users and exported files name a leaf by its keys with dots between them.

    Raises:
        ConfigError: Two have the same name.
    """
    if twice := next((name for name in names if names.count(name) > 1), None):
        fix = "rename one, such as by a wrapper of yours: env.wrappers=[{entry_point: 'module:Class'}]"
        raise ConfigError("", ABSENT, f"{whose} have two leaves named {twice}", "a name for each leaf", fix)


def has_other_choices(space: gymnasium.Space[Any]) -> bool:
    """Return whether a network chooses otherwise if the choices of an action are joined."""
    about = describe_space(space)
    return ActionParts(about).sizes != ActionParts(about, joint=True).sizes


def make_network_actions(actions: ActionParts) -> gymnasium.Space[Any]:
    """Make the space in which a network chooses, for each of which RLlib's catalogs have a distribution.

    It is the environment's own; or a Discrete, a MultiDiscrete, a Box of one axis, or a Tuple of the last two.
    """
    if actions.is_identity:
        return make_space(actions.space)
    if actions.is_choice:
        return spaces.Discrete(actions.sizes[0])
    bound = actions.list_ranges()
    kinds = [spaces.MultiDiscrete(np.array(actions.sizes, np.int64))] if actions.sizes else []
    kinds += [spaces.Box(-bound, bound, dtype=np.float32)] if actions.num_numbers else []
    return kinds[0] if len(kinds) == 1 else spaces.Tuple(kinds)


def to_python(space: gymnasium.Space[Any], action: Any) -> Any:
    """Return an action as every copy of an environment gets it: choices as Python ints, numbers as arrays.

    Some environments look a choice up by its type, and a NumPy integer slows the arithmetic of others.
    """
    if isinstance(space, spaces.Discrete):
        return int(action)
    if isinstance(space, spaces.Dict):
        # Of several agents, those that have left the episode do not act.
        return {key: to_python(part, action[key]) for key, part in space.spaces.items() if key in action}
    if isinstance(space, spaces.Tuple):
        return tuple(map(to_python, space.spaces, action))
    return action if space.shape else np.asarray(action)


class NetworkAction(gymnasium.ActionWrapper[Any, Any, Any]):
    """Take what a network chooses, see `make_network_actions`, and turn it into an action of the environment.

    Args:
        env: The environment.
        actions: Its actions.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], actions: ActionParts) -> None:
        super().__init__(env)
        self.action_space = make_network_actions(actions)
        self._decode = actions.decode_one

    def action(self, action: Any) -> Any:
        """Turn a network's choice into the environment's action."""
        return self._decode(action)


class PlainNumbers(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Treat a copy that others than rltune step as rltune does: choices are Python ints, and rewards floats."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Raises:
            GuestError: The reset has returned something else than an observation and an info.
        """
        return read_reset(self.env.reset(**kwargs))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step.

        Raises:
            RewardError: The reward is no single number.
            GuestError: The step has returned something else than Gymnasium's five values.
        """
        returned = read_step(self.env.step(to_python(self.action_space, action)))
        obs, reward, terminated, truncated, info = returned
        return obs, read_reward(reward), terminated, truncated, info


def list_leaves(space: gymnasium.Space[Any], path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yield the path and the space of each leaf of nested Dict and Tuple spaces, in the order of the space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from list_leaves(part, (*path, read_key(key)))
    else:
        yield path, space
