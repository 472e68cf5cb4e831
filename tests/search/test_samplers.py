"""Which sampler a searcher file means, and what it may say about it."""

from __future__ import annotations

import optuna
import pytest

from rltune.errors import ConfigError
from rltune.search.samplers import build_sampler


def propose(kind, args):
    """The first proposal of a sampler, which is where Optuna looks at some arguments."""
    study = optuna.create_study(sampler=build_sampler(kind, args, 0))
    return study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})


def test_the_searchers_that_a_file_may_name():
    assert isinstance(build_sampler("tpe", {"n_startup_trials": 8}, 0), optuna.samplers.TPESampler)
    assert isinstance(build_sampler("random", {}, 0), optuna.samplers.RandomSampler)


def test_a_searchers_arguments_reach_optuna():
    assert build_sampler("tpe", {"n_startup_trials": 3, "multivariate": True}, 0)._n_startup_trials == 3


@pytest.mark.parametrize(
    ("kind", "args", "what", "allowed"),
    [
        ("tpee", {}, "searcher.kind=tpee", "'tpe'"),
        ("tpe", {"n_startup": 3}, "searcher.args.n_startup=3", "'n_startup_trials'"),
        ("random", {"n_startup_trials": 3}, "searcher.args.n_startup_trials=3", ""),
        ("tpe", {"seed": 3}, "searcher.args.seed=3", ""),
        ("tpe", {"n_startup_trials": "x"}, "searcher.args", "Optuna"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_searcher_that_makes_no_sense_is_refused(kind, args, what, allowed):
    with pytest.raises(ConfigError) as refused:
        propose(kind, args)
    assert what in refused.value.what
    assert allowed in refused.value.allowed
    assert "searcher" in refused.value.fix
