"""How a command begins again without its logins; ``tests/whole/test_logins.py`` runs whole sweeps."""

from __future__ import annotations

import os
import sys

import pytest

from rltune.commands.application.logins import hide_typed_logins

TYPED = ["tracking.uri='http://me:s3 cret@host/'", "notify=https://me:s3cret@host/x", "seed=1"]


@pytest.mark.parametrize(
    ("word", "begins_again"),
    [
        ("notify=https://hooks.slack.example/services/T0/s3cret", True),
        ("notify='curl https://me:s3cret@host/x'", True),
        ("notify='curl https://x/y -d \"done: me@x.org\"'", False),
        ("notify=${oc.env:RLTUNE_NOTIFY}", False),
    ],
)
def test_what_others_should_not_read_is_no_more_and_no_less(word, begins_again, monkeypatch):
    begun = []
    monkeypatch.setattr(os, "execve", lambda *arguments: begun.append(arguments))
    monkeypatch.setattr(sys, "argv", ["run.py", word])
    monkeypatch.setattr(sys, "orig_argv", ["python", "run.py", word])
    hide_typed_logins()
    assert bool(begun) == begins_again


@pytest.mark.parametrize("start", [["python", "-X", "dev", "-m", "sweeps.run"], ["python", "/bin/rltune", "run"]])
def test_a_command_begins_again_as_it_was_typed(start, monkeypatch):
    begun = []
    monkeypatch.setattr(os, "execve", lambda *arguments: begun.append(arguments))
    monkeypatch.setattr(sys, "argv", ["run.py", *TYPED])
    monkeypatch.setattr(sys, "orig_argv", [*start, *TYPED])
    hide_typed_logins()
    ((_, words, environment),) = begun
    assert words == [*start, "tracking.uri=${oc.env:RLTUNE_TRACKING_URI}", "notify=${oc.env:RLTUNE_NOTIFY}", "seed=1"]
    assert environment["RLTUNE_TRACKING_URI"] == "http://me:s3 cret@host/"
    assert environment["RLTUNE_NOTIFY"] == "https://me:s3cret@host/x"
