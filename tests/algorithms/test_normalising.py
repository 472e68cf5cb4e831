"""What cannot be normalised in an environment is left out of all settings."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rltune.algorithms.normalising import find_obstacles, remove_from_space, remove_from_values
from rltune.envs.spec import EnvSpec

VECTOR, ACTION = Box(-1.0, 1.0, (3,), np.float32), Discrete(2)
IMAGE = Box(0, 255, (64, 64, 3), np.uint8)
SEARCHED = ["choice", [], ["rewards"], ["observations", "rewards"]]


@pytest.mark.parametrize(
    ("algo", "rewards", "vectorize", "spaces", "obstacles"),
    [
        ({}, {}, "auto", (VECTOR, ACTION), set()),
        ({}, {}, "auto", (IMAGE, ACTION), {"observations"}),
        ({}, {}, "auto", (Discrete(5), ACTION), {"observations"}),
        ({}, {"clip": 1.0}, "auto", (VECTOR, ACTION), {"rewards"}),
        ({}, {}, "async", (VECTOR, ACTION), {"rewards"}),
        ({"env_runners": {"num_env_runners": 2}}, {}, "auto", (VECTOR, ACTION), {"rewards"}),
        ({"env_runners": {"env_to_module_connector": "mine:make"}}, {}, "auto", (VECTOR, ACTION), {"observations"}),
        ({}, {}, "auto", None, {"observations", "rewards"}),
    ],
)
def test_what_cannot_be_normalised_is_found(algo, rewards, vectorize, spaces, obstacles):
    spec = EnvSpec("Pendulum-v1", rewards=rewards)
    assert find_obstacles(algo, spec, vectorize, spaces).keys() == obstacles


@pytest.mark.parametrize(
    ("obstacles", "form", "left"),
    [
        ([], SEARCHED, SEARCHED),
        (["observations"], SEARCHED, ["choice", [], ["rewards"]]),
        (["rewards"], SEARCHED, ["choice", [], ["observations"]]),
        (["observations", "rewards"], SEARCHED, []),
        (["observations"], ["observations", "rewards"], ["rewards"]),
        (["observations"], ["when", {"lr": 0.1}, SEARCHED], ["when", {"lr": 0.1}, ["choice", [], ["rewards"]]]),
    ],
)
def test_choices_that_have_become_equal_are_one(obstacles, form, left):
    assert remove_from_space({"normalise": form, "lr": SEARCHED}, obstacles) == {"normalise": left, "lr": SEARCHED}


def test_a_condition_on_what_is_normalised_follows():
    condition = ["when", {"normalise": ["observations", "rewards"], "lr": 1}, ["uniform", 0, 1]]
    (left,) = remove_from_space({"tau": condition}, ["observations"]).values()
    assert left == ["when", {"normalise": ["rewards"], "lr": 1}, ["uniform", 0, 1]]


def test_values_keep_the_rest():
    values = {"normalise": ["observations", "rewards"], "lr": 1e-3}
    assert remove_from_values(values, ["rewards"]) == {"normalise": ["observations"], "lr": 1e-3}


def test_conditions_on_what_is_normalised_are_found_below_env():
    condition = ["when", {"normalise": ["observations", "rewards"]}, ["choice", 1, 2]]
    left = remove_from_space({"env": {"kwargs": {"repeat": condition}}}, ["observations"])
    assert left == {"env.kwargs.repeat": ["when", {"normalise": ["rewards"]}, ["choice", 1, 2]]}
