"""Connections without a token hold no descriptor for long, and leave room for others."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from rltune.service import connections
from tests.service.serviced import Serviced, run_service

HEAD = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n"
DRAWINGS = {
    "nothing": b"",
    "half a request line": b"GE",
    "half a header": HEAD + b"X-Slow: ",
    "half a body": b"POST /api/sweeps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    "half a chunk": b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nx",
    "half a second request": HEAD + b"\r\nGET / HTTP/1.1\r\nHo",
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serviced]:
    with run_service(tmp_path / "outputs") as service:
        yield service


def connect(service: Serviced, sent: bytes) -> socket.socket:
    """Connect, and send a part of a request."""
    host, _, port = service.address.rpartition("/")[2].partition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the service has closed a connection, now or within the socket's time-out."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_a_request_that_never_becomes_whole_is_closed(
    service: Serviced, drawing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    with connect(service, DRAWINGS[drawing]) as connection:
        assert is_closed(connection)


def test_a_client_that_sends_a_byte_now_and_then_is_closed(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    with connect(service, HEAD) as connection:
        connection.settimeout(0.1)
        deadline = time.monotonic() + 10
        while not is_closed(connection):
            assert time.monotonic() < deadline
            try:
                connection.sendall(b"X")
            except OSError:
                break


def test_more_connections_than_allowed_leave_room_for_others(
    service: Serviced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    held = [connect(service, DRAWINGS["half a header"]) for _ in range(40)]
    service.client.check()
    for connection in held[:30]:
        connection.settimeout(10)
        assert is_closed(connection)
    for connection in held:
        connection.close()


def test_a_client_that_takes_no_response_makes_room(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    begin = connections.BoundedConnection.connection_made

    def begin_with_small_buffer(self: connections.BoundedConnection, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        begin(self, transport)

    monkeypatch.setattr(connections.BoundedConnection, "connection_made", begin_with_small_buffer)
    request = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(service, 200 * request) as connection:
        time.sleep(1)  # The responses fill all buffers meanwhile.
        service.client.check()
        assert is_closed(connection)


def test_a_slow_response_keeps_its_connection(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)
    read = service.sweeps.submissions.list

    def read_slowly() -> object:
        time.sleep(1)
        return read()

    monkeypatch.setattr(service.sweeps.submissions, "list", read_slowly)
    assert service.client.list() == []


def test_a_connection_serves_several_requests(service: Serviced) -> None:
    with requests.Session() as session:
        for _ in range(3):
            assert session.get(f"{service.address}/login", timeout=10).status_code == 200
