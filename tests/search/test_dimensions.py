"""One range of a space: what is drawn from it, and how it is written."""

from __future__ import annotations

import math
import random
import warnings

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from rltune.errors import ConfigError
from rltune.search.dimensions import KINDS, parse_dimension, translate_mapping

WRITTEN = {
    "uniform": ["uniform", 0.8, 0.99],
    "loguniform": ["loguniform", 1e-5, 1e-2],
    "quniform": ["quniform", 0.0, 1.0, 0.05],
    "randint": ["randint", 1, 9],
    "lograndint": ["lograndint", 100, 2000],
    "choice": ["choice", "relu", None, 0.3, True, [64, 64], {"a": 1}],
    "one_minus_loguniform": ["one_minus_loguniform", 0.005, 0.05],
    "pow2": ["pow2", 32, 512],
}


EVERY_KIND = pytest.mark.parametrize("entry", WRITTEN.values(), ids=WRITTEN.keys())


def dimension(entry):
    return parse_dimension("x", entry[0], tuple(entry[1:]))


def samples(entry, count=60):
    """Values as trials would get them, and what the study would hold for each."""
    one = dimension(entry)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(count):
        raw = study.ask({one.label: one.distribution()}).params[one.label]
        yield raw, one.decode(raw)


def same(left, right):
    number = isinstance(left, float) and isinstance(right, float)
    return math.isclose(left, right, rel_tol=1e-12) if number else left == right


def test_every_kind_that_a_space_may_name_is_tried_here():
    assert set(WRITTEN) == set(KINDS)


@EVERY_KIND
def test_a_sampled_value_comes_back_unchanged(entry):
    """A value that was sampled comes back from the study unchanged."""
    one = dimension(entry)
    for raw, value in samples(entry):
        assert same(one.decode(one.encode(value)), value)
        assert same(one.encode(value), raw)


@EVERY_KIND
def test_samples_lie_within_what_was_written(entry):
    values = [value for _, value in samples(entry)]
    kind, *args = entry
    if kind == "choice":
        assert all(any(value is arg or value == arg for arg in args) for value in values)
        return
    low, high = (1 - args[1], 1 - args[0]) if kind == "one_minus_loguniform" else args[:2]
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in values)
    assert len(set(values)) > 4, "a sample that hardly varies is no sample of a range"
    if kind in ("randint", "lograndint", "pow2"):
        assert all(type(value) is int for value in values)
    if kind == "quniform":
        assert all(math.isclose(value / args[2], round(value / args[2]), abs_tol=1e-9) for value in values)
    if kind == "pow2":
        assert set(values) == {32, 64, 128, 256, 512}


@EVERY_KIND
def test_both_ends_can_be_given_as_a_warm_start(entry):
    one = dimension(entry)
    for end in one.ends():
        assert same(one.decode(one.encode(end)), end)


@pytest.mark.parametrize("discount", [0.9, 0.95, 0.98, 0.99, 0.995, 0.999])
def test_usual_discounts_at_their_ranges_end_belong_to_it(discount):
    """Usual discounts at the end of their range belong to it."""
    tail = round(1 - discount, 6)
    for entry in (["one_minus_loguniform", tail, 0.5], ["one_minus_loguniform", 1e-5, tail]):
        one = dimension(entry)
        assert one.decode(one.encode(discount)) == pytest.approx(discount, abs=1e-12)


def test_a_step_that_does_not_divide_its_range():
    """A step that does not divide its range ends at the last value that is drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna's, at every proposal
        one = dimension(["quniform", 0.0, 1.0, 0.3])
        assert one.ends() == pytest.approx((0.0, 0.9))
        assert one.distribution() == FloatDistribution(0.0, 0.9, step=0.3)


def test_each_kind_is_searched_on_the_scale_that_its_name_says():
    expected = {
        "uniform": FloatDistribution(0.8, 0.99),
        "loguniform": FloatDistribution(1e-5, 1e-2, log=True),
        "quniform": FloatDistribution(0.0, 1.0, step=0.05),
        "randint": IntDistribution(1, 9),
        "lograndint": IntDistribution(100, 2000, log=True),
    }
    assert {kind: dimension(WRITTEN[kind]).distribution() for kind in expected} == expected
    packed = dimension(WRITTEN["choice"]).distribution()
    assert packed == CategoricalDistribution(["relu", None, 0.3, True, "[64, 64]", '{"a": 1}'])


def test_whole_numbers_written_with_a_point_are_integers():
    assert dimension(["randint", 1.0, 9.0]).ends() == (1, 9)
    assert dimension(["randint", 1, 9]).encode(4.0) == 4
    assert type(dimension(["pow2", 32.0, 64.0]).decode(5)) is int


REFUSED = [
    ["unifrom", 0, 1],
    ["uniform", 0],
    ["uniform", 0, 1, 2],
    ["choice"],
    ["uniform", "zero", 1],
    ["uniform", True, 2],
    ["uniform", 0, math.inf],
    ["uniform", math.nan, 1],
    ["uniform", 2, 1],
    ["quniform", 0, 1, 0],
    ["randint", 1.5, 3],
    ["loguniform", 0, 1],
    ["lograndint", -1, 3],
    ["one_minus_loguniform", 0, 0.1],
    ["pow2", 48, 256],
]


@pytest.mark.parametrize("entry", REFUSED, ids=str)
def test_a_range_that_makes_no_sense_is_refused(entry):
    """A range that makes no sense is refused with how to write it."""
    with pytest.raises(ConfigError) as refused:
        parse_dimension("lr", entry[0], tuple(entry[1:]))
    assert refused.value.key == "space.lr"
    assert refused.value.allowed
    assert "space.lr" in refused.value.fix


def test_random_ranges_of_every_numeric_kind_keep_their_values():
    draw = random.Random(0)
    for _ in range(100):
        low, width = draw.randint(1, 500), draw.randint(0, 500)
        for kind in ("uniform", "loguniform", "randint", "lograndint"):
            one = dimension([kind, low, low + width])
            value = draw.randint(low, low + width)
            assert one.decode(one.encode(value)) == value
        small = draw.uniform(1e-6, 0.5)
        one = dimension(["one_minus_loguniform", small, 0.9])
        for value in (*one.ends(), 1 - draw.uniform(small, 0.9)):
            assert one.decode(one.encode(value)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("mapping", "form"),
    [
        ({"min": 0.1, "max": 0.4}, ["uniform", 0.1, 0.4]),
        ({"min": 1e-5, "max": 1e-2}, ["loguniform", 1e-5, 1e-2]),
        ({"distribution": "uniform", "min": 1e-5, "max": 1e-2}, ["uniform", 1e-5, 1e-2]),
        ({"distribution": "log_uniform_values", "min": 0.1, "max": 0.4}, ["loguniform", 0.1, 0.4]),
        ({"distribution": "q_uniform", "min": 0.5, "max": 2.5, "q": 0.5}, ["quniform", 0.5, 2.5, 0.5]),
        ({"distribution": "int_uniform", "min": 1, "max": 9}, ["randint", 1, 9]),
        ({"low": 5, "high": 20, "step": 5}, ["randint", 5, 20, 5]),
        ({"low": 1, "high": 100, "log": True}, ["lograndint", 1, 100]),
        ({"low": 0.1, "high": 10.0, "log": False}, ["uniform", 0.1, 10.0]),
        ({"type": "float", "low": 1, "high": 2}, ["uniform", 1, 2]),
        ({"type": "range", "bounds": [1e-5, 1e-2], "log_scale": True}, ["loguniform", 1e-5, 1e-2]),
        ({"values": [0.1, 0.2]}, ["choice", 0.1, 0.2]),
        ({"grid_search": [1, 2]}, ["choice", 1, 2]),
        ({"type": "categorical", "choices": ["a", "b"]}, ["choice", "a", "b"]),
        ({"value": 3}, 3),
        ({"min": 2, "max": 1}, None),
        ({"heads": 2}, None),
        ({"value": ["choice", 1, 2]}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_mapping_of_another_tool_is_translated(mapping, form):
    """field/evaluation 13."""
    assert translate_mapping(mapping) == form
    if isinstance(form, list):
        assert str(parse_dimension("x", form[0], tuple(form[1:])))


@pytest.mark.parametrize(
    ("bound", "fix"),
    [
        ("train_batch", "space.minibatch_size=[pow2,32,train_batch_size_per_learner]"),
        ("train_batch_size", "space.minibatch_size=[pow2,32,train_batch_size_per_learner]"),
        ("num_epoch", "space.minibatch_size=[pow2,32,num_epochs]"),
        ("wheel", "space.minibatch_size=[pow2,64,256]"),
    ],
)
def test_a_bound_that_is_nearly_a_parameter_is_answered_with_it(bound: str, fix: str) -> None:
    names = {"minibatch_size", "train_batch_size_per_learner", "num_epochs", "lr"}
    with pytest.raises(ConfigError) as refused:
        parse_dimension("minibatch_size", "pow2", (32, bound), names)
    assert refused.value.fix == fix
