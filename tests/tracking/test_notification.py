"""Who is told of a sweep's end, and what of it when that fails."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from rltune.checkpoints.store import open_store
from rltune.errors import ConfigError
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome
from rltune.tracking.feed import Feeds
from rltune.tracking.notification import NotificationTracker, check_target

OUTCOME = Outcome(
    "first", "interrupted", {"total": 3}, {"name": "trial 2"}, None, {}, exit_code=130, folder=Path("/sweeps/first")
)


class Listener(BaseHTTPRequestHandler):
    """Keeps what is posted; refuses below /no, redirects /moved, and keeps /slow waiting."""

    posted: list[tuple[str, str | None, dict[str, object]]] = []  # noqa: RUF012
    released = threading.Event()

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append((self.path, self.headers["Authorization"], json.loads(content)))
        if self.path == "/slow":
            self.released.wait(60.0)
        self.send_response({"/no": 404, "/mo": 302}.get(self.path[:3], 200))
        if self.path == "/moved":
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_GET(self):
        self.posted.append((self.path, self.headers["Authorization"], {}))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def notify_end(target, outcome, limit_s=10.0):
    """Send the notification; return what a person is told of a failure."""
    messages = []
    tracker = NotificationTracker(None, target, limit_s)
    tracker.notify = messages.append
    tracker.end("FINISHED", outcome)
    assert len(messages) <= 1
    return "".join(messages)


@pytest.fixture
def server():
    Listener.posted.clear()
    with HTTPServer(("127.0.0.1", 0), Listener) as served:
        threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{served.server_port}"
        served.shutdown()


@pytest.mark.parametrize(
    "target", ["slack://hook", "ftp://host/x", "http://", "https:///x", "http://:80", "http://[::1"]
)
def test_what_takes_no_post_is_refused(target):
    with pytest.raises(ConfigError) as refused:
        check_target(target)
    assert refused.value.key == "notify"


@pytest.mark.parametrize(
    "target", [None, "https://me:s3cret@host/x?a=b", "mail -s done me@example.org", "curl ftp://x"]
)
def test_an_address_or_a_command_is_allowed(target):
    check_target(target)


def test_an_address_gets_the_summary_and_its_login_as_a_header(server):
    assert notify_end(f"http://me:s3c%20ret@{server}/here?x=1", OUTCOME) == ""
    ((path, login, content),) = Listener.posted
    assert (path, login) == ("/here?x=1", "Basic bWU6czNjIHJldA==")
    assert content == json.loads(json.dumps(OUTCOME.to_dict()))
    assert (content["name"], content["status"]) == ("first", "interrupted")


def test_a_failure_is_told_without_the_login(server):
    refused = notify_end(f"http://me:s3cret@{server}/no?token=t0ken", OUTCOME)
    away = notify_end("http://me:s3cret@127.0.0.1:9/", OUTCOME)
    assert refused.startswith("notify:")
    assert "404" in refused
    assert away.startswith("notify:")
    assert "s3cret" not in refused + away
    assert "t0ken" not in refused


def test_an_address_that_redirects_gets_no_login_elsewhere(server):
    assert "302" in notify_end(f"http://me:s3cret@{server}/moved", OUTCOME)
    assert [path for path, *_ in Listener.posted] == ["/moved"]


def test_an_address_that_is_slow_is_left(server):
    began = time.monotonic()
    try:
        assert notify_end(f"http://{server}/slow", OUTCOME, limit_s=0.2).startswith("notify:")
        assert time.monotonic() - began < 30
    finally:
        Listener.released.set()


def test_a_command_reads_the_summary_and_the_variables(tmp_path):
    told = tmp_path / "told"
    said = notify_end(f'cat > {told}; echo "$RLTUNE_SWEEP $RLTUNE_STATUS $RLTUNE_EXIT_CODE" >> {told}', OUTCOME)
    content, _, line = told.read_text().rpartition("}")
    assert said == ""
    assert json.loads(content + "}")["winner"] == {"name": "trial 2"}
    assert line == "first interrupted 130\n"


def test_a_command_that_fails_is_told_with_its_last_words():
    message = notify_end("echo first >&2; echo mailless >&2; exit 3", OUTCOME)
    assert "3: mailless" in message
    assert "first" not in message


def hang(folder):
    """Return a command that hangs with a child, whose process id it writes into a file."""
    return f"sleep 600 & echo $! > {folder / 'child'}; wait"


def assert_child_ended(folder):
    pid, deadline = int((folder / "child").read_text()), time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path):
    for limit_s in (0.3, 3.0, 30.0):  # A busy machine may take its time to start it.
        began = time.monotonic()
        assert notify_end(hang(tmp_path), OUTCOME, limit_s).startswith("notify:")
        assert time.monotonic() - began < limit_s + 60
        if (tmp_path / "child").exists():
            break
    assert_child_ended(tmp_path)


def test_a_command_does_not_outlive_a_driver_that_waits_no_longer(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "first", create=True)
    feeds = Feeds(ledger, open_store(tmp_path), [NotificationTracker(None, hang(tmp_path))])
    assert not feeds.close("KILLED", 1.0, OUTCOME)
    assert_child_ended(tmp_path)
    (line,) = feeds.warnings()
    assert "resume" not in line, "a resume does not know whom to notify"


def test_an_address_without_its_login_is_not_asked(server):
    assert notify_end(f"http://***@{server}/", OUTCOME) == ""
    assert Listener.posted == []
