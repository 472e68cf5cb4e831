"""Every searcher of conf/searcher, and samplers that are named by their class: the same questions to each."""

from __future__ import annotations

import functools
import importlib.util
import math

import optuna
import pytest
from omegaconf import OmegaConf
from search_driver import PLAIN, Driver

from rltune.compose.composing import conf_dir
from rltune.config.criteria import NO_CRITERIA, Criteria, parse_constraints
from rltune.errors import ConfigError
from rltune.ledger.optuna_study import suggest
from rltune.records import Direction
from rltune.search.samplers import build_sampler, check_sampler, check_searcher, get_traits
from rltune.search.space import parse_space

FILES = {path.stem: path for path in sorted((conf_dir() / "searcher").glob("*.yaml"))}
NAMED = ("NSGAIISampler",)
RATES = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
WHOLE_GRID = parse_space({"lr": ["choice", *RATES], "batch": ["pow2", 64, 1024], "gamma": ["quniform", 0.8, 1.0, 0.05]})
FORMS = {
    "env.kwargs.memory": ["choice", False, True],
    "env.kwargs.cell": ["when", {"env.kwargs.memory": True}, ["choice", 32, 64]],
    "hiddens": ["when", {"env.kwargs.memory": False}, ["choice", [64, 64], [256, 256]]],
}
CONDITIONAL = parse_space({"lr": ["loguniform", 1e-5, 1e-1], **FORMS})
CONDITIONAL_GRID = parse_space({"lr": ["choice", *RATES], **FORMS})
ONE = parse_space({"lr": ["loguniform", 1e-5, 1e-1]})
CHOICES = parse_space({"lr": ["choice", *RATES], "hiddens": ["choice", [64, 64], [256, 256]]})
# Each kind of the space's grammar that needs more than a plain range: steps, values beside a range, and named ends of
# integers, floats and logarithms.
GRAMMAR = {
    "lr": ["loguniform", 1e-5, 1e-1],
    "batch": ["pow2", 64, 1024],
    "epochs": ["randint", 5, 20, 5],
    "entropy": ["or", 0, ["loguniform", 1e-5, 1e-2]],
    "clip": ["or", ["uniform", 0.3, 5], None],
    "minibatch": ["pow2", 32, "batch"],
    "steps": ["randint", 1, "batch", 3],
    "size": ["lograndint", 1, "minibatch"],
    "floor": ["or", ["loguniform", 1e-6, "lr"], None],
    "share": ["uniform", 0.0, "lr"],
    "part": ["quniform", 0, "epochs", 2.5],
    "tail": ["one_minus_loguniform", 1e-6, "lr"],
}
GRID = {
    "lr": ["choice", *RATES],
    "batch": ["pow2", 64, 128],
    "epochs": ["randint", 5, 10, 5],
    "entropy": ["or", 0, ["quniform", 0.1, 0.2, 0.1]],
    "minibatch": ["or", ["pow2", 64, "batch"], None],
    "steps": ["randint", 61, "batch", 30],
}
ENDS = [{}, {"state": "PRUNED"}, {"state": "PRUNED", "diverged": True}, {"state": "FAIL"}, {}]


class Begin:
    """Begins a search in a folder, or goes on with it."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.kind, self.args = f"optuna.samplers:{name}", {}
        if name in FILES:
            settings = OmegaConf.to_container(OmegaConf.load(FILES[name]))
            self.kind, self.args = settings["kind"], settings.get("args", {})
        if "n_startup_trials" in self.args:
            self.args = {**self.args, "n_startup_trials": 3}
        self.space = WHOLE_GRID if name == "grid" else PLAIN

    def __call__(self, folder="sweep", space=None, new=True, criteria=NO_CRITERIA):
        space = space or self.space
        check_searcher(get_traits(self.kind), space)
        check_sampler(self.kind, self.args, space)
        return Driver(self.folder / folder, space, self.kind, self.args, new=new, criteria=criteria)


QUICK = ("tpe", "random")  # what most searches are


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*FILES, *NAMED)],
    name="begin",
)
def begin_search(request, tmp_path):
    if request.param == "cmaes" and not importlib.util.find_spec("cmaes"):
        pytest.skip("needs cmaes")
    return Begin(request.param, tmp_path)


def run(search, count):
    """Trials that end in all ways; their values."""
    return [dict(search.run(**ENDS[search.ledger.trials.num_trials % len(ENDS)]).params) for _ in range(count)]


def is_inside(params):
    """Whether a trial has what the conditions say, and nothing else."""
    wanted = {"lr", "env.kwargs.memory", "env.kwargs.cell" if params["env.kwargs.memory"] else "hiddens"}
    return set(params) == wanted and 1e-5 <= params["lr"] <= 1e-1


def test_the_first_comment_says_what_the_searcher_is():
    for path in FILES.values():
        assert path.read_text().startswith("# "), path.name


def test_it_proposes_after_ends_of_every_kind(begin):
    proposals = run(begin(), 8)
    assert len({tuple(one.values()) for one in proposals}) > 4, "a GP may want to try a point again"
    assert len({one["lr"] for one in proposals}) > (2 if begin.name == "grid" else 4)
    assert all(
        1e-5 <= one["lr"] <= 1e-1 and 0.8 <= one["gamma"] <= 1.0 and 64 <= one["batch"] <= 1024 for one in proposals
    )


def test_it_minimizes_costs_as_it_maximizes_their_negatives(begin):
    """Optuna's study has the costs as they are, and the searcher proposes the same configurations for them."""
    maximizing, minimizing = begin("max"), begin("min", criteria=Criteria(direction=Direction.MIN))
    assert run(minimizing, 9) == run(maximizing, 9)
    costs, negatives = ([trial.value for trial in search.read()] for search in (minimizing, maximizing))
    assert costs == [value if value is None else -value for value in negatives]
    assert all(cost is None or cost >= 0 for cost in costs)


def test_it_keeps_to_conditions_or_refuses_them(begin):
    if not get_traits(begin.kind).handles_conditions:
        with pytest.raises(ConfigError, match=r"space\.env\.kwargs\.cell") as caught:
            begin(space=CONDITIONAL)
        assert "searcher=rf" in caught.value.fix
        assert "space.env.kwargs.memory=true" in caught.value.fix
    else:
        assert all(map(is_inside, run(begin(space=CONDITIONAL_GRID if begin.name == "grid" else CONDITIONAL), 8)))


def test_it_searches_one_dimension_or_refuses_it(begin):
    if begin.name == "grid":
        with pytest.raises(ConfigError, match=r"space\.lr=") as caught:
            begin(space=ONE)
        assert caught.value.fix == "'space.lr=[choice,1e-05,0.001,0.1]'"
    else:
        assert len({params["lr"] for params in run(begin(space=ONE), 6)}) > 3


def test_it_searches_choices_alone_or_refuses_them(begin):
    if begin.name == "cmaes":
        with pytest.raises(ConfigError) as caught:
            begin(space=CHOICES)
        assert (caught.value.key, caught.value.fix) == ("searcher", "searcher=rf")
    else:
        assert len({str(params) for params in run(begin(space=CHOICES), 8)}) > 3


def test_equal_objectives_and_none_at_all_are_no_end_of_it(begin):
    search = begin()
    for _ in range(5):
        search.run(curve={10: 1.0, 20: 1.0})
    search.run(curve={10: math.nan})
    search.run("PRUNED", curve={10: math.nan, 20: 1.0})
    assert len({str(search.run(curve={10: -1e300}).params) for _ in range(3)}) > 1


def test_a_warm_start_is_taken_as_it_is(begin):
    search = begin()
    warm = {"lr": 1e-3, "batch": 256, "gamma": 0.9}
    run(search, 4)
    assert search.run(given=warm).params == warm


def test_it_learns_from_the_configurations_that_are_tried_first(begin):
    """Its proposals after tuned settings and a portfolio depend on how well these did."""

    def propose(folder, best):
        search = begin(folder)
        for number in range(12):
            value = 10.0 if number % 3 == best else float(number)
            search.run(curve={10: value, 20: value}, given={"lr": 10.0 ** -(number % 3 + 1), "batch": 64, "gamma": 0.8})
        return [search.run().params for _ in range(4)]

    # CMA-ES and NSGA-II learn from generations that they have drawn themselves.
    assert (propose("first", 0) != propose("last", 2)) == (begin.name in ("tpe", "rf", "gp"))


def test_it_proposes_where_every_trial_diverged_or_failed(begin):
    search = begin()
    for number in range(5):
        search.run(**ENDS[2 + number % 2], curve={})
    assert search.run().number == 5


def test_it_proposes_while_others_run(begin):
    search = begin()
    run(search, 4)
    records = [search.propose() for _ in range(3)]
    assert len({str(record.params) for record in records}) == 3
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


def test_a_grid_tries_each_point_once_over_kills_and_at_once(tmp_path):
    begin = Begin("grid", tmp_path)
    size = CONDITIONAL_GRID.count_points()
    assert size == 5 * (2 + 2)
    search, running = begin(space=CONDITIONAL_GRID), []
    search.run(given={"lr": 1e-3, "env.kwargs.memory": True, "env.kwargs.cell": 64})
    while search.ledger.trials.num_trials < size:
        running.append(search.propose())
        if len(running) == 3:
            record = running.pop(0)
            search.report(record.number, {10: 1.0})
            search.end(record.number, "FAIL" if record.number % 4 else "COMPLETE")
        if search.ledger.trials.num_trials % 5 == 0:
            search = search.restart()
    assert len({str(sorted(one.params.items())) for one in search.ledger.trials.records()}) == size


@pytest.mark.slow  # SciPy is imported for it.
def test_a_sobol_sequence_goes_on_after_a_kill(tmp_path):
    """Cells of equal size get equally many points, as of no draws at random."""
    space = parse_space({"lr": ["loguniform", 1e-4, 1e0], "gamma": ["uniform", 0.0, 1.0]})
    begin = Begin("qmc", tmp_path)
    search = begin(space=space)
    for number in range(17):
        search.run(curve={10: 1.0})
        if number % 6 == 5:
            search = search.restart()
    cells = [
        (math.floor(math.log10(one.params["lr"]) + 4), math.floor(4 * one.params["gamma"]))
        for one in search.ledger.trials.records()[1:]
    ]
    assert len(set(cells)) == 16


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
    assert len({str(record.params) for record in search.ledger.trials.records()}) > 4


RULES = {
    "lr": lambda each: 1e-5 <= each["lr"] <= 1e-1,
    "epochs": lambda each: each["epochs"] in (5, 10, 15, 20),
    "entropy": lambda each: each["entropy"] == 0 or 1e-5 <= each["entropy"] <= 0.2,
    "clip": lambda each: each["clip"] is None or 0.3 <= each["clip"] <= 5,
    "minibatch": lambda each: each["minibatch"] is None or each["minibatch"] in (32, 64, 128, 256, 512, 1024),
    "batch": lambda each: (each["minibatch"] or 0) <= each["batch"] <= 1024,
    "steps": lambda each: each["steps"] <= each["batch"] and each["steps"] % 3 == 1,
    "size": lambda each: type(each["size"]) is int and 1 <= each["size"] <= each["minibatch"],
    "floor": lambda each: each["floor"] is None or 1e-6 <= each["floor"] <= each["lr"],
    "share": lambda each: 0 <= each["share"] <= each["lr"],
    "part": lambda each: each["part"] <= each["epochs"] and each["part"] % 2.5 == 0,
    "tail": lambda each: 1 - each["lr"] - 1e-12 <= each["tail"] <= 1 - 1e-6 + 1e-12,
}


def is_allowed(params):
    """Whether a trial of `GRAMMAR` or `GRID` obeys each bound."""
    return all(rule(params) for name, rule in RULES.items() if name in params)


def test_it_searches_each_kind_of_range(begin):
    """Steps, values beside a range, and other parameters as ends, after trials that ended in every way."""
    space = parse_space(GRID).list_for_grid() if begin.name == "grid" else parse_space(GRAMMAR)
    trials = run(begin(space=space), 5 if begin.name == "gp" else 12)
    assert all(map(is_allowed, trials))
    # A Gaussian process may draw a point again, of which it is not certain.
    assert len({str(params) for params in trials}) >= len(trials) - (begin.name == "gp")


@pytest.mark.nightly
def test_a_thousand_draws_obey_each_bound(begin):
    """After trials that ended in every way; a Gaussian process takes seconds for a draw, and so draws fewer times."""
    if begin.name == "grid":
        pytest.skip("has fewer points, each of which it tries once")
    names = ("lr", "batch", "minibatch", "entropy") if begin.name == "gp" else tuple(GRAMMAR)
    search = begin(space=parse_space({name: GRAMMAR[name] for name in names}))
    run(search, 5 if begin.name == "gp" else 12)
    drawn = []
    for number in range(100 if begin.name == "gp" else 1000):
        sampler = build_sampler(begin.kind, search.args, number, False, 0)
        # As a proposal, but without a trial in the study for each, which would make the later ones slow.
        study = optuna.create_study(sampler=sampler)
        study.add_trials(search.study._study.get_trials())
        drawn.append(search.space.decode(search.space.draw(functools.partial(suggest, study.ask()))))
    assert all(map(is_allowed, drawn))


def test_a_grid_lists_each_allowed_pair_once(tmp_path):
    begin = Begin("grid", tmp_path)
    space = parse_space(GRID).list_for_grid()
    size = space.count_points()
    assert size == 5 * 2 * 3 * ((1 + 1) * 1 + (2 + 1) * 3)
    space = parse_space({name: GRID[name] for name in ("batch", "minibatch", "steps")} | {"lr": 1e-3}).list_for_grid()
    search = begin(space=space)
    for number in range(space.count_points()):
        search.run()
        if number % 5 == 4:
            search = search.restart()
    assert len({str(sorted(each.params.items(), key=str)) for each in search.ledger.trials.records()}) == 11
