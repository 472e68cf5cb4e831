"""What a person reads when something is wrong."""

from __future__ import annotations

import pickle

import pytest

from rltune.errors import (
    ConfigError,
    NonFiniteError,
    PolicyError,
    ResourceError,
    RltuneError,
    StudyError,
    UnavailableError,
    choices,
    describe_exception,
    nearest,
)


def test_an_error_is_printed_in_three_lines():
    """An error is printed in three lines what is wrong what is allowed what to type."""
    error = ConfigError("lrr=1", "'lr'", "lr=1")
    assert error.pretty().splitlines() == ["error: lrr=1", "  allowed: 'lr'", "  try:     lr=1"]
    assert RltuneError("broken").pretty() == "error: broken"


@pytest.mark.parametrize("kind", [ConfigError, ResourceError, StudyError, PolicyError, NonFiniteError])
def test_an_error_from_a_worker_arrives_whole(kind):
    sent = pickle.loads(pickle.dumps(kind("what", "allowed", "fix")))
    assert type(sent) is kind
    assert isinstance(sent, RltuneError)
    assert (sent.what, sent.allowed, sent.fix) == ("what", "allowed", "fix")
    assert [line.split()[-1] for line in str(sent).splitlines()] == ["what", "allowed", "fix"]


@pytest.mark.parametrize(
    ("what", "key", "value"),
    [
        ("budget.trials=0 is out of range", "budget.trials", 0),
        ("space.lr=1e-3: no such key", "space.lr", 0.001),
        ("space.lr=nan: no number", "space.lr", "nan"),
        ("env.id=heating:Thermo-v0: a class", "env.id", "heating:Thermo-v0"),
        ("space.lr=[uniform, 0, 1]: its ends", "space.lr", "[uniform, 0, 1]"),
        ("report=true with another", "report", True),
        ("name='a b' cannot name a folder", "name", "a b"),
        ("json=5", "json", 5),
        ("nothing could be measured", None, None),
    ],
)
def test_an_error_has_its_parts_for_a_program(what, key, value):
    assert ConfigError(what, "allowed", "fix").to_dict() == {
        "error": what,
        "key": key,
        "value": value,
        "allowed": "allowed",
        "try": "fix",
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
    assert ConfigError("training.lr=2 large").key == "training.lr"
    assert ConfigError("policy missing").key == ""
    assert ConfigError("name=x").exit_code == 2
    assert UnavailableError("tracking.uri=http://127.0.0.1:9").exit_code == 75
