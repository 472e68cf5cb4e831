"""What a person reads when something is wrong."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltune.errors import (
    ABSENT,
    MAX_TEXT,
    ConfigError,
    NonFiniteError,
    PolicyError,
    ResourceError,
    RewardError,
    RltuneError,
    StudyError,
    UnavailableError,
    choices,
    describe_exception,
    nearest,
    spell,
)


def test_an_error_is_printed_in_three_lines():
    """An error is printed in three lines what is wrong what is allowed what to type."""
    error = ConfigError("lrr", 1, "", "'lr'", "lr=1")
    assert error.pretty().splitlines() == ["error: lrr=1", "  allowed: 'lr'", "  try:     lr=1"]
    assert RltuneError("broken").pretty() == "error: broken"


class OwnError(RltuneError):
    """An error whose constructor takes something else."""

    def __init__(self, status: int) -> None:
        super().__init__("is refused", "allowed", "fix", key="host", value="here")
        self.status = status


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("space.lr", [1, None], "is wrong", "allowed", "fix"),
        *(kind("is wrong", "allowed", "fix", key="a", value={}) for kind in (ResourceError, StudyError, PolicyError)),
        NonFiniteError("a loss"),
        RewardError("a reward"),
        OwnError(403),
        StudyError("an object", key="a", value=lambda: None),
    ],
)
def test_an_error_from_a_worker_arrives_whole(error):
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is type(error)
    assert vars(sent) == vars(error)
    assert sent.pretty() == error.pretty()
    assert copy.copy(error).to_dict() == error.to_dict()


@pytest.mark.parametrize("kind", [ConfigError, StudyError, OwnError])
def test_an_error_arrives_as_json_in_another_process(kind):
    error = ConfigError("name", "a=b c\n", ": no name", "allowed", "fix")
    sent = kind.from_dict(json.loads(json.dumps(error.to_dict())))
    assert type(sent) is kind
    assert sent.to_dict() == error.to_dict()
    assert sent.pretty() == error.pretty()


@pytest.mark.parametrize(
    ("value", "printed", "in_json"),
    [
        (0, "0", 0),
        (0.1 + 0.2, "0.3", 0.1 + 0.2),
        (math.nan, "nan", "nan"),
        (-math.inf, "-inf", "-inf"),
        (True, "true", True),
        (None, "null", None),
        ("1e-3", "1e-3", "1e-3"),
        ("heating:Thermo-v0", "heating:Thermo-v0", "heating:Thermo-v0"),
        ("a b", "'a b'", "a b"),
        ("", "''", ""),
        ("a=1 and b=[2", "'a=1 and b=[2'", "a=1 and b=[2"),
        ("it's\n'so'", "\"it's\\n'so'\"", "it's\n'so'"),
        (["uniform", 0, 1e-4], "[uniform,0,0.0001]", "[uniform,0,0.0001]"),
        (["a ] b", None, [True]], "['a ] b',null,[true]]", "['a ] b',null,[true]]"),
        ({"gravity": 9.8, "on": False}, "{gravity:9.8,on:false}", "{gravity:9.8,on:false}"),
    ],
)
def test_a_value_is_printed_and_is_json(value, printed, in_json):
    error = ConfigError("some.key", value, "is wrong")
    assert error.what == f"some.key={printed} is wrong"
    assert (error.key, error.to_dict()["value"]) == ("some.key", in_json)
    json.dumps(error.to_dict(), allow_nan=False)


TEXT = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"], include_characters="\n\t"))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(PLAIN, lambda items: st.lists(items) | st.dictionaries(TEXT, items), max_leaves=5)


@given(value=VALUES, problem=TEXT)
def test_no_value_and_no_problem_changes_another_part(value, problem):
    error = ConfigError("some.key", value, problem, "allowed", "fix")
    assert (error.key, error.problem, error.allowed, error.fix) == ("some.key", problem, "allowed", "fix")
    assert error.what.startswith(f"some.key={spell(value)}")
    if value is None or isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= MAX_TEXT):
        assert error.value == value
    parts = json.loads(json.dumps(error.to_dict(), allow_nan=False))
    assert ConfigError.from_dict(parts).to_dict() == pickle.loads(pickle.dumps(error)).to_dict() == parts


def test_a_long_value_is_cut_where_it_is_kept_and_printed():
    for value in ("a" * 10**6, ["a" * 10**6], {"a": "b" * 10**6}):
        error = ConfigError("key", value, "is wrong")
        assert len(error.what) < MAX_TEXT + 20
        assert len(error.to_dict()["value"]) == MAX_TEXT


@pytest.mark.parametrize("value", [ABSENT, 1])
@pytest.mark.parametrize("problem", ["is wrong", ": wrong", ", wrong", ""])
def test_the_parts_are_joined_as_a_sentence(value, problem):
    what = ConfigError("key", value, problem).what
    assert what.removeprefix("key").removeprefix("=1").strip() == problem
    assert " :" not in what
    assert " ," not in what
    assert what == what.strip()
    assert RltuneError(problem).what == problem, "an error need not concern a setting"


def test_no_value_is_not_the_value_null():
    assert ConfigError("env.id", ABSENT, "has no value").what == "env.id has no value"
    assert ConfigError("env.id", None, "is wrong").what == "env.id=null is wrong"
    assert RltuneError("broken").to_dict() == {
        "error": "broken",
        "key": None,
        "value": None,
        "allowed": "",
        "try": "",
        "exit_code": 2,
    }


def test_what_is_allowed_ends_with_the_nearest_name():
    """The nearest name comes after all that there are."""
    assert choices("zzz", ["ppo", "dqn"]).endswith("dqn, ppo")
    assert choices("pp0", ["ppo", "dqn"]).startswith(choices("zzz", ["ppo", "dqn"]))
    assert "'ppo'" in choices("pp0", ["ppo", "dqn"])
    assert nearest("zzz", ["ppo", "dqn"]) is None
    assert nearest("nonsense", ["certify", "constraints"]) is None
    assert nearest("frobnicate", ["probe", "record"]) is None
    assert nearest("learning_rate", ["lr", "gamma"]) == "lr"
    assert nearest("PPO", ["dqn", "ppo"]) == "ppo"


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("n_steps", ["num_epochs", "train_batch_size_per_learner"], "train_batch_size_per_learner"),
        ("TD3", ["ppo", "sac"], "sac"),
        ("qr-dqn", ["dqn", "rainbow"], "rainbow"),
        ("halving", ["hyperband", "asha"], "asha"),
        ("td3", ["ppo"], None),
    ],
)
def test_names_of_other_libraries_are_understood(name: str, known: list[str], meant: str | None) -> None:
    assert nearest(name, known) == meant


def test_nothing_to_choose_from_is_said_as_a_person_would():
    assert choices("zzz", [])


def test_another_librarys_error_is_named_by_its_first_line():
    assert describe_exception(ValueError("\nlevel\n  line 3")) == "ValueError: level"
    assert describe_exception(AssertionError()) == "AssertionError", "an assertion has no message"


def test_an_error_names_its_key_and_its_exit_code():
    assert ConfigError("training.lr", 2, "large").key == "training.lr"
    assert RltuneError("policy missing").key == ""
    assert ConfigError("name", "x", "").exit_code == 2
    assert UnavailableError("", key="tracking.uri", value="http://127.0.0.1:9").exit_code == 75


def test_the_first_of_several_causes_is_named_too() -> None:
    def raise_chain() -> None:
        try:
            try:
                float("one")
            except ValueError as error:
                raise SystemError("a call returned with an exception") from error
        except SystemError as error:
            raise TypeError("the function must not return a tuple") from error

    with pytest.raises(TypeError) as raised:
        raise_chain()
    text = describe_exception(raised.value)
    assert text.startswith("TypeError: the function must not return a tuple, caused by ValueError: could not convert")
    assert describe_exception(raised.value.__cause__.__cause__).startswith("ValueError")  # type: ignore[union-attr, arg-type]
    again = OSError("closed")
    again.__cause__ = ValueError("closed")
    assert describe_exception(again) == "OSError: closed"
