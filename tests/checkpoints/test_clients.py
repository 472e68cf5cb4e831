"""Requests to remote storage: outages, retries, and the little time after a signal."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from s3 import Gate, Server

from rltune.checkpoints.clients import StoreError, StoreUnavailableError, is_outage, make_address
from rltune.checkpoints.store import Store, open_store
from rltune.records import CheckpointRecord

pytestmark = pytest.mark.slow  # They need a server.


def save(store: Store, env_steps: int) -> CheckpointRecord:
    path = f"trials/7/a1b2/latest-{env_steps:012d}"
    with store.make_draft(path) as draft:
        (draft / "state.json").write_text("{}")
        (draft / "weights.bin").write_text(str(env_steps))
        return CheckpointRecord(path, env_steps, None, store.save(draft, path))


def test_a_server_that_is_away_for_seconds_loses_nothing(s3_instance: Server, tmp_path: Path) -> None:
    gate = Gate(s3_instance)
    gate.open()
    store = open_store(tmp_path / "first", make_address(gate.storage, "away"))
    first = save(store, 100)
    gate.close()
    threading.Timer(3.0, gate.open).start()
    began = time.monotonic()
    second = save(store, 200)
    assert 2 < time.monotonic() - began < 60
    gate.close()
    other = open_store(tmp_path / "other", make_address(s3_instance.storage, "away"))
    assert other.open(first) is not None
    assert other.open(second) is not None


def test_a_storage_that_stays_away_is_named_with_its_key(tmp_path: Path) -> None:
    store = open_store(tmp_path, make_address("s3://who:sesame@sweeps/x?endpoint_override=http://127.0.0.1:9", "name"))
    with pytest.raises(StoreUnavailableError) as raised:
        store.write("a", b"", is_quick=True)
    assert (raised.value.key, raised.value.exit_code) == ("storage", 75)
    assert "AWS_ACCESS_KEY_ID" in raised.value.allowed
    assert "sesame" not in str(raised.value)


class Outage(BaseHTTPRequestHandler):
    """A server that answers each request with a status of HTTP, the first folder of its path."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(int(re.findall(r"status-(\d+)", self.path)[0]))
        self.send_header("content-length", "0")
        self.end_headers()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def outage() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Outage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


GOOGLE = "gs://anonymous@sweeps/status-{}?scheme=http&retry_limit_seconds=1&endpoint_override={}"
AMAZON = "s3://sweeps/status-{}?endpoint_override=http://{}"


@pytest.mark.parametrize(
    ("address", "status", "kind"),
    [
        # Google's client retries for four seconds, whatever it is asked.
        pytest.param(GOOGLE, 0, StoreUnavailableError, marks=pytest.mark.nightly),  # Nobody listens.
        (GOOGLE, 503, StoreUnavailableError),
        pytest.param(GOOGLE, 429, StoreUnavailableError, marks=pytest.mark.nightly),
        (GOOGLE, 403, StoreError),
        (AMAZON, 0, StoreUnavailableError),
        (AMAZON, 503, StoreUnavailableError),
        (AMAZON, 403, StoreError),
    ],
)
def test_an_outage_is_told_from_a_refusal(
    address: str, status: int, kind: type[StoreError], outage: str, tmp_path: Path
) -> None:
    store = open_store(tmp_path, address.format(status, outage if status else "127.0.0.1:9"))
    with pytest.raises(StoreError) as raised:
        store.write("a", b"", is_quick=True)
    assert type(raised.value) is kind
    assert len(raised.value.what) < 300, raised.value.what


def test_a_gateway_without_its_servers_is_an_outage() -> None:
    assert is_outage(
        OSError(
            "When uploading object with key 'x/a' in bucket 'b': AWS Error UNKNOWN (HTTP status 503) during PutObject "
            "operation: No response body."
        )
    )


@pytest.mark.nightly
def test_a_quick_request_gives_up_on_a_hanging_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as hanging:
        store = open_store(tmp_path, f"s3://sweeps/x?endpoint_override=http://127.0.0.1:{hanging.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            store.read("a", is_quick=True)
        assert time.monotonic() - began < 20


@pytest.mark.nightly
def test_in_a_hurry_a_server_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This process goes on.
    monkeypatch.setattr("rltune.checkpoints.clients._let_process_exit", lambda: None)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as hanging:
        store = open_store(tmp_path, f"s3://sweeps/y?endpoint_override=http://127.0.0.1:{hanging.getsockname()[1]}")
        threading.Timer(0.5, store.client.set_deadline, [4.0]).start()
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(StoreUnavailableError):
                store.write("a", b"")
        assert time.monotonic() - began < 9


def test_a_storage_that_hangs_keeps_no_process_from_its_end() -> None:
    code = """if True:
        import socket
        from rltune.checkpoints.clients import StoreUnavailableError
        from rltune.checkpoints.store import open_store
        from rltune.cli import end_command
        hanging = socket.create_server(("127.0.0.1", 0), backlog=50)
        store = open_store(".", f"s3://sweeps/x?endpoint_override=http://127.0.0.1:{hanging.getsockname()[1]}")
        store.client.set_deadline(0.5)
        try:
            store.write("a", b"")
        except StoreUnavailableError:
            end_command(75)
    """
    assert subprocess.run([sys.executable, "-c", code], timeout=40).returncode == 75


def test_a_bucket_that_is_not_there_is_refused_at_once(s3: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        open_store(tmp_path, make_address(s3.replace("sweeps", "strange", 1))).check()
    assert raised.value.key == "storage"
    open_store(tmp_path, make_address(s3)).check()


def test_an_unknown_option_of_an_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        open_store(tmp_path, "s3://sweeps/x?region=1&nonsense=true").read("a")
    assert (raised.value.key, raised.value.exit_code) == ("storage", 2)


def test_sweeps_are_listed_by_a_file_that_they_hold(s3: str, tmp_path: Path) -> None:
    address = f"s3://sweeps/listed{s3[s3.index('?') :]}"
    for name, file in (("good", "config.yaml"), ("other", "stray.txt")):
        open_store(tmp_path, make_address(address, name)).write(file, b"x")
    folders = open_store(tmp_path, make_address(address)).list_folders("config.yaml")
    assert folders.keys() == {"good"}
    assert abs(folders["good"] - time.time()) < 60


def test_the_endpoint_of_the_environment_travels_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert make_address("s3://b/runs/", "one") == "s3://b/runs/one?endpoint_override=http%3A%2F%2Fminio%3A9000"
    assert make_address("s3://b?endpoint_override=http://x:1", "one") == "s3://b/one?endpoint_override=http://x:1"
    assert make_address("gs://b/runs", "one") == "gs://b/runs/one"


def test_no_client_is_made_before_the_first_request() -> None:
    """Threads of a client do not survive a fork."""
    code = """if True:
        import sys
        from rltune.checkpoints.store import open_store
        store = open_store(".", "s3://sweeps/x?endpoint_override=http://127.0.0.1:9")
        sys.exit("pyarrow.fs" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", code], timeout=40).returncode == 0
