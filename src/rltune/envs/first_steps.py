"""Play the first steps of an environment with random actions, as training sends them, and say what is wrong or odd.

What training could not take is refused. What it takes although it may surprise the user becomes a note.
"""

from __future__ import annotations

import contextlib
import copy
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rltune.envs.actions import ActionParts
from rltune.envs.guest import call_guest
from rltune.envs.masks import AUTO, OFF, SETTING, MaskReader, MaskSource, draw_legal, find_mask
from rltune.envs.objective import make_score
from rltune.envs.observations import encode_observation, make_layout
from rltune.envs.spaces import (
    check_observation,
    check_reward,
    make_network_actions,
    name_setting,
    read_actions,
    to_python,
)
from rltune.envs.spec import EnvSpec
from rltune.envs.step_count import describe_returned
from rltune.errors import ABSENT, ConfigError, GuestError, read_text

MAX_CHECKED_STEPS, MAX_CHECK_S = 10, 1.0  # The check of an environment ends after this many steps or seconds.
# The longest random episode on which the objective is checked; with a longer one it is not checked.
SCORE_STEPS, SCORE_S = 2_000, 10.0
OBJECTIVE = "the objective"
"""The name of the call into an objective of the user's."""
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

    Attributes:
        mask: Where it says which actions are legal; None if it does not.
        excess: Which number has left its bounds by little; None if none has.
    """

    def __init__(self, env: Any, spec: EnvSpec) -> None:
        self._env, self._setting = env, _find_setting(spec)
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
        with _name_call(self._setting, "reset"):
            observation, info = read_returned("reset", self._env.reset(seed=SEED))
            self._look(observation, info, "reset")
            return copy.deepcopy(observation)  # Some environments write each observation into the same array.

    def step(self, action: Any, call: str) -> tuple[Any, float, bool, Mapping[str, Any]]:
        """Take a step; return the observation, the reward, whether the episode has ended, and the info.

        Raises:
            GuestError: The step has failed.
            ConfigError: What it returned is invalid.
        """
        with self._explain_illegal(), _name_call(self._setting, call):
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
            raise fault.rewrite(fault.problem, fix=fix, key=fault.key, value=fault.value) from fault.__cause__

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


def check_first_steps(env: Any, spec: EnvSpec) -> tuple[MaskSource | None, list[str]]:
    """Refuse an environment that cannot step, or whose observations or rewards are invalid.

    It takes some steps, few in a slow simulator. What comes later is met in training, which does not look at bounds.

    Args:
        env: The environment with its wrappers, before its observations and actions are flattened.
        spec: Its specification.

    Returns:
        Where it says which actions are legal, and notes for the user.

    Raises:
        GuestError: A reset or a step has failed.
        ConfigError: What one of them returned is invalid, or the objective cannot be computed.
    """
    play = FirstSteps(env, spec)
    began = time.monotonic()
    first, actions, steps = play.reset(), list[Any](), list[Step]()
    is_quick = time.monotonic() - began < MAX_CHECK_S
    for number in range(1, MAX_CHECKED_STEPS + 1):
        actions.append(play.draw_action())
        steps.append(play.step(actions[-1], f"step {number}")[:3])
        if steps[-1][2] or time.monotonic() - began > MAX_CHECK_S:
            break
    notes = []
    if is_quick and (difference := _repeat(play, env.observation_space, first, actions, steps)):
        notes.append(describe_unseeded(spec.id, difference))
    if play.excess:
        notes.append(describe_excess(play.excess))
    if play.mask:
        notes.append(describe_mask(play.mask))
    if spec.objective:
        _check_score(play, spec)
    return play.mask, notes


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
    """Return the note on a number that leaves its bounds by little."""
    return (
        f"{excess}. Training takes it as it is: if it is meant, widen the observation_space, "
        "Box(-np.inf, np.inf, shape) has no bounds"
    )


def _repeat(play: FirstSteps, space: Any, first: Any, actions: list[Any], steps: list[Step]) -> str | None:
    """Play the same actions after a second reset with the same seed; return what is different, None if nothing is."""
    began = time.monotonic()
    try:
        again_first = play.reset()
    except GuestError:
        if steps[-1][2]:
            raise
        return None  # It may not be reset before an episode has ended, as training never does.
    if difference := find_difference(space, first, again_first):
        return f"two resets with seed {SEED} differ, {difference}"
    for number, (action, step) in enumerate(zip(actions, steps, strict=True), start=1):
        if time.monotonic() - began > MAX_CHECK_S:
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


def _check_score(play: FirstSteps, spec: EnvSpec) -> None:
    """Play a random episode, and refuse an objective that cannot be computed from the last step's info.

    An episode that has not ended after `SCORE_STEPS` or `SCORE_S` is not scored: the first trial finds such a fault.

    Raises:
        ConfigError: The info of the last step lacks the key, or what is there is no number.
    """
    score, total, began = make_score(spec.objective), 0.0, time.monotonic()
    play.reset()
    for length in range(1, SCORE_STEPS + 1):
        _, reward, is_over, info = play.step(play.draw_action(), f"step {length} of the objective's episode")
        total += reward
        if is_over:
            with _name_call(("objective.kind", spec.objective["kind"], ""), OBJECTIVE):
                score(total, length, info)
        if is_over or time.monotonic() - began > SCORE_S:
            return


Setting = tuple[str, object, str]
"""A setting's name, its value, and what else comes between these and the problem in an error's first line."""


def _find_setting(spec: EnvSpec) -> Setting:
    """Return the setting that has made the environment; with wrappers, they may be at fault as well as it."""
    return ("env.wrappers", ABSENT, f"of {spec.id}") if spec.wrappers else ("env.id", spec.id, "")


@contextlib.contextmanager
def _name_call(setting: Setting, call: str) -> Iterator[None]:
    """Call the user's code in the ``with`` block; its errors name the setting and the call."""
    key, value, place = setting
    try:
        try:
            with call_guest(call):
                yield
        except GuestError as fault:
            # If Gymnasium's own wrappers have failed to unpack the returned tuple, then the error is explained as ours
            # would be.
            if re.search(r"values to unpack \(expected [25]|returned by `env\.reset", fault.problem):
                read_returned(call, fault.__cause__)
            raise _name_fault(fault, setting) from fault.__cause__
    except ConfigError as refusal:
        raise name_setting(refusal, key, value, f"{place}, by {call}") from None


def _name_fault(fault: GuestError, setting: Setting) -> GuestError:
    """Return the error of a failed call with the setting, and with what to write if `reset` takes no seed."""
    key, value, place = setting
    cause = fault.__cause__
    lacks_seed = isinstance(cause, TypeError) and "reset() got an unexpected keyword argument" in read_text(cause)
    allowed, fix = (RESET, "write it so, with super().reset(seed=seed)") if lacks_seed else (fault.allowed, fault.fix)
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
