"""The fork server's side of its socket; whole servers are in test_fork_server."""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys

import pytest

from rltune.cluster import fork_server_main
from rltune.cluster.fork_server_main import (
    CALL,
    RAISED,
    _import_modules,
    _pickle_error,
    _receive_head,
    _receive_request,
)
from rltune.cluster.worker_entry import send_request
from rltune.errors import ConfigError


@pytest.fixture
def pair():
    """Both ends of a connection."""
    client, server = socket.socketpair(socket.AF_UNIX)
    with client, server:
        yield client, server


def test_a_request_arrives_whole_with_its_streams(pair):
    client, server = pair
    read, write = os.pipe()
    request = {"environment": {"A": "b"}, "folder": "/", "arguments": ["x" * 50_000]}
    send_request(client, request, [write])
    head, streams = _receive_head(server)
    assert _receive_request(server, head) == request
    os.write(streams[0], b"there")
    assert os.read(read, 9) == b"there"
    for stream in (read, write, *streams):
        os.close(stream)


@pytest.mark.parametrize("sent", [b"", (100).to_bytes(8, "little") + json.dumps({"a": 1}).encode()])
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "stopped"])
def test_a_request_that_is_not_whole_is_none(sent, ended, pair, monkeypatch):
    monkeypatch.setattr(fork_server_main, "REQUEST_S", 0.05)
    client, server = pair
    client.sendall(sent)
    if ended:
        client.close()
    head, streams = _receive_head(server)
    assert (_receive_request(server, head), streams) == (None, [])


def test_a_call_is_known_by_its_first_bytes(pair):
    client, server = pair
    client.sendall(CALL + pickle.dumps((len, ("abc",))))
    head, _ = _receive_head(server)
    assert head.startswith(CALL)


def test_a_function_is_called_after_its_module_was_imported(tmp_path, monkeypatch):
    (tmp_path / "warm_module.py").write_text("calls = []\ndef load():\n    calls.append(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _import_modules(["no.such.module", "warm_module:no_such_function", "warm_module:load"])
    assert sys.modules.pop("warm_module").calls == [1]


class Unreadable(Exception):
    """Pickles, and cannot be made again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def test_an_error_keeps_its_class_where_it_can_be_read_again():
    outcome, error = pickle.loads(_pickle_error(ConfigError("a", 1, "", "2", "a=2")))
    assert (outcome, type(error), error.fix) == (RAISED, ConfigError, "a=2")
    outcome, error = pickle.loads(_pickle_error(Unreadable("a", "b")))
    assert (outcome, type(error), str(error)) == (RAISED, RuntimeError, "Unreadable: ab")
