"""Bounds that the schema declares, and that each file in conf/ keeps to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from omegaconf import OmegaConf

from rltune.config.bounds import Bounds, bounded, list_bounds
from rltune.config.schema import RunConfig
from rltune.config.validation import to_typed
from rltune.errors import ConfigError


@pytest.mark.parametrize(
    ("bounds", "value", "allowed"),
    [
        (Bounds(0, 1), 0, True),
        (Bounds(0, 1), 1.0, True),
        (Bounds(0, 1), 1.0000001, False),
        (Bounds(0), math.nan, False),
        (Bounds(0), math.inf, False),
        (Bounds(0, math.inf), math.inf, True),
        (Bounds(0, exclusive_minimum=True), 0, False),
        (Bounds(0, exclusive_minimum=True), 1e-12, True),
        (Bounds(0), True, False),
        (Bounds(0), "1", False),
        (Bounds(1, choices=("auto",)), "auto", True),
        (Bounds(1, choices=("auto",)), 2, True),
        (Bounds(1, choices=("auto",)), "many", False),
        (Bounds(choices=("on", "off")), "on", True),
        (Bounds(choices=("on", "off")), 1, False),
        (Bounds(choices=("off", "package.module:Class")), "mine:Tracker", True),
        (Bounds(choices=("on", "off")), "mine:Tracker", False),
    ],
)
def test_the_edges_of_bounds(bounds, value, allowed):
    assert bounds.allows(value) == allowed


@pytest.mark.parametrize(
    ("bounds", "description"),
    [
        (Bounds(1), "at least 1"),
        (Bounds(0, exclusive_minimum=True), "above 0"),
        (Bounds(0, 2**32 - 1), "from 0 to 4294967295"),
        (Bounds(1, 100, choices=("auto",)), "from 1 to 100, or auto"),
        (Bounds(choices=("on", "off")), "one of: on, off"),
    ],
)
def test_bounds_describe_what_they_allow(bounds, description):
    assert str(bounds) == description


@dataclass
class Inner:
    sizes: list[int] | None = bounded(None, minimum=1, example="[1,2]")


@dataclass
class Outer:
    rate: float = bounded(minimum=0, exclusive_minimum=True, example=0.5)
    mode: str = bounded("slow", choices=("slow", "fast"))
    free: str = "anything"
    inner: Inner = field(default_factory=Inner)


def test_the_bounds_of_nested_settings_are_listed_by_their_keys():
    assert list(list_bounds(Outer)) == ["rate", "mode", "inner.sizes"]


@pytest.mark.parametrize(
    ("settings", "key", "fix"),
    [
        ({"rate": 0}, "rate", "rate=0.5"),
        ({"mode": "fasd"}, "mode", "mode=fast"),
        ({"mode": "?"}, "mode", "mode=slow"),
        ({"inner": {"sizes": [1, 0]}}, "inner.sizes", "inner.sizes=[1,2]"),
        ({"inner": {"sizes": []}}, "inner.sizes", "inner.sizes=[1,2]"),
    ],
)
def test_a_violation_is_refused_in_three_parts(settings, key, fix):
    with pytest.raises(ConfigError) as refused:
        to_typed(Outer, OmegaConf.merge(OmegaConf.structured(Outer), {"rate": 1}, settings))
    assert refused.value.key == key
    assert refused.value.allowed
    assert refused.value.fix == fix
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("settings", [{}, {"rate": 1, "inner": {"sizes": [3]}}, {"inner": {"sizes": None}}])
def test_what_is_missing_null_or_allowed_passes(settings):
    to_typed(Outer, OmegaConf.merge(OmegaConf.structured(Outer), {"rate": 1}, settings))


@pytest.mark.parametrize("key", list(list_bounds(RunConfig)))
def test_the_example_of_each_setting_is_allowed(key):
    bounds = list_bounds(RunConfig)[key]
    assert bounds.example is None or bounds.allows(bounds.example)
