"""Arguments whose meaning is known are bounded, and every algorithm file keeps to the bounds."""

from __future__ import annotations

import math

import pytest
from omegaconf import OmegaConf

from rltune.compose.composing import conf_dir
from rltune.config.bounds import BOUNDS, check_bounds
from rltune.errors import ConfigError


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_a_suggested_value_is_accepted_and_its_opposite_refused(name):
    check_bounds("key", name, BOUNDS[name].usual)
    with pytest.raises(ConfigError, match="key=-1") as refused:
        check_bounds("key", name, -1)
    assert refused.value.fix == f"key={BOUNDS[name].usual:g}"


@pytest.mark.parametrize(
    ("name", "value", "passes"),
    [
        ("gamma", 1, True),
        ("gamma", 0.0, True),
        ("gamma", 1.0000001, False),
        ("lr", 0, False),
        ("lr", 1e-12, True),
        ("lr", math.nan, False),
        ("lr", "abc", False),
        ("lr", True, False),
        ("lr", None, True),
        ("lr", [[0, 1e-3], [1000, 0.0]], True),
        ("vf_clip_param", math.inf, True),
        ("entropy_coeff", 0, True),
        ("minibatch_size", 0, False),
        ("argument_of_somebodys_own", -1, True),
    ],
)
def test_the_edges_of_the_bounds(name, value, passes):
    if passes:
        check_bounds("key", name, value)
    else:
        with pytest.raises(ConfigError):
            check_bounds("key", name, value)


@pytest.mark.parametrize("file", sorted(conf_dir().glob("algo/*.yaml")), ids=lambda file: file.stem)
def test_the_values_of_each_algo_file_lie_within_the_bounds(file):
    training = OmegaConf.to_container(OmegaConf.load(file))["training"]
    for name, value in training.items():
        if value != "???":
            check_bounds(f"algo.training.{name}", name, value)
