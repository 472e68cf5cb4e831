"""What a space's list form means, from YAML to the study's labels and back to a trial's values."""

from __future__ import annotations

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from rltune.errors import ConfigError
from rltune.search.space import parse_space


def test_the_study_shows_the_searched_quantity_by_its_label():
    """The study shows what is searched under a label of its own."""
    space = parse_space({"gamma": ["one_minus_loguniform", 0.001, 0.1], "batch": ["pow2", 64, 256], "lr": 3e-4})
    assert space.distributions() == {
        "1-gamma": FloatDistribution(0.001, 0.1, log=True),
        "log2(batch)": IntDistribution(6, 8),
    }
    assert space.decode({"1-gamma": 0.01, "log2(batch)": 7}) == {"gamma": 0.99, "batch": 128, "lr": 3e-4}


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (["uniform", 0, 1], 1.5),
        (["uniform", 0, 1], "half"),
        (["loguniform", 1e-4, 1e-2], 0.0),
        (["randint", 1, 9], 3.5),
        (["pow2", 32, 512], 100),
        (["pow2", 32, 512], 1024),
        (["pow2", 32, 512], -64),
        (["choice", "relu", "tanh"], "silu"),
        (["one_minus_loguniform", 0.005, 0.05], 0.9),
    ],
)
def test_a_warm_start_outside_the_space_is_left_to_the_sampler(entry, value):
    """A warm start outside the space leaves that value to the sampler."""
    space = parse_space({"x": entry, "y": ["uniform", 0, 1]})
    assert space.encode({"x": value, "y": 0.25}) == {"y": 0.25}


def test_a_plain_value_and_a_list_of_numbers_fix_a_parameter():
    """A plain value fixes a parameter and so does a list of numbers."""
    space = parse_space({"lr": 3e-4, "fcnet_hiddens": [64, 64], "grad_clip": None, "n_step": ["choice", 1, 3]})
    assert space.fixed == {"lr": 3e-4, "fcnet_hiddens": [64, 64], "grad_clip": None}
    assert space.names == ("n_step", "lr", "fcnet_hiddens", "grad_clip")


def test_a_space_with_nothing_to_search_has_one_configuration():
    """A space without anything to search has one configuration."""
    space = parse_space({"lr": 3e-4})
    assert space.distributions() == {}
    assert space.decode({}) == {"lr": 3e-4}
    assert all(corner == {"lr": 3e-4} for corner in space.corners())


def test_the_corners_pair_every_end_with_every_opposite_end():
    """The corners bring every end together with every opposite end."""
    ranges = {"a": ["randint", 1, 2], "b": ["randint", 3, 4], "c": ["choice", "x", "y", "z"]}
    corners = parse_space({**ranges, "lr": 0.1}).corners()
    assert len(corners) == 2 * len(ranges) + 2 + 1  # and the middle value of the choice, once
    assert all(corner["lr"] == 0.1 for corner in corners)
    ends = {"a": (1, 2), "b": (3, 4), "c": ("x", "z")}
    for one in ends:
        for other in set(ends) - {one}:
            for value in ends[one]:
                for opposite in ends[other]:
                    assert any(c[one] == value and c[other] == opposite for c in corners), (one, other)


@pytest.mark.parametrize(
    ("forms", "size"),
    [
        ({}, 1),
        ({"a": ["choice", 1, 2, 2]}, 2),
        ({"a": ["choice", [64], [64, 64]], "b": ["pow2", 64, 512], "c": ["quniform", 0.0, 0.3, 0.1], "lr": 1e-3}, 32),
        ({"a": ["lograndint", 1, 1_000_000_000], "b": ["randint", -1, 1]}, 3_000_000_000),
        ({"a": ["choice", 1, 2, 3], "b": ["when", {"a": [1, 2]}, ["randint", 1, 5]]}, 11),
        (
            {
                "a": ["pow2", 1, 4],
                "b": ["when", {"a": 2}, ["choice", 7, 8]],
                "c": ["when", {"b": 8}, ["randint", 1, 3]],
            },
            6,
        ),
    ],
)
def test_the_points_of_a_grid_are_counted(forms, size):
    assert parse_space(forms).count_points() == size


def test_values_of_a_person_bring_what_their_conditions_require():
    """Else a sampler draws the parent, and may drop the very value that was asked for."""
    space = parse_space(
        {
            "lstm": ["choice", False, True],
            "kind": ["when", {"lstm": True}, ["choice", "gru", "cell", "none"]],
            "size": ["when", {"kind": ["gru", "cell"]}, ["choice", 64, 128]],
        }
    )
    assert space.check_values({"kind": "gru"}) == {"kind": "gru", "lstm": True}
    assert space.check_values({"size": 64, "kind": "gru"}) == {"size": 64, "kind": "gru", "lstm": True}
    with pytest.raises(ConfigError) as several:
        space.check_values({"size": 64})
    assert several.value.fix == "space.kind=gru"
    with pytest.raises(ConfigError):
        space.check_values({"kind": "gru", "lstm": False})


def test_a_yes_is_no_number():
    with pytest.raises(ConfigError, match="n=true"):
        parse_space({"n": ["randint", 0, 3]}).check_values({"n": True})


@pytest.mark.parametrize("form", [["one_minus_loguniform", 0.003, 0.3], ["pow2", 32, 128], ["loguniform", 1e-5, 1e-3]])
def test_the_value_that_is_advised_is_allowed(form):
    space = parse_space({"x": form})
    with pytest.raises(ConfigError) as refused:
        space.check_values({"x": 1e9})
    advised = float(refused.value.fix.partition("=")[2])
    assert space.check_values({"x": advised}) == {"x": advised}
