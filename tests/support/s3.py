"""An S3 server of the tests' own on a free port of this machine: moto's, which speaks S3 over HTTP."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from joined import free_port

# For all tests: a Ray that they share has started its workers before the first that needs them.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "nothing-secret"}
os.environ.update(CREDENTIALS)
BUCKET = "sweeps"


class Server:
    """The server; it forgets everything when it is ended, and nothing when it is stopped.

    Attributes:
        endpoint: Its address.
        storage: A place in its bucket, as a person types it.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host, self.port = host, free_port()
        self.endpoint = f"http://{host}:{self.port}"
        self.storage = f"s3://{BUCKET}/runs?endpoint_override={self.endpoint}"

    def start(self) -> None:
        """Start it, and make the bucket."""
        command = [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                made = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
                urllib.request.urlopen(made, timeout=5).close()
                return
            assert self._process.poll() is None, "moto did not start"
            assert time.monotonic() < deadline, "moto does not answer"
            time.sleep(0.1)

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Gate:
    """A way to the server that can be closed, as when it is away and comes back with all that it had."""

    def __init__(self, server: Server) -> None:
        self.port, self._server = free_port(), server
        self.storage = f"s3://{BUCKET}/runs?endpoint_override=http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Let requests through."""
        code = (
            "import socket, sys, threading\n"
            "def pump(a, b):\n"
            "    try:\n"
            "        while data := a.recv(65536):\n"
            "            b.sendall(data)\n"
            "    except OSError: pass\n"
            "    finally:\n"
            "        for one in (a, b):\n"
            "            try: one.shutdown(2)\n"
            "            except OSError: pass\n"
            "gate = socket.create_server(('127.0.0.1', int(sys.argv[1])), reuse_port=False)\n"
            "while True:\n"
            "    near, _ = gate.accept()\n"
            "    far = socket.create_connection((sys.argv[2], int(sys.argv[3])))\n"
            "    for pair in ((near, far), (far, near)):\n"
            "        threading.Thread(target=pump, args=pair, daemon=True).start()\n"
        )
        words = [sys.executable, "-c", code, str(self.port), self._server.host, str(self._server.port)]
        self._process = subprocess.Popen(words)
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)

    def close(self) -> None:
        """Let none through."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def s3_server() -> Iterator[Server]:
    """A running server."""
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.end()
