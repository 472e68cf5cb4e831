"""Private fields of RLlib's live objects, there and gone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rltune.compat.rllib_internals import freeze_filters, list_remote_runners, read_learner_pipeline, read_part


def test_fields_that_are_gone_are_done_without():
    connector = SimpleNamespace()
    freeze_filters(SimpleNamespace(connectors=[connector]))
    assert vars(connector) == {}
    assert list_remote_runners(SimpleNamespace()) == []
    assert list_remote_runners(None) == []
    with pytest.raises(ValueError, match="a bundle cannot express"):
        read_part(SimpleNamespace(), "encoder")


@pytest.mark.parametrize("name", ["encoder", "_encoder"])
def test_a_part_is_read_under_either_name(name):
    assert read_part(SimpleNamespace(**{name: "net"}), "encoder") == "net"


def test_a_learners_connectors_are_never_guessed():
    assert read_learner_pipeline(SimpleNamespace(_learner_connector=None)) is None
    with pytest.raises(AttributeError, match="_learner_connector"):
        read_learner_pipeline(SimpleNamespace())


def test_remote_runners_are_listed():
    manager = SimpleNamespace(actors=lambda: {1: "one", 2: "two"})
    assert list_remote_runners(SimpleNamespace(_worker_manager=manager)) == ["one", "two"]


def test_only_filters_are_frozen():
    filters, other = SimpleNamespace(_update_stats=True), SimpleNamespace(x=1)
    freeze_filters(SimpleNamespace(connectors=[filters, other]))
    assert (vars(filters), vars(other)) == ({"_update_stats": False}, {"x": 1})
