"""Values and typed words as Hydra's overrides."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import optuna
import pytest
from composing import compose
from hydra.core.override_parser.overrides_parser import OverridesParser

from rltune.compose.composing import compose_settings
from rltune.compose.overrides import (
    quote_free_text,
    spell_settings,
    spell_value,
    spell_word,
    write_range,
    write_whole_numbers,
)
from rltune.config.schema import RunConfig
from rltune.config.validation import parse_config
from rltune.envs.spec import spec_of
from rltune.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("budget.env_steps=1e5", "budget.env_steps=100000"),
        ("budget.env_steps=1e5,2.0e5", "budget.env_steps=100000,200000"),
        ("budget.total_env_steps=3.0", "budget.total_env_steps=3"),
        ("budget.env_steps=1.5", "budget.env_steps=1.5"),
        ("budget.env_steps=inf", "budget.env_steps=inf"),
        ("budget.total_env_steps=null", "budget.total_env_steps=null"),
        ("budget.wall_time_s=1e3", "budget.wall_time_s=1e3"),
        ("algo.training.lr=1e0", "algo.training.lr=1e0"),
        ("no.such.key=1e5", "no.such.key=1e5"),
        ("-m", "-m"),
    ],
)
def test_a_whole_number_may_be_written_as_a_float(typed, read):
    assert write_whole_numbers(typed, RunConfig) == read


def read_back(value):
    """What Hydra reads where a value was spelled."""
    parsed = OverridesParser.create().parse_override(f"key={spell_value('key', value)}")
    return parsed.value()


@pytest.mark.parametrize(
    "value",
    [0, -3, 10**12, 1e-5, 1e300, -0.5, True, False, None, "", "null", "true", "1e5", "a b", "it's", '"', "\\", "a\\'b",
     "\\\\'", "end\\", "x=y,z", "{a: 1}", "[1]", "é", "(", "#", ["loguniform", 1e-4, 1e-2], [], [[64, 64], [256]],
     {"a": 1, "b": ["c", None]}],
)  # fmt: skip
def test_a_value_is_read_back_as_it_was(value):
    assert read_back(value) == value
    assert type(read_back(value)) is type(value)


def test_any_text_is_read_back_as_it_was():
    draw = random.Random(0)
    texts = ["".join(draw.choices("\\'\"ab,=$ {}[]()#", k=draw.randint(0, 6))).replace("$", "") for _ in range(500)]
    assert [text for text in texts if read_back(text) != text] == []


def test_values_of_numpy_tuples_and_paths_are_taken():
    assert read_back(np.float32(0.5)) == 0.5
    assert read_back(np.int64(3)) == 3
    assert read_back(np.bool_(True)) is True
    assert read_back(np.array([1, 2])) == [1, 2]
    assert read_back((1, "a")) == [1, "a"]
    assert read_back(Path("/a b")) == "/a b"


@pytest.mark.parametrize("key", ["env.kwargs.weights", "env.wrappers", "score.env.kwargs", "space.train_env.kwargs.w"])
def test_an_array_of_an_environment_stays_an_array(key):
    word = spell_value(key, {"each": [np.array([0.5, 2], np.float32)]})
    array = {"_target_": "numpy.array", "object": [0.5, 2.0], "dtype": "float32"}
    assert OverridesParser.create().parse_override(f"x={word}").value() == {"each": [array]}


def test_ranges_of_an_environments_arguments_are_read():
    assert write_range("+space.env.kwargs.repeat=randint(1,3)") == "+space.env.kwargs.repeat=[randint,1,3]"


@pytest.mark.parametrize("value", [object(), dict, {1, 2}, b"x", lambda: 1])
def test_a_value_that_no_setting_can_have_is_refused_by_its_key(value):
    with pytest.raises(ConfigError) as refused:
        list(spell_settings({"env": {"kwargs": {"size": value}}}))
    assert refused.value.what.startswith("env.kwargs.size=")


class Domain:
    """As a range of Ray Tune, which is not imported here: its sampler says which scale and which steps it has."""

    __module__ = "ray.tune.search.sample"

    def __init__(self, lower, upper, sampler="_Uniform", q=None, **more):
        drawn = type(sampler, (), more)()
        self.lower, self.upper, self.sampler = lower, upper, drawn
        if q is not None:
            self.sampler = type("Quantized", (), {"sampler": drawn, "q": q})()


class Float(Domain):
    """As Ray Tune's."""

    __module__ = Domain.__module__


class Integer(Domain):
    """As Ray Tune's, which ends before its upper end, but for one in steps."""

    __module__ = Domain.__module__


class Categorical:
    """As Ray Tune's."""

    __module__ = Domain.__module__

    def __init__(self, *values):
        self.categories = values


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (Float(0, 1.0), "['uniform',0,1.0]"),
        (Float(0.1, 1.0, "_LogUniform"), "['loguniform',0.1,1.0]"),
        (Float(0.0, 1.0, q=0.1), "['quniform',0.0,1.0,0.1]"),
        (Integer(1, 5), "['randint',1,4]"),
        (Integer(1, 5, "_LogUniform"), "['lograndint',1,4]"),
        (Integer(2, 10, q=2), "['randint',2,10,2]"),
        (Categorical(1, "relu", [64, 64]), "['choice',1,'relu',[64,64]]"),
        (optuna.distributions.FloatDistribution(0.1, 1, log=True), "['loguniform',0.1,1.0]"),
        (optuna.distributions.IntDistribution(1, 4), "['randint',1,4]"),
        (optuna.distributions.IntDistribution(1, 4, log=True), "['lograndint',1,4]"),
        (optuna.distributions.IntDistribution(5, 20, step=5), "['randint',5,20,5]"),
        (optuna.distributions.FloatDistribution(0.5, 2.0, step=0.5), "['quniform',0.5,2.0,0.5]"),
        (optuna.distributions.CategoricalDistribution([1, None]), "['choice',1,null]"),
    ],
)
def test_a_range_of_another_tool_is_searched(value, form):
    assert list(spell_settings({"space": {"lr": value}})) == [f"++space.lr={form}"]


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("space.lr", Float(0.1, 1.0, "_LogUniform", q=0.1), "space.lr=['loguniform', 0.1, 1.0]"),
        ("space.lr", Integer(2, 10, "_LogUniform", q=2), "space.lr=['lograndint', 2, 10]"),
        ("space.lr", Float(-math.inf, math.inf, "_Normal", mean=1.0, sd=0.5), "space.lr=['uniform', 0.0, 2.0]"),
        ("algo.training.lr", Float(0, 1.0), "space.lr=['uniform', 0, 1.0]"),
        ("env.kwargs.size", Categorical(4, 8), "space.env.kwargs.size=['choice', 4, 8]"),
        ("space.lr", type("Function", (), {"__module__": Domain.__module__})(), "see docs/search-spaces.md"),
    ],
)
def test_a_range_that_cannot_be_searched_has_a_neighbour(key, value, fix):
    with pytest.raises(ConfigError) as refused:
        spell_value(key, value)
    assert refused.value.fix == fix
    assert refused.value.key == key


@pytest.mark.ray
def test_ray_tunes_own_ranges_are_searched():
    from ray import tune

    ranges = {"lr": tune.loguniform(1e-4, 1e-2), "num_epochs": tune.randint(1, 5), "gamma": tune.choice([0.9, 0.99])}
    settings = parse_config(compose_settings("run", RunConfig, list(spell_settings({"space": ranges}))))
    assert settings.space["lr"] == ["loguniform", 1e-4, 1e-2]
    assert settings.space["num_epochs"] == ["randint", 1, 4]
    assert settings.space["gamma"] == ["choice", 0.9, 0.99]
    steps = {"lr": tune.quniform(0, 1, 0.1), "num_epochs": tune.qrandint(2, 10, 2)}
    assert list(spell_settings({"space": steps})) == [
        "++space.lr=['quniform',0,1,0.1]",
        "++space.num_epochs=['randint',2,10,2]",
    ]
    for lossy in (tune.qloguniform(1e-4, 1e-2, 1e-4), tune.randn(), tune.sample_from(lambda spec: 1)):
        with pytest.raises(ConfigError):
            spell_value("space.lr", lossy)


@pytest.mark.parametrize("mapping", ["{speaker*: a, listener*: b}", '{"speaker*": a, "listener*": b}'])
@pytest.mark.parametrize("plus", ["", "++"])
def test_patterns_of_agents_replace_those_of_the_file(mapping, plus):
    settings = compose_settings("run", RunConfig, ["env=simple_speaker_listener", f"{plus}env.policies={mapping}"])
    assert settings.env.policies == {"speaker*": "a", "listener*": "b"}
    given = {"env": {"id": "mpe2.simple_speaker_listener_v4", "policies": {"speaker*": "a", "listener*": "b"}}}
    assert compose_settings("run", RunConfig, list(spell_settings(given))).env.policies == given["env"]["policies"]


def test_one_agent_may_have_another_policy_than_in_the_file():
    words = ["env=simple_speaker_listener", "++env.policies.listener_0=b"]
    policies = compose_settings("run", RunConfig, words).env.policies
    assert policies == {"speaker_0": "speaker", "listener_0": "b"}


def test_nested_settings_are_spelled_by_their_keys():
    given = {"algo": "dqn", "budget": {"trials": 4}, "space": {"lr": 1e-3}, "env": {"kwargs": {}}}
    assert list(spell_settings(given)) == ["algo='dqn'", "budget.trials=4", "++space.lr=0.001", "++env.kwargs={}"]


@pytest.mark.parametrize(
    ("typed", "bound"),
    [
        ("constraints.train_s=< 60", "< 60"),
        ("constraints.train_s=<60", "<60"),
        ("constraints.train_s=>= -1e3", ">= -1e3"),
        ("+constraints.episode_length_mean=> 100", "> 100"),
        ('constraints.train_s="< 60"', "< 60"),
        ("constraints.train_s=null", None),
    ],
)
def test_a_bound_is_typed_without_hydras_quotes(typed, bound):
    settings = compose_settings("run", RunConfig, [typed])
    assert bound in settings.constraints.values()


def test_what_is_no_bound_is_left_as_it_was_typed():
    for word in (
        "space.lr=[uniform,0,1]",
        "space.layers=[choice,[64,'a b'],{a: \"c,d\"}]",
        "name=[a",
        "name='<x",
        "--cfg",
        "constraints={train_s: '< 60'}",
        "constraints.train_s=60",
    ):
        assert quote_free_text(word) == word


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("/tmp/Läufe (neu)", "/tmp/Läufe (neu)"),
        ("北京", "北京"),
        ("مرحبا, 上海".replace(", ", "\\,"), "مرحبا,上海"),
        ("don't", "don't"),
        ("run (1)", "run (1)"),
        ("run[1]", "run[1]"),
        ("~/data; a&b=c", "~/data; a&b=c"),
        ("50€/${oc.env:HOME}", "50€/${oc.env:HOME}"),
        ("C:\\ü\\", "C:\\ü\\"),
        ("[北京,[1,'ü, b'],{at: Łódź (PL), url: http://é/?a=b}]", ["北京", [1, "ü, b"], {"at": "Łódź (PL)", "url": "http://é/?a=b"}]),
        ("{city: Zürich, size: 4, map: \"x\"}", {"city": "Zürich", "size": 4, "map": "x"}),
    ],
)  # fmt: skip
def test_a_text_in_any_script_is_taken_as_it_was_typed(typed: str, value: object) -> None:
    assert OverridesParser.create().parse_override(quote_free_text(f"x={typed}")).value() == value


@pytest.mark.parametrize("typed", ["北京,ü", "choice(北京,ü)"])
def test_several_texts_in_any_script_are_several(typed: str) -> None:
    several = OverridesParser.create().parse_override(quote_free_text(f"x={typed}"))
    assert [text.strip("'") for text in several.sweep_string_iterator()] == ["北京", "ü"]


@pytest.mark.parametrize("value", ["https://h.example/x?a=b&c", 'mail -s "done" me@x.org'])
def test_an_address_to_be_told_needs_no_quotes_of_hydra(value):
    (parsed,) = OverridesParser.create().parse_overrides([quote_free_text(f"notify={value}")])
    assert parsed.value() == value


@pytest.mark.parametrize("word", ["notify=null", "notify='http://h/'", "notify=${oc.env:RLTUNE_NOTIFY}", "name=a"])
def test_what_hydra_reads_by_itself_is_left_as_it_is(word):
    assert quote_free_text(word) == word


@pytest.mark.parametrize("name", ["1.10", "1e3", "007", "true", "1_0", "nan", "12"])
def test_a_name_that_looks_like_a_number_stays_text(name):
    (parsed,) = OverridesParser.create().parse_overrides([quote_free_text(f"name={name}")])
    assert parsed.value() == name


def test_a_range_may_be_written_as_a_call():
    assert spell_word("space.lr=loguniform(1e-4,1e-2)", RunConfig) == "space.lr=[loguniform,1e-4,1e-2]"
    assert spell_word("space.lr=choice(1,2)", RunConfig) == "space.lr=choice(1,2)"  # This is Hydra's, for -m.
    assert spell_word("space.lr=tune.loguniform(1e-4,1e-2)", RunConfig) == "space.lr=[loguniform,1e-4,1e-2]"
    assert spell_word("space.lr=tune.choice([1,2])", RunConfig) == "space.lr=[choice,1,2]"
    assert spell_word("space.lr=grid_search([1,2])", RunConfig) == "space.lr=[grid_search,1,2]"
    assert spell_word("space.lr=sort([1,2])", RunConfig) == "space.lr=sort([1,2])"


def test_a_leaf_of_a_tuple_is_named_by_its_number() -> None:
    for word in ("env.encode={0: flat, 1.camera: image}", "env.encode.0=flat"):
        settings = compose("run", "env=gym", "env.id=Any-v0", spell_word(word, RunConfig))
        assert spec_of(parse_config(settings).env).encode["0"] == "flat"


@pytest.mark.parametrize(
    ("word", "plus"),
    [
        ("env.kwargs={size: 4}", "++"),
        ("env.encode={camera: image}", "++"),
        ("env.encode.robot.camera=flat", "++"),
        ("env.kwargs.size=4", ""),
        ("+env.kwargs={size: 4}", ""),
        ("env.id=CartPole-v1", ""),
    ],
)
def test_an_environments_own_keys_are_added(word: str, plus: str) -> None:
    assert spell_word(word, RunConfig) == plus + word


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stop": {"env_runners/episode_return_mean": 400}}, ["stop={env_runners/episode_return_mean: 400}"]),
        ({"env": {"id": "a", "kwargs": {"b/c": 1}}}, ["++env.id='a'", "++env.kwargs={b/c: 1}"]),
        ({"metrics": {"rewards.forward": "sum"}}, ["++metrics.rewards.forward='sum'"]),
        ({"constraints": {"learner/vf_loss": "< 3"}}, ["++constraints.learner.vf_loss='< 3'"]),
    ],
)
def test_a_mapping_with_names_that_are_no_keys_is_one_value(settings, words):
    assert list(spell_settings(settings)) == words
    for word in words:
        OverridesParser.create().parse_override(word)


@pytest.mark.parametrize(
    ("key", "kind", "fix"),
    [
        ("scheduler", "AsyncHyperBandScheduler", "scheduler=asha"),
        ("scheduler", "HyperBandScheduler", "scheduler=hyperband"),
        ("scheduler", "PopulationBasedTraining", "scheduler=asha"),
        ("scheduler", "FIFOScheduler", "scheduler=none"),
        ("searcher", "OptunaSearch", "searcher=tpe"),
        ("searcher", "GPSampler", "searcher=gp"),
    ],
)
def test_an_object_of_another_tool_leads_to_a_file(key, kind, fix):
    foreign = type(kind, (), {"__module__": "ray.tune.schedulers"})()
    with pytest.raises(ConfigError) as refused:
        list(spell_settings({key: foreign}))
    assert (refused.value.key, refused.value.fix) == (key, fix)
    assert "ranges" not in refused.value.allowed


def test_a_class_of_an_environment_leads_to_an_id():
    with pytest.raises(ConfigError) as refused:
        list(spell_settings({"env": Domain}))
    assert refused.value.fix == "env={'id': 'ray.tune.search.sample:Domain'}"
