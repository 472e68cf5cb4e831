"""Who is notified of a sweep's end, and what of it when that fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from listener import listen

from rltune.checkpoints.store import open_store
from rltune.errors import ConfigError
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome
from rltune.tracking.feed import Feeds
from rltune.tracking.notification import NotificationTracker, check_target

WINNER = {"name": "trial 2", "trial": 2, "objective": 487.5}
OUTCOME = Outcome(
    "first", "interrupted", {"total": 3}, WINNER, None, {}, exit_code=130, folder=Path("/sweeps/first")
)  # fmt: skip


def notify_end(address, outcome, limit_s=10.0):
    """Send the notification; return what a person is told of a failure."""
    messages = []
    tracker = NotificationTracker(None, address, limit_s)
    tracker.notify = messages.append
    tracker.end("FINISHED", outcome)
    assert len(messages) <= 1
    return "".join(messages)


@pytest.fixture
def server():
    with listen() as listener:
        yield listener


@pytest.mark.parametrize(
    "value",
    [
        *("slack://hook", "ftp://host/x", "http://", "https:///x", "http://:80", "http://[::1"),
        *("true", "mail -s done me@example.org", "curl https://me:s3cret@x", "curl -u me:s3cret https://x"),
    ],
)
def test_what_takes_no_post_is_refused(value):
    with pytest.raises(ConfigError) as refused:
        check_target(value)
    assert refused.value.key == "notify"
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("value", [None, "https://me:s3cret@host/x?a=b", "https://host/***", "mail ***"])
def test_an_address_is_allowed_also_as_a_sweep_keeps_it(value):
    check_target(value)


def test_an_address_gets_the_end_and_its_login_as_a_header(server):
    assert notify_end(f"http://me:s3c%20ret@{server.host}/here?x=1", OUTCOME) == ""
    ((path, login, content),) = server.posted
    assert (path, login) == ("/here?x=1", "Basic bWU6czNjIHJldA==")
    assert (content["name"], content["status"], content["exit_code"]) == ("first", "interrupted", 130)
    assert content["winner"]["objective"] == 487.5
    assert "show sweep=first output_dir=/sweeps" in content["show"]


def test_a_failure_is_told_without_the_login(server):
    refused = notify_end(f"http://me:s3cret@{server.host}/no?token=t0ken", OUTCOME)
    away = notify_end("http://me:s3cret@127.0.0.1:9/services/T0/h00k", OUTCOME)
    assert refused.startswith("notify:")
    assert "404" in refused
    assert away.startswith("notify:")
    assert not [secret for secret in ("s3cret", "t0ken", "h00k") if secret in refused + away]


def test_an_address_that_redirects_gets_no_login_elsewhere(server):
    assert "302" in notify_end(f"http://me:s3cret@{server.host}/moved", OUTCOME)
    assert [path for path, *_ in server.posted] == ["/moved"]


def test_an_address_that_is_slow_is_left(server):
    began = time.monotonic()
    assert notify_end(f"http://{server.host}/slow", OUTCOME, limit_s=0.2).startswith("notify:")
    assert time.monotonic() - began < 30


def test_a_driver_that_waits_no_longer_says_what_is_lost(server, tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "first", create=True)
    feeds = Feeds(ledger, open_store(tmp_path), [NotificationTracker(None, f"http://{server.host}/slow")])
    assert not feeds.close("KILLED", 1.0, OUTCOME)
    (line,) = feeds.warnings()
    assert "resume" not in line, "a resume does not know whom to notify"


def test_an_address_without_its_login_is_not_asked(server):
    assert notify_end(f"http://***@{server.host}/", OUTCOME) == ""
    assert server.posted == []
