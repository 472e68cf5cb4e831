"""Ranges with steps, with values beside them and with other parameters as ends, and conditions that compare."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rltune.errors import ConfigError, spell
from rltune.search.conditions import Comparison
from rltune.search.dimensions import KINDS
from rltune.search.space import parse_space

QUICK = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
WHOLE, POSITIVE = st.integers(-1000, 1000), st.integers(1, 5000)
FLOATS = st.decimals("-1000", "1000", places=4).map(float)
ABOVE = st.decimals("0.0001", "1000", places=4).map(float)
ENDS = {
    "uniform": FLOATS,
    "loguniform": ABOVE,
    "quniform": FLOATS,
    "randint": WHOLE,
    "lograndint": POSITIVE,
    "one_minus_loguniform": st.decimals("0.0001", "0.9", places=4).map(float),
    "pow2": st.integers(0, 14).map(lambda exponent: 2**exponent),
}
BESIDE = st.sampled_from([None, "auto", False, -2000, 0.0, 7000])


@st.composite
def forms(draw):
    """A range of numbers with its ends, perhaps with a step and with values beside it."""
    kind = draw(st.sampled_from(sorted(set(KINDS) - {"choice"})))
    low, high = sorted(draw(st.lists(ENDS[kind], min_size=2, max_size=2, unique=True)))
    step = {
        "quniform": st.decimals("0.01", "10", places=2).map(float),
        "randint": st.integers(1, 9),
    }.get(kind)
    args = [low, high] + ([draw(step)] if kind == "quniform" or (step is not None and draw(st.booleans())) else [])
    sides = [draw(st.lists(BESIDE, max_size=2, unique=True)) for _ in range(2)]
    return kind, args, sides


def write(kind, args, sides):
    before, after = sides
    return ["or", *before, [kind, *args], *after] if before or after else [kind, *args]


def pick(distribution, place):
    """What a sampler may draw, at a place between 0 and 1 of a distribution."""
    if not hasattr(distribution, "low"):
        return distribution.choices[1]
    low, high = distribution.low, distribution.high
    quantity = low + place * (high - low)
    if distribution.log:
        quantity = min(max(math.exp(math.log(low) + place * (math.log(high) - math.log(low))), low), high)
    if distribution.step is None:
        return quantity
    stepped = low + distribution.step * round((quantity - low) / distribution.step)
    return int(stepped) if isinstance(distribution.step, int) else min(stepped, high)


def equal(left, right):
    return left == right and isinstance(left, bool) == isinstance(right, bool)


@QUICK
@given(forms(), st.floats(0, 1), st.booleans())
def test_what_is_drawn_comes_back_as_it_was(form, place, at_name):
    """``decode(encode(v)) == v`` for each kind, with values beside the range and with a name as its upper end."""
    kind, args, sides = form
    raw = {"x": write(kind, args, sides)}
    if at_name:
        # The parent's value has all its digits, and lies between the ends.
        top = args[0] + place * (args[1] - args[0])
        assume(kind not in ("pow2", "randint", "lograndint", "quniform") or top >= args[0])
        raw = {"p": ["choice", args[0], top, args[1]], "x": write(kind, [args[0], "p", *args[2:]], sides)}
    space = parse_space(raw)

    drawn = space.draw(lambda label, distribution: pick(distribution, place))
    values = space.decode(drawn)
    again = space.encode(values)
    assert again.keys() == drawn.keys()
    assert equal(space.decode(again)["x"], values["x"])
    for label, distribution in space.distributions(values).items():
        assert distribution._contains(distribution.to_internal_repr(again[label])), label


def test_a_draw_beside_an_end_is_the_end():
    space = parse_space({"x": ["one_minus_loguniform", 0.0001, 0.3194]})
    values = space.decode({"1-x": math.nextafter(0.3194, 0)})
    assert values == space.decode(space.encode(values)) == {"x": 1 - 0.3194}


@QUICK
@given(forms())
def test_what_is_written_in_a_range_comes_back(form):
    """Values as people type them: the ends, and those beside the range."""
    kind, args, sides = form
    space = parse_space({"x": write(kind, args, sides)})
    for value in space.dimensions[0].list_marks():
        assert equal(space.decode(space.encode({"x": value}))["x"], value)


@QUICK
@given(forms(), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_a_range_ends_at_the_value_of_another_parameter(form, places):
    kind, args, _ = form
    space = parse_space(
        {"p": [*("uniform", *args[:2])] if args[0] < args[1] else args[1], "x": [kind, args[0], "p", *args[2:]]}
    )
    iterator = iter(places)
    values = space.decode(space.draw(lambda label, each: each.low + next(iterator) * (each.high - each.low)))
    value = 1 - values["x"] if kind == "one_minus_loguniform" else values["x"]
    assert args[0] - 1e-12 <= value <= values["p"] + 1e-12


def test_a_value_beside_a_range_has_its_share_of_the_draws():
    space = parse_space(
        {"entropy_coeff": ["or", 0, ["loguniform", 1e-5, 1e-2]], "clip": ["or", ["uniform", 0.3, 5], None]}
    )
    assert list(space.distributions()) == ["0 or entropy_coeff", "clip or null"]
    first, second = space.distributions().values()
    drawn = [
        space.decode(
            {
                "0 or entropy_coeff": math.exp(math.log(first.low) + place * math.log(first.high / first.low)),
                "clip or null": second.low + place * (second.high - second.low),
            }
        )
        for place in [number / 599 for number in range(600)]
    ]
    assert sum(each["entropy_coeff"] == 0 for each in drawn) == 100
    assert sum(each["clip"] is None for each in drawn) == 100
    assert all(1e-5 <= each["entropy_coeff"] <= 1e-2 for each in drawn if each["entropy_coeff"])
    assert min(each["entropy_coeff"] for each in drawn[100:]) < 1.1e-5, "no entropy lies below small ones"


def test_zero_is_not_false_beside_a_range():
    space = parse_space({"x": ["or", False, ["uniform", 0, 1]]})
    assert space.decode(space.encode({"x": False}))["x"] is False
    assert space.decode(space.encode({"x": 0}))["x"] == 0
    assert space.decode(space.encode({"x": 0}))["x"] is not False


def test_integers_are_drawn_in_steps():
    space = parse_space({"n": ["randint", 5, 20, 6]})
    assert space.dimensions[0].list_values() == [5, 11, 17]
    assert space.encode({"n": 11}) == {"n": 11}
    assert space.encode({"n": 12}) == {}
    assert space.count_points() == 3


def test_steps_of_whole_numbers_are_integers():
    space = parse_space(
        {"n": ["quniform", 32, 128, 32], "m": ["quniform", 32.0, 128.0, 32.0], "x": ["quniform", 0.5, 2, 0.5]}
    )
    values = space.decode({"n": 64.0, "m": 96.0, "x": 1.0})
    assert values == {"n": 64, "m": 96, "x": 1.0}
    assert [type(value) for value in values.values()] == [int, int, float]


BATCHES = {"batch": ["pow2", 64, 512], "mini": ["pow2", 32, "batch"]}


def test_a_named_end_is_one_dimension_for_every_searcher():
    space = parse_space(BATCHES)
    assert list(space.distributions()) == ["log2(batch)", "mini/batch"]
    assert space.decode({"log2(batch)": 6, "mini/batch": 0.9}) == {"batch": 64, "mini": 64}
    assert space.decode({"log2(batch)": 9, "mini/batch": 0.9}) == {"batch": 512, "mini": 512}
    assert space.encode({"batch": 128, "mini": 64}) == {"log2(batch)": 7, "mini/batch": 0.5}
    assert space.encode({"batch": 64, "mini": 128}) == {"log2(batch)": 6}
    assert space.encode({"mini": 64}) == {}, "the batch is drawn later, and may be smaller"


def test_a_named_end_that_is_not_searched_is_a_number():
    assert str(parse_space({"batch": 1000, "mini": ["pow2", 32, "batch"]}).dimensions[0]) == "[pow2, 32, 512]"
    assert str(parse_space({"mini": ["pow2", 32, "batch"]}, {"batch": 100}).dimensions[0]) == "[pow2, 32, 64]"


def test_corners_hold_no_forbidden_pair_and_both_ends():
    space = parse_space(
        {**BATCHES, "coeff": ["or", 0, ["loguniform", 1e-5, 1e-2]], "clip": ["or", ["uniform", 0.3, 5], None]}
    )
    corners = space.corners()
    assert all(corner["mini"] <= corner["batch"] for corner in corners)
    assert {(corner["batch"], corner["mini"]) for corner in corners} == {(64, 32), (64, 64), (512, 32), (512, 512)}
    assert {corner["coeff"] for corner in corners} == {0, 1e-5, 1e-2}
    assert {corner["clip"] for corner in corners} == {0.3, 5, None}


def test_a_grid_counts_and_lists_the_allowed_pairs():
    space = parse_space({**BATCHES, "seed": ["or", ["lograndint", 1, 3], None]}).list_for_grid()
    assert space.count_points() == (2 + 3 + 4 + 5) * 4
    pairs = set()
    for exponent in range(6, 10):
        for number in range(exponent - 4):
            chosen = {"log2(batch)": exponent, "mini/batch": number}
            drawn = space.draw(lambda label, each, chosen=chosen: chosen.get(label, each.high))
            pairs.add(tuple(space.decode(drawn).values()))
            assert space.encode(space.decode(drawn)) == drawn
    assert len(pairs) == 14
    assert {seed for *_, seed in pairs} == {None}


def test_counting_ends_where_there_are_enough():
    space = parse_space({"batch": ["randint", 1, 10**9], "mini": ["randint", 1, "batch"]})
    assert space.count_points(enough=8) >= 8
    assert parse_space({"x": ["uniform", 0, 1]}).count_points(enough=8) is None


@pytest.mark.parametrize(
    ("raw", "fix"),
    [
        ({"batch": ["pow2", 16, 64], "mini": ["pow2", 32, "batch"]}, "space.mini=[pow2,16,batch]"),
        ({"batch": ["or", ["pow2", 32, 64], None], "mini": ["pow2", 32, "batch"]}, "~space.mini"),
        ({"batch": ["choice", "auto", 64], "mini": ["pow2", 32, "batch"]}, "~space.mini"),
        ({"batch": 16, "mini": ["pow2", 32, "batch"]}, "space.mini=[pow2,16,batch]"),
        ({"batch": "auto", "mini": ["pow2", 32, "batch"]}, "~space.mini"),
        ({"batch": None, "n": ["randint", 1, 5], "mini": ["randint", "n", "batch"]}, "~space.mini"),
        ({"a": ["uniform", 0.5, 2], "b": ["uniform", 1, 3], "x": ["uniform", "a", "b"]}, "~space.x"),
    ],
)
def test_a_range_that_is_empty_in_some_trial_is_refused(raw, fix):
    with pytest.raises(ConfigError) as refused:
        parse_space(raw)
    assert refused.value.key == f"space.{list(raw)[-1]}"
    assert refused.value.fix == fix


@pytest.mark.parametrize(
    "raw",
    [
        {"mini": ["pow2", 32, "bacth"], "batch": ["pow2", 64, 512]},
        {"a": ["uniform", 0, "b"], "b": ["uniform", 0, "a"]},
        {"a": ["uniform", 0, "a"]},
        {"a": ["or", 0, ["choice", 1, 2]]},
        {"a": ["or", 0]},
        {"a": ["or", ["uniform", 0, 1]]},
        {"a": ["or", 0, ["or", 1, ["uniform", 2, 3]]]},
        {"a": ["or", ["uniform", 0, 1], ["uniform", 2, 3]]},
        {"a": ["randint", 1, 9, 0]},
        {"a": ["randint", 1, 9, 1.5]},
        {"a": ["lograndint", 1, 9, 2]},
        {"b": ["pow2", 4, 8], "c": ["pow2", 16, 32], "a": ["pow2", "b", "c"]},
        {"n": ["choice", 1, 2, 3], "a": ["when", {"n": "> 3"}, ["uniform", 0, 1]]},
        {"n": ["uniform", 0, 1], "a": ["when", {"n": 1}, ["uniform", 0, 1]]},
    ],
    ids=str,
)
def test_a_form_that_cannot_be_drawn_is_refused(raw):
    with pytest.raises(ConfigError) as refused:
        parse_space(raw)
    assert refused.value.key.startswith("space.")
    assert refused.value.fix


def test_the_message_says_how_to_have_zero():
    with pytest.raises(ConfigError) as refused:
        parse_space({"x": ["loguniform", 0, 0.01]})
    assert "space.x=[or,0,[loguniform,1e-05,0.01]]" in refused.value.fix


DEEP = {"layers": ["choice", 1, 2, 3, 4], "skip": ["when", {"layers": "> 2"}, ["choice", True, False]]}


def test_a_condition_compares_a_parameter():
    space = parse_space(DEEP)
    assert space.dimensions[1].when == {"layers": (Comparison("> 2", ">", 2.0),)}
    assert space.count_points() == 2 + 2 * 2
    corners = space.corners()
    assert all(("skip" in corner) == (corner["layers"] > 2) for corner in corners)
    assert {corner.get("skip") for corner in corners} == {None, True, False}
    assert space.dimensions[1].condition == "when layers > 2"
    assert space.check_values({"skip": True, "layers": 3}) == {"skip": True, "layers": 3}
    with pytest.raises(ConfigError) as lacking:
        space.check_values({"skip": True})
    assert lacking.value.fix == "space.layers=4"
    assert parse_space(DEEP | {"layers": 2}).idle == {"skip": "layers is 2"}
    assert not parse_space(DEEP | {"layers": 3}).idle


def test_a_condition_compares_a_continuous_parameter():
    space = parse_space({"x": ["or", 0, ["uniform", 0.1, 1]], "y": ["when", {"x": "<= 0.5"}, ["uniform", 0, "x"]]})
    assert space.active_values({"x": 0.7, "y": 0.1}) == {"x": 0.7}
    assert space.active_values({"x": 0, "y": 0}) == {"x": 0, "y": 0}
    assert {corner["y"] for corner in space.corners() if "y" in corner} == {0}


def test_a_condition_names_a_value_beside_a_range():
    space = parse_space({"clip": ["or", ["uniform", 0.3, 5], None], "by": ["when", {"clip": None}, ["choice", 1, 2]]})
    assert {corner.get("by") for corner in space.corners()} == {None, 1, 2}


def test_a_condition_on_a_parameter_with_a_named_end():
    """A corner with the wanted minibatch needs a batch that is as large."""
    space = parse_space({**BATCHES, "x": ["when", {"mini": 256}, ["choice", 1, 2]]})
    assert {(corner["batch"], corner["mini"], corner["x"]) for corner in space.corners() if "x" in corner} == {
        (512, 256, 1),
        (512, 256, 2),
    }


def test_a_bound_with_a_condition_has_the_files_value_elsewhere():
    space = parse_space(
        {"on": ["choice", False, True], "top": ["when", {"on": True}, ["randint", 5, 9]], "n": ["randint", 1, "top"]},
        {"top": 3},
    )
    corners = {(corner["on"], corner.get("top"), corner["n"]) for corner in space.corners()}
    assert {(False, None, 1), (False, None, 3), (True, 9, 9), (True, 5, 1)} <= corners
    drawn = {"on": True, "top": 5, "n/top": 0.99}
    assert space.decode(drawn)["n"] == 5
    assert space.decode({"on": False, "n/top": 0.99}) == {"on": False, "n": 3}


def test_an_enqueued_value_needs_the_parameter_that_bounds_it():
    space = parse_space(BATCHES)
    assert space.check_values({"mini": 64, "batch": 64}) == {"mini": 64, "batch": 64}
    with pytest.raises(ConfigError) as lacking:
        space.check_values({"mini": 64})
    assert (lacking.value.key, lacking.value.fix) == ("space.mini", "space.batch=64")
    with pytest.raises(ConfigError) as outside:
        space.check_values({"mini": 128, "batch": 64})
    assert outside.value.fix == "space.mini=32"


def test_an_enqueued_value_needs_a_bound_that_may_be_drawn():
    """Otherwise it would depend on what is drawn whether the trial has it."""
    space = parse_space(
        {"on": ["choice", False, True], "top": ["when", {"on": True}, ["randint", 5, 9]], "n": ["randint", 1, "top"]},
        {"top": 3},
    )
    for enqueued in ({"n": 3, "on": False}, {"n": 9, "top": 9}):
        assert space.encode(space.check_values(enqueued)).keys() >= {"n/top", "on"}
    for enqueued in ({"n": 2}, {"n": 2, "on": True}):
        with pytest.raises(ConfigError) as lacking:
            space.check_values(enqueued)
        assert (lacking.value.key, lacking.value.fix) == ("space.n", "space.top=5")


def test_trials_of_former_ranges_are_placed_in_the_new_ones():
    former, now = parse_space({"n": ["pow2", 32, 128]}), parse_space({"batch": 64, "n": ["pow2", 32, "batch"]})
    assert former.place({"n": 64}, {"log2(n)": 6}) == {"log2(n)": (6, former.distributions()["log2(n)"])}
    wider = parse_space({"n": ["randint", 32, 64]})
    assert wider.place({"n": 64}, {"log2(n)": 6}) == {"n": (64, wider.distributions()["n"])}
    assert wider.place({"n": 128}, {"log2(n)": 7}) is None
    assert now.place({"n": 128, "batch": 64}, {"log2(n)": 7}) is None


def test_a_former_draw_may_be_none_of_the_new_choices():
    """A draw with a step has rounding errors that its value has not."""
    former, now = parse_space({"x": ["quniform", 0.1, 1, 0.1]}), parse_space({"x": ["choice", 0.3, 0.5]})
    assert now.place({"x": 0.3}, {"x": 0.30000000000000004}) == {"x": (0.3, now.distributions()["x"])}
    assert former.place({"x": 0.3}, {"x": 0.3}) is not None


@pytest.mark.parametrize(
    "space",
    [
        {"a": ["randint", "x", "y"], "x": ["choice", 1, 50, 2], "y": ["choice", 100, 10, 100]},
        {"a": ["uniform", "x", 7], "x": ["uniform", 0, "y"], "y": ["choice", 1, 50, 2]},
        {"a": ["uniform", "x", "y"], "x": ["or", 30, ["randint", 1, 3]], "y": ["or", ["randint", 40, 50], 20, 60]},
    ],
)
def test_choices_in_the_middle_leave_no_range_empty(space):
    with pytest.raises(ConfigError) as refused:
        parse_space(space)
    assert refused.value.key == "space.a"
    assert refused.value.fix != f"space.a={spell(space['a'])}"


@pytest.mark.parametrize("ends", [("x", 1), ("x", "y")])
def test_steps_from_a_bound_stay_above_it(ends):
    space = parse_space({"x": ["uniform", 0, 1], "y": ["uniform", 1, 2], "a": ["quniform", *ends, 0.5]})
    for low in (0.39882354222426875, 0.88882354222426875, 0.6666666666666666):
        label = "/".join(("a", *(end for end in ends if isinstance(end, str))))
        values = space.decode({"x": low, "y": 1.5, label: 0.0})
        assert low <= values["a"] == pytest.approx(low)
        assert space.is_fully_specified(space.encode(values))


@QUICK
@given(forms(), forms(), st.floats(0, 1))
def test_a_former_draw_is_one_of_the_new_range_or_none(former, now, place):
    """A resume may have any other range: what the study gets lies in it and has the trial's value."""
    before, after = (parse_space({"x": write(*form)}) for form in (former, now))
    drawn = before.draw(lambda label, each: pick(each, place))
    placed = after.place(before.decode(drawn), drawn)
    for label, (raw, distribution) in (placed or {}).items():
        assert distribution._contains(distribution.to_internal_repr(raw))
        assert equal(after.decode({label: raw})["x"], before.decode(drawn)["x"])
