"""Which sampler a searcher file means, and what it may say about it."""

from __future__ import annotations

import shlex
import subprocess
import sys
import warnings
from dataclasses import replace

import optuna
import pytest

from rltune.errors import ConfigError
from rltune.search.samplers import build_sampler, check_sampler, check_searcher, find_known_traits, get_traits
from rltune.search.space import parse_space

SPACE = parse_space({"lr": ["loguniform", 1e-4, 1e-2], "activation": ["choice", "relu", "tanh"]})


class Lowest(optuna.samplers.BaseSampler):
    """A sampler of one's own, which takes no seed: it always proposes the lower end."""

    def __init__(self, margin=0.0):
        self.margin = margin

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, param_name, param_distribution):
        if not isinstance(param_distribution, optuna.distributions.FloatDistribution):
            return param_distribution.choices[0]
        return param_distribution.low + self.margin


LOWEST = f"{__name__}:Lowest"


class Steered(optuna.samplers.CmaEsSampler):
    """A sampler of one's own that derives from one of Optuna's."""


def propose(sampler):
    """What a study's first trials get."""
    study = optuna.create_study(sampler=sampler)
    return [study.ask(SPACE.distributions()).params for _ in range(4)]


def test_the_searchers_that_a_file_may_name():
    assert isinstance(build_sampler("tpe", {"n_startup_trials": 8}, 0), optuna.samplers.TPESampler)
    assert isinstance(build_sampler("random", {}, 0), optuna.samplers.RandomSampler)


def test_a_searchers_arguments_reach_optuna():
    assert build_sampler("tpe", {"n_startup_trials": 3, "multivariate": True}, 0)._n_startup_trials == 3


@pytest.mark.parametrize("kind", ["tpe", "random", "optuna.samplers:TPESampler"])
def test_a_seed_decides_what_is_proposed(kind):
    first, again, other = (propose(build_sampler(kind, {}, seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_sampler_is_built_without_proposing(monkeypatch):
    """A sweep builds one for each trial, and has checked the arguments once."""
    monkeypatch.setattr(optuna, "create_study", lambda **kwargs: pytest.fail("asked a study"))
    build_sampler("tpe", {"n_startup_trials": 8}, 0, conditional=True)


def test_group_is_left_to_whoever_sets_it():
    assert build_sampler("tpe", {}, 0, True)._group
    assert not build_sampler("tpe", {}, 0, False)._group
    assert not build_sampler("tpe", {"group": False}, 0, True)._group
    assert not build_sampler("tpe", {"multivariate": False}, 0, True)._group
    assert isinstance(build_sampler("random", {}, 0, True), optuna.samplers.RandomSampler)


def test_a_sampler_of_ones_own_proposes():
    check_sampler(LOWEST, {"margin": 1e-3}, SPACE)
    proposed = propose(build_sampler(LOWEST, {"margin": 1e-3}, 0, conditional=True))
    assert proposed == [{"lr": pytest.approx(1.1e-3), "activation": "relu"}] * 4


def test_optunas_other_samplers_are_named_by_their_class():
    check_sampler("optuna.samplers:QMCSampler", {"scramble": True}, SPACE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna calls it experimental, which nobody can change
        assert isinstance(build_sampler("optuna.samplers:QMCSampler", {}, 0), optuna.samplers.QMCSampler)


REFUSED = [
    ("tpee", {}, "searcher.kind"),
    ("tpe", {"n_startup": 3}, "searcher.args.n_startup"),
    ("random", {"n_startup_trials": 3}, "searcher.args.n_startup_trials"),
    ("tpe", {"seed": 3}, "searcher.args.seed"),
    ("tpe", {"n_startup_trials": "x"}, "searcher.args"),
    (LOWEST, {"margim": 1}, "searcher.args.margim"),
    (LOWEST, {"margin": "wide"}, "searcher.args"),
    ("nosuchmodule:Sampler", {}, "searcher.kind"),
    ("optuna.samplers:Missing", {}, "searcher.kind"),
    ("os:system", {}, "searcher.kind"),
    ("optuna.pruners:HyperbandPruner", {}, "searcher.kind"),
    (":", {}, "searcher.kind"),
]


@pytest.mark.parametrize(("kind", "args", "key"), REFUSED)
def test_a_searcher_that_makes_no_sense_is_refused(kind, args, key):
    with pytest.raises(ConfigError) as refused:
        check_sampler(kind, args, SPACE)
    assert refused.value.key == key
    assert refused.value.allowed
    assert refused.value.fix


def test_arguments_are_checked_where_nothing_is_searched():
    with pytest.raises(ConfigError) as refused:
        check_sampler("tpe", {"n_startup_trials": "x"}, parse_space({}))
    assert refused.value.key == "searcher.args"


def test_a_check_leaves_optunas_log_as_it_was():
    before = optuna.logging.get_verbosity()
    check_sampler("random", {}, SPACE)
    assert optuna.logging.get_verbosity() == before


def test_cmaes_says_what_it_leaves_to_chance(monkeypatch):
    monkeypatch.setattr("rltune.search.samplers.find_spec", lambda name: object())
    (note,) = check_searcher(get_traits("cmaes"), SPACE)
    assert "activation" in note
    assert check_searcher(get_traits("optuna.samplers:CmaEsSampler"), parse_space({"lr": ["uniform", 0, 1]})) == ()


def test_a_searcher_without_its_package_is_refused_before_a_trial(monkeypatch):
    """Optuna asks for it only when it has trials to learn from."""
    monkeypatch.setattr("rltune.search.samplers.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refused:
        check_searcher(get_traits("cmaes"), SPACE)
    assert "'rltune[cmaes]'" in refused.value.fix


def test_a_grid_is_told_choices_for_all_that_has_no_end():
    space = parse_space(
        {
            "gamma": ["one_minus_loguniform", 0.005, 0.05],
            "lstm": ["choice", False, True],
            "tau": ["when", {"lstm": True}, ["uniform", 0, 1]],
            "layers": ["randint", 1, 3],
        }
    )
    with pytest.raises(ConfigError, match=r"space\.gamma=") as refused:
        check_searcher(get_traits("grid"), space)
    assert shlex.split(refused.value.fix) == [
        "space.gamma=[choice,0.95,0.9842,0.995]",
        "space.tau=[when,{lstm: [true]},[choice,0.0,0.5,1.0]]",
    ]


def test_a_searcher_that_does_not_fit_is_refused_without_optuna():
    code = (
        "import sys; from rltune.search.samplers import check_searcher, get_traits\n"
        "from rltune.search.space import parse_space\n"
        "try: check_searcher(get_traits('grid'), parse_space({'lr': ['uniform', 0, 1]}))\n"
        "except Exception as error: assert error.key == 'searcher', error\n"
        "else: raise SystemExit('let through')\n"
        "assert not {'optuna', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("kind", "heeds"),
    [
        ("tpe", True),
        ("rf", True),
        ("random", True),
        ("optuna.samplers:GPSampler", True),
        ("optuna.samplers:NSGAIISampler", True),
        ("optuna.samplers:CmaEsSampler", False),
        ("optuna.samplers:QMCSampler", False),
    ],
)
def test_which_samplers_heed_constraints(kind, heeds):
    assert get_traits(kind).heeds_constraints is heeds


def test_a_class_that_derives_from_one_of_optunas_has_its_traits():
    kind = f"{__name__}:Steered"
    assert get_traits(kind) == replace(get_traits("cmaes"), name=None, target=kind)
    assert find_known_traits(kind) is None, "its class is not imported for that"
    assert get_traits(LOWEST).learns_from_others
    with pytest.raises(ConfigError, match=r"space\.tau has a condition") as refused:
        check_searcher(
            get_traits(kind), parse_space({"lstm": ["choice", 0, 1], "tau": ["when", {"lstm": 1}, ["uniform", 0, 1]]})
        )
    assert refused.value.what.startswith(f"searcher={kind}:")
