"""Trials in a unit cube, and back to their values."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from optuna.trial import create_trial

from rltune.search.searchers.unit_cube import UnitCube
from rltune.search.space import parse_space

SPACE = parse_space(
    {
        "lr": ["loguniform", 1e-4, 1e-2],
        "batch": ["lograndint", 1, 4],
        "tau": ["quniform", 0.0, 1.0, 0.25],
        "layers": ["choice", "a", "b", "c", None],
    }
).distributions()
CUBE = UnitCube(SPACE)


def make_trial(**params):
    return create_trial(value=1.0, params=params, distributions={name: SPACE[name] for name in params})


def test_a_trial_comes_back_from_its_place():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trials = [study.ask(SPACE) for _ in range(30)]
    for trial, place in zip(trials, CUBE.place(study.get_trials()), strict=True):
        assert CUBE.read(place) == {**trial.params, "lr": pytest.approx(trial.params["lr"])}


def test_scales_and_ends_are_those_that_are_drawn_on():
    low, middle, high = CUBE.place([make_trial(lr=lr, tau=tau) for lr, tau in ((1e-4, 0), (1e-3, 0.5), (1e-2, 1))])
    assert [low[0], middle[0], high[0]] == pytest.approx([0, 0.5, 1])
    assert [low[2], middle[2], high[2]] == pytest.approx([0.1, 0.5, 0.9]), "each of five steps has a fifth"
    assert np.isnan(low[[1, 3]]).all(), "what a trial lacks is nowhere"


def test_every_value_has_its_piece_up_to_both_ends():
    places = np.linspace(0, 1, 101)[:, None] * np.ones(4)
    values = [CUBE.read(place) for place in places]
    assert {one["layers"] for one in values} == {"a", "b", "c", None}
    assert {one["batch"] for one in values} == {1, 2, 3, 4}
    assert (values[0]["lr"], values[-1]["lr"]) == pytest.approx((1e-4, 1e-2))
    assert CUBE.snap(CUBE.snap(places)) == pytest.approx(CUBE.snap(places))


def test_a_choice_is_an_input_a_value():
    (inputs,) = CUBE.expand(CUBE.place([make_trial(lr=1e-3, batch=1, tau=0.5, layers="b")]))
    assert inputs[2:].tolist() == pytest.approx([0.5, 0, 1, 0, 0])
