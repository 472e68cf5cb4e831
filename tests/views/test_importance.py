"""Which parameters the report names, on simulated sweeps whose truth is known; half of their trials were stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.importance import simulate_sweep
from rltune.records import Direction, TrialRecord
from rltune.search.space import Space
from rltune.views.importance import MIN_TRIALS, measure_importance

Simulated = tuple[Space, list[TrialRecord]]


def change(simulated: Simulated, **changes: object) -> Simulated:
    """The sweep with each of its trials changed alike."""
    space, trials = simulated
    return space, [replace(trial, **changes) for trial in trials]  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.nightly  # Eight sweeps of some seconds each.
def test_where_nothing_matters_the_report_is_silent() -> None:
    """One sweep in fifty may name something; `benchmarks.importance` counts how many do."""
    named = [measure_importance(*simulate_sweep("nothing", seed, 20), Direction.MAX).outstanding for seed in range(8)]
    assert sum(map(bool, named)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_a_strong_parameter_stands_out_alone(seed: int) -> None:
    found = measure_importance(*simulate_sweep("lr", seed), Direction.MAX)
    assert found.outstanding == ["lr"]
    assert next(iter(found.increases)) == "lr"
    assert set(found.increases) == {"lr", "gamma", "clip", "relu"}


@pytest.mark.slow
def test_parameters_that_act_only_together_stand_out() -> None:
    assert set(measure_importance(*simulate_sweep("lr where relu", 0), Direction.MAX).outstanding) == {"lr", "relu"}


@pytest.mark.slow
def test_the_same_sweep_has_the_same_importance() -> None:
    simulated = simulate_sweep("lr", 0, 20)
    assert measure_importance(*simulated, Direction.MAX) == measure_importance(*simulated, Direction.MAX)


@pytest.mark.slow
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


def test_failed_trials_and_those_without_scores_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltune.views.importance.NUM_NULL_SWEEPS", 1)  # How much is chance takes seconds.
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
