"""Play the first steps of an environment with random actions, as training sends them, and say what is wrong or odd.

What training could not take is refused. What it takes although it may surprise the user becomes a note.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rltune.envs.actions import ActionParts
from rltune.envs.guest import call_guest, is_raised_within
from rltune.envs.masks import AUTO, OFF, SETTING, MaskReader, MaskSource, draw_legal, find_mask
from rltune.envs.meter import EpisodeMeter, find_value, list_keys, read_number
from rltune.envs.observations import encode_observation, make_layout
from rltune.envs.spaces import (
    check_observation,
    check_reward,
    make_network_actions,
    name_setting,
    read_actions,
    to_python,
)
from rltune.envs.spec import EPISODE, EnvSpec, name_metric, suggest_array
from rltune.envs.step_count import describe_returned
from rltune.errors import ABSENT, ConfigError, GuestError, nearest, read_text

EPISODE_STEPS, EPISODE_S, MEASURED_S = 5_000, 2.0, 10.0
"""The random episode of the check is left after this many steps or seconds, so that no simulator makes it slow.

It may take longer if there is an objective or a metric, which many environments report at an episode's end.
"""
REPEATED_STEPS, REPEAT_S = 10, 1.0
"""How many of its first steps are played again after the same seed, and how slow these may be for that."""
RESTARTS = 20  # What an advice names for env.restarts.
SEED = 0
RESET = "def reset(self, *, seed=None, options=None)"
RTOL, ATOL = 1e-5, 1e-6  # Smaller differences are rounding: simulations on GPUs add in another order each time.

LEGAL_ACTIONS = "rltune.envs.masks:LegalActions"
_LEGAL = re.compile(r"(?i)[a-z]*_?(legal|valid|available|possible)_?(action|move)s?")

Step = tuple[Any, float, bool]


class FirstSteps:
    """Resets and steps an environment, and checks what it returns.

    Args:
        env: The environment with its wrappers, before its observations and actions are flattened.
        spec: Its specification, which the errors name.
        bare: The same without the specification's wrappers.

    Attributes:
        mask: Where it says which actions are legal; None if it does not.
        excess: Which number has left its bounds; None if none has.
    """

    def __init__(self, env: Any, spec: EnvSpec, bare: Any) -> None:
        self._env, self._find_setting = env, functools.partial(find_setting, spec, bare)
        self._observation_space, self._action_space = env.observation_space, env.action_space
        self._layout = make_layout(env.observation_space, spec.encode)
        self._actions = read_actions(self._action_space)
        # Another object than the environment's, which may keep something else where its own space has a method.
        self._chosen: Any = make_network_actions(self._actions)
        self._chosen.seed(SEED)
        self._random = np.random.default_rng(SEED)
        self.mask: MaskSource | None = None
        self._looks_for_mask = spec.action_mask == AUTO
        self._reader: MaskReader | None = None
        self._flags: Any = None
        self._info: Mapping[str, Any] = {}
        self.excess: str | None = None

    def reset(self) -> Any:
        """Reset the environment with `SEED`, and return the observation.

        Raises:
            GuestError: The reset has failed.
            ConfigError: What it returned is invalid.
        """
        with _name_call(self._find_setting, "reset"):
            observation, info = read_returned("reset", self._env.reset(seed=SEED))
            self._look(observation, info, "reset")
            return copy.deepcopy(observation)  # Some environments write each observation into the same array.

    def step(self, action: Any, call: str) -> tuple[Any, float, bool, Mapping[str, Any]]:
        """Take a step; return the observation, the reward, whether the episode has ended, and the info.

        Raises:
            GuestError: The step has failed.
            ConfigError: What it returned is invalid.
        """
        with self._explain_illegal(), _name_call(self._find_setting, call):
            # Some environments write into the action, which is sent again later.
            returned = read_returned(call, self._env.step(copy.deepcopy(action)))
            observation, reward, terminated, truncated, info = returned
            is_over = bool(terminated or truncated)
            self._look(observation, info, call, is_over)
            return copy.deepcopy(observation), check_reward(reward), is_over, info

    def draw_action(self) -> Any:
        """Draw a random action that is legal as far as the environment says so, in the form that training sends."""
        return draw_action(self._actions, self._chosen, self._flags, self.mask, self._random)

    @contextlib.contextmanager
    def _explain_illegal(self) -> Iterator[None]:
        """Add to an exception of a step how an environment says which actions are legal, unless it does."""
        try:
            yield
        except GuestError as fault:
            if not (self._looks_for_mask and self._reader is None and self._actions.sizes):
                raise
            names = [name for name in (*self._info, *dir(self._env.unwrapped)) if _LEGAL.match(str(name))]
            if not names and not re.search(r"(?i)illegal|invalid (action|move)", fault.problem):
                raise
            key = names[0] if names else "valid_actions"
            wrapper = f"{{entry_point: '{LEGAL_ACTIONS}', kwargs: {{key: {key}, lists: true}}}}"
            fix = f"{fault.fix}; if the action was illegal and {key} lists the legal ones, env.wrappers=[{wrapper}]"
            raise fault.advise(fix) from fault.__cause__

    def _look(self, observation: Any, info: Mapping[str, Any], call: str, is_over: bool = False) -> None:
        self._info = info
        excess = check_observation(self._observation_space, observation)
        self.excess = self.excess or (f"{excess}, by {call}" if excess else None)
        encode_observation(self._observation_space, self._layout, observation)
        if self._looks_for_mask and self._reader is None:
            self.mask = find_mask(self._env, observation, info, self._actions.sizes)
            if self.mask is not None and call != "reset":
                raise ConfigError(
                    SETTING,
                    AUTO,
                    f": {self.mask.describe()}, is there at {call} and was not at reset",
                    "a mask after each reset and step",
                    f"return the same from reset, or {SETTING}={OFF}",
                )
            self._reader = self.mask and MaskReader(self._env, self.mask)
        self._flags = self._reader and self._reader.read(observation, info, is_over=is_over)


class Episode(NamedTuple):
    """The random episode that the check of an environment has played.

    Attributes:
        steps: How many steps were played.
        is_over: Whether it has ended by then.
        notes: What the user should know of it.
        mask: Where the environment says which actions are legal.
    """

    steps: int
    is_over: bool
    notes: tuple[str, ...] = ()
    mask: MaskSource | None = None


def check_first_steps(env: Any, spec: EnvSpec, share: float, bare: Any) -> Episode:
    """Refuse an environment that cannot step, or whose observations or rewards are invalid, in a random episode.

    Args:
        env: The environment with its wrappers, before its observations and actions are flattened.
        spec: Its specification.
        share: As for `play_episode`.
        bare: The environment without the wrappers.

    Raises:
        GuestError: A reset or a step has failed.
        ConfigError: What one of them returned is invalid, or the objective or a metric cannot be computed.
    """
    play = FirstSteps(env, spec, bare)
    began = time.monotonic()
    first, actions, steps = play.reset(), list[Any](), list[Step]()
    is_quick = time.monotonic() - began < REPEAT_S

    def step(call: str) -> tuple[float, bool, Mapping[str, Any]]:
        action = play.draw_action()
        *returned, info = play.step(action, call)
        if len(actions) < REPEATED_STEPS and time.monotonic() - began < REPEAT_S:
            actions.append(action)
            steps.append((returned[0], returned[1], returned[2]))
        return returned[1], returned[2], info

    episode = play_episode(spec, step, share)
    notes = []
    if is_quick and (difference := _repeat(play, env.observation_space, first, actions, steps, episode.is_over)):
        notes.append(describe_unseeded(spec.id, difference))
    if play.excess:
        notes.append(describe_excess(play.excess))
    if play.mask:
        notes.append(describe_mask(play.mask))
    return episode._replace(notes=(*notes, *episode.notes), mask=play.mask)


def draw_action(
    actions: ActionParts, chosen: Any, flags: Any, mask: MaskSource | None, rng: np.random.Generator
) -> Any:
    """Draw a random action in the form that training sends.

    Args:
        actions: The parts of actions, each of which is chosen by itself.
        chosen: The space in which a network chooses them.
        flags: Those of the legal actions; None without a mask.
        mask: Where they come from.
        rng: Draws legal values.
    """
    action = chosen.sample()
    if flags is not None and mask is not None:
        legal = draw_legal(flags, mask, rng)
        choice = legal[0] if actions.is_choice else legal
        action = (choice, *action[1:]) if isinstance(action, tuple) else choice
    return to_python(chosen, action) if actions.is_identity else actions.decode_one(action)


def describe_mask(mask: MaskSource, agent: str = "") -> str:
    """Return the note on an environment's mask, or on that of one of its agents."""
    of = f" of {agent}" if agent else ""
    return (
        f"action mask{of}: {mask.describe()}. Policies choose legal actions alone, so returns are not those known "
        f"from policies without a mask; {SETTING}={OFF} leaves it out"
    )


def describe_unseeded(env_id: str, difference: str) -> str:
    """Return the note on an environment that does not follow its seed."""
    return (
        f"{env_id} does not follow its seed: {difference}. Episodes of one seed differ, so that policies are not "
        "compared on the same ones: draw from self.np_random after super().reset(seed=seed)"
    )


def describe_excess(excess: str) -> str:
    """Return the note on a number that leaves its bounds."""
    return (
        f"{excess}. Training takes it as it is, as bounds scale nothing but images: if it is meant, widen the "
        "observation_space, Box(-np.inf, np.inf, shape) has no bounds; if not, it may be of another unit than its space"
    )


def _repeat(
    play: FirstSteps, space: Any, first: Any, actions: list[Any], steps: list[Step], is_over: bool
) -> str | None:
    """Play the same actions after a second reset with the same seed; return what is different, None if nothing is."""
    began = time.monotonic()
    try:
        again_first = play.reset()
    except GuestError:
        if is_over:
            raise
        return None  # It may not be reset before an episode has ended, as training never does.
    if difference := find_difference(space, first, again_first):
        return f"two resets with seed {SEED} differ, {difference}"
    for number, (action, step) in enumerate(zip(actions, steps, strict=True), start=1):
        if time.monotonic() - began > REPEAT_S:
            return None
        try:
            again = play.step(action, f"step {number} after the second reset")[:3]
        except GuestError as error:  # What was permitted in the first episode may not be in this one.
            return f"the same actions fail in {error.call}, and not after the first"
        difference = find_difference(space, step[0], again[0])
        if not difference and not np.allclose(step[1:], again[1:], rtol=RTOL, atol=ATOL):
            difference = f"reward {step[1]:.6g} and {again[1]:.6g}"
        if difference:
            return f"the same actions after two resets with seed {SEED} differ at step {number}, {difference}"
        if again[2]:
            return None
    return None


def find_difference(space: Any, one: Any, other: Any, part: str = "") -> str | None:
    """Return the first place in which two observations of a space differ, with both values; None if they are equal."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = space.spaces if isinstance(space, spaces.Dict) else range(len(space.spaces))
        parts = (find_difference(space.spaces[key], one[key], other[key], f"{part}[{key!r}]") for key in keys)
        return next(filter(None, parts), None)
    if isinstance(space, spaces.Text):
        return None if one == other else f"observation{part} {one!r} and {other!r}"
    first = np.asarray(one, np.float64)
    second = np.asarray(other, np.float64).reshape(first.shape)
    is_same = np.isclose(first, second, equal_nan=True, rtol=RTOL, atol=ATOL)
    if is_same.all():
        return None
    place = tuple(map(int, np.argwhere(~is_same)[0]))
    name = f"observation{part}{''.join(f'[{index}]' for index in place)}"
    return f"{name} {first[place]:.6g} and {second[place]:.6g}"


def play_episode(
    spec: EnvSpec, step: Callable[[str], tuple[float, bool, Mapping[str, Any]]], share: float = 1.0
) -> Episode:
    """Play a random episode, and refuse an objective or a metric that cannot be computed from it.

    Args:
        spec: The environment's, which has been reset.
        step: Takes a random step, of which it gets the name; returns reward, whether the episode is over, and the info.
        share: Of the time that all environments of a check have together.

    Returns:
        The episode, with notes on the metrics that no step has, as not every episode may have them.

    Raises:
        GuestError: A step has failed, unless it may be one that seldom does and that training goes on after.
        ConfigError: No info has what the objective reads and nothing counts then, or what one has is no number.
    """
    meter, names, is_over, began = EpisodeMeter(spec), dict[str, None](), False, time.monotonic()
    limit_s = share * (MEASURED_S if spec.objective or spec.metrics else EPISODE_S)
    for number in range(1, EPISODE_STEPS + 1):
        try:
            reward, is_over, info = step(f"step {number}")
        except GuestError as fault:
            if number <= REPEATED_STEPS or not isinstance(fault.__cause__, Exception):
                raise
            note = f"{fault.what}; env.restarts={spec.restarts} makes such a copy again"
            if spec.policies is not None:  # Nothing makes these again, but a trial whose attempt has failed goes on.
                note = (
                    f"{fault.what}; each such failure ends an attempt, and its trial goes on from its last checkpoint"
                )
            elif not spec.restarts:
                fix = f"{fault.fix}, or env.restarts={RESTARTS} if it seldom fails, and its copies are made again"
                raise fault.advise(fix) from fault.__cause__
            return Episode(number, False, (note,))
        meter.add(reward, info)
        names |= dict.fromkeys(list_keys(info)) if spec.measured else {}
        for key in spec.measured:
            _check_number(spec, key, find_value(info, key), number)
        elapsed_s = time.monotonic() - began
        if is_over or (elapsed_s > limit_s and (number >= REPEATED_STEPS or elapsed_s > REPEAT_S)):
            break
    if is_over and not spec.scores_infos:
        meter.describe(info)
    lacking = [key for key, value in meter.collect().items() if math.isnan(value)]
    have = f"the infos have: {', '.join(names) or 'nothing'}"
    key = str(spec.objective.get("key"))
    if is_over and spec.scores_infos and key in lacking and "missing" not in spec.objective:
        close = " or ".join(f"objective.key={name}" for name in _find_meant(key, names))
        raise ConfigError(
            "objective.key",
            key,
            f": a random episode has no such number; {have}",
            "a key of the infos, or a wrapper (env.wrappers) that adds it; if only some episodes have it, what counts "
            "for the others, objective.missing",
            (f"{close}, or " if close else "") + "objective.missing=0",
        )
    notes = []
    for key in spec.metrics:
        if key in lacking:
            meant = f"; did you mean {', '.join(near)}?" if (near := _find_meant(key, names)) else ""
            played = "no step" if is_over else f"none of the first {number:,} steps"
            notes.append(
                f"metrics: {played} of a random episode has {key}. Episodes without it are left out of its mean, and "
                f"episodes_with/{name_metric(key).removeprefix(EPISODE)} counts the others; {have}{meant}"
            )
    return Episode(number, is_over, tuple(notes))


def _find_meant(key: str, names: Iterable[str]) -> list[str]:
    """Return the keys of infos that are meant by one that none has: that of each agent, or else the nearest."""
    nested = [name for name in names if name.endswith(f".{key}")]
    return nested or [close for close in [nearest(key, names)] if close]


def _check_number(spec: EnvSpec, key: str, value: Any, number: int) -> None:
    """Refuse a value of an info that is no number, under a key that is measured."""
    if value is None or isinstance(value, float) or not math.isnan(read_number(value)):
        return
    setting = "metrics" if key in spec.metrics else "objective.key"
    problem = f": its value at step {number} of a random episode is {str(value)[:80]!r}, a {type(value).__name__}"
    allowed = "a number, or true or false; points lead into nested infos"
    fix = f"leave {key} out, or a wrapper (env.wrappers) that makes a number of it"
    if isinstance(value, Mapping) and (keys := list_keys(value)):
        fix = f"{setting}=[{key}.{keys[0]}]" if setting == "metrics" else f"{setting}={key}.{keys[0]}"
    raise ConfigError(setting, key, problem, allowed, fix)


class Setting(NamedTuple):
    """The setting that has made what fails.

    Attributes:
        key: Its name.
        value: Its value.
        place: What else comes between these and the problem in an error's first line.
        advice: What may help; None: what the fault itself says.
    """

    key: str
    value: object
    place: str = ""
    advice: str | None = None


def find_setting(spec: EnvSpec, bare: Any, error: BaseException | None = None) -> Setting:
    """Return the setting that has made what has raised an error: the environment or its wrappers.

    Args:
        spec: The environment.
        bare: The same, made without the specification's wrappers.
        error: The error; None if nothing was raised, and what was returned is wrong. Wrappers may be at fault then.
    """
    if not spec.wrappers or (error is not None and is_raised_within(error, bare)):
        return Setting("env.id", spec.id, advice=suggest_array(error, spec.kwargs))
    arguments = (wrapper.get("kwargs") or {} for wrapper in spec.wrappers)
    return Setting("env.wrappers", ABSENT, f"of {spec.id}", suggest_array(error, *arguments))


@contextlib.contextmanager
def _name_call(find: Callable[[BaseException | None], Setting], call: str) -> Iterator[None]:
    """Call the user's code in the ``with`` block; its errors name the call and the setting that `find` returns."""
    try:
        try:
            with call_guest(call):
                yield
        except GuestError as fault:
            # If Gymnasium's own wrappers have failed to unpack the returned tuple, then the error is explained as ours
            # would be.
            if re.search(r"values to unpack \(expected [25]|returned by `env\.reset", fault.problem):
                read_returned(call, fault.__cause__)
            raise _name_fault(fault, find(fault.__cause__)) from fault.__cause__
    except ConfigError as refusal:
        key, value, place, _ = find(None)
        raise name_setting(refusal, key, value, f"{place}, by {call}") from None


def _name_fault(fault: GuestError, setting: Setting) -> GuestError:
    """Return the error of a failed call with the setting, and with what to write if `reset` takes no seed."""
    key, value, place, advice = setting
    cause = fault.__cause__
    lacks_seed = isinstance(cause, TypeError) and "reset() got an unexpected keyword argument" in read_text(cause)
    allowed, fix = (
        (RESET, "write it so, with super().reset(seed=seed)") if lacks_seed else (fault.allowed, advice or fault.fix)
    )
    named = GuestError(f"{place}: {fault.problem}", allowed, fix, key=key, value=value, cause=fault.cause)
    named.call, named.place, named.elapsed_s = fault.call, fault.place, fault.elapsed_s
    return named


def read_returned(call: str, returned: Any) -> tuple[Any, ...]:
    """Return the tuple of reset or step; refuse one of another length, such as the four values of old Gym's step.

    Args:
        call: Which call it was: ``reset``, or ``step 1``.
        returned: What the environment returned, or the error of a wrapper that could not unpack it.

    Raises:
        ConfigError: It is not a tuple of as many values as Gymnasium's, with the info at its end.
    """
    is_reset = call == "reset"
    if isinstance(returned, tuple) and len(returned) == (2 if is_reset else 5) and isinstance(returned[-1], dict):
        return returned
    what, allowed, fix = describe_returned(returned, is_reset=is_reset)
    what = read_text(returned) if isinstance(returned, Exception) else f"returned {what}"
    raise ConfigError("", ABSENT, what, allowed, fix)
