"""A web server that keeps what is posted to it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Listener(ThreadingHTTPServer):
    """Refuses what is posted below /no, redirects /moved, and keeps /slow waiting until the end of the test.

    Attributes:
        posted: The path, the login and the content of each request.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.host = f"127.0.0.1:{self.server_port}"
        self.posted: list[tuple[str, str | None, dict[str, Any]]] = []
        self.released = threading.Event()

    @property
    def contents(self) -> list[dict[str, Any]]:
        return [content for _, _, content in self.posted]


class _Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, self.headers["Authorization"], json.loads(content)))
        if self.path == "/slow":
            self.server.released.wait(60.0)
        self.send_response({"/no": 404, "/mo": 302}.get(self.path[:3], 200))
        if self.path == "/moved":
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.posted.append((self.path, self.headers["Authorization"], {}))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def listen() -> Iterator[Listener]:
    """Serve on a free port of this machine."""
    with Listener() as listener:
        threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield listener
        finally:
            listener.released.set()
            listener.shutdown()
