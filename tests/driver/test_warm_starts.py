"""What a search tries first, when ranges are widened, and what it is shown of earlier sweeps."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from composing import compose
from ledger import add_reports, make_ledger
from opened import make_proposals

from rltune.compose.composing import conf_dir
from rltune.config.settings_file import write_settings
from rltune.config.validation import parse_config
from rltune.driver.plan import make_plan
from rltune.errors import ConfigError, RltuneError
from rltune.ledger.storage import open_ledger
from rltune.records import PLATEAU, TARGET_HELD

SAFE = ("tracking=off",)


def test_a_persons_warm_starts_come_first_and_the_tuned_settings_after_them(make):
    (tuned,) = make().warm_starts
    assert (tuned["lr"], tuned["num_epochs"], tuned["train_batch_size_per_learner"]) == (1e-3, 20, 256)
    assert set(tuned) == {dimension.name for dimension in make().space.dimensions}
    given, after = make(warm_start=[{"lr": 2e-3}]).warm_starts
    assert given == {"lr": 2e-3}
    assert after == tuned


@pytest.mark.parametrize("typed", [[], [{"lr": 2e-3}], [{"lr": 1e-4}, {"gamma": 0.97}], ["tuned", {"lr": 2e-3}]])
def test_the_baseline_is_tuned_whatever_a_person_tries_first(make, typed):
    tuned = make().baseline
    made = make(warm_start=[dict(tuned) if values == "tuned" else values for values in typed])
    assert made.baseline == tuned
    assert made.warm_starts.count(made.baseline) == 1
    origins = [made.fixed_values(number)[1] for number in range(len(made.warm_starts))]
    assert origins == ["warm_start"] * len(typed) + ["tuned"] * ("tuned" not in typed)


def test_a_baseline_outside_its_range_is_said(make):
    """The certification trains it, and the search does not."""
    made = make(algo__training__lr=0.3)
    (note,) = (note for note in made.notes if "lr=0.3" in note)
    assert "space.lr=0.3" in note
    assert made.baseline["lr"] == 0.3
    assert "lr" not in made.fixed_values(0)[0]


def test_the_baseline_has_what_the_space_fixes(make):
    assert make(space={**make().given_settings["space"], "lr": 3e-4}).baseline["lr"] == 3e-4
    assert make(space={"lr": 3e-4}).baseline == {"lr": 3e-4}


def test_without_anything_to_search_there_is_nothing_to_warm_start(make):
    assert make(space={"lr": 3e-4}, warm_start=[]).warm_starts == ()


def test_a_warm_start_of_what_is_not_searched_is_left_out_with_a_note(make):
    made = make(warm_start=[{"lr": 1e-3, "vf_loss_coeff": 0.7}])
    assert made.warm_starts[0] == {"lr": 1e-3}
    assert any("vf_loss_coeff" in note for note in made.notes)


def test_a_warm_start_outside_its_range_is_said_and_not_dropped_in_silence(make):
    made = make(warm_start=[{"lr": 5.0, "num_epochs": 10}])
    assert any("lr=5.0" in note for note in made.notes)
    assert not any("num_epochs" in note for note in made.notes)


def test_a_warm_start_at_the_end_of_a_range_is_within_it(make):
    made = make(warm_start=[{"gamma": 0.95, "lambda_": 0.99, "minibatch_size": 64}])
    assert made.notes == ()
    assert made.space.encode(made.warm_starts[0]).keys() == {"1-gamma", "lambda_", "log2(minibatch_size)"}


def test_tuned_settings_widen_our_ranges_and_none_of_ones_own(make, tmp_path_factory):
    assert make().given_settings["space"]["entropy_coeff"] == ["loguniform", 1e-8, 0.02]
    own = tmp_path_factory.mktemp("conf")
    (own / "space").mkdir()
    (own / "space" / "mine.yaml").write_text("lr: [loguniform, 1e-4, 1e-2]\nentropy_coeff: [uniform, 0.001, 0.1]\n")
    settings = compose("run", *SAFE, "space=mine", "portfolio=off", f"hydra.searchpath=[{own}]")
    made = make_plan(parse_config(settings))
    assert made.given_settings["space"] == {"lr": ["loguniform", 1e-4, 1e-2], "entropy_coeff": ["uniform", 0.001, 0.1]}
    (note,) = made.notes
    assert "entropy_coeff=1e-08" in note, "the first trial is not quite the baseline"
    assert made.fixed_values(0)[0].keys() == {"lr"}
    typed = make(space={"entropy_coeff": ["loguniform", 1e-4, 1e-2]})
    assert typed.given_settings["space"] == {"entropy_coeff": ["loguniform", 1e-4, 1e-2]}, "nor one of the command line"


def test_tuned_settings_widen_no_range_that_ends_at_a_name(make):
    """Nor one at which another range ends, if that would be empty with it: no trial could draw from it."""
    batch, named = ["pow2", 512, 4096], ["pow2", 128, "train_batch_size_per_learner"]
    wider = {
        "train_batch_size_per_learner": [batch, ["pow2", 256, 4096]],
        "minibatch_size": [named, ["pow2", 64, 8192]],
    }
    ranges = {"train_batch_size_per_learner": batch, "minibatch_size": named}
    assert make(space=ranges, wider=wider).given_settings["space"] == ranges | {
        "train_batch_size_per_learner": ["pow2", 256, 4096]
    }
    ranges["minibatch_size"] = ["pow2", 512, "train_batch_size_per_learner"]
    assert make(space=ranges, wider=wider).given_settings["space"] == ranges
    beside = {"train_batch_size_per_learner": [batch, ["or", ["pow2", 256, 4096], 8192]]}
    assert make(space=ranges, wider=beside).given_settings["space"] == ranges


def test_a_warm_start_without_the_parameter_that_bounds_it(make):
    ranges = {
        "train_batch_size_per_learner": ["pow2", 64, 4096],
        "minibatch_size": ["pow2", 32, "train_batch_size_per_learner"],
    }
    starts = [{"minibatch_size": 64}, {"minibatch_size": 64, "train_batch_size_per_learner": 64}]
    made = make(
        space=ranges, warm_start=starts, portfolio=[{"minibatch_size": 256, "train_batch_size_per_learner": 128}]
    )
    assert made.fixed_values(0)[0] == {}
    assert made.fixed_values(1)[0].keys() == {
        "log2(train_batch_size_per_learner)",
        "minibatch_size/train_batch_size_per_learner",
    }
    assert made.portfolio == ()
    assert any("minibatch_size=64" in note for note in made.notes)


def test_a_wider_range_that_names_no_range_to_widen_is_refused(make):
    with pytest.raises(ConfigError) as refused:
        make(wider={"lr": ["loguniform", 1e-5, 0.1]})
    assert refused.value.key == "wider.lr"


def test_a_warm_start_of_an_unknown_name_is_refused_with_the_nearest(make):
    with pytest.raises(ConfigError) as refused:
        make(warm_start=[{"lr": 1e-3}, {"lrr": 1e-3}])
    assert refused.value.what.startswith("warm_start[1].lrr")
    assert "'lr'" in refused.value.allowed


def test_a_warm_start_that_is_no_mapping_is_refused(make):
    with pytest.raises(ConfigError) as refused:
        make(warm_start=[1e-3])
    assert refused.value.what.startswith("warm_start[0]=0.001")


PORTFOLIO = [{"lr": 2e-3, "gamma": 0.98}, {"lr": 1e-4, "clip_param": 0.1}, {"lr": 2e-3, "gamma": 0.98}]


def list_starts(plan, num=6):
    """The origin of each of the first trials, and its learning rate where it is fixed."""
    starts = [plan.fixed_values(number) for number in range(num)]
    return [(origin, given.get("lr")) for given, origin in starts]


def test_a_search_begins_with_tuned_settings_then_the_portfolio(make):
    tried = [("portfolio", 2e-3), ("portfolio", 1e-4), ("searcher", None), ("searcher", None)]
    assert list_starts(make(portfolio=PORTFOLIO), 5) == [("tuned", 1e-3), *tried]
    typed = make(portfolio=PORTFOLIO, warm_start=[{"lr": 5e-4}], published__env_steps=None)
    assert list_starts(typed) == [("warm_start", 5e-4), ("baseline", 1e-3), *tried]
    assert typed.notes == ()


def test_a_sweep_has_its_algorithms_portfolio_or_none(request_of):
    assert make_plan(request_of("tracking=off")).portfolio
    assert make_plan(request_of("tracking=off", "portfolio=off")).portfolio == ()
    assert make_plan(request_of("tracking=off", "algo=dqn")).portfolio == ()


def test_a_configuration_is_completed_by_the_algorithms_file(make):
    second = make(portfolio=PORTFOLIO).portfolio[1]
    assert (second["lr"], second["clip_param"], second["gamma"], second["num_epochs"]) == (1e-4, 0.1, 0.98, 20)


def test_a_small_search_says_what_its_portfolio_does_not_vary(make):
    for trials, num_notes in ((3, 1), (6, 1), (7, 0)):
        notes = make(portfolio=PORTFOLIO, budget__trials=trials).notes
        assert sum("num_epochs" in note and "portfolio=off" in note for note in notes) == num_notes


def test_a_small_search_says_what_warm_starts_do_not_vary(make):
    typed = [dict(make().baseline) | {"lr": lr} for lr in (1e-3, 2e-3)]
    for trials, num_notes in ((2, 1), (4, 1), (5, 0)):
        notes = make(warm_start=typed, portfolio=[], budget__trials=trials).notes
        assert sum("clip_param" in note and "leave lr" not in note for note in notes) == num_notes
    assert not any("as set" in note for note in make(warm_start=typed, portfolio=[], budget__trials=1).notes)


def test_what_a_user_fixes_stays_and_the_rest_is_tried(make):
    space = {"lr": 7e-4, "gamma": ["one_minus_loguniform", 5e-3, 5e-2]}
    made = make(space=space, portfolio=[{"lr": 2e-3, "gamma": 0.99}])
    (start,) = made.portfolio
    assert start == {"gamma": 0.99}
    assert made.space.decode(made.fixed_values(1)[0]) == {"gamma": pytest.approx(0.99), "lr": 7e-4}
    assert made.notes == ()


def test_configurations_outside_of_a_typed_range_are_left_out_with_a_note(make):
    typed = ["loguniform", 1e-3, 1e-2]
    made = make(space={"lr": typed}, portfolio=PORTFOLIO)
    assert list_starts(made, 3) == [("tuned", 1e-3), ("portfolio", 2e-3), ("searcher", None)]
    assert made.given_settings["space"]["lr"] == typed
    (note,) = made.notes
    assert note.startswith("1 of the portfolio's 3 configurations")
    assert "lr outside [loguniform, 0.001, 0.01]" in note


def test_a_resumed_and_extended_sweep_goes_on_in_its_portfolio(open_mine):
    for trials in (3, 5, 12):
        with open_mine(f"budget.trials={trials}", "searcher=random", "portfolio=ppo") as sweep:
            proposals = make_proposals(sweep)
            while record := proposals.propose(False):
                sweep.ledger.trials.end(record.number, "FAIL", "done")
            records = sweep.ledger.trials.records()
    assert [record.origin for record in records] == ["tuned"] + 8 * ["portfolio"] + 3 * ["searcher"]
    assert len({str(record.params) for record in records}) == 12


def test_a_grid_has_no_portfolio(make):
    made = make(space={"num_epochs": ["choice", 5, 20]}, searcher={"kind": "grid"}, portfolio=[{"num_epochs": 5}])
    assert made.portfolio == ()
    assert [made.fixed_values(number)[1] for number in range(2)] == ["tuned", "searcher"]


def test_a_portfolio_that_is_no_list_of_mappings_is_refused(make):
    with pytest.raises(ConfigError) as refused:
        make(portfolio=[3])
    assert refused.value.what.startswith("portfolio[0]=3")


def test_a_configuration_with_an_argument_that_the_algorithm_lacks_is_left_out_with_a_note(make):
    made = make(portfolio=[{"lrr": 1e-3}, {"lr": 2e-3}])
    assert list_starts(made, 3) == [("tuned", 1e-3), ("portfolio", 2e-3), ("searcher", None)]
    (note,) = made.notes
    assert "1 of the portfolio's 2" in note
    assert "lrr" in note


def test_what_the_space_fixes_is_fixed_for_the_baseline_too(request_of):
    plan = make_plan(
        request_of("tracking=off", "env=cartpole", "~tuned", "space.lr=0.005", "space.normalise=[rewards]")
    )
    assert {name: plan.warm_starts[-1][name] for name in ("lr", "normalise")} == {"lr": 0.005, "normalise": ["rewards"]}


@pytest.mark.parametrize("path", sorted((conf_dir() / "portfolio").glob("[!o]*.yaml")), ids=lambda path: path.stem)
def test_shipped_portfolios_lie_in_the_shipped_space(path, request_of):
    algo, env = path.stem, "pendulum" if path.stem == "sac" else "cartpole"
    plan = make_plan(request_of("tracking=off", f"algo={algo}", f"env={env}", f"portfolio={algo}", "~tuned"))
    assert plan.notes == ()
    own, _ = plan.fixed_values(0)
    assert len(plan.portfolio) == sum(plan.space.encode(values) != own for values in plan.given_settings["portfolio"])
    names = {dimension.name for dimension in plan.space.dimensions}
    assert all(values.keys() == names for values in plan.given_settings["portfolio"]), "each names every parameter"


def write_earlier(request_of, name, *overrides, trials=(), changed=None):
    """An ended sweep of CartPole, 1000 steps a trial, over learning rates; trials are (state, params, reports)."""
    plan = make_plan(request_of("tracking=off", "budget.env_steps=1000", *OVER_LR, *overrides))
    folder = Path(plan.given_settings["output_dir"]) / name
    folder.mkdir(parents=True)
    write_settings(folder, plan.given_settings)
    with closing(make_ledger(folder, name)) as ledger:
        for number, (state, params, reports) in enumerate(trials):
            ledger.trials.add(params, [number], drawn=params)
            add_reports(ledger, number, reports)
            if state != "RUNNING":
                ledger.trials.end(number, "PRUNED" if state == "diverged" else state, "", diverged=state == "diverged")


OVER_LR = ("~tuned", "~space", "+space.lr=[loguniform,1e-4,1e-2]")
WHOLE, HALF = {500: 1.0, 1000: 2.0}, {500: 1.5}
TRIALS = [
    ("COMPLETE", {"lr": 1e-3}, WHOLE),
    ("PRUNED", {"lr": 2e-3}, HALF),
    ("diverged", {"lr": 9e-3}, HALF),
    ("COMPLETE", {"lr": 1e-5}, WHOLE),  # outside of the range
    ("FAIL", {"lr": 3e-3}, HALF),
    ("RUNNING", {"lr": 4e-3}, HALF),
]


def show(records):
    return [(record.state, record.diverged, record.params["lr"], dict(record.reports)) for record in records]


def test_trials_of_earlier_sweeps_inside_the_space_are_taken(request_of):
    write_earlier(request_of, "first", trials=TRIALS)
    write_earlier(request_of, "second", trials=[("COMPLETE", {"lr": 5e-3}, WHOLE)])
    ours = (*OVER_LR, "budget.env_steps=1000", "searcher.from_sweeps=[first,second]")
    made = make_plan(request_of("tracking=off", *ours))
    assert show(made.earlier) == [
        ("COMPLETE", False, 1e-3, WHOLE),
        ("PRUNED", False, 2e-3, HALF),
        ("PRUNED", True, 9e-3, HALF),
        ("COMPLETE", False, 5e-3, WHOLE),
    ]
    counted = {note.partition(";")[0].split()[-1]: re.findall(r"\d+", note) for note in made.notes[-2:]}
    assert counted == {"first": ["3", "6"], "second": ["1", "1"]}, "how many are taken of how many"


@pytest.mark.parametrize(
    ("words", "differing"),
    [
        ((), []),
        (("algo.normalise=[rewards]",), ["normalise=['rewards'], here ['observations', 'rewards']"]),
    ],
)
def test_an_earlier_sweep_that_normalised_something_else_is_noted(request_of, words, differing):
    write_earlier(request_of, "first", *words, trials=[("COMPLETE", {"lr": 1e-3}, WHOLE)])
    made = make_plan(request_of("tracking=off", *OVER_LR, "budget.env_steps=1000", "searcher.from_sweeps=[first]"))
    notes = [note.partition(": ")[2] for note in made.notes if note.startswith("first had other settings")]
    assert notes == differing


@pytest.mark.parametrize(
    ("words", "normalised"),
    [
        ((), ["observations", "rewards"]),
        (("algo.normalise=[rewards]",), ["rewards"]),
        (("algo.normalise=[]",), []),
    ],
)
def test_a_sweep_that_searches_what_is_normalised_learns_from_one_that_does_not(request_of, words, normalised):
    write_earlier(request_of, "first", *words, trials=[("COMPLETE", {"lr": 1e-3}, WHOLE)])
    searched = "+space.normalise=[choice,[],[rewards],[observations,rewards]]"
    made = make_plan(request_of("tracking=off", *OVER_LR, searched, "searcher.from_sweeps=[first]"))
    assert [record.params for record in made.earlier] == [{"lr": 1e-3, "normalise": normalised}]
    assert not any("normalise" in note for note in made.notes)


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ((), [1, 2, 3]),
        (("~space.normalise", "algo.normalise=[]"), [1]),
        (("~space.normalise", "algo.normalise=[rewards]"), [2]),
        (("space.normalise=[rewards]",), [2]),
    ],
)
def test_a_sweep_learns_from_trials_that_normalised_what_it_can(request_of, words, taken):
    searched = (*OVER_LR, "+space.normalise=[choice,[],[rewards],[observations,rewards]]")
    parts = [], ["rewards"], ["observations", "rewards"]
    trials = [("COMPLETE", {"lr": 1e-3 * number, "normalise": each}, WHOLE) for number, each in enumerate(parts, 1)]
    write_earlier(request_of, "first", "+space.normalise=[choice,[],[rewards]]", trials=trials)
    made = make_plan(request_of("tracking=off", *searched, *words, "searcher.from_sweeps=[first]"))
    assert [round(1000 * record.params["lr"]) for record in made.earlier] == taken


def test_configurations_that_an_earlier_sweep_has_tried_are_not_repeated(request_of):
    write_earlier(request_of, "first", trials=[("COMPLETE", {"lr": 1e-3}, WHOLE)])
    config = request_of("tracking=off", *OVER_LR, "searcher.from_sweeps=[first]")
    plan = make_plan(replace(config, portfolio=[{"lr": 1e-3}, {"lr": 2e-3}]))
    assert plan.portfolio == ({"lr": 2e-3},)


@pytest.mark.parametrize(
    ("budget", "state", "reports"), [(500, "COMPLETE", {500: 1.0}), (1000, "COMPLETE", WHOLE), (2000, "PRUNED", WHOLE)]
)
def test_earlier_trials_count_as_far_as_this_budget_goes(request_of, budget, state, reports):
    write_earlier(request_of, "first", trials=TRIALS[:1])
    changes = f"budget.env_steps={budget}", "searcher.from_sweeps=[first]"
    (record,) = make_plan(request_of("tracking=off", *OVER_LR, *changes)).earlier
    assert (record.state, dict(record.reports)) == (state, reports)


@pytest.mark.parametrize("reason", [TARGET_HELD, PLATEAU])
def test_earlier_trials_that_ended_early_are_complete(request_of, monkeypatch, reason):
    write_earlier(request_of, "first", trials=TRIALS[:1])
    with closing(open_ledger(Path("outputs/first"))) as opened:
        records = [replace(record, stop_reason=reason) for record in opened.trials.records()]
    monkeypatch.setattr("rltune.ledger.trial_table.TrialTable.records", lambda *_: records)
    changes = "budget.env_steps=2000", "searcher.from_sweeps=[first]"
    (record,) = make_plan(request_of("tracking=off", *OVER_LR, *changes)).earlier
    assert record.state == "COMPLETE"


@pytest.mark.parametrize(
    ("theirs", "ours", "key"),
    [
        ((), ("score.episodes=10",), "score.episodes"),
        (("score.episodes=10",), ("score.episodes=20",), None),
        (("++score.env.kwargs.max_episode_steps=100",), ("score.episodes=10",), "score.env"),
    ],
)
def test_scores_of_other_episodes_teach_nothing(request_of, theirs, ours, key):
    write_earlier(request_of, "first", *theirs, trials=TRIALS[:1])
    request = request_of("tracking=off", *OVER_LR, *ours, "budget.env_steps=1000", "searcher.from_sweeps=[first]")
    if key is None:
        assert len(make_plan(request).earlier) == 1
        return
    with pytest.raises(ConfigError, match=key):
        make_plan(request)


def test_settings_that_neither_sweep_searches_are_told_where_they_differ(request_of):
    write_earlier(request_of, "first", "algo.training.gamma=0.5", trials=TRIALS[:1])
    made = make_plan(request_of("tracking=off", *OVER_LR, "searcher.from_sweeps=[first]"))
    assert "gamma=0.5" in made.notes[-1]
    assert "0.99" in made.notes[-1], "this sweep's own"
    alike = make_plan(request_of("tracking=off", *OVER_LR, "searcher.from_sweeps=[first]", "algo.training.gamma=0.5"))
    assert not any("gamma" in note for note in alike.notes)


def test_an_earlier_trial_without_a_report_inside_this_budget_is_left_out(request_of):
    """It is no bad one: nothing is known of it."""
    write_earlier(request_of, "first", trials=[("COMPLETE", {"lr": 1e-3}, {900: 400.0, 1000: 500.0})])
    changes = "budget.env_steps=800", "searcher.from_sweeps=[first]"
    assert make_plan(request_of("tracking=off", *OVER_LR, *changes)).earlier == ()


def test_a_resumed_sweep_goes_on_though_an_earlier_ones_settings_are_unknown(request_of):
    write_earlier(request_of, "first", trials=TRIALS[:1])
    config = request_of("tracking=off", *OVER_LR, "searcher.from_sweeps=[first]")
    settings = Path(config.output_dir) / "first" / "config.yaml"
    settings.write_text(settings.read_text() + "of_another_version: 1\n")
    made = make_plan(config, Path("mine"))
    assert made.earlier == ()
    assert "searcher.from_sweeps=[first]" in made.notes[-1]
    with pytest.raises(RltuneError, match="from_sweeps"):
        make_plan(config)


def test_a_resumed_sweep_advises_nothing_about_its_first_trials(request_of):
    config = request_of("tracking=off", "~tuned", "~space", "+space.lr=[loguniform,0.1,1]")
    assert any("space.lr=" in note for note in make_plan(config).notes)
    assert not any("space.lr=" in note for note in make_plan(config, Path("mine")).notes)


def test_earlier_trials_are_judged_by_this_sweeps_constraints(request_of):
    """Optuna wants the same constraints of all trials that it is shown."""
    write_earlier(request_of, "first", trials=TRIALS[:1])
    changes = "searcher.from_sweeps=[first]", "constraints.train_s='< 60'"
    (record,) = make_plan(request_of("tracking=off", *OVER_LR, *changes)).earlier
    assert [check.name for check in record.checks] == ["train_s"]


def test_what_only_one_of_two_sweeps_searches_has_the_others_value(request_of):
    """CartPole's algorithm file has num_epochs=10 here, and lr=3e-4."""
    write_earlier(request_of, "first", "algo.training.num_epochs=10", trials=TRIALS[:2])

    def take(*changes):
        plain = "tracking=off", *OVER_LR, "searcher.from_sweeps=[first]"
        return [one.params for one in make_plan(request_of(*plain, *changes)).earlier]

    assert take("+space.num_epochs=[choice,5,10]") == [{"lr": 1e-3, "num_epochs": 10}, {"lr": 2e-3, "num_epochs": 10}]
    assert take("+space.num_epochs=[choice,5,20]") == []
    assert take("+space.num_epochs=10") == [{"lr": 1e-3, "num_epochs": 10}, {"lr": 2e-3, "num_epochs": 10}]
    assert take("+space.num_epochs=5") == []
    assert take("space.lr=2e-3", "+space.num_epochs=[choice,5,10]") == [{"num_epochs": 10, "lr": 2e-3}]


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ("env=acrobot", "env.id=Acrobot-v1", "first"),
        ("algo=a2c", "algo.class=", "first"),
        ("objective.direction=min", "objective.direction=", "first"),
        ("searcher.from_sweeps=[firsst]", "searcher.from_sweeps=firsst", "sweeps.list"),
        ("searcher.from_sweeps=[latest]", "searcher.from_sweeps=[latest]", "sweeps.list"),
        ("searcher=cmaes", "searcher.from_sweeps=[first]: searcher=cmaes", "searcher=rf"),
        ("searcher=random", "searcher.from_sweeps=[first]: searcher=random", "searcher=rf"),
    ],
)
def test_an_earlier_sweep_that_teaches_nothing_is_refused(request_of, change, what, fix):
    write_earlier(request_of, "first", trials=TRIALS)
    with pytest.raises(RltuneError) as refused:
        make_plan(request_of("tracking=off", "searcher.from_sweeps=[first]", *OVER_LR, change))
    assert what in refused.value.what
    assert fix in refused.value.fix


def test_a_resumed_sweep_goes_on_without_an_earlier_one_that_is_gone(request_of):
    config = request_of("tracking=off", "searcher.from_sweeps=[gone]")
    made = make_plan(config, Path("mine"))
    assert made.earlier == ()
    assert "searcher.from_sweeps=gone" in made.notes[-1]


@pytest.mark.parametrize(
    ("searched", "taken"),
    [
        ((), [1]),
        (("+space.env.rewards.scale=[choice,1.0,0.1]",), [1, 2]),
        (("+space.env.rewards.scale=0.1",), [2]),
    ],
)
def test_a_sweep_learns_from_trials_of_its_own_environment(request_of, searched, taken):
    """Values that an earlier sweep has searched in the environment must be those that this sweep has."""
    trials = [("COMPLETE", {"lr": 1e-3, "env.rewards.scale": 1.0}, WHOLE)]
    trials += [("COMPLETE", {"lr": 2e-3, "env.rewards.scale": 0.1}, WHOLE)]
    write_earlier(request_of, "first", "+space.env.rewards.scale=[choice,1.0,0.1]", trials=trials)
    request = request_of("tracking=off", *OVER_LR, *searched, "searcher.from_sweeps=[first]")
    assert [round(1000 * record.params["lr"]) for record in make_plan(request).earlier] == taken
