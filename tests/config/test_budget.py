"""What a search's budget still lets begin, what gives it room for more, and which certification fits it."""

from __future__ import annotations

import pytest

from rltune.config.budget import SpentBudget, fit_sizes

STEPS = ("budget.total_env_steps=5000", "budget.env_steps=1000")


def spend(config, num_trials, env_steps):
    return SpentBudget(config.budget, config.replicates, num_trials, env_steps)


@pytest.mark.parametrize(
    ("words", "num_trials", "env_steps", "why"),
    [
        ((), 3, 10**9, None),
        ((), 4, 0, "no trial of budget.trials=4 is left to begin"),
        (STEPS, 3, 4999, None),
        (STEPS, 3, 5000, "budget.total_env_steps is spent"),
        (STEPS, 4, 5000, "no trial of budget.trials=4 is left to begin"),
    ],
)
def test_it_says_why_no_trial_begins(request_of, words, num_trials, env_steps, why):
    assert spend(request_of("budget.trials=4", *words), num_trials, env_steps).explain(0) == why


def test_trials_that_wait_to_be_begun_have_their_place(request_of):
    spent = spend(request_of("budget.trials=4"), 3, 0)
    assert spent.explain(0) is None
    assert "budget.trials=4" in spent.explain(1)


@pytest.mark.parametrize(
    ("words", "num_trials", "env_steps", "wanted", "larger"),
    [
        ((), 3, 10**9, 1, ""),
        ((), 3, 0, 2, "budget.trials=5"),
        (STEPS, 1, 4999, 1, ""),
        (STEPS, 1, 8000, 2, "budget.total_env_steps=10000"),  # spent, by what ran then
        ((*STEPS, "replicates=3"), 4, 6000, 2, "budget.trials=6 budget.total_env_steps=12000"),
    ],
)
def test_what_is_typed_has_room_for_as_many_as_are_wanted(request_of, words, num_trials, env_steps, wanted, larger):
    assert spend(request_of("budget.trials=4", *words), num_trials, env_steps).spell_larger(wanted) == larger


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (("budget.trials=39",), (1, 3)),
        (("budget.trials=40",), (1, 5)),
        (("budget.trials=49",), (1, 5)),
        (("budget.trials=50",), (3, 5)),
        (("budget.trials=60", "certify.top=2"), (2, 5)),
        (("budget.trials=60", "certify.seeds=0"), (3, 0)),
        (("budget.trials=8", "certify=off"), (3, 0)),
    ],
)
def test_certification_grows_with_the_number_of_trials_unless_its_size_is_given(request_of, words, size):
    certify = fit_sizes(request_of("certify=on", *words))[0].certify
    assert (certify.top, certify.seeds) == size
