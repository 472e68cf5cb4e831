"""Which versions are changed from inside, and what is said where they are not."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from rltune.compat import patching
from rltune.compat.patching import is_supported, replace_names


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(patching, "_refused", set())
    monkeypatch.delenv(patching.SWITCH, raising=False)


@pytest.mark.parametrize("version", ["2.60.0", "2.60.3", "2.60.0.dev0"])
def test_a_tested_minor_version_is_supported_in_silence(version, monkeypatch, caplog):
    monkeypatch.setattr(patching, "find_version", lambda library: version)
    assert is_supported("ray")
    assert not caplog.records


@pytest.mark.parametrize("version", ["2.59.1", "2.61.0", "2.6.0", "3.60.0"])
def test_another_minor_version_is_refused_in_one_line(version, monkeypatch, caplog):
    monkeypatch.setattr(patching, "find_version", lambda library: version)
    with caplog.at_level(logging.WARNING, "rltune"):
        assert not is_supported("ray")
        assert not is_supported("ray")
    assert caplog.messages == [f"ray {version} (tested with 2.60): taking the plain path, which is slower"]


def test_a_local_version_of_torch_is_its_minor_version(monkeypatch):
    monkeypatch.setattr(patching, "find_version", lambda library: "2.13.0+cpu")
    assert is_supported("torch")


def test_the_switch_refuses_every_library_in_silence(monkeypatch, caplog):
    monkeypatch.setenv(patching.SWITCH, "off")
    with caplog.at_level(logging.WARNING, "rltune"):
        assert not any(is_supported(library) for library in patching.TESTED)
    assert not caplog.records


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
