"""What the report says of parameters, on simulated sweeps whose truth is known; half of their trials were stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.importance import KINDS, LUCK, SPACE, simulate_sweep
from rltune.records import TrialRecord
from rltune.reporting.importance import what_mattered
from rltune.reporting.importance.what_mattered import Estimate, find_what_mattered
from rltune.reporting.sweep_data import SweepData

MATTERING = {name: kind for name, kind in KINDS.items() if kind.true and "late" not in name}


@pytest.mark.parametrize("name", MATTERING)
def test_true_shares_lie_in_the_intervals_and_no_others_show(name: str) -> None:
    found = find_what_mattered(simulate_sweep(KINDS[name], 60, seed=1)).shares
    for one, true in KINDS[name].true.items():
        # One sweep in twenty lies outside by a little: `benchmarks.importance` counts how many.
        assert found[one].low - 0.05 <= (1 - LUCK) * true <= found[one].high + 0.05, one
        assert found[one].mean == pytest.approx((1 - LUCK) * true, abs=0.15), one
        assert found[one].shows or true < 0.2
    assert [one for one, share in found.items() if share.shows and one not in KINDS[name].true] == []


def test_two_that_act_together_only_are_named_as_a_pair() -> None:
    said = find_what_mattered(simulate_sweep(KINDS["two choices act together only"], 60, seed=7)).words
    assert "Pairs that act together, beyond each alone: activation with use_lstm" in said
    assert "explains" in said
    assert "lr" not in said


def test_where_nothing_matters_luck_is_the_reason() -> None:
    found = find_what_mattered(simulate_sweep(KINDS["none matters"], 60, seed=7))
    assert found.words.startswith("No parameter made a difference that shows")
    assert (found.shares, found.moves) == ({}, ())


def test_too_few_trials_are_told_and_show_nothing() -> None:
    found = find_what_mattered(simulate_sweep(KINDS["three matter"], 9, seed=0))
    assert found.words == "Too few trials to tell: 9 have a score, and it takes 10."
    assert not found.shares


def test_an_open_interval_is_too_few_trials_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_what_mattered(simulate_sweep(KINDS["three matter"], 10, seed=5, stop="chance"))
    assert found.words == "Too few trials to tell: from the 10 that have a score, any parameter may matter or none."
    assert not found.shares


def change(data: SweepData, of: Mapping[int, TrialRecord]) -> SweepData:
    """The sweep with some trials in place of others."""
    return replace(data, trials=[of.get(trial.number, trial) for trial in data.trials])


def test_diverged_trials_count_as_the_lowest() -> None:
    """Without them nothing matters; they are those with the highest learning rates."""
    data = simulate_sweep(KINDS["none matters"], 60, seed=7)
    high = [trial for trial in data.trials if trial.params["lr"] > 2e-3]
    assert 5 < len(high) < 25
    gone = {one.number: replace(one, state="PRUNED", diverged=True, reports={5000: float("nan")}) for one in high}
    found = find_what_mattered(change(data, gone))
    assert found.shares["lr"].shows
    assert f"{len(high)} diverged, which counts as the lowest score." in found.words


def test_one_score_far_beyond_hides_nothing() -> None:
    data = simulate_sweep(KINDS["one matters, best inside"], 60, seed=7, stop="chance")
    lost = replace(data.trials[0], reports=dict.fromkeys(data.trials[0].reports, -1e9))
    found = find_what_mattered(change(data, {0: lost}))
    assert found.shares["lr"].mean > 0.5
    assert "lie far beyond the others, which count as less far" in found.words


def test_failed_trials_and_such_without_scores_say_nothing() -> None:
    data = simulate_sweep(KINDS["three matter"], 12, seed=0)
    gone = {0: replace(data.trials[0], state="FAIL"), 1: replace(data.trials[1], reports={})}
    gone[2] = replace(data.trials[2], reports={5000: float("nan")})
    assert "9 have a score" in find_what_mattered(change(data, gone)).words


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reports": {1000: 5.0}}, "Nothing made a difference: all of these trials have the same score."),
        ({"params": {"lr": 1e-3}}, "It cannot be told: these trials do not differ in a parameter."),
        ({"params": {"lr": 5.0}}, "It cannot be told: these trials do not differ in a parameter."),  # not in its range
    ],
)
def test_what_cannot_be_told_has_a_reason(changes: dict[str, object], said: str) -> None:
    data = simulate_sweep(KINDS["three matter"], 12, seed=0)
    alike = {trial.number: replace(trial, **changes) for trial in data.trials}  # type: ignore[arg-type]
    assert find_what_mattered(change(data, alike)).words == said


def test_moving_the_winner_off_its_peak_costs_score() -> None:
    data = simulate_sweep(KINDS["one matters, best inside"], 60, seed=7, stop="chance")
    peak = 1e-5 * 1e3**0.7
    winner = {**data.ranked[0].params, "lr": peak}
    moves = find_what_mattered(replace(data, record=replace(data.record, winner={"params": winner}))).moves
    assert [move.name for move in moves[:1]] == ["lr"]
    assert {move.name for move in moves} == {one.name for one in SPACE.dimensions}
    apart = abs(np.log(moves[0].after / peak) / np.log(1e3))
    assert apart == pytest.approx(what_mattered.MOVE)
    true = 100 * (1 - LUCK) ** 0.5 * 0.1**2 / (0.0341 - (0.37 / 3) ** 2) ** 0.5
    assert 0 < moves[0].fall.low < true < moves[0].fall.high
    assert all(move.fall.low <= 0 for move in moves[1:])
    assert all(move.after != winner[move.name] for move in moves)


def test_a_share_that_may_be_nothing_or_most_is_open() -> None:
    assert Estimate(0.3, 0.0, 0.7).is_open
    assert not Estimate(0.3, 0.1, 0.7).is_open
    assert not Estimate(0.02, 0.0, 0.1).is_open
    assert str(Estimate(0.6, 0.349, 0.801)) == "60% (35 to 80%)"


def test_a_rare_large_draw_leaves_the_mean_in_its_interval() -> None:
    """A bar's line would have a negative length, which matplotlib refuses."""
    found = Estimate.of(np.array([0.9, *[0.0] * 99]))
    assert found.low <= found.mean <= found.high
