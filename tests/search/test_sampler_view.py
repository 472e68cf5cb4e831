"""What a searcher is told of a trial that has ended."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rltune.errors import ConfigError
from rltune.records import OUT_OF_MEMORY, Check, TrialForSampler, TrialRecord
from rltune.search.sampler_view import (
    choose_view,
    tell_as_complete,
    tell_as_pruned,
)
from rltune.search.samplers import get_traits

CURVE = {100: 50.0, 200: 1.0, 300: 7.0, 400: 4.0}
ENDS = {
    "whole": TrialRecord(0, "COMPLETE", {}, CURVE),
    "whole without an episode": TrialRecord(0, "COMPLETE", {}, {100: math.nan}),
    "stopped": TrialRecord(0, "PRUNED", {}, CURVE),
    "stopped after a report without an episode": TrialRecord(0, "PRUNED", {}, {100: 3.0, 200: 5.0, 300: math.nan}),
    "stopped without an episode": TrialRecord(0, "PRUNED", {}, {100: math.nan}),
    "diverged": TrialRecord(0, "PRUNED", {}, CURVE, diverged=True),
    "diverged at once": TrialRecord(0, "PRUNED", {}, diverged=True),
    "failed": TrialRecord(0, "FAIL", {}, CURVE),
    "out of memory": TrialRecord(0, "FAIL", {}, CURVE, stop_reason=f"{OUT_OF_MEMORY}, of which it had 0.5"),
}


@pytest.mark.parametrize(
    ("end", "state", "value", "has_curve"),
    [
        ("whole", "COMPLETE", 4.0, True),
        ("whole without an episode", "PRUNED", None, False),
        ("stopped", "PRUNED", None, True),
        ("stopped after a report without an episode", "PRUNED", None, True),
        ("stopped without an episode", "PRUNED", None, False),
        ("diverged", "PRUNED", None, False),
        ("diverged at once", "PRUNED", None, False),
        ("failed", "FAIL", None, True),
        ("out of memory", "PRUNED", None, False),
    ],
)
def test_what_tpe_is_told(end, state, value, has_curve):
    record = ENDS[end]
    expected = TrialForSampler(state, value, record.scores if has_curve else {})
    assert tell_as_pruned(record, None) == tell_as_pruned(record, -9.0) == expected


@pytest.mark.parametrize(
    ("end", "state", "value"),
    [
        ("whole", "COMPLETE", 4.0),
        ("whole without an episode", "COMPLETE", -9.0),
        ("stopped", "COMPLETE", 4.0),
        ("stopped after a report without an episode", "COMPLETE", 5.0),
        ("stopped without an episode", "COMPLETE", -9.0),
        ("diverged", "COMPLETE", -9.0),
        ("diverged at once", "COMPLETE", -9.0),
        ("failed", "FAIL", None),
        ("out of memory", "COMPLETE", -9.0),
    ],
)
def test_what_a_gp_is_told(end, state, value):
    assert tell_as_complete(ENDS[end], -9.0) == TrialForSampler(state, value, ENDS[end].scores)


@pytest.mark.parametrize("tell", [tell_as_pruned, tell_as_complete])
def test_whole_and_stopped_trials_are_told_by_one_statistic(tell):
    """Optuna's value of a PRUNED trial is the last point of its curve."""
    whole, stopped = (tell(ENDS[end], None) for end in ("whole", "stopped"))
    assert whole.reports == stopped.reports == CURVE
    assert whole.value == stopped.reports[400] == 4.0


def test_a_diverged_trial_has_no_value_while_no_other_has_one():
    assert tell_as_complete(ENDS["diverged"], None) == TrialForSampler("FAIL", None, CURVE)
    assert tell_as_complete(ENDS["stopped"], None).value == 4.0


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        ("tpe", tell_as_pruned),
        ("random", tell_as_pruned),
        ("optuna.samplers:TPESampler", tell_as_pruned),
        ("optuna.samplers:GPSampler", tell_as_complete),
        ("optuna.samplers:CmaEsSampler", tell_as_complete),
        ("optuna.samplers:QMCSampler", tell_as_pruned),
        ("optuna.samplers:NSGAIISampler", tell_as_complete),
        ("rf", tell_as_pruned),
        ("gp", tell_as_complete),
        ("cmaes", tell_as_complete),
        ("grid", tell_as_pruned),
    ],
)
def test_a_sampler_has_the_view_of_its_class(kind, chosen):
    assert choose_view(get_traits(kind)) is chosen


def test_a_sampler_that_derives_from_tpe_sees_what_tpe_sees(monkeypatch):
    import optuna

    monkeypatch.setattr(optuna.samplers, "Mine", type("Mine", (optuna.samplers.TPESampler,), {}), raising=False)
    assert choose_view(get_traits("optuna.samplers:Mine")) is tell_as_pruned


def test_the_view_of_an_unknown_sampler_is_refused():
    with pytest.raises(ConfigError, match=r"searcher\.kind=tpee"):
        choose_view(get_traits("tpee"))


BROKEN = replace(ENDS["whole"], checks=(Check("train_s", "< 60", 75.0, 15.0),))


@pytest.mark.parametrize(("kind", "value"), [("gp", 4.0), ("cmaes", -9.0), ("tpe", 4.0), ("qmc", None)])
def test_constraints_are_hidden_from_a_sampler_that_does_not_heed_them(kind, value):
    """A trial that breaks a constraint but is better than all others would draw the search to where nothing may win."""
    view = choose_view(get_traits(kind), has_constraints=True)
    kept = replace(BROKEN, checks=(Check("train_s", "< 60", 45.0, -15.0),))
    assert view(BROKEN, -9.0).value == value
    assert view(kept, -9.0) == view(ENDS["whole"], -9.0)
