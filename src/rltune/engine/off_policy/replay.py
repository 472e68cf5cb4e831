"""A replay memory in one preallocated array, in which each row is a transition; images lie beside it, each once.

Uniform sampling draws row numbers. Prioritised sampling (Schaul et al. 2016) keeps the sums of blocks of priorities,
and of blocks of blocks. Each draw descends this tree, O(log n).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltune.cluster.memory import available_gb
from rltune.engine.features import UnsupportedError
from rltune.engine.kernels.replay import FAN_OUT, find_priorities, set_priorities
from rltune.engine.off_policy.transitions import NUMBERS, Batch, Steps
from rltune.errors import ResourceError

Array = NDArray[Any]
logger = logging.getLogger(__name__)

HEADROOM = 0.9
"""Share of the free memory that a replay memory may claim."""

MAX_PLACES = 2**24
"""The most places of observations, each of which float32 has."""

ABOUT = "about.json"
"""The file with the numbers of a saved replay memory, beside its arrays."""


def check_memory(capacity: int, bytes_each: int) -> None:
    """Log the size of the replay memory, and refuse a size that does not fit into the free memory.

    Args:
        capacity: Transitions.

    Raises:
        ResourceError: With the largest capacity that would fit.
    """
    wanted, free = capacity * bytes_each, int(available_gb() * 1e9 * HEADROOM)
    logger.info("replay memory: %s transitions x %d B = %.3f GB", f"{capacity:,}", bytes_each, wanted / 1e9)
    if wanted > free:
        key = "training.replay_buffer_config.capacity"
        raise ResourceError(
            f"needs {wanted / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            f"at most {free // bytes_each} transitions of {bytes_each} bytes",
            f"{key}={free // bytes_each}",
            key=key,
            value=capacity,
        )


class SumTree:
    """A tree of sums and minima of priorities, for prioritised sampling.

    Sums draw by priority; the minimum gives the largest importance weight, by which RLlib scales all of them.

    Args:
        capacity: The greatest number of priorities.
    """

    def __init__(self, capacity: int) -> None:
        # Level 0 of the tree is the priorities; the nodes of each level are padded to whole blocks of children.
        sizes = [-(-capacity // FAN_OUT) * FAN_OUT]
        while sizes[-1] > FAN_OUT:
            sizes.append(-(-sizes[-1] // FAN_OUT**2) * FAN_OUT)
        self._begins = np.cumsum([0, *sizes[:-1]])
        self._sums, self._minima = np.zeros(sum(sizes)), np.full(sum(sizes), np.inf)
        self.priorities = self._sums[:capacity]

    @staticmethod
    def bytes_each() -> int:
        """Return the bytes that one priority takes in the tree, including its share of the upper levels."""
        return 19

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._sums[self._begins[-1] :].sum())

    @property
    def smallest(self) -> float:
        """The smallest priority."""
        return float(self._minima[self._begins[-1] :].min())

    def set(self, index: Array, priorities: Array) -> None:
        """Set the priorities at these indices; if an index occurs twice, its last value counts."""
        set_priorities(self._sums, self._minima, self._begins, index, priorities)

    def get(self, index: Array) -> Array:
        """Return the priorities at these indices."""
        return self.priorities[index]

    def find(self, mass: Array) -> Array:
        """Find the index at which the cumulative sum of priorities exceeds each number in ``mass``."""
        drawn: Array = find_priorities(self._sums, self._begins, len(self.priorities), mass)
        return drawn


class Frames:
    """Rows of bytes, that is observations with images, each stored once, to which transitions refer by their places.

    Transitions of an episode need one observation more than they are. So the memory begins with room for a few more
    than transitions, and grows if episodes are short; pages that nobody has written to take no memory.

    Args:
        capacity: Transitions.
        size: Bytes of one observation.
    """

    def __init__(self, capacity: int, size: int) -> None:
        if 2 * capacity > MAX_PLACES:
            key = "training.replay_buffer_config.capacity"
            allowed, fix = f"at most {MAX_PLACES // 2} transitions of images", f"{key}={MAX_PLACES // 2}"
            raise ResourceError("is more than places have numbers", allowed, fix, key=key, value=capacity)
        self.rows = np.zeros((2 * capacity + NUMBERS, size), np.uint8)
        self._step = max(1, capacity // 64)
        self._limit, self._free = capacity + self._step, np.arange(capacity + self._step)
        # Of each source, where its last observations lie, and the number of the next one.
        self._recent: dict[int, tuple[int, Array]] = {}

    def add(self, steps: Steps, used: Array, num_recent: int) -> Array:
        """Store the observations of steps; return their transitions with places in place of numbers.

        Args:
            steps: With observations.
            used: The places of all stored transitions.
            num_recent: How many of the last observations of each source may become part of further transitions.
        """
        assert steps.frames is not None
        count = len(steps.frames)
        if count + num_recent > NUMBERS:
            raise UnsupportedError(f"more than {NUMBERS} images at once")
        following, recent = self._recent.get(steps.source, (steps.first, np.zeros(0, np.int64)))
        recent = recent[max(0, len(recent) - num_recent) if following == steps.first else len(recent) :]
        if len(self._free) < count:
            self._sweep(np.concatenate([used, *(places for _, places in self._recent.values())]), count)
        places, self._free = self._free[:count], self._free[count:]
        self.rows[places] = steps.frames
        known = np.concatenate([recent, places])
        self._recent[steps.source] = (steps.first + count) % NUMBERS, known
        rows: Array = steps.rows.copy()
        rows[:, :2] = known[(rows[:, :2].astype(np.int64) - (steps.first - len(recent))) % NUMBERS]
        return rows

    def _sweep(self, used: Array, count: int) -> None:
        """Find the places that no transition refers to; make room for more if there are few."""
        is_used = np.zeros(len(self.rows), np.bool_)
        is_used[used] = True
        while len(free := np.flatnonzero(~is_used[: self._limit])) < max(count, self._step // 2):
            self._limit += max(self._step, count)
            if self._limit > len(self.rows):
                raise ResourceError("holds no further observations", "fewer env runners, or a larger capacity")
        self._free = free

    def load(self, frames: Array, used: Array) -> Array:
        """Store the observations of stored transitions; return the places that they have now.

        Args:
            frames: Stored observations.
            used: The places of all transitions in ``frames``.
        """
        old, new = np.unique(used, return_inverse=True)
        self.rows[: len(old)] = frames[old]
        self._limit = max(self._limit, len(old))
        self._free, self._recent = np.arange(len(old), self._limit), {}
        return new.reshape(used.shape)


class Replay:
    """A ring buffer of transitions with uniform or prioritised sampling.

    Args:
        capacity: Transitions.
        width: Floats of one row.
        batch: Rows of a sample.
        alpha: Exponent of the priorities; None samples uniformly.
        beta: Exponent of the importance weights.
        frame_size: Bytes of one observation, if transitions have the numbers of their observations; else 0.
        num_recent: How many of the last observations may become part of further transitions.

    Attributes:
        env_steps: Environment steps that it has seen. It begins empty again after a restore that has no copy of it.

    Raises:
        ResourceError: When the memory is not there.
    """

    def __init__(
        self,
        capacity: int,
        width: int,
        batch: int,
        rng: np.random.Generator,
        alpha: float | None = None,
        beta: float = 0.0,
        frame_size: int = 0,
        num_recent: int = 0,
    ) -> None:
        check_memory(capacity, 4 * width + frame_size + (0 if alpha is None else SumTree.bytes_each()))
        self.frames = Frames(capacity, frame_size) if frame_size else None
        self._num_recent = num_recent
        self._pair = np.zeros((2, batch if frame_size else 0, frame_size), np.uint8)
        self.rows = np.zeros((capacity, width), np.float32)
        self.capacity, self.size, self._next, self.env_steps = capacity, 0, 0, 0
        self.batch = np.zeros((batch, width), np.float32)
        self.weights = np.ones(batch, np.float32)
        self.alpha, self.beta, self.rng = alpha, beta, rng
        self.tree = None if alpha is None else SumTree(capacity)
        # The largest priority so far. A new transition gets it, so that it is likely to be drawn at least once.
        self._max_priority = 1.0
        self._drawn = np.zeros(batch, np.int64)

    def add(self, steps: Steps) -> None:
        """Append the transitions of steps, and their observations where these are stored apart."""
        rows = steps.rows
        if self.frames is not None and steps.frames is not None:
            rows = self.frames.add(steps, self._find_places(), self._num_recent)
        self.extend(rows)

    def _find_places(self) -> Array:
        """Return the places of the observations of all stored transitions."""
        return self.rows[: self.size, :2].astype(np.int64).ravel()

    def extend(self, rows: Array) -> None:
        """Append transitions; if the memory is full, they overwrite the oldest ones."""
        # If many episodes end in one step, they may complete more transitions than a small memory can hold.
        rows = rows[-self.capacity :]
        count, start = len(rows), self._next
        if count == 0:  # At the start of an episode, no n-step transition is complete yet.
            return
        first = min(count, self.capacity - start)
        self.rows[start : start + first] = rows[:first]
        if first < count:
            self.rows[: count - first] = rows[first:]
        self._next = (start + count) % self.capacity
        self.size = min(self.size + count, self.capacity)
        if self.tree is not None and self.alpha is not None:
            index = np.arange(start, start + count) % self.capacity
            self.tree.set(index, np.full(count, self._max_priority**self.alpha))

    def sample(self) -> Array | Batch:
        """Draw a batch [batch, width] of transitions; the next draw overwrites it and its importance weights."""
        if self.tree is None:
            # Multiplying uniform floats is faster than the generator's integers().
            self._drawn = (self.rng.random(len(self.batch)) * self.size).astype(np.int64)
        else:
            self._draw_by_priority(self.tree)
        # With the default mode "raise", NumPy would fill a temporary array and copy it to ``out``.
        self.rows.take(self._drawn, 0, self.batch, "clip")
        if self.frames is None:
            return self.batch
        for places, frames in zip(self.batch[:, :2].T.astype(np.int64), self._pair, strict=True):
            self.frames.rows.take(places, 0, frames, "clip")
        return Batch(self.batch, *self._pair)

    def _draw_by_priority(self, tree: SumTree) -> None:
        total = tree.total
        self._drawn = np.minimum(tree.find(self.rng.random(len(self.batch)) * total), self.size - 1)
        if self.beta:
            # Importance weights are (p_i N)^-beta, divided by the largest one, which belongs to the smallest priority.
            # So N and the sum of priorities cancel out.
            np.power(tree.smallest / tree.get(self._drawn), self.beta, out=self.weights, casting="unsafe")

    def prioritise(self, errors: Array) -> None:
        """Set the priorities of the last batch to its absolute temporal-difference errors."""
        if self.tree is None or self.alpha is None:
            return
        # A transition with priority zero would never be drawn again.
        errors = np.maximum(errors.astype(np.float64), 1e-12)
        self._max_priority = max(self._max_priority, float(errors.max()))
        self.tree.set(self._drawn, errors**self.alpha)

    @property
    def num_bytes(self) -> int:
        """The bytes of the stored transitions and priorities, as `save` writes them."""
        return sum(part.nbytes for part in self._contents().values())

    def _contents(self) -> dict[str, Array]:
        """Return views of the stored transitions in their places, so that a restored memory draws the same ones."""
        contents: dict[str, Array] = {"rows": self.rows[: self.size]}
        if self.tree is not None:
            contents["priorities"] = self.tree.priorities[: self.size]
        if self.frames is not None:
            contents["frames"] = self.frames.rows[: self._find_places().max(initial=-1) + 1]
        return contents

    def _position(self) -> dict[str, Any]:
        return {"next": self._next, "max_priority": self._max_priority, "env_steps": self.env_steps}

    def get_state(self) -> dict[str, Any]:
        """Return a copy of the stored transitions and priorities, in the order of the ring buffer."""
        return {name: part.copy() for name, part in self._contents().items()} | self._position()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; a smaller memory keeps only the newest transitions."""
        rows, priorities = state["rows"], state.get("priorities")
        # If the capacity has changed, a full ring is rotated so that its oldest transition comes first.
        if len(rows) != self.capacity and (oldest := state["next"] % max(1, len(rows))):
            rows = np.roll(rows, -oldest, axis=0)[-self.capacity :]
            priorities = None if priorities is None else np.roll(priorities, -oldest)[-self.capacity :]
        self.size = min(len(rows), self.capacity)
        self.rows[: self.size] = rows[-self.capacity :]
        if self.frames is not None:
            self.rows[: self.size, :2] = self.frames.load(state["frames"], self._find_places()).reshape(-1, 2)
        self._next = state["next"] if len(rows) == self.capacity else self.size % self.capacity
        self._max_priority, self.env_steps = state["max_priority"], state["env_steps"]
        if self.tree is not None and priorities is not None:
            self.tree.set(np.arange(self.size), np.array(priorities[-self.capacity :]))

    def save(self, folder: Path, made_by: Mapping[str, Any]) -> None:
        """Write the stored transitions into an empty folder as raw arrays, without copying them.

        Args:
            made_by: What the transitions' rewards and discounts depend on.
        """
        for name, part in self._contents().items():
            np.save(folder / f"{name}.npy", part)
        (folder / ABOUT).write_text(json.dumps(self._position() | {"made_by": dict(made_by)}))

    def load(self, folder: Path, made_by: Mapping[str, Any]) -> bool:
        """Load what `save` wrote; change nothing and return False if ``made_by`` differs."""
        about = json.loads((folder / ABOUT).read_text())
        if about["made_by"] != made_by:
            return False
        self.set_state(about | {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")})
        return True
