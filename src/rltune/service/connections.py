"""Bound the connections of the service's HTTP server in number, and in the time that they may wait for their client.

uvicorn has a time-out between requests, and none for a request that never becomes whole. Anybody who reaches the port
could hold connections open without a token, until the service has no file descriptor left for its queue.
"""

from __future__ import annotations

import resource
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 20.0  # A request has to arrive as a whole within this time, its body of at most 1 MiB included.
MAX_CONNECTIONS = 256


class BoundedConnection(H11Protocol):
    """A connection that is closed if its next request does not arrive in time, or if a newer one needs its place."""

    def connection_made(self, transport: Any) -> None:
        """Close the connection that has waited longest for its client if there are too many."""
        super().connection_made(transport)
        self.ready_s = self.loop.time()  # Since when the next request may arrive.
        self._check = self.loop.call_later(REQUEST_S, self._close_if_late)
        others = [each for each in self.connections if isinstance(each, BoundedConnection) and each is not self]
        open_ones = [each for each in others if not each.transport.is_closing()]
        if len(open_ones) >= count_connections():
            waiting = [each for each in open_ones if each.is_waiting()]
            min(waiting, key=lambda each: each.ready_s, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time-out."""
        super().connection_lost(exc)
        self._check.cancel()

    def on_response_complete(self) -> None:
        """Begin the time-out of the next request."""
        super().on_response_complete()
        self.ready_s = self.loop.time()

    def is_waiting(self) -> bool:
        """Return whether the client has not yet sent its request or does not take the response."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self.flow.write_paused

    def _close_if_late(self) -> None:
        left_s = self.ready_s + REQUEST_S - self.loop.time()
        if left_s <= 0 and self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()
        else:
            self._check = self.loop.call_later(left_s if left_s > 0 else REQUEST_S, self._close_if_late)


def count_connections() -> int:
    """Return how many connections there may be: most of the process's file descriptors are left for other things."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


def configure_server(app: Any, **options: Any) -> uvicorn.Config:
    """Return the configuration of an HTTP server with bounded connections.

    Args:
        app: The application.
        options: Further options of uvicorn.
    """
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        # At most so many connections are accepted before one of them is looked at.
        backlog=min(64, count_connections()),
        log_config=None,
        access_log=False,
        **options,
    )
