"""Split the differences between trials into shares: each parameter's, each pair's, and luck.

A linear model over orthogonal functions of the parameters, whose squared coefficients are the shares (functional
ANOVA: Sobol 1993; Sudret 2008). A parameter or a pair is in it or not, so that a share may be nothing (spike and slab:
George & McCulloch 1993). Gibbs sampling draws from all models that fit; what the draws differ by is the uncertainty.

A trial has a row for each stage of the budget that it reached. Effects and luck may grow with the stages, and a part of
a trial's luck lasts. So a stopped trial tells what it can: it was stopped for rows that the model has seen, which
biases nothing (Rubin 1976, "Inference and missing data").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Term = tuple[int, ...]
"""One parameter's number, or the numbers of two that act together."""

DEGREE, PAIR_DEGREE = 4, 2  # of the polynomials of one parameter, and of each of a pair
SLABS = np.array([0.1, 0.3, 1.0, 3.0, 10.0])  # variances that an effect may have, in those of the scores
CHANGES = np.array([0.03, 0.1, 0.3, 1.0])  # variances that its change until an earlier stage may have, in its own
LEAST_LUCK = 0.01  # its variance, in those of the scores: no training is without
BESIDE = 0.3  # the deviation of the logarithm of what effects grow by beside luck
FREE = 100.0  # variance of a stage's mean, which may be anything
SWEEPS, BURN_IN = 900, 200
NOISE_EVERY, NOISE_STEPS = 25, 20  # sweeps between two updates of the noise, and steps of one


@dataclass(frozen=True, eq=False)
class Axis:
    """The places of a parameter's values, all of them equally likely.

    Attributes:
        grid: Those that there are, or some of a continuous one's, from 0 to 1; the numbers of choices.
        is_choice: Whether they have no order.
    """

    grid: Array
    is_choice: bool = False

    def expand(self, places: Array, degree: int) -> Array:
        """Evaluate uncorrelated functions of mean 0 and variance 1 at places, shape (n, functions); 0 where NaN.

        Args:
            places: Shape (n,).
            degree: The highest of the polynomials. A choice has one function less than values.
        """
        triangle = np.linalg.qr(self._evaluate(self.grid, degree))[1]
        known = np.isfinite(places)
        found = self._evaluate(np.where(known, places, 0.0), degree) @ np.linalg.inv(triangle)
        return np.asarray(np.where(known[:, None], np.sqrt(len(self.grid)) * found[:, 1:], 0.0))

    def weigh(self, degree: int) -> Array:
        """Return how much of the effect each function is expected to have: of polynomials, the smooth ones more."""
        if self.is_choice:
            return np.ones(len(self.grid) - 1)
        return np.arange(1.0, 1.0 + min(degree, len(self.grid) - 1)) ** -2.0

    def _evaluate(self, places: Array, degree: int) -> Array:
        if self.is_choice:
            return np.column_stack([np.ones(len(places)), *(places == one for one in self.grid[1:])])
        return np.polynomial.legendre.legvander(2.0 * places - 1.0, min(degree, len(self.grid) - 1))


@dataclass(frozen=True, eq=False)
class Rows:
    """What trials scored.

    Attributes:
        axes: The parameters'.
        places: Of each trial's values, NaN where it lacks the parameter; shape (trials, parameters).
        trial: Each row's trial, ascending, all of them; shape (rows,).
        stage: Each row's stage of the budget, from 0; the last one is the whole.
        scores: Each row's score, of about unit variance in the last stage.
    """

    axes: Sequence[Axis]
    places: Array
    trial: Array
    stage: Array
    scores: Array


@dataclass(frozen=True, eq=False)
class Effects:
    """What the draws say of the whole budget.

    Attributes:
        axes: The parameters'.
        coefficients: By term, shape (draws, functions); 0 in draws without the term.
        luck: The variance that no term explains, shape (draws,).
        presence: By term, the share of trials that have its parameters.
    """

    axes: Sequence[Axis]
    coefficients: dict[Term, Array]
    luck: Array
    presence: dict[Term, float]

    @cached_property
    def shares(self) -> dict[Term, Array]:
        """Shares by term, shape (draws,): a parameter alone, and what a pair adds; the empty term is luck."""
        parts = {term: self.presence[term] * (drawn**2).sum(axis=1) for term, drawn in self.coefficients.items()}
        whole = sum(parts.values()) + self.luck
        return {term: part / whole for term, part in parts.items()} | {(): self.luck / whole}

    def total(self, index: int) -> Array:
        """Return the share of a parameter, alone and in all pairs, shape (draws,)."""
        return np.asarray(np.sum([share for term, share in self.shares.items() if index in term], axis=0))

    def predict(self, places: Array) -> Array:
        """Predict scores at places, shape (n, parameters), up to a constant of each draw; shape (draws, n)."""
        found = [drawn @ expand(self.axes, term, places)[0].T for term, drawn in self.coefficients.items()]
        return np.asarray(np.sum(found, axis=0))


def expand(axes: Sequence[Axis], term: Term, places: Array) -> tuple[Array, Array]:
    """Return a term's functions at places, shape (n, functions), and their weights, which add up to 1."""
    degree = DEGREE if len(term) == 1 else PAIR_DEGREE
    functions, weights = np.ones((len(places), 1)), np.ones(1)
    for index in term:
        one = axes[index].expand(places[:, index], degree)
        functions = (functions[:, :, None] * one[:, None, :]).reshape(len(places), -1)
        weights = np.outer(weights, axes[index].weigh(degree)).ravel()
    return functions, weights / weights.sum()


def draw_effects(rows: Rows, seed: int = 0) -> Effects:
    """Draw effects from those that fit the rows.

    Args:
        rows: Of at least two trials and one parameter.
        seed: Of the draws.
    """
    rng, numbers = np.random.default_rng(seed), range(len(rows.axes))
    terms: list[Term] = [*((index,) for index in numbers), *combinations(numbers, 2)]
    model = _Model(rows, terms, rng)
    drawn, luck = [], []
    for sweep in range(SWEEPS):
        if sweep % NOISE_EVERY == 0:
            model.draw_noise()
        # Luck is large at first and falls: else the first terms that happen to fit a few trials stay for good.
        model.draw_terms(max(LEAST_LUCK, 0.5 * (1.0 - sweep / BURN_IN)))
        if sweep >= BURN_IN:
            drawn.append(model.coefficients)
            luck.append(model.luck)
    known = np.isfinite(rows.places)
    return Effects(
        rows.axes,
        {term: np.array([one[term] for one in drawn]) for term in terms},
        np.array(luck),
        {term: float(known[:, list(term)].all(axis=1).mean()) for term in terms},
    )


class _Noise:
    """The luck of rows: one size for each stage, of which a part is the same in all rows of a trial.

    Args:
        rows: Those that it explains.
        rng: Draws it.
    """

    def __init__(self, rows: Rows, rng: np.random.Generator) -> None:
        self._rng, self._stage = rng, rows.stage
        self._starts = np.flatnonzero(np.diff(rows.trial, prepend=-1))
        self._counts = np.diff(np.append(self._starts, len(rows.trial)))
        sizes = np.bincount(rows.stage)
        # Of each stage's size; of what effects grew by beside that, until the stage; of the lasting part by the rest.
        self._logs = np.concatenate([np.full(len(sizes), -0.5), np.zeros(len(sizes)), [0.0]])
        still = np.arange(len(sizes)) < len(sizes) - 1  # in the last stage there is nothing to grow
        self._widths = 1.0 / np.sqrt([*sizes, *sizes, len(self._starts)]) * np.array([*(sizes > 0), *still, True])
        self._last = len(sizes) - 1

    @property
    def growth(self) -> Array:
        """What effects are at each row's stage, as a share of the last one's: they grow about as luck does."""
        return self._grow(self._logs)

    @property
    def variance(self) -> float:
        """Of a row of the last stage."""
        return float(np.exp(2.0 * self._logs[self._last]) * (1.0 + self._lasting(self._logs)))

    def draw(self, scores: Array, fitted: Array) -> None:
        """Draw sizes anew by Metropolis' steps, from scores and what is fitted at the last stage's size."""
        now = self._judge(self._logs, scores, fitted)
        for step in range(NOISE_STEPS):
            width = (1.0, 3.0)[step % 2] * self._widths
            other = self._logs + width * self._rng.standard_normal(len(width))
            there = self._judge(other, scores, fitted)
            if np.log(self._rng.random()) < there - now:
                self._logs, now = other, there

    def whiten(self, columns: Array) -> Array:
        """Return columns of rows, turned so that the luck of each row is independent and of size 1."""
        scaled = columns / np.exp(self._logs[self._stage])[:, None]
        part = (1.0 - 1.0 / np.sqrt(1.0 + self._lasting(self._logs) * self._counts)) / self._counts
        return np.asarray(
            scaled - np.repeat(part[:, None] * np.add.reduceat(scaled, self._starts), self._counts, axis=0)
        )

    def _grow(self, logs: Array) -> Array:
        return np.asarray(np.exp(logs[self._stage] - logs[self._last] + logs[self._last + 1 + self._stage]))

    def _lasting(self, logs: Array) -> float:
        return float(np.exp(logs[-1])) if self._counts.max() > 1 else 0.0

    def _judge(self, logs: Array, scores: Array, fitted: Array) -> float:
        """Return the log density of sizes, up to a constant."""
        sizes = logs[self._stage]
        rest, lasting = (scores - fitted * self._grow(logs)) / np.exp(sizes), self._lasting(logs)
        grown = 1.0 + lasting * self._counts
        squares = (rest**2).sum() - (lasting / grown * np.add.reduceat(rest, self._starts) ** 2).sum()
        known, beside = logs[: self._last + 1], logs[self._last + 1 : -1]
        expected = 0.125 * ((known + 0.5) ** 2).sum() + 0.5 * ((beside / BESIDE) ** 2).sum() + 0.25 * logs[-1] ** 2
        return float(-sizes.sum() - 0.5 * np.log(grown).sum() - 0.5 * squares - expected)


class _Model:
    """The state of the Gibbs sampler.

    Each block of columns, a term's or the stages' means, is scaled so that coefficients have prior variance 1, and
    turned so that its columns are uncorrelated: a block is then drawn in a few operations.

    Args:
        rows: What is explained.
        terms: Which may explain it.
        rng: Draws.
    """

    def __init__(self, rows: Rows, terms: Sequence[Term], rng: np.random.Generator) -> None:
        self._scores, self._terms, self._rng, self._noise = rows.scores[:, None], terms, rng, _Noise(rows, rng)
        stages = np.eye(rows.stage.max() + 1)[rows.stage]
        blocks, weights, changes = [stages], [np.ones(stages.shape[1])], [np.zeros(stages.shape[1], bool)]
        for term in terms:
            functions, expected = expand(rows.axes, term, rows.places)
            block = functions[rows.trial]
            blocks.append(np.hstack([block, *(one[:, None] * block for one in stages.T[:-1])]))
            weights.append(np.tile(expected, stages.shape[1]))
            changes.append(np.arange(blocks[-1].shape[1]) >= block.shape[1])
        ends = np.cumsum([block.shape[1] for block in blocks])
        self._parts = [slice(end - block.shape[1], end) for end, block in zip(ends, blocks, strict=True)]
        self._first = self._parts[0].stop  # of the terms' columns, after those of the stages' means
        self._columns, self._weights, self._is_change = np.hstack(blocks), np.hstack(weights), np.hstack(changes)
        self._slab, self._change, self._luck = 1.0, 0.3, 1.0
        self._found = np.zeros(self._columns.shape[1])  # the coefficients of all columns
        # A parameter matters or not; of all pairs one is expected to.
        pairs = sum(len(term) == 2 for term in terms)
        self._odds = [np.inf, *(0.0 if len(term) == 1 else -np.log(max(2, pairs)) for term in terms)]

    @property
    def coefficients(self) -> dict[Term, Array]:
        """By term, at the whole budget."""
        found = zip(self._terms, self._parts[1:], strict=True)
        return {term: self._found[part][~self._is_change[part]] for term, part in found}

    @property
    def luck(self) -> float:
        """The variance of a trial's luck at the whole budget."""
        return self._luck * self._noise.variance

    def draw_noise(self) -> None:
        """Draw the noise and the sizes of effects, and turn all columns by them."""
        first = self._first
        rest = self._scores[:, 0] - self._columns[:, :first] @ self._found[:first]
        self._noise.draw(rest, self._columns[:, first:] @ self._found[first:])
        self._deviations = self._draw_deviations()
        columns = self._columns * self._deviations
        columns[:, first:] *= self._noise.growth[:, None]
        columns, scores = self._noise.whiten(columns), self._noise.whiten(self._scores)[:, 0]
        scaled = self._found / self._deviations
        self._rest, self._luck = scores - columns @ scaled, max(1.0, LEAST_LUCK / self._noise.variance)
        self._blocks = []
        for part in self._parts:
            squares, turn = np.linalg.eigh(columns[:, part].T @ columns[:, part])
            self._blocks.append((np.ascontiguousarray((columns[:, part] @ turn).T), squares.clip(0.0), turn))
        self._drawn = [turn.T @ scaled[part] for part, (_, _, turn) in zip(self._parts, self._blocks, strict=True)]

    def _draw_deviations(self) -> Array:
        """Draw how large effects are and how much they change; return each coefficient's deviation before any trial."""
        squares, used = self._found**2 / self._weights, self._found != 0
        used[: self._first] = False
        changes, effects = squares[used & self._is_change], squares[used & ~self._is_change]
        both = len(changes) + len(effects)
        self._slab = self._choose(SLABS, both, effects.sum() + changes.sum() / self._change)
        self._change = self._choose(CHANGES, len(changes), changes.sum() / self._slab)
        variances = self._slab * np.where(self._is_change, self._change, 1.0) * self._weights
        variances[: self._first] = FREE
        return np.sqrt(variances)

    def _choose(self, variances: Array, count: int, squares: float) -> float:
        """Draw the variance of so many normal numbers, from those that it may be, by their sum of squares."""
        logs = -0.5 * (count * np.log(variances) + squares / variances)
        chances = np.exp(logs - logs.max())
        return float(self._rng.choice(variances, p=chances / chances.sum()))

    def draw_terms(self, least: float) -> None:
        """Draw each block, given the others, then the luck, of a variance of at least so much."""
        rng = self._rng
        for number, (columns, squares, _) in enumerate(self._blocks):
            before = self._drawn[number]
            seen = (columns @ self._rest + squares * before) / self._luck
            variance = 1.0 / (squares / self._luck + 1.0)
            odds = self._odds[number] + 0.5 * (np.log(variance).sum() + (seen**2 * variance).sum())
            if rng.random() < 1.0 / (1.0 + np.exp(-min(odds, 50.0))):
                after = variance * seen + np.sqrt(variance) * rng.standard_normal(len(variance))
            elif not before.any():
                continue
            else:
                after = np.zeros_like(before)
            self._rest = self._rest - (after - before) @ columns
            self._drawn[number] = after
        drawn_luck = 0.5 * (self._rest**2).sum() / rng.gamma(0.5 * len(self._rest))
        self._luck = max(drawn_luck, least / self._noise.variance)
        turned = zip(self._blocks, self._drawn, strict=True)
        self._found = self._deviations * np.concatenate([turn @ drawn for (_, _, turn), drawn in turned])
