"""Which parameters the report names, on simulated sweeps whose truth is known; many of their trials were stopped."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.importance import simulate_ppo_sweep, simulate_sweep
from benchmarks.records import read_record
from rltune.algorithms.arguments import build_search_space
from rltune.records import Direction, TrialRecord
from rltune.search.space import Space
from rltune.views.importance import MAX_TRIALS, MIN_TRIALS, POWER, explain_silence, measure_importance

Simulated = tuple[Space, list[TrialRecord]]


def change(simulated: Simulated, **changes: object) -> Simulated:
    """The sweep with each of its trials changed alike."""
    space, trials = simulated
    return space, [replace(trial, **changes) for trial in trials]  # type: ignore[arg-type]


def name(simulated: Simulated, direction: Direction = Direction.MAX) -> list[str]:
    """The parameters that stand out."""
    return measure_importance(*simulated, direction).outstanding


def test_where_nothing_matters_the_report_is_silent() -> None:
    """One sweep in fifty may name something; `benchmarks.importance` counts how many do."""
    assert sum(bool(name(simulate_sweep("nothing", seed, 20))) for seed in range(50)) <= 2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_strong_parameter_stands_out_alone(seed: int) -> None:
    importance = measure_importance(*simulate_sweep("lr", seed), Direction.MAX)
    assert importance.outstanding == ["lr"]
    assert next(iter(importance.increases)) == "lr"
    assert set(importance.increases) == {"lr", "gamma", "clip", "relu"}


def test_parameters_that_act_only_together_stand_out() -> None:
    assert set(name(simulate_sweep("lr where relu", 0))) == {"lr", "relu"}


@pytest.mark.slow
def test_the_shipped_sweep_names_what_decides() -> None:
    """PPO's nine parameters, its portfolio, searcher and halving."""
    assert sum(name(simulate_ppo_sweep("lr", seed)) == ["lr"] for seed in range(4)) >= 3


def test_the_page_says_what_the_record_has() -> None:
    record = read_record("importance")
    assert record
    for size, share in POWER.items():
        named = record["results"][f"PPO as shipped, {size} trials"]["lr"].get("lr", 0)
        assert share == pytest.approx(named / record["rounds"], abs=0.05), size
    assert {f"{POWER[48]:.0%}", "48"} <= set(explain_silence(50).split())
    assert "24" in explain_silence(47).split()
    assert "12" in explain_silence(MIN_TRIALS).split()


def test_few_sweeps_of_the_record_name_what_does_not_matter() -> None:
    record = read_record("importance")
    assert record
    for kinds in record["results"].values():
        assert kinds["nothing"].get("any", 0) <= 0.05 * record["rounds"]


def test_the_same_sweep_has_the_same_importance() -> None:
    simulated = simulate_sweep("lr", 0, 20)
    assert measure_importance(*simulated, Direction.MAX) == measure_importance(*simulated, Direction.MAX)


def test_curves_that_rise_in_common_hide_nothing() -> None:
    """All trials get better with training, whatever their values."""
    space, trials = simulate_sweep("lr", 0)
    risen = [
        replace(trial, reports={mark: score + mark / 50 for mark, score in trial.reports.items()}) for trial in trials
    ]
    assert name((space, risen)) == ["lr"]


def test_scores_of_any_size_count_by_their_ranks() -> None:
    space, trials = simulate_sweep("lr", 0)
    huge = [replace(t, reports={mark: 1e26 * score for mark, score in t.reports.items()}) for t in trials]
    assert measure_importance(space, huge, Direction.MAX) == measure_importance(space, trials, Direction.MAX)


def test_a_parameter_that_few_trials_have_is_measured() -> None:
    """Its condition holds in half of the trials, where it decides; in the others it has no value."""
    raw = {
        "lr": ["uniform", -1.0, 1.0],
        "relu": ["choice", False, True],
        "clip": ["when", {"relu": True}, ["uniform", -1.0, 1.0]],
    }
    space = build_search_space({"name": "ppo"}, raw)
    rng, trials = np.random.default_rng(0), []
    for number in range(60):
        lr, clip, relu = *rng.uniform(-1, 1, 2).tolist(), number % 2 == 0
        params = {"lr": lr, "relu": relu} | ({"clip": clip} if relu else {})
        score = (2 * clip if relu else 0.0) + 0.3 * rng.normal()
        trials.append(TrialRecord(number, "COMPLETE", params, {1000: score}))
    assert name((space, trials)) == ["clip"]
    once = [replace(t, params={k: v for k, v in t.params.items() if k != "clip" or t.number < 3}) for t in trials]
    assert all(map(math.isfinite, measure_importance(space, once, Direction.MAX).increases.values()))


def test_late_first_episodes_and_early_stops_leave_no_gap() -> None:
    """A few trials have no score where the others are compared, and a few were stopped before."""
    space, trials = simulate_sweep("lr", 0)
    for number in (3, 4):
        trials[number] = replace(trials[number], reports={1000: math.nan, 2000: math.nan, 3000: math.nan, 4000: 5.0})
    trials[5] = replace(trials[5], reports={1000: trials[5].reports[1000]})
    importance = measure_importance(space, trials, Direction.MAX)
    assert (importance.num_trials, importance.outstanding) == (48, ["lr"])


def test_many_trials_are_measured_by_some_of_them() -> None:
    importance = measure_importance(*simulate_sweep("lr", 0, MAX_TRIALS + 100), Direction.MAX)
    assert importance.num_trials == MAX_TRIALS
    assert "lr" in importance.outstanding


def test_diverged_trials_count_as_the_worst() -> None:
    space, trials = simulate_sweep("nothing", 7)
    gone = [
        replace(trial, state="PRUNED", diverged=True, reports={1000: float("nan")})
        if trial.params["lr"] > 0.4
        else trial
        for trial in trials
    ]
    assert measure_importance(space, gone, Direction.MAX).outstanding == ["lr"]
    costs = [replace(trial, reports={mark: -score for mark, score in trial.reports.items()}) for trial in gone]
    assert measure_importance(space, costs, Direction.MIN) == measure_importance(space, gone, Direction.MAX)


def test_failed_trials_and_those_without_scores_are_left_out() -> None:
    space, trials = simulate_sweep("lr", 0, 12)
    gone: list[TrialRecord] = [replace(trials[0], state="FAIL"), replace(trials[1], reports={})]
    assert measure_importance(space, [*gone, *trials[2:]], Direction.MAX).num_trials == 10


@pytest.mark.parametrize(
    "simulated",
    [
        simulate_sweep("lr", 0, MIN_TRIALS - 1),
        change(simulate_sweep("lr", 0, 12), reports={1000: 5.0}),
        change(simulate_sweep("lr", 0, 12), params={"lr": 0.5}),
        change(simulate_sweep("lr", 0, 12), params={"lr": 5.0}),  # Outside of the range that is searched.
    ],
    ids=["too few trials", "one score", "one value", "no value in the space"],
)
def test_what_cannot_be_measured_names_nothing(simulated: Simulated) -> None:
    assert measure_importance(*simulated, Direction.MAX).increases == {}
