"""Token authentication with protection against CSRF and DNS rebinding.

A browser sends its cookie along whatever page made the request. So a request that changes something must come from the
service's own page, by its Origin, or carry the token; nothing is changed by GET. A host name that somebody else's DNS
resolves to this machine is refused, because a page of that name would count as the service's own.
"""

from __future__ import annotations

import hmac
import itertools
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import psutil
from fastapi import Depends, FastAPI, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rltune.errors import ABSENT, RltuneError

READING = ("GET", "HEAD")
LOGIN = "/login"
HEALTH = "/health"  # For probes, which have no token.
OPENAPI = "/api/openapi.json"  # For generators of clients; it has nothing of the service's sweeps.
METRICS = "/metrics"  # For Prometheus, which has the token and reads no pages.
LOGGED_IN = "logged_in"
SESSION_S = 365 * 24 * 3600  # A browser stays logged in for a year.
MAX_BODY_BYTES = 2**20  # A request's body is read into memory before the token is checked, so its size is limited.


class AccessError(RltuneError):
    """A request that is refused because of its token, its origin or its host.

    Args:
        status: The HTTP status of the response.
        problem: What is wrong with the request.
        allowed: Which requests are accepted.
        fix: What to send instead.
        key: The header that is wrong.
        value: Its value.
    """

    def __init__(
        self, status: int, problem: str, allowed: str, fix: str, *, key: str = "", value: object = ABSENT
    ) -> None:
        super().__init__(problem, allowed, fix, key=key, value=value)
        self.status = status


@dataclass(frozen=True)
class Access:
    """Check the token, the origin and the host of requests to a service.

    Attributes:
        token: The secret that its users have.
        port: The port on which it listens; it names the cookie, because a browser sends the same cookies to all ports
            of a machine.
        names: Host names by which it may be called, besides this machine's own names and addresses.
    """

    token: str
    port: int
    names: tuple[str, ...] = ()

    def protect(self, app: FastAPI) -> None:
        """Add the middleware that checks the Host header, reads the session cookie and limits a request's size."""
        app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES)
        app.add_middleware(
            SessionMiddleware,
            secret_key=self.token,
            session_cookie=f"rltune-{self.port}",
            max_age=SESSION_S,
            same_site="strict",
        )
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list_hosts(self.names), www_redirect=False)

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token, in constant time."""
        return hmac.compare_digest(text.strip().encode(), self.token.encode())

    async def check(
        self,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))],
    ) -> None:
        """Accept a request with the token, or one from the service's own page after a login (protection against CSRF).

        Raises:
            AccessError: The request is refused.
        """
        has_token = credentials is not None and self.is_token(credentials.credentials)
        is_open = request.url.path in (LOGIN, HEALTH, OPENAPI)
        is_logged_in = credentials is None and (request.session.get(LOGGED_IN) or is_open)
        if not (has_token or is_logged_in):
            raise AccessError(
                401, "no token, or a wrong one", "the token that rltune serve printed", "Authorization: Bearer <token>"
            )
        if request.method not in READING:
            origin = request.headers.get("origin")
            is_from_page = origin is not None and origin.partition("://")[2] == request.headers.get("host")
            if not is_from_page and (origin is not None or not has_token):
                raise AccessError(
                    403,
                    "is another page",
                    "the service's own page, or the token",
                    "Authorization: Bearer <token>",
                    key="Origin",
                    value=origin,
                )


def list_hosts(names: Sequence[str]) -> list[str]:
    """List the Host headers that are accepted: this machine's names and addresses, and the configured names."""
    entries = list(itertools.chain.from_iterable(psutil.net_if_addrs().values()))
    version_4 = [entry.address for entry in entries if entry.family == socket.AF_INET]
    version_6 = [f"[{entry.address.partition('%')[0]}]" for entry in entries if entry.family == socket.AF_INET6]
    return ["localhost", "127.0.0.1", "[::1]", socket.gethostname(), *version_4, *version_6, *names]
