"""The random forest: what it learns of stopped and diverged trials, on curves that are computed."""

from __future__ import annotations

import math
import time

import optuna
import pytest
from optuna.trial import TrialState

from rltune.search.samplers import build_sampler
from rltune.search.searchers.random_forest import RandomForestSampler
from rltune.search.space import parse_space

SPACE = parse_space(
    {
        "lr": ["loguniform", 1e-5, 1e-1],
        "gamma": ["uniform", 0.8, 1.0],
        "batch": ["pow2", 64, 1024],
        "layers": ["choice", "small", "large"],
    }
)
BUDGET = 20


def worth(params):
    """What a whole training comes to; at most 0."""
    return -abs(math.log10(params["lr"]) + 3) - 5 * abs(params["gamma"] - 0.95) - (params["layers"] == "small")


def search(count, end, args=None, seed=0, space=SPACE):
    """Trials, one after the other, told as ``end`` does, few of them drawn at random; their params."""
    study = optuna.create_study(direction="maximize")
    for number in range(count):
        study.sampler = build_sampler("rf", {"random_fraction": 0.1, **(args or {})}, 1000 * seed + number)
        trial = study.ask(space.distributions())
        end(study, trial)
    return [one.params for one in study.get_trials()]


def tell(study, trial, marks=BUDGET, value=worth, state=TrialState.COMPLETE):
    """Report a curve that rises to the trial's worth, up to a mark."""
    for mark in range(1, marks + 1):
        trial.report(value(trial.params) - 3 * (1 - mark / BUDGET), mark)
    study.tell(trial, value(trial.params) if state == TrialState.COMPLETE else None, state=state)


def mean_worth(params):
    return sum(map(worth, params)) / len(params)


def test_it_climbs_where_random_draws_do_not():
    by_model = [search(24, tell, seed=seed)[14:] for seed in range(2)]
    at_random = [search(24, tell, {"random_fraction": 1.0}, seed)[14:] for seed in range(2)]
    assert max(map(mean_worth, at_random)) < min(map(mean_worth, by_model)) - 0.3


def test_it_learns_from_stopped_trials_alone():
    """Half of the trials stop early, the others a little later: nothing else is known of any."""

    def stop(study, trial):
        tell(study, trial, 3 + trial.number % 2, state=TrialState.PRUNED)

    by_model = [search(24, stop, seed=seed)[14:] for seed in range(2)]
    at_random = [search(24, stop, {"random_fraction": 1.0}, seed)[14:] for seed in range(2)]
    assert max(map(mean_worth, at_random)) < min(map(mean_worth, by_model))


def test_trials_that_are_young_are_not_taken_for_bad():
    """All of one half of the space were stopped early in their rise, and are no worse at the same mark."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(60):
        trial = study.ask(SPACE.distributions())
        is_young = trial.params["gamma"] > 0.9
        tell(study, trial, 5 if is_young else BUDGET, state=TrialState.PRUNED if is_young else TrialState.COMPLETE)
    gammas = []
    for seed in range(5):
        study.sampler = RandomForestSampler(random_fraction=0.0, seed=seed)
        gammas.append(study.ask(SPACE.distributions()).params["gamma"])
    assert sum(gamma > 0.85 for gamma in gammas) > 3, "0.95 is best, and lies among the young"


@pytest.mark.slow
@pytest.mark.parametrize("outcome", [{"state": TrialState.PRUNED}, {"values": -1e12}])
def test_it_turns_away_from_where_trials_diverge(outcome):
    """Their returns are the best until then; a huge loss is told of them, or no number at all."""

    def end(study, trial):
        if trial.params["lr"] > 1e-2:
            study.tell(trial, **outcome)
        else:
            tell(study, trial, value=lambda params: params["lr"])

    rates = [params["lr"] for seed in range(3) for params in search(28, end, seed=seed)[16:]]
    assert sum(rate > 1e-2 for rate in rates) < 8, "of 36; at random nine would be"
    assert sum(3e-4 < rate < 1e-2 for rate in rates) > 20, "of 36; were the others' differences flattened, 14"


def test_parameters_under_conditions_are_learned_too():
    space = parse_space(
        {
            "lr": ["loguniform", 1e-5, 1e-1],
            "use_lstm": ["choice", False, True],
            "cell": ["when", {"use_lstm": True}, ["randint", 1, 100]],
        }
    )
    study = optuna.create_study(direction="maximize")
    proposals = []
    for number in range(30):
        study.sampler = build_sampler("rf", {"random_fraction": 0.1}, number, conditional=True)
        trial = study.ask()
        drawn = space.draw(lambda label, one, trial=trial: trial._suggest(label, one))
        study.tell(trial, drawn.get("cell", 0) - abs(math.log10(drawn["lr"]) + 3))
        proposals.append(drawn)
    assert sum(one.get("cell", 0) > 80 for one in proposals[20:]) > 5


def test_it_turns_away_from_broken_constraints_by_how_much_they_are_broken():
    """None is kept at first: the larger lr, the better the score, and the more is broken."""
    study = optuna.create_study(direction="maximize")
    rates = []
    for number in range(30):
        study.sampler = build_sampler("rf", {"random_fraction": 0.1}, number)
        trial = study.ask(SPACE.distributions())
        rate = math.log10(trial.params["lr"])
        trial.set_constraint("train_s", rate + 4.5)
        study.tell(trial, rate)
        rates.append(rate)
    assert sum(rate < -4 for rate in rates[15:]) > 10, "of 15; at random it would be four"


def test_the_best_is_tried_again_once_all_of_a_small_space_was_tried():
    space = parse_space({"lr": ["choice", 1e-4, 1e-3, 1e-2]})

    def end(study, trial):
        study.tell(trial, trial.params["lr"])

    proposals = search(20, end, {"random_fraction": 0.0}, space=space)
    assert sum(one["lr"] == 1e-2 for one in proposals[12:]) > 6


@pytest.mark.slow
def test_some_trials_are_drawn_at_random_whatever_the_model_thinks():
    """Which here is that lr is to be large."""

    def end(study, trial):
        study.tell(trial, math.log10(trial.params["lr"]))

    def count_low(fraction):
        proposals = search(60, end, {"random_fraction": fraction})[20:]
        return sum(one["lr"] < 1e-3 for one in proposals)

    assert count_low(0.0) == 0
    assert 5 <= count_low(0.5) <= 15, "half of the forty are random, and half of those are low"


def test_the_seed_decides_what_is_proposed():
    assert search(12, tell, seed=1) == search(12, tell, seed=1) != search(12, tell, seed=2)


def test_a_small_space_is_tried_out_before_a_point_is_repeated():
    space = parse_space({"lr": ["choice", 1e-4, 1e-3, 1e-2], "gamma": ["quniform", 0.8, 1.0, 0.1]})

    def end(study, trial):
        study.tell(trial, trial.params["lr"] * trial.params["gamma"])

    proposals = search(12, end, {"n_startup_trials": 2, "random_fraction": 0.0}, space=space)
    assert len({str(params) for params in proposals[:10]}) >= 9


def test_a_proposal_after_500_trials_takes_a_moment():
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(500):
        tell(study, study.ask(SPACE.distributions()))
    took = []
    for seed in range(4):
        study.sampler = RandomForestSampler(random_fraction=0.0, seed=seed)
        began = time.process_time()
        study.ask(SPACE.distributions())
        took.append(time.process_time() - began)
    assert min(took) < 1.0, "of processor time, the import of scikit-learn left out"


@pytest.mark.parametrize("wrong", [{"n_startup_trials": -1}, {"random_fraction": 1.5}, {"n_estimators": 0}])
def test_arguments_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="random_fraction"):
        RandomForestSampler(**wrong)
