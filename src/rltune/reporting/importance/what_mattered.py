"""Find what mattered in a sweep: which parameters its trials differ by, and how sensitive the winner is to each.

All trials count, each as far as it was trained; `effects` explains how. Takes seconds with hundreds of trials.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rltune.records import TrialRecord
from rltune.reporting.importance.effects import Array, Axis, Effects, Rows, draw_effects
from rltune.reporting.sweep_data import SweepData
from rltune.search.dimensions import Dimension

MIN_TRIALS = 10  # with fewer, shares say more about chance than about the parameters
NUM_PLACES = 50  # of a continuous parameter
MOVE = 0.1  # of a parameter's range
STAGES = (0.25, 0.75, 1.0)  # quantiles of where trials were stopped, at which the budget's stages end
FAR = 1.0  # widths of the middle 80% of a stage's scores beyond them, where a score counts as no farther
SHOWS, WIDE = 0.01, 0.5  # a share's lower end from which on it shows, and its upper end from which on too much is open
MAX_PAIRS = 3  # that are told


@dataclass(frozen=True)
class Estimate:
    """A number, and the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Array) -> Estimate:
        """Summarize draws, shape (draws,). The mean stays in the interval, also where one draw in fifty is large."""
        low, high = np.percentile(draws, (2.5, 97.5))
        return cls(float(np.clip(draws.mean(), low, high)), float(low), float(high))

    @property
    def shows(self) -> bool:
        """Whether a share is more than nothing."""
        return self.low >= SHOWS

    @property
    def is_open(self) -> bool:
        """Whether a share may be nothing, or more than half."""
        return not self.shows and self.high >= WIDE

    def __str__(self) -> str:
        return f"{self.mean:.0%} ({100 * self.low:.0f} to {self.high:.0%})"


@dataclass(frozen=True)
class Move:
    """The winner with one parameter changed.

    Attributes:
        name: The parameter.
        before: The winner's value.
        after: The other one.
        fall: What the score is predicted to fall by.
    """

    name: str
    before: Any
    after: Any
    fall: Estimate


@dataclass(frozen=True)
class WhatMattered:
    """What the differences between a sweep's trials come from.

    Attributes:
        words: It, in a few sentences; or why it cannot be told.
        shares: Of each parameter, alone and together with others, the largest first. Empty where it cannot be told.
        moves: For each parameter the small change of the winner that costs most, the dearest first.
    """

    words: str
    shares: Mapping[str, Estimate] = field(default_factory=dict)
    moves: Sequence[Move] = ()


def find_what_mattered(data: SweepData) -> WhatMattered:
    """Find what a sweep's trials differ by, from all that neither failed nor are without a score."""
    trials = [one for one in data.trials if one.state != "FAIL" and (one.score is not None or one.diverged)]
    if len(trials) < MIN_TRIALS:
        return WhatMattered(f"Too few trials to tell: {len(trials)} have a score, and it takes {MIN_TRIALS}.")
    ranges = [_Range(one) for one in data.space.dimensions]
    places = {one: {one.find_place(trial.params) for trial in trials} - {math.nan} for one in ranges}
    varied = [one for one in ranges if len(places[one]) > 1]
    if not varied:
        return WhatMattered("It cannot be told: these trials do not differ in a parameter.")
    rows, unit, end, notes = _collect_rows(trials, varied)
    if not unit:
        return WhatMattered("Nothing made a difference: all of these trials have the same score.")
    effects = draw_effects(rows)
    shares = {one.name: Estimate.of(effects.total(number)) for number, one in enumerate(varied)}
    shares = dict(sorted(shares.items(), key=lambda item: -item[1].mean))
    luck = Estimate.of(effects.shares[()])
    if not any(one.shows for one in shares.values()):
        return WhatMattered(_describe_nothing(shares, luck, len(trials)))
    pairs = {
        " with ".join(varied[index].name for index in term): Estimate.of(drawn)
        for term, drawn in effects.shares.items()
        if len(term) == 2
    }
    words = f"{_describe_shares(shares, pairs, luck)} {_describe_source(len(trials), end, notes)}"
    return WhatMattered(words, shares, tuple(_move_winner(data, varied, effects, unit)))


# -- what is explained ------------------------------------------------------------------------------------------------


class _Range:
    """A searched parameter, and the places of its values on the scale that is searched: from 0 to 1, or of choices."""

    def __init__(self, dimension: Dimension) -> None:
        self.name, self._dimension, self._is_choice = dimension.name, dimension, dimension.kind == "choice"
        self._distribution: Any = dimension.distribution()
        self._levels: list[Any] = []  # the quantities that are drawn, where they are few
        if self._is_choice:
            self._levels = list(self._distribution.choices)
        elif self._distribution.step and self._num_steps < NUM_PLACES:
            low, step = self._distribution.low, self._distribution.step
            self._levels = [low + step * number for number in range(self._num_steps + 1)]
        places = [self._place(level) for level in self._levels]
        self.axis = Axis(np.array(places or (np.arange(NUM_PLACES) + 0.5) / NUM_PLACES), self._is_choice)

    def find_place(self, params: Mapping[str, Any]) -> float:
        """Return the place of a trial's value; NaN where it has none, or one that is outside of the range by now."""
        try:
            return self._place(self._dimension.encode(params[self.name]))
        except (KeyError, ValueError, TypeError):
            return math.nan

    def list_neighbours(self, params: Mapping[str, Any]) -> list[Any]:
        """List the values a tenth of the range from a trial's, or as near to that as there are; or other choices."""
        place = self.find_place(params)
        if math.isnan(place):
            return []
        if self._is_choice:
            return [self._dimension.decode(level) for number, level in enumerate(self._levels) if number != place]
        if not self._levels:
            return [
                self._dimension.decode(self._draw(other)) for other in (place - MOVE, place + MOVE) if 0 <= other <= 1
            ]
        sides = [[at for at in self.axis.grid if (at - place) * way > 1e-9] for way in (-1, 1)]
        nearest = [min(side, key=lambda at: abs(abs(at - place) - MOVE)) for side in sides if side]
        return [self._dimension.decode(self._levels[list(self.axis.grid).index(at)]) for at in nearest]

    @property
    def _num_steps(self) -> int:
        steps: int = round((self._distribution.high - self._distribution.low) / self._distribution.step)
        return steps

    def _place(self, raw: Any) -> float:
        """Return the place of a drawn quantity."""
        if self._is_choice:
            return float(self._levels.index(raw))
        low, high, at = (self._scale(each) for each in (self._distribution.low, self._distribution.high, raw))
        return (at - low) / (high - low) if high > low else 0.0

    def _draw(self, place: float) -> Any:
        """Return the quantity at a place."""
        low, high = self._scale(self._distribution.low), self._scale(self._distribution.high)
        raw = low + place * (high - low)
        raw = math.exp(raw) if self._distribution.log else raw
        return round(raw) if isinstance(self._distribution.low, int) else raw

    def _scale(self, raw: float) -> float:
        return math.log(raw) if self._distribution.log else float(raw)


def _collect_rows(trials: Sequence[TrialRecord], ranges: Sequence[_Range]) -> tuple[Rows, float, int, str]:
    """Collect what trials scored at up to four stages of the budget, which end where trials were stopped.

    Of a stage a trial has its last score, so that those that went on and those that did not are compared.

    Returns:
        The rows; what a score of 1 is in them, 0 where all are equal; the last stage's end; what was done to scores.
    """
    curves = [trial.scores for trial in trials]
    end = max((mark for curve in curves for mark in curve), default=0)
    stopped = [max(curve) for curve in curves if curve and max(curve) < end]
    ends = sorted({*(map(int, np.quantile(stopped, STAGES, method="inverted_cdf")) if stopped else ()), end})
    found = []
    for number, (trial, curve) in enumerate(zip(trials, curves, strict=True)):
        stages = {bisect_left(ends, mark): score for mark, score in sorted(curve.items())}
        if trial.diverged:
            stages[bisect_left(ends, min(max(trial.reports, default=0), end))] = -math.inf
        found += [(number, stage, score) for stage, score in sorted(stages.items())]
    of_trial, of_stage = np.array([row[:2] for row in found]).T
    told, scores = np.array([row[2] for row in found]), np.zeros(len(found))
    for stage in range(len(ends)):
        scores[of_stage == stage] = np.clip(told[of_stage == stage], *_bound(told[of_stage == stage]))
    far, diverged = int((scores != told)[np.isfinite(told)].sum()), sum(trial.diverged for trial in trials)
    notes = f" {diverged} diverged, which counts as the lowest score." if diverged else ""
    notes += f" {far} reports lie far beyond the others, which count as less far." if far else ""
    unit = float(scores[of_stage == len(ends) - 1].std() or scores.std())
    places = np.array([[one.find_place(trial.params) for one in ranges] for trial in trials])
    scores = (scores - scores.mean()) / (unit or 1.0)
    return Rows([one.axis for one in ranges], places, of_trial, of_stage, scores), unit, end, notes


def _bound(scores: Array) -> tuple[float, float]:
    """Return within which ends a stage's scores count as they are: a few beyond would outweigh all others."""
    known = scores[np.isfinite(scores)]
    if not len(known):
        return 0.0, 0.0
    low, high = np.percentile(known, (10, 90))
    reach = FAR * (high - low)
    return (float(low - reach), float(high + reach)) if reach else (float(known.min()), float(known.max()))


# -- what is told -----------------------------------------------------------------------------------------------------


def _move_winner(data: SweepData, ranges: Sequence[_Range], effects: Effects, unit: float) -> list[Move]:
    """Change the winner by one parameter at a time, and predict what that costs; the dearest first."""
    params = data.record.winner.get("params") if data.record.winner else data.ranked[0].params if data.ranked else None
    if not params:
        return []
    tried = [(one, value) for one in ranges for value in one.list_neighbours(params)]
    changed = [data.space.active_values({**params, one.name: value}) for one, value in tried]
    places = np.array([[one.find_place(each) for one in ranges] for each in (params, *changed)])
    predicted = unit * effects.predict(places)
    moves: dict[str, Move] = {}
    for (one, value), falls in zip(tried, (predicted[:, :1] - predicted[:, 1:]).T, strict=True):
        move = Move(one.name, params[one.name], value, Estimate.of(falls))
        moves[one.name] = max(moves.get(one.name, move), move, key=lambda each: each.fall.mean)
    return sorted(moves.values(), key=lambda each: -each.fall.mean)


def _describe_shares(shares: Mapping[str, Estimate], pairs: Mapping[str, Estimate], luck: Estimate) -> str:
    """Say which parameters and pairs show, what is open, and what none of them explains."""
    first, *others = [
        f"{name} {'' if number else 'explains '}{one}" for number, (name, one) in enumerate(_showing(shares))
    ]
    text = f"{first} of the differences between trials"
    text += f", {_join(others)}." if others else "."
    if told := [f"{name} {one}" for name, one in _showing(pairs)[:MAX_PAIRS]]:
        text += f" Pairs that act together, beyond each alone: {_join(told)}."
    text += f" Luck, and what no parameter explains: {luck}."
    if unknown := [name for name, one in shares.items() if one.is_open]:
        text += f" Too few trials to tell of {_join(unknown)}."
    return text


def _describe_nothing(shares: Mapping[str, Estimate], luck: Estimate, num_trials: int) -> str:
    """Say why no share shows: because there are too few trials, or because nothing made a difference."""
    if any(one.is_open for one in shares.values()) or luck.low < 1 - WIDE:
        return f"Too few trials to tell: from the {num_trials} that have a score, any parameter may matter or none."
    return f"No parameter made a difference that shows: {luck} of the differences between {num_trials} trials are luck."


def _describe_source(num_trials: int, end: int, notes: str) -> str:
    return (
        f"From {num_trials} trials, each as far as it was trained, for scores at {end:,} environment steps.{notes} "
        "In brackets and as lines: 95% intervals. Shares add up to more than 100% where parameters act together."
    )


def _showing(shares: Mapping[str, Estimate]) -> list[tuple[str, Estimate]]:
    return sorted(((name, one) for name, one in shares.items() if one.shows), key=lambda item: -item[1].mean)


def _join(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
