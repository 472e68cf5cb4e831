"""Find which actions an environment says are legal (an action mask), and read the flags at each step.

The check before a sweep looks for a mask in three places (`find_mask`): ``action_mask`` in a Dict observation,
``action_mask`` in the info, and a method ``action_masks``. Other conventions become the second one by `LegalActions`.
What the check has found travels as a `MaskSource` with the environment's specification, and `MaskReader` reads the
flags by it wherever the environment is stepped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from rltune.envs.actions import ActionParts
from rltune.envs.facts import describe_space
from rltune.envs.guest import call_guest
from rltune.envs.layout import read_flags
from rltune.errors import ABSENT, Cause, ConfigError, GuestError, nearest

OBSERVATION, INFO, METHOD = "observation", "info", "method"
"""The places in which an environment may have its mask."""

KEY, METHOD_NAME = "action_mask", "action_masks"
"""The key of a mask in observations and infos, and the method of environments that gives one."""

JOINT = "has_joint_mask"
"""The attribute of `LegalActions` that says what its flags are of, where their number does not (2 x 2 choices)."""

AUTO, OFF = "auto", "off"
"""The values of ``env.action_mask``: the mask that the check finds, or none."""

SETTING = "env.action_mask"
MAX_SPELLED = 10**6  # An error does not name more combinations than this.
OFF_FIX = f"{SETTING}={OFF}, with which it is no mask"
_FLAGS = "flags of 0 and 1 with at least one legal value of each choice"


class MaskSource(NamedTuple):
    """Where an environment says which actions are legal, and how.

    Attributes:
        place: `OBSERVATION`, `INFO` or `METHOD`.
        sizes: The number of values of each choice of an action.
        joint: Whether it has a flag for each combination of the choices, of which the last choice is fastest, and not
            one for each value of each choice.
        within: The keys that lead to the part of an observation that has it; empty for the whole.
    """

    place: str
    sizes: tuple[int, ...]
    joint: bool = False
    within: tuple[str | int, ...] = ()

    @classmethod
    def parse(cls, setting: str | Mapping[str, Any]) -> MaskSource | None:
        """Return the source that a specification names; None for one that names none, such as ``auto``.

        Raises:
            ConfigError: It is neither a source nor one of the words that users type.
        """
        try:
            if not isinstance(setting, str):
                lists = {"sizes": tuple(map(int, setting["sizes"])), "within": tuple(setting.get("within", ()))}
                source = cls(**{**setting, **lists})
                if source.place in (OBSERVATION, INFO, METHOD):
                    return source
            elif setting in (AUTO, OFF):
                return None
        except (KeyError, TypeError, ValueError):
            pass
        raise ConfigError(SETTING, setting, "is unknown", f"{AUTO}, {OFF}", f"{SETTING}={AUTO}")

    def to_dict(self) -> dict[str, Any]:
        """Return the source as JSON values, which `parse` reads."""
        return {**self._asdict(), "sizes": list(self.sizes), "within": list(self.within)}

    @property
    def num_flags(self) -> int:
        """The number of flags that the environment gives."""
        return math.prod(self.sizes) if self.joint else sum(self.sizes)

    @property
    def path(self) -> tuple[str | int, ...]:
        """Where an observation has the flags; empty if they come beside it."""
        return (*self.within, KEY) if self.place == OBSERVATION else ()

    @property
    def spelled(self) -> str:
        """What a program passes to a policy's ``act`` as the mask; empty if the observation has it."""
        return {OBSERVATION: "", INFO: f'info["{KEY}"]', METHOD: f'env.get_wrapper_attr("{METHOD_NAME}")()'}[self.place]

    def describe(self) -> str:
        """Describe in a few words where the mask comes from."""
        where = {
            OBSERVATION: f"the observation's {'.'.join(map(str, self.path))}",
            INFO: f"the info's {KEY}",
            METHOD: f"the method {METHOD_NAME}()",
        }[self.place]
        of = "" if len(self.sizes) == 1 else " of combinations" if self.joint else " of single values"
        return f"{where}, {self.num_flags} flags{of}"


def find_mask(
    env: gymnasium.Env[Any, Any], observation: Any, info: Mapping[str, Any], sizes: Sequence[int]
) -> MaskSource | None:
    """Find the mask of an environment; None if it has none, or no choices that a mask could be of.

    Args:
        env: The environment with its wrappers.
        observation: What its reset has returned.
        info: The info beside it.
        sizes: The number of values of each choice of an action.

    Raises:
        ConfigError: What lies under the name of a mask has no flag for each value, or for each combination, of the
            choices.
    """
    if not sizes:
        return None
    actions = ActionParts(describe_space(env.action_space))
    for source, mask in _list_masks(env, observation, info, tuple(sizes)):
        try:
            flags = read_flags(actions.flatten_mask(mask))
            is_mask = flags.dtype.kind in "biuf" and bool(np.isin(flags, (0, 1)).all())
        except (TypeError, ValueError):
            is_mask = False
        is_joint = (
            len(sizes) > 1 and source.place == INFO and env.has_wrapper_attr(JOINT) and env.get_wrapper_attr(JOINT)
        )
        for joint in (True,) if is_joint else (False, True):
            form = source._replace(joint=joint)
            if is_mask and flags.size == form.num_flags:
                return form
        raise ConfigError(
            SETTING,
            AUTO,
            f": {source.describe().partition(',')[0]} has {_describe(mask)}",
            _describe_allowed(sizes),
            OFF_FIX,
        )
    return None


def find_mask_of_agent(space: gymnasium.Space[Any], sizes: Sequence[int]) -> MaskSource | None:
    """Find the mask in the observations of one of several agents; None if they have none.

    Args:
        space: That of its observations.
        sizes: The number of values of each choice of its actions.

    Raises:
        ConfigError: As for `find_mask`.
    """
    if not sizes or not isinstance(space, spaces.Dict) or KEY not in space.spaces:
        return None
    count, source = spaces.flatdim(space[KEY]), MaskSource(OBSERVATION, tuple(sizes))
    for form in (source, source._replace(joint=True)):
        if count == form.num_flags:
            return form
    where = source.describe().partition(",")[0]
    raise ConfigError(SETTING, AUTO, f": {where} has {count} flags", _describe_allowed(sizes), OFF_FIX)


def _list_masks(
    env: Any, observation: Any, info: Mapping[str, Any], sizes: tuple[int, ...]
) -> Iterator[tuple[MaskSource, Any]]:
    """Yield what lies under the name of a mask, and where."""
    if observed := list(_find_observed(observation)):
        within, mask = observed[0]
        if within and len(observed) > 1:
            names = ", ".join(".".join(map(str, (*path, KEY))) for path, _ in observed)
            fix = f"a wrapper of yours with one {KEY}; {OFF_FIX}"
            raise ConfigError(SETTING, AUTO, f": an observation has {names}", "one mask of the actions", fix)
        yield MaskSource(OBSERVATION, sizes, within=within), mask
    if info.get(KEY) is not None:
        yield MaskSource(INFO, sizes), info[KEY]
    if env.has_wrapper_attr(METHOD_NAME):
        try:
            with call_guest(METHOD_NAME):
                mask = _call(env, METHOD_NAME)
        except GuestError as fault:
            allowed = f"a method that returns {_describe_allowed(sizes)}"
            raise ConfigError(SETTING, AUTO, f": {fault.problem}", allowed, OFF_FIX) from fault.__cause__
        yield MaskSource(METHOD, sizes), mask


def _find_observed(observation: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield what nested dicts and tuples have under the name of a mask, and the keys before it; the outermost first."""
    if isinstance(observation, Mapping) and KEY in observation:
        yield path, observation[KEY]
    elif isinstance(observation, Mapping | tuple):
        parts = observation.items() if isinstance(observation, Mapping) else enumerate(observation)
        for key, part in parts:
            yield from _find_observed(part, (*path, key))


def _call(env: Any, name: str, is_over: bool = False) -> Any:
    """Return an attribute of an environment, or what a method of it returns; None if that fails after an episode."""
    value = env.get_wrapper_attr(name)
    try:
        return value() if callable(value) else value
    except Exception:  # Some compute legal actions from a state that an ended episode lacks.
        if is_over:
            return None
        raise


def _describe(mask: Any) -> str:
    try:
        flags = read_flags(mask)
    except (TypeError, ValueError):
        return f"a {type(mask).__name__} that is no array"
    if flags.dtype.kind not in "biuf":
        return f"values of type {flags.dtype}"
    others = flags[~np.isin(flags, (0, 1))]
    return f"the value {others[0]}" if len(others) else f"{flags.size} flags"


def _describe_allowed(sizes: Sequence[int]) -> str:
    count = math.prod(sizes)
    joint = f", or {count}, one for each combination" if len(sizes) > 1 and count <= MAX_SPELLED else ""
    return f"{sum(sizes)} flags of 0 and 1, one for each value of a choice{joint}"


class MaskReader:
    """Reads the flags of the legal actions after each reset and step of an environment.

    Args:
        env: The environment with its wrappers; not used if the observation has the mask.
        source: Where its mask is.
        action_space: The space of the actions of which it is; None is the environment's.
    """

    def __init__(self, env: Any, source: MaskSource, action_space: Any = None) -> None:
        self.env, self.source = env, source
        self._actions = ActionParts(describe_space(env.action_space if action_space is None else action_space))
        ends = np.cumsum([source.num_flags] if source.joint else source.sizes)
        self._begins = np.concatenate([[0], ends[:-1]])

    def read(self, observation: Any, info: Mapping[str, Any], *, is_over: bool = False) -> np.ndarray:
        """Return the flags [flags] as booleans.

        Args:
            observation: What a reset or a step has returned.
            info: The info beside it.
            is_over: Whether the episode has ended. Nothing is chosen after that, so a mask may be missing or empty, or
                have no legal action: all are legal then.

        Raises:
            GuestError: There is no mask, one of another size, or one in which a choice has no legal value.
        """
        mask = self._find(observation, info, is_over)
        try:
            given = np.empty(0, bool) if mask is None else read_flags(self._actions.flatten_mask(mask))
        except (TypeError, ValueError) as error:
            raise self._make_fault(f"cannot be read ({error})") from error
        flags: np.ndarray = given if given.dtype == bool else given == 1
        if flags.size == self.source.num_flags:
            if given is not flags and (given != flags).any():
                raise self._make_fault(f"has the value {given[given != flags][0]}")
            if (has_any := np.logical_or.reduceat(flags, self._begins)).all():
                return flags
            place = int(np.argmin(has_any))
            which = f"no legal value of choice {place}" if len(self._begins) > 1 else "no legal action"
            problem = f"has {which}, and the episode has not ended"
        else:
            has = f"has {flags.size} flags, and had {self.source.num_flags} in the check"
            problem = "is missing" if mask is None else has
        if is_over:
            return np.ones(self.source.num_flags, bool)
        raise self._make_fault(problem)

    def _find(self, observation: Any, info: Mapping[str, Any], is_over: bool) -> Any:
        if self.source.place == METHOD:
            return _call(self.env, METHOD_NAME, is_over)
        if self.source.place == INFO:
            return info.get(KEY)
        for key in self.source.within:
            observation = observation[key]
        return observation.get(KEY)

    def _make_fault(self, problem: str) -> GuestError:
        where = self.source.describe().partition(",")[0]
        fix = f"terminate the episode where nothing is legal; {SETTING}={OFF} trains without masks"
        return GuestError(f"{where} {problem}", _FLAGS, fix, cause=Cause.OBSERVATION)


def draw_legal(flags: np.ndarray, source: MaskSource, rng: np.random.Generator) -> np.ndarray:
    """Draw one of the legal values of each choice, each as likely as the others.

    Args:
        flags: As `MaskReader.read` returns them.
        source: Where they come from.
        rng: Draws.

    Returns:
        The index of a value for each choice [choices].
    """
    if source.joint:
        return np.array(np.unravel_index(rng.choice(np.flatnonzero(flags)), source.sizes), np.int64)
    parts = np.split(np.asarray(flags, bool), np.cumsum(source.sizes)[:-1])
    return np.array([rng.choice(np.flatnonzero(part)) for part in parts], np.int64)


class LegalActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Give the info an ``action_mask``, for an environment that says in its own way which actions are legal.

    Args:
        env: The environment.
        key: The name of what says it: a key of its Dict observations, of its infos, or an attribute or method of the
            environment; it is looked for in this order. An observation's part of this name is left out of it.
        lists: Whether it lists the legal actions, and is no array of flags. A negative number in it is no action.
        joint: Whether its flags are of all combinations of several choices also where there are as many single values,
            as with 2 x 2 choices.

    Attributes:
        has_joint_mask: Whether the flags that it gives are of combinations.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], key: str, lists: bool = False, joint: bool = False) -> None:
        super().__init__(env)
        self._key, self._lists = key, lists
        self.has_joint_mask = lists or joint
        space = env.observation_space
        self._is_observed = isinstance(space, spaces.Dict) and key in space.spaces
        if isinstance(space, spaces.Dict) and self._is_observed:
            self.observation_space = spaces.Dict({name: part for name, part in space.items() if name != key})

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(**kwargs)
        return self._move(observation, info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._move(observation, info, is_over=bool(terminated or truncated))
        return observation, reward, terminated, truncated, info

    def _move(self, observation: Any, info: dict[str, Any], is_over: bool = False) -> tuple[Any, dict[str, Any]]:
        """Return an observation without the mask, and an info with it; without it after an episode that lacks one."""
        if self._is_observed:
            legal = observation[self._key]
            observation = {name: part for name, part in observation.items() if name != self._key}
        elif self._key in info:
            legal = info[self._key]
        elif self.env.has_wrapper_attr(self._key):
            legal = _call(self.env, self._key, is_over)
        elif is_over:
            legal = None
        else:
            close = nearest(self._key, info)
            raise GuestError(
                f"there is no {self._key} in its observations and infos, and no method of this name",
                f"one of these; its infos have {', '.join(map(str, info)) or 'nothing'}",
                f"kwargs: {{key: {close or 'valid_actions'}}} for LegalActions in env.wrappers",
            )
        if legal is None and is_over:
            return observation, info
        return observation, {**info, KEY: self._flag(legal) if self._lists else legal}

    def _flag(self, legal: Any) -> np.ndarray:
        """Return the flags of listed actions; of several choices, a flag for each combination of them."""
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            sizes, starts = [int(space.n)], [int(space.start)]
        elif isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
            sizes, starts = space.nvec.tolist(), space.start.tolist()
        else:
            allowed = "Discrete, and MultiDiscrete of one axis"
            raise ConfigError(
                "env.wrappers", ABSENT, f": LegalActions lists no actions of {space}", allowed, "lists: false"
            )
        listed = np.array(list(legal), np.int64).reshape(-1, len(sizes)) - starts
        listed = listed[(listed >= 0).all(1)]
        if (listed >= sizes).any():
            raise GuestError(
                f"{self._key} lists {listed[(listed >= sizes).any(1)][0] + starts}",
                f"actions of {space}",
                f"list actions as step takes them (kwargs: {{key: {self._key}, lists: true}} of LegalActions)",
            )
        flags = np.zeros(math.prod(sizes), np.int8)
        flags[np.ravel_multi_index(tuple(listed.T), sizes)] = 1
        return flags
