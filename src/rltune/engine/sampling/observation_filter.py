"""Normalise observations on arrays, with the same results and checkpoints as RLlib's ``MeanStdFilter``.

`normalise_observations` installs RLlib's own connector in a config. Stock RLlib then does the same, one episode step at
a time, and checkpoints of either carry the statistics to the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.utils.filter import RunningStat

from rltune.algorithms.connectors import make_mean_std_connector

Array = NDArray[Any]

CLIP = 10.0
"""MeanStdFilter's default bound of a normalised observation."""

EPSILON = 1e-6
"""RLlib's SMALL_NUMBER, added to the standard deviation."""

BLOCK = 256
"""Observations gathered before the statistics are refreshed, once that many have been seen."""


def normalise_observations(config: Any) -> Any:
    """Enable observation normalisation in an RLlib config, for both engines, and return the config."""
    return config.env_runners(env_to_module_connector=make_mean_std_connector)


def wants_normalisation(config: Any) -> bool:
    """Return whether `normalise_observations` has enabled normalisation in this config."""
    return config._env_to_module_connector is make_mean_std_connector


class RunningMoments:
    """The running mean and variance of observations, updated in blocks.

    The statistics are refreshed after 1, 2, 4, ... and then every ``BLOCK`` observations instead of at each step (which
    Welford's method would do): the first observations are usable at once, and the hot loop pays for three array
    operations a step.

    Args:
        shape: Shape of one observation.
        num_envs: Rows of each step.

    Reference: Chan, Golub & LeVeque (1979), parallel merging of mean and sum of squares.
    """

    def __init__(self, shape: tuple[int, ...], num_envs: int) -> None:
        self.shape = shape
        self._rows = max(1, BLOCK // num_envs)
        self._pending = np.zeros((self._rows, num_envs, *shape), np.float32)
        self._filled = 0
        self._refresh_at = 1
        self.load(0, np.zeros(shape), np.zeros(shape))

    def load(self, count: int, mean: Array, sum_squares: Array) -> None:
        """Replace the statistics by the given ones.

        Args:
            count: Observations seen.
            mean: Their mean.
            sum_squares: Sum of squared deviations from it.
        """
        self.count, self.mean, self.sum_squares = count, np.array(mean), np.array(sum_squares)
        self.delta = (0, np.zeros(self.shape), np.zeros(self.shape))
        self._filled = 0
        self._prepare()

    @property
    def var(self) -> Array:
        """The unbiased variance of the observations; 1 before the second observation."""
        if self.count < 2:
            return np.ones(self.shape)
        return self.sum_squares / (self.count - 1)

    def _prepare(self) -> None:
        """Compute the float32 mean and the reciprocal deviation, so that normalising needs no division."""
        self._mean = self.mean.astype(np.float32)
        self._scale = (1.0 / (np.sqrt(self.var) + EPSILON)).astype(np.float32)
        # The scale is computed again after as many further steps as there were so far, at most one block.
        self._refresh_at = min(self._rows, max(1, self.count // max(1, self._pending.shape[1])))

    def __call__(self, raw: Array, out: Array) -> None:
        """Add observations ``raw`` [envs, ...] to the statistics, and write them normalised into ``out`` (float32)."""
        # This copies the observations, because environments may overwrite the arrays that they return.
        self._pending[self._filled] = raw
        self._filled += 1
        if self._filled >= self._refresh_at:
            self.flush()
        self.apply(raw, out)

    def apply(self, raw: Array, out: Array) -> None:
        """Normalise observations without adding them to the statistics."""
        # The result is written directly into ``out``. The casting rule "unsafe" allows float64 to become float32, as in
        # RLlib.
        np.subtract(raw, self._mean, out=out, casting="unsafe")
        np.multiply(out, self._scale, out=out)
        np.clip(out, -CLIP, CLIP, out=out)

    def flush(self) -> None:
        """Merge the observations that are waiting in the block into the statistics."""
        if not self._filled:
            return
        # Squares are summed in float64, because float32 would lose the variance of observations far from zero.
        block = self._pending[: self._filled].reshape(-1, *self.shape).astype(np.float64)
        self._filled = 0
        mean = block.mean(axis=0)
        moments = (len(block), mean, np.square(block - mean).sum(axis=0))
        # A remote runner sends only the statistics since the last load(); the total already includes those of other
        # runners.
        self.delta = merge_moments(self.delta, moments)
        self.count, self.mean, self.sum_squares = merge_moments((self.count, self.mean, self.sum_squares), moments)
        self._prepare()

    def stats(self) -> dict[str, Any]:
        """Return mean and variance (float64) and count as arrays."""
        self.flush()
        return {"mean": self.mean.copy(), "var": np.array(self.var), "count": np.int64(self.count)}

    def to_filter(self, connector: MeanStdFilter) -> None:
        """Copy the statistics into RLlib's connector, which RLlib saves in checkpoints."""
        self.flush()
        stat = RunningStat(self.shape)
        stat.num_pushes = self.count
        stat.mean_array, stat.sum_sq_diff_array = self.mean.copy(), self.sum_squares.copy()
        connector.get_state()  # The connector creates its filter only when get_state() is called.
        # RLlib uses the key None for the agent of a single-agent environment.
        connector._filters[None].running_stats = stat

    def from_filter(self, connector: MeanStdFilter) -> None:
        """Copy the statistics from RLlib's connector, after a checkpoint was restored into it."""
        connector.get_state()
        stat = connector._filters[None].running_stats
        self.load(int(stat.num_pushes), stat.mean_array, stat.sum_sq_diff_array)


Moments = tuple[int, Array, Array]


def merge_moments(left: Moments, right: Moments) -> Moments:
    """Merge count, mean and sum of squared deviations of two sets of observations (Chan et al. 1979)."""
    count = left[0] + right[0]
    if count == 0:
        return left
    shift = right[1] - left[1]
    mean = left[1] + shift * (right[0] / count)
    return count, mean, left[2] + right[2] + shift * shift * (left[0] * right[0] / count)
