"""Step standard Atari games by ale-py's own vector environment, which is faster than Gymnasium's wrappers.

Its images, rewards and ends of episodes are those of the wrappers bit by bit (ale-py 0.12), with two differences: FIRE
after a reset is pressed for one frame instead of a whole step of four, and another generator draws the number of no-ops
at a start. Three things are left to do here. After a reset ale-py stacks frames on zeros, where the wrappers repeat the
first frame. The frames become rows of bytes, as `rltune.envs.observations` makes them. And the true returns are needed
beside the clipped rewards. Trials use this module where they can; evaluations and policies use the wrappers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rltune.envs.episode import RECORD, EpisodeRecord
from rltune.envs.layout import find_numbers
from rltune.envs.spec import EnvSpec, resolve_variables

PREPROCESSING = "gymnasium.wrappers:AtariPreprocessing"
FIRE_ON_RESET = "rltune.envs.atari:FireOnReset"
FRAME_STACK = "gymnasium.wrappers:FrameStackObservation"
DEFAULTS: dict[str, Any] = {"noop_max": 30, "frame_skip": 4, "screen_size": 84}
# Only with these arguments of AtariPreprocessing (SAME) and this frameskip of the game does ale-py's vector environment
# do as Gymnasium's wrappers; else the wrappers are used. The game's other arguments (GAME) may have any value.
SAME = {"scale_obs": False, "terminal_on_life_loss": False, "grayscale_obs": True, "grayscale_newaxis": False}
GAME = {"frameskip": 1, "repeat_action_probability": 0.25, "full_action_space": False}
Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


def make_native_atari(spec: EnvSpec, num_envs: int) -> StandardAtari | None:
    """Build ale-py's vector environment so that it does the same as the wrappers in an environment's specification.

    Args:
        num_envs: How many games step together.

    Returns:
        None where ale-py's vector environment cannot do the same.
    """
    module, _, name = spec.id.rpartition(":")
    wraps = [
        (str(wrapper.get("entry_point")), resolve_variables(wrapper.get("kwargs") or {})) for wrapper in spec.wrappers
    ]
    points, kwargs = [point for point, _ in wraps], dict(wraps)
    order = [PREPROCESSING, *[FIRE_ON_RESET] * (FIRE_ON_RESET in points), FRAME_STACK]
    if module != "ale_py" or not name.endswith("-v5") or points != order or kwargs.get(FIRE_ON_RESET):
        return None
    frames, stack, game = kwargs[PREPROCESSING], kwargs[FRAME_STACK], {**GAME, **resolve_variables(spec.kwargs)}
    is_known = set(frames) <= {*DEFAULTS, *SAME} and set(stack) == {"stack_size"} and set(game) == set(GAME)
    unlike = any(frames.get(key, value) != value for key, value in SAME.items())
    is_single = spec.objective or spec.restarts or spec.encode or set(spec.rewards) - {"scale", "clip"}
    if not is_known or unlike or game["frameskip"] != 1 or is_single:
        return None
    frames = DEFAULTS | frames
    size = frames["screen_size"]
    width, height = size if isinstance(size, tuple | list) else (size, size)
    games = gymnasium.make_vec(
        spec.id,
        num_envs,
        "vector_entry_point",
        **game | {"frameskip": frames["frame_skip"]},
        img_height=height,
        img_width=width,
        noop_max=frames["noop_max"],
        use_fire_reset=FIRE_ON_RESET in points,
        reward_clipping=False,
        stack_num=1,
        num_threads=1,  # One thread, because the other cores run other trials.
    )
    return StandardAtari(games, stack["stack_size"], spec.rewards)


class StandardAtari(gymnasium.vector.VectorWrapper):
    """Stack the last frames of several Atari games into rows of bytes (games, stack x height x width).

    An episode's first observation comes with the step after its last one (autoreset mode NEXT_STEP).

    Args:
        games: ale-py's vector environment of single grey frames.
        stack: How many frames an observation has.
        rewards: ``scale`` and ``clip`` of the rewards; the true returns go into the episodes' records.
    """

    def __init__(self, games: Any, stack: int, rewards: Mapping[str, Any]) -> None:
        super().__init__(RecordEpisodeStatistics(games))
        self._rewards = rewards
        size = games.single_observation_space.shape[1:]
        count = math.prod(size) * stack
        self.single_observation_space = Box(0, 255, (find_numbers(count),), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._obs = np.zeros((self.num_envs, find_numbers(count)), np.uint8)
        self._frames = self._obs[:, :count].reshape(self.num_envs, stack, *size)  # A view.
        self._over = np.ones(self.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode in every game."""
        frames, info = self.env.reset(seed=seed, options=options)
        self._over[:] = True
        self._push(frames)
        self._over[:] = False
        return self._obs, info

    def step(self, actions: np.ndarray) -> Step:
        """Step each game; a game whose episode ended in the last step is reset instead."""
        frames, rewards, terminated, truncated, info = self.env.step(np.asarray(actions, np.int64))
        self._push(frames)
        self._over = terminated | truncated
        if self._over.any():
            info = {**info, **self._make_records(info["episode"])}
        rewards = rewards * float(self._rewards.get("scale", 1.0))
        clip = self._rewards.get("clip")
        return self._obs, rewards.clip(-clip, clip) if clip else rewards, terminated, truncated, info

    def _make_records(self, ended: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the records of the games that have ended, as Gymnasium's vector environments return infos."""
        records = np.full(self.num_envs, None, dtype=object)
        for game in np.flatnonzero(self._over):
            total = float(ended["r"][game])
            records[game] = EpisodeRecord(total, int(ended["l"][game]), total)
        return {RECORD: records, f"_{RECORD}": self._over}

    def _push(self, frames: np.ndarray) -> None:
        """Append the newest frame to each game's stack; a new episode's first frame fills the whole stack."""
        # Frames are shifted one by one, because in a single assignment NumPy would first copy the whole overlapping
        # array.
        for frame in range(self._frames.shape[1] - 1):
            self._frames[:, frame] = self._frames[:, frame + 1]
        newest = self._frames[:, -1]
        newest[:] = frames[:, 0]
        if self._over.any():
            self._frames[self._over] = newest[self._over][:, None]


class FireOnReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Press FIRE after each reset, because some Atari games wait for it for ever (Mnih et al. 2015)."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and press FIRE, which starts the game; return the observation after it."""
        super().reset(**kwargs)
        fire: int = self.env.unwrapped.get_action_meanings().index("FIRE")
        obs, _, terminated, truncated, info = self.env.step(fire)
        if terminated or truncated:
            return cast(tuple[Any, dict[str, Any]], super().reset())
        return obs, info
