"""Atari with the standard preprocessing, stepped by ale-py's own vector environment instead of a stack of wrappers.

It gives the wrappers' images, rewards and ends of episodes bit by bit (ale-py 0.12), with two differences: FIRE after a
reset is pressed for one frame and not for a whole step of four, and the number of no-ops at a start comes from another
generator. Runs in workers; evaluations and policies use the wrappers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from rltune.wrappers import current_sink

PREPROCESSING = "gymnasium.wrappers:AtariPreprocessing"
FIRE = "rltune.wrappers:FireOnReset"
STACK = "gymnasium.wrappers:FrameStackObservation"
LAST = "rltune.wrappers:ChannelsLast"
DEFAULTS = {"noop_max": 30, "frame_skip": 4, "screen_size": 84, "scale_obs": False}
SAME = {"terminal_on_life_loss": False, "grayscale_obs": True, "grayscale_newaxis": False}
GAME = {"frameskip": 1, "repeat_action_probability": 0.25, "full_action_space": False}
Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


def native(spec: Any, num_envs: int) -> StandardAtari | None:
    """The vector environment that does what a specification's wrappers do; None where it cannot.

    Args:
        spec: An `rltune.environment.EnvSpec`.
        num_envs: How many step together.
    """
    arguments = _arguments(spec)
    if arguments is None:
        return None
    from ale_py.vector_env import AtariVectorEnv

    if not set(arguments) <= set(inspect.signature(AtariVectorEnv).parameters) | {"stack", "scaled"}:
        return None  # an ale-py of other arguments
    return StandardAtari(arguments, num_envs, spec.rewards)


def _arguments(spec: Any) -> dict[str, Any] | None:
    """What ale-py's vector environment takes for this specification, and ``stack`` and ``scaled``."""
    module, _, name = spec.id.rpartition(":")
    wraps = [(str(entry.get("entry_point")), dict(entry.get("kwargs") or {})) for entry in spec.wrappers]
    points, kwargs = [point for point, _ in wraps], dict(wraps)
    order = [PREPROCESSING, FIRE, STACK, LAST] if FIRE in points else [PREPROCESSING, STACK, LAST]
    if module != "ale_py" or not name.endswith("-v5") or points != order or kwargs.get(FIRE):
        return None
    frames, stack, game = kwargs[PREPROCESSING], kwargs[STACK], {**GAME, **spec.kwargs}
    known = set(frames) <= {*DEFAULTS, *SAME} and set(stack) == {"stack_size"} and set(game) == set(GAME)
    unlike = any(frames.get(key, value) != value for key, value in SAME.items())
    if not known or unlike or game["frameskip"] != 1 or set(spec.rewards) - {"scale", "clip"}:
        return None
    frames = DEFAULTS | frames
    size = frames["screen_size"]
    width, height = size if isinstance(size, tuple | list) else (size, size)
    return {
        "game": _snake(name.removeprefix("ALE/").removesuffix("-v5")),
        "img_height": height,
        "img_width": width,
        "frameskip": frames["frame_skip"],
        "noop_max": frames["noop_max"],
        "use_fire_reset": FIRE in points,
        "repeat_action_probability": game["repeat_action_probability"],
        "full_action_space": game["full_action_space"],
        "reward_clipping": False,
        "stack": stack["stack_size"],
        "scaled": frames["scale_obs"],
    }


def _snake(name: str) -> str:
    """A game's name as its file has it: ``MsPacman`` is ``ms_pacman``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class StandardAtari:
    """A Gymnasium vector environment (autoreset mode NEXT_STEP) of stacked images, their frames last.

    Args:
        arguments: By ale-py's names, with ``stack`` and ``scaled``.
        num_envs: How many.
        rewards: ``scale`` and ``clip`` of what is learned from; true returns go to `rltune.wrappers.returns_into`.
    """

    def __init__(self, arguments: Mapping[str, Any], num_envs: int, rewards: Mapping[str, Any]) -> None:
        from ale_py.vector_env import AtariVectorEnv
        from gymnasium.spaces import Box
        from gymnasium.vector.utils import batch_space

        own = {key: value for key, value in arguments.items() if key not in ("stack", "scaled")}
        # One thread: a trial has its share of the cores, and others have theirs.
        self._games = AtariVectorEnv(num_envs=num_envs, stack_num=1, num_threads=1, **own)
        self._scaled, self._rewards, self._sink = arguments["scaled"], rewards, current_sink()
        kind, high = (np.float32, 1.0) if self._scaled else (np.uint8, 255)
        shape = (arguments["img_height"], arguments["img_width"], arguments["stack"])
        self.num_envs, self.metadata = num_envs, dict(self._games.metadata)
        self.single_observation_space: Any = Box(0, high, shape, kind)
        self.single_action_space: Any = self._games.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = self._games.action_space
        self._frames = np.zeros((num_envs, shape[2], *shape[:2]), kind)  # whole frames are moved, which is quicker
        self._obs = np.moveaxis(self._frames, 1, -1)
        self._over = np.zeros(num_envs, np.bool_)
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode everywhere."""
        frames, info = self._games.reset(seed=seed)
        self._over[:] = False
        self._returns[:], self._lengths[:] = 0.0, 0
        self._take(frames, np.ones(self.num_envs, np.bool_))
        return self._obs, info

    def step(self, actions: np.ndarray) -> Step:
        """Step each game, or reset it where the last step ended an episode."""
        frames, rewards, terminated, truncated, info = self._games.step(np.asarray(actions, np.int64))
        begun, rewards = self._over, rewards.astype(np.float64)
        self._take(frames, begun)
        self._returns += rewards
        self._lengths += ~begun
        self._over = terminated | truncated
        for place in np.flatnonzero(self._over):
            if self._sink is not None:
                self._sink.append((float(self._returns[place]), int(self._lengths[place])))
            self._returns[place], self._lengths[place] = 0.0, 0
        rewards *= self._rewards.get("scale", 1.0)
        clip = self._rewards.get("clip")
        return self._obs, rewards.clip(-clip, clip) if clip else rewards, terminated, truncated, info

    def _take(self, frames: np.ndarray, begun: np.ndarray) -> None:
        """Push the newest frame; an episode begins with its first frame all through."""
        for place in range(self._frames.shape[1] - 1):
            self._frames[:, place] = self._frames[:, place + 1]
        newest = self._frames[:, -1]
        if self._scaled:
            np.divide(frames[:, 0], np.float32(255), out=newest)
        else:
            newest[:] = frames[:, 0]
        if begun.any():
            self._frames[begun] = newest[begun][:, None]

    def close(self) -> None:
        """Free the games."""
        self._games.close()
