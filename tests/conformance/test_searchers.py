"""Every searcher of conf/searcher, and samplers that are named by their class: the same questions to each."""

from __future__ import annotations

import importlib.util

import pytest
from omegaconf import OmegaConf
from search_driver import PLAIN, Driver

from rltune.composition.composing import conf_dir
from rltune.config.criteria import Criteria, parse_constraints
from rltune.search.samplers import check_sampler
from rltune.search.space import parse_space

FILES = {path.stem: path for path in sorted((conf_dir() / "searcher").glob("*.yaml"))}
NAMED = {
    "GPSampler": "scipy",
    "CmaEsSampler": "cmaes",
    "QMCSampler": "scipy",
    "NSGAIISampler": None,
}  # and what each needs
CONDITIONAL = parse_space(
    {
        "lr": ["loguniform", 1e-5, 1e-1],
        "use_lstm": ["choice", False, True],
        "cell": ["when", {"use_lstm": True}, ["choice", 32, 64]],
        "hiddens": ["when", {"use_lstm": False}, ["choice", [64, 64], [256, 256]]],
    }
)
ENDS = [{}, {"state": "PRUNED"}, {"state": "PRUNED", "diverged": True}, {"state": "FAIL"}, {}]


@pytest.fixture(params=[*FILES, *NAMED], name="begin")
def begin_search(request, tmp_path):
    """Begins a search in a folder, or goes on with it."""
    name = request.param
    if name in FILES:
        settings = OmegaConf.to_container(OmegaConf.load(FILES[name]))
        kind, args = settings["kind"], settings.get("args", {})
    else:
        if NAMED[name] and not importlib.util.find_spec(NAMED[name]):
            pytest.skip(f"needs {NAMED[name]}")
        kind, args = f"optuna.samplers:{name}", {}
    if "n_startup_trials" in args or name in ("GPSampler", "CmaEsSampler"):
        args = {**args, "n_startup_trials": 3}
    check_sampler(kind, args, PLAIN)
    return lambda folder="sweep", space=PLAIN, new=True: Driver(tmp_path / folder, space, kind, args, new=new)


def run(search, count):
    """Trials that end in all ways; their values."""
    return [dict(search.run(**ENDS[search.ledger.trials.num_trials % len(ENDS)]).params) for _ in range(count)]


def is_inside(params):
    """Whether a trial has what the conditions say, and nothing else."""
    wanted = {"lr", "use_lstm", "cell" if params["use_lstm"] else "hiddens"}
    return set(params) == wanted and 1e-5 <= params["lr"] <= 1e-1


def test_the_first_comment_says_what_the_searcher_is():
    for path in FILES.values():
        assert path.read_text().startswith("# "), path.name


def test_it_proposes_after_ends_of_every_kind(begin):
    found = run(begin(), 8)
    assert len({params["lr"] for params in found}) > 4, "a GP may want to try a point again"
    assert all(1e-5 <= one["lr"] <= 1e-1 and 0.8 <= one["gamma"] <= 1.0 and 64 <= one["batch"] <= 1024 for one in found)


@pytest.mark.filterwarnings("ignore:.*CmaEsSampler")
def test_it_keeps_to_the_conditions(begin):
    assert all(map(is_inside, run(begin(space=CONDITIONAL), 8)))


def test_a_warm_start_is_taken_as_it_is(begin):
    search = begin()
    warm = {"lr": 1e-3, "batch": 256, "gamma": 0.9}
    run(search, 4)
    assert search.run(given=warm).params == warm


def test_it_proposes_where_every_trial_diverged_or_failed(begin):
    search = begin()
    for number in range(5):
        search.run(**ENDS[2 + number % 2], curve={})
    assert search.run().number == 5


def test_it_proposes_while_others_run(begin):
    search = begin()
    run(search, 4)
    records = [search.propose() for _ in range(3)]
    assert len({record.params["lr"] for record in records}) == 3
    for record in reversed(records):
        search.report(record.number, {10: 1.0})
        search.end(record.number)
    assert run(search, 1)


def test_a_killed_search_proposes_what_an_unbroken_one_would(begin):
    """Each driver lives for one trial."""
    unbroken = run(begin("unbroken"), 7)
    broken = []
    for number in range(7):
        search = begin("broken", new=not number)
        broken += run(search, 1)
        search.close()
    assert broken == unbroken


def test_a_lost_study_costs_no_trial(begin):
    search = begin()
    run(search, 5)
    search.close()
    for path in search.folder.glob("study.db*"):
        path.unlink()
    search = begin(new=False)
    run(search, 2)
    assert [trial.params for trial in search.read()] == [one.drawn for one in search.ledger.trials.records()]


def test_it_proposes_after_trials_that_break_a_constraint(begin):
    """Some samplers want the same constraints of all trials that they look at."""
    search = begin()
    search.ledger.judge_by(Criteria(parse_constraints({"train_s": "< 60"}), env_steps=20))
    for number in range(10):
        record = search.propose()
        if number != 4:  # it diverged before it was measured
            search.report(record.number, {10: 1.0})
            search.ledger.trials.change(record.number, train_s=[10.0, 40.0][number % 2])
        search.end(record.number, "COMPLETE" if number % 4 else "PRUNED", diverged=number == 4)
    assert len({record.params["lr"] for record in search.ledger.trials.records()}) > 4
