"""Conditions of a space: what is drawn, kept, checked and shown where a parameter needs another one's value."""

from __future__ import annotations

import functools
import warnings

import gymnasium
import numpy as np
import optuna
import pytest
from ledger import add_reports, make_ledger
from plans import preflight
from search_driver import Driver

from rltune.algorithms.build import build_config
from rltune.config.settings_file import format_settings, redact_config, write_settings
from rltune.driver.plan import make_plan
from rltune.errors import ConfigError
from rltune.ledger.optuna_study import suggest
from rltune.records import Direction
from rltune.search.conditions import format_yaml_value, is_met, order_parameters
from rltune.search.samplers import build_sampler
from rltune.search.space import parse_space
from rltune.views.analysis import build_space
from rltune.views.importance import measure_importance
from rltune.views.page import describe_values
from rltune.views.plotly_figures import draw_figures
from rltune.views.sweep_view import load_view

RAW = {
    "max_seq_len": ["when", {"lstm_cell_size": [64, 128]}, ["choice", 10, 20]],  # before what it waits for
    "lr": ["loguniform", 1e-4, 1e-2],
    "use_lstm": ["choice", False, True],
    "lstm_cell_size": ["when", {"use_lstm": True}, ["choice", 32, 64, 128]],
    "fcnet_hiddens": ["when", {"use_lstm": False}, ["choice", [64, 64], [256, 256]]],
}
SPACE = parse_space(RAW)


def sensible(params):
    """Whether a trial has what its conditions say, and nothing else."""
    wanted = {"lr", "use_lstm", "lstm_cell_size" if params["use_lstm"] else "fcnet_hiddens"}
    if params.get("lstm_cell_size") in (64, 128):
        wanted.add("max_seq_len")
    return set(params) == wanted


class Search(Driver):
    """A search in which the largest cell pays most."""

    def run(self, given=None):
        record = self.propose(given)
        self.report(record.number, {10: float(record.params.get("lstm_cell_size", 0))})
        self.end(record.number)
        return dict(record.params)


def test_a_condition_is_met_where_every_parent_fits():
    when = {"use_lstm": (True,), "lstm_cell_size": (64, 128)}
    assert is_met(when, {"use_lstm": True, "lstm_cell_size": 128})
    assert not is_met(when, {"use_lstm": True, "lstm_cell_size": 32})
    assert not is_met(when, {"use_lstm": True}), "a parent that was not drawn fits nothing"
    assert is_met({}, {})


def test_parameters_are_ordered_by_their_parents_alone():
    assert order_parameters({"c": {"b": 1}, "x": {}, "b": {"a": 1, "algo_only": 2}, "a": {}}) == ["x", "a", "b", "c"]


def test_values_are_shown_as_yaml_writes_them():
    assert format_yaml_value({"a": [True, None, 0.5], "b": "relu"}) == "{a: [true, null, 0.5], b: relu}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_a_trial_has_the_parameters_whose_conditions_are_met(kind, tmp_path):
    """A trial has exactly the parameters whose conditions hold."""
    search = Search(tmp_path, SPACE, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        proposals = [search.run() for _ in range(20)]
    assert all(map(sensible, proposals))
    assert {params["use_lstm"] for params in proposals} == {True, False}
    assert [dict(record.params) for record in search.ledger.trials.records()] == proposals
    if kind == "tpe":  # it learns within the branch: the largest cell pays most
        late = [params.get("lstm_cell_size") for params in proposals[10:]]
        assert late.count(128) > len(late) / 2


def test_a_warm_start_takes_what_its_own_values_allow(tmp_path):
    warm = [{"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 10, "lr": 1e-3}, {"use_lstm": False, "lr": 2e-3}]
    search = Search(tmp_path, SPACE)
    assert search.run(warm[0]) == warm[0]
    second = search.run(warm[1])
    assert second.pop("fcnet_hiddens") in ([64, 64], [256, 256])
    assert second == warm[1]


def test_every_corner_builds_and_every_value_stands_in_one():
    """Every corner is a configuration and every value stands in one."""
    corners = SPACE.corners()
    assert all(map(sensible, corners))
    for name, values in (
        ("lstm_cell_size", [32, 64, 128]),
        ("max_seq_len", [10, 20]),
        ("fcnet_hiddens", [[64, 64], [256, 256]]),
        ("use_lstm", [False, True]),
    ):
        assert all(any(corner.get(name) == value for corner in corners) for value in values), name
    assert len(corners) == len({str(sorted(corner.items())) for corner in corners}), "each once"


def test_plain_values_and_constants_may_stand_in_conditions():
    """A plain value and a constant may stand in conditions too."""
    space = parse_space({"use_lstm": ["choice", True, False], "vf_share_layers": ["when", {"use_lstm": True}, False]})
    assert {corner.get("vf_share_layers") for corner in space.corners()} == {None, False}
    fixed = parse_space({**RAW, "use_lstm": True})
    assert set(fixed.idle) == {"fcnet_hiddens"}
    assert not next(one for one in fixed.dimensions if one.name == "lstm_cell_size").when
    off = parse_space({**RAW, "use_lstm": False})
    assert set(off.idle) == {"lstm_cell_size", "max_seq_len"}
    own = parse_space({"lr": ["when", {"num_epochs": [4, 8]}, ["uniform", 0, 1]]}, {"num_epochs": 8})
    assert own.names == ("lr",)


REFUSED = {
    "unknown": {"use_lstn": True},
    "never": {"use_lstm": "yes"},
    "one of several": {"num_epochs": [4, 99]},
    "continuous": {"lr": 1e-3},
    "circular": {"other": 1},
    "itself": {"x": 1},
    "none": {},
    "no mapping": "use_lstm",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_condition_that_cannot_be_is_refused_in_three_parts(name):
    condition = REFUSED[name]
    others = {"use_lstm": ["choice", False, True], "lr": ["loguniform", 1e-4, 1e-2], "num_epochs": ["randint", 2, 8]}
    if name == "circular":
        others["other"] = ["when", {"x": 1}, ["choice", 1, 2]]
    with pytest.raises(ConfigError) as refused:
        parse_space({"x": ["when", condition, ["choice", 1, 2]], **others})
    assert refused.value.what.startswith("space.x")
    assert refused.value.allowed
    assert "space.x" in refused.value.fix


@pytest.mark.slow
def test_a_sweep_begins_with_the_algo_files_own_values(request_of):
    """A sweep begins with the files own values and says what a fixed one leaves out."""
    made = make_plan(request_of("algo=ppo", "env=cartpole", "space=ppo_lstm", "searcher=tpe", "~tuned"))
    (first,) = made.warm_starts
    assert first["use_lstm"] is False
    assert "lstm_cell_size" not in first
    assert made.sampler(0)._group
    always = make_plan(request_of("algo=ppo", "env=cartpole", "space=ppo_lstm", "~tuned", "space.use_lstm=true"))
    assert not always.space.is_conditional
    assert "lstm_cell_size" in always.warm_starts[0]
    never = make_plan(request_of("algo=ppo", "env=cartpole", "space=ppo_lstm", "space.use_lstm=false"))
    assert any("lstm_cell_size" in note for note in never.notes)
    replaced = request_of(
        "algo=ppo", "space=ppo_lstm", "space.lstm_cell_size=[when,{vf_share_layers:true},[choice,16]]"
    )
    assert replaced.space["lstm_cell_size"] == ["when", {"vf_share_layers": True}, ["choice", 16]]


class Pictures(gymnasium.Env):
    """Pictures without a meaning: only their form matters here."""

    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (10, 10, 3), dtype=np.uint8), {}

    def step(self, action):
        return self.np_random.integers(0, 256, (10, 10, 3), dtype=np.uint8), 1.0, False, False, {}


gymnasium.register("Pictures-v0", Pictures)
NETWORKS = [
    ("fcnet_hiddens", "[choice,[64,64],[256,256]]", [[64, 64], [256, 256]]),
    ("fcnet_activation", "[choice,tanh,relu,silu]", ["tanh", "relu", "silu"]),
    ("vf_share_layers", "[choice,true,false]", [True, False]),
    ("use_lstm", "[choice,true,false]", [True, False]),
    ("conv_filters", "[choice,[[16,3,2]],[[16,3,2],[32,3,2]]]", [[[16, 3, 2]], [[16, 3, 2], [32, 3, 2]]]),
]


@pytest.mark.parametrize(("name", "form", "values"), NETWORKS, ids=[case[0] for case in NETWORKS])
def test_networks_are_searched_like_any_other_argument(name, form, values, request_of):
    env = ["env=gym", "env.id=Pictures-v0"] if name == "conv_filters" else ["env=cartpole"]
    made = make_plan(request_of("algo=ppo", *env, "~tuned", "~space", f"+space.{name}={form}"))
    preflight(made)  # builds the network of every value
    drawn = []
    for number in range(20):
        study = optuna.create_study(sampler=made.sampler(number))
        drawn.append(made.space.decode(made.space.draw(study.ask()._suggest))[name])
    assert all(value in drawn for value in values)
    for value in values:
        config = build_config(made.build, {name: value}, seed=0)
        assert config.model_config[name] == value


@pytest.mark.slow  # Optuna and Plotly draw
def test_a_report_shows_trials_without_a_parameter_as_such(tmp_path, request_of):
    folder = tmp_path / "s"
    folder.mkdir()
    config = request_of("algo=ppo", "space=ppo_lstm", "~tuned", "budget.env_steps=1000")
    write_settings(folder, redact_config(config))
    made = make_plan(config)
    ledger = make_ledger(folder, "s")
    for number in range(24):
        sampler = build_sampler("random", {}, number, True)
        study = optuna.create_study(sampler=sampler)
        study.enqueue_trial(made.space.encode({"use_lstm": number % 2 == 0}))
        drawn = made.space.draw(functools.partial(suggest, study.ask()))
        ledger.trials.add(made.space.decode(drawn), [number], drawn=drawn)
        add_reports(ledger, number, {1000: 100.0 * (number % 2 == 0) + number % 5})
        ledger.trials.end(number, "COMPLETE", "whole budget", train_s=1.0)
    ledger.change_sweep(config=format_settings(redact_config(config)))
    ledger.close()
    view = load_view(folder)
    (figure,) = draw_figures(view)["parallel"]
    shown = [dict(line.customdata)["lstm_cell_size"] for line in figure.data if line.customdata is not None]
    assert shown.count("None") == 12
    assert set(shown) > {"None"}
    importance = measure_importance(build_space(view), [trial.record for trial in view.trials], Direction.MAX)
    assert {"lr", "use_lstm", "lstm_cell_size"} <= set(importance.increases)
    assert importance.outstanding[:1] == ["use_lstm"]
    (row,) = [row for row in describe_values(view).table.rows if row[0] == "lstm_cell_size"]
    assert row[-1].endswith("use_lstm=true")


def test_what_stock_rllib_trains_is_said_before_the_first_trial(request_of):
    (some,) = preflight(make_plan(request_of("algo=ppo", "env=cartpole", "space=ppo_lstm")))
    assert "use_lstm" in some
    use = ["algo.rl_module.model_config.use_lstm=true", "~space"]
    (all_trials,) = preflight(make_plan(request_of("algo=ppo", *use)))
    assert "use_lstm" in all_trials
    assert all_trials != some
    assert preflight(make_plan(request_of("algo=ppo", "~space"))) == ()


def test_a_memory_that_rllib_would_not_train_is_refused(request_of):
    words = "algo=sac", "env=pendulum", "+algo.rl_module.model_config.use_lstm=true", "~space"
    with pytest.raises(ConfigError, match="SACConfig trains no LSTM") as refused:
        preflight(make_plan(request_of(*words)))
    assert refused.value.allowed
    assert "algo.rl_module.model_config" in refused.value.fix
