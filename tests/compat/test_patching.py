"""One switch for all replacements: which versions it leaves them on for, and what happens while it is off."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from rltune.compat import patching
from rltune.compat.patching import are_replacements_on, replace_names, switched


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch):
    patching._is_ray_tested.cache_clear()
    monkeypatch.delenv(patching.SWITCH, raising=False)
    yield
    patching._is_ray_tested.cache_clear()


@pytest.mark.parametrize("version", ["2.60.0", "2.60.3", "2.60.0.dev0"])
def test_replacements_are_on_with_a_tested_minor_version(version, monkeypatch, caplog):
    monkeypatch.setattr(patching, "find_version", lambda library: version)
    assert are_replacements_on()
    assert not caplog.records


@pytest.mark.parametrize("version", ["2.59.1", "2.61.0", "2.6.0", "3.60.0"])
def test_replacements_are_off_with_another_minor_version(version, monkeypatch, caplog):
    monkeypatch.setattr(patching, "find_version", lambda library: version)
    with caplog.at_level(logging.WARNING, "rltune"):
        assert not are_replacements_on()
        assert not are_replacements_on()
    assert [message.split(" (")[0] for message in caplog.messages] == [f"ray {version}"]


def test_an_untested_torch_leaves_rays_replacements_on(monkeypatch):
    versions = {"ray": "2.60.0", "torch": "2.15.0+cpu"}
    monkeypatch.setattr(patching, "find_version", versions.get)
    assert are_replacements_on()
    assert not patching.is_tested("torch")


def test_the_switch_turns_all_replacements_off_in_silence(monkeypatch, caplog):
    monkeypatch.setenv(patching.SWITCH, "off")
    assert not are_replacements_on()
    assert not caplog.records


def test_a_switched_function_is_called_unless_it_is_off(monkeypatch):
    @switched(list)
    def double(*values):
        return [2 * value for value in values]

    assert double(1, 2) == [2, 4]
    monkeypatch.setenv(patching.SWITCH, "off")
    assert double(1, 2) == []


def test_replaced_names_are_put_back_after_an_error():
    owner = SimpleNamespace(name=1)
    seen = []
    with pytest.raises(ZeroDivisionError), replace_names(owner, name=2):
        seen.append(1 / (owner.name - 2))
    assert (owner.name, seen) == (1, [])


def test_a_name_that_is_gone_is_not_made():
    owner = SimpleNamespace()
    with pytest.raises(AttributeError), replace_names(owner, name=2):
        pass
    assert vars(owner) == {}
