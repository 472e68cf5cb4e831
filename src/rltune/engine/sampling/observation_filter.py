"""Normalise observations on arrays, with the same results and checkpoints as RLlib's ``MeanStdFilter``.

`normalise_observations` installs a connector of RLlib's in a config. Stock RLlib then does the same, one episode step
at a time, and checkpoints of either carry the statistics to the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.utils.filter import RunningStat

from rltune.algorithms.connectors import NormaliseObservations
from rltune.algorithms.far_values import (
    EPSILON,
    JUDGED_AFTER,
    SEEN,
    FarValue,
    find_limits,
    limit_far_values,
    limit_first_values,
)
from rltune.envs.layout import WORD, find_numbers

Array = NDArray[Any]

BLOCK = 256
"""Observations gathered before the statistics are refreshed, once that many have been seen."""


def normalise_observations(config: Any) -> Any:
    """Enable observation normalisation in an RLlib config, for both engines, and return the config."""
    return config.env_runners(env_to_module_connector=NormaliseObservations())


def wants_normalisation(config: Any) -> bool:
    """Return whether `normalise_observations` has enabled normalisation in this config."""
    return isinstance(config._env_to_module_connector, NormaliseObservations)


def make_normaliser(config: Any, row_space: Any, num_envs: int) -> RunningMoments | None:
    """Make the normaliser of the vectors in rows (`rltune.envs.layout`); None without normalisation.

    Args:
        config: RLlib's, which has the columns of the vectors in a row's view.
        row_space: The space of the rows.
        num_envs: Rows of each step.
    """
    if not wants_normalisation(config):
        return None
    columns = config._env_to_module_connector.columns
    if columns.stop is None or (columns.start, columns.stop) == (0, row_space.shape[0]):
        return RunningMoments(row_space.shape, num_envs)
    num = columns.stop - columns.start
    if row_space.dtype != np.uint8:
        return RunningMoments((num,), num_envs, columns)
    begin = find_numbers(columns.start)
    return RunningMoments((num,), num_envs, slice(begin, begin + WORD * num))


class Moments(NamedTuple):
    """What is known of a number of observations.

    Attributes:
        num: Their number.
        mean: Of each column.
        sum_squares: The sum of squared deviations from it.
        far: The first far value among them.
    """

    num: int
    mean: Array
    sum_squares: Array
    far: FarValue | None = None


class RunningMoments:
    """The running mean and variance of observations, updated in blocks.

    The statistics are refreshed after 1, 2, 4, ... and then every ``BLOCK`` observations instead of at each step (which
    Welford's method would do): the first observations are usable at once, and the hot loop pays for three array
    operations a step.

    They learn far values as `rltune.algorithms.far_values` says. The first observations are kept until there are enough
    to judge them together.

    Args:
        shape: Shape of one observation.
        num_envs: Rows of each step.
        place: Where an observation lies in a row, in elements of the row; None if it is the row.

    Attributes:
        far: The first far value.

    Reference: Chan, Golub & LeVeque (1979), parallel merging of mean and sum of squares.
    """

    def __init__(self, shape: tuple[int, ...], num_envs: int, place: slice | None = None) -> None:
        self.shape, self._place = shape, place
        self._rows = max(1, BLOCK // num_envs)
        # Twice as many as a block has: before the first judgement a block may end just short of it.
        self._pending = np.zeros((2 * self._rows, num_envs, *shape), np.float32)
        self._refresh_at = 1
        self.load(0, np.zeros(shape), np.zeros(shape))

    def load(self, count: int, mean: Array, sum_squares: Array, far: FarValue | None = None) -> None:
        """Replace the statistics by the given ones; see `Moments` for the arguments."""
        self.count, self.mean, self.sum_squares, self.far = count, np.array(mean), np.array(sum_squares), far
        self.delta = Moments(0, np.zeros(self.shape), np.zeros(self.shape))
        self._keeps_first = count == 0
        self._begin = self._filled = 0  # The rows that wait to be merged.
        self._prepare()

    @property
    def moments(self) -> Moments:
        """What is known so far, without the observations that wait in the block."""
        return Moments(self.count, self.mean, self.sum_squares, self.far)

    @property
    def var(self) -> Array:
        """The unbiased variance of the observations; 1 before the second observation."""
        if self.count < 2:
            return np.ones(self.shape)
        return self.sum_squares / (self.count - 1)

    def _prepare(self) -> None:
        """Compute the float32 mean and the reciprocal deviation, so that normalising needs no division."""
        self._mean, deviation = self.mean.astype(np.float32), np.sqrt(self.var)
        self._scale = (1.0 / (deviation + EPSILON)).astype(np.float32)
        self._low, self._high = find_limits(self.mean, deviation)
        # The scale is computed again after as many further steps as there were so far, at most one block.
        self._refresh_at = min(self._rows, max(1, self.count // max(1, self._pending.shape[1])))

    def __call__(self, raw: Array, out: Array) -> None:
        """Add observations ``raw`` [envs, ...] to the statistics, and write them normalised into ``out`` (float32).

        If they are a part of rows, then both are rows, whose other elements are copied.
        """
        if self._place is not None:
            out[...] = raw
            raw, out = (rows[..., self._place].view(np.float32) for rows in (raw, out))
        # This copies the observations, because environments may overwrite the arrays that they return.
        self._pending[self._filled] = raw
        self._filled += 1
        if self._filled - self._begin >= self._refresh_at:
            self.flush()
        self.apply(raw, out)

    def apply(self, raw: Array, out: Array) -> None:
        """Normalise observations without adding them to the statistics."""
        # The result is written directly into ``out``. The casting rule "unsafe" allows float64 to become float32, as in
        # RLlib.
        np.subtract(raw, self._mean, out=out, casting="unsafe")
        np.multiply(out, self._scale, out=out)
        np.clip(out, -SEEN, SEEN, out=out)

    def flush(self) -> None:
        """Merge the observations that are waiting in the block into the statistics."""
        if self._begin == self._filled:
            return
        rows = self._pending[self._begin : self._filled].reshape(-1, *self.shape)
        far, is_judged = None, self.count >= JUDGED_AFTER
        if is_judged and ((rows.min(axis=0) < self._low) | (rows.max(axis=0) > self._high)).any():
            rows, far = limit_far_values(rows, self.mean, np.sqrt(self.var))
        # Squares are summed in float64, because float32 would lose the variance of observations far from zero.
        moments = measure_moments(rows.astype(np.float64), far)
        # A remote runner sends only the statistics since the last load(); the total already includes those of other
        # runners.
        self.delta = merge_moments(self.delta, moments)
        self.count, self.mean, self.sum_squares, self.far = merge_moments(self.moments, moments)
        self._begin = self._filled
        if self._keeps_first and self.count >= JUDGED_AFTER:
            self._judge_first()
        if not self._keeps_first:
            self._begin = self._filled = 0
        self._prepare()

    def _judge_first(self) -> None:
        """Judge the first observations together, all of which are still in the block."""
        rows, far = limit_first_values(self._pending[: self._filled].reshape(-1, *self.shape))
        if far is not None:
            self.count, self.mean, self.sum_squares, self.far = self.delta = measure_moments(rows, far)
        self._keeps_first = False

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


def measure_moments(rows: Array, far: FarValue | None = None) -> Moments:
    """Return what is known of observations [n, ...] of float64."""
    mean = rows.mean(axis=0)
    return Moments(len(rows), mean, np.square(rows - mean).sum(axis=0), far)


def merge_moments(left: Moments, right: Moments) -> Moments:
    """Merge count, mean and sum of squared deviations of two sets of observations (Chan et al. 1979)."""
    count = left.num + right.num
    if count == 0:
        return left
    shift = right.mean - left.mean
    mean = left.mean + shift * (right.num / count)
    sum_squares = left.sum_squares + right.sum_squares + shift * shift * (left.num * right.num / count)
    return Moments(count, mean, sum_squares, left.far or right.far)
