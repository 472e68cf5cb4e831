"""Let in who has the token, and nobody by another site's page.

A browser sends its cookie along whatever page made it ask. So whoever changes something must say the page's own origin,
or hold the token itself; nothing is changed by GET. A name that somebody else's DNS resolves to this machine is no name
of this service.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

READING = ("GET", "HEAD")
OPEN_PATHS = ("/login", "/style.css", "/page.js")  # what somebody without the token may see


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    what: str
    fix: str


@dataclass(frozen=True)
class Access:
    """Who may do what.

    Attributes:
        token: By which users are known.
        names: By which this service may be called, besides addresses and this machine's own names.
    """

    token: str
    names: tuple[str, ...] = ()

    @property
    def cookie(self) -> str:
        """What a browser holds once somebody has logged in; no use as a token elsewhere."""
        return hmac.new(self.token.encode(), b"page", hashlib.sha256).hexdigest()

    def refuse(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is refused; None where it is not.

        Args:
            method: GET, POST ...
            path: What is asked for.
            headers: By their names in small letters.
        """
        host = headers.get("host", "")
        if not self._is_own(host):
            return Refusal(421, f"Host: {host} is no name of this service", "http://127.0.0.1:<port>, or names=[...]")
        by_token = self._has_token(headers.get("authorization", ""))
        if method not in READING:
            origin = headers.get("origin")
            if (origin is None and not by_token) or (origin is not None and urlsplit(origin).netloc != host):
                return Refusal(403, f"Origin: {origin} is another page than ours", "the service's own page, or curl")
        if path in OPEN_PATHS or by_token or self._has_cookie(headers):
            return None
        return Refusal(401, "no token, or a wrong one", "Authorization: Bearer <token>; rltune serve prints it")

    def is_token(self, given: str) -> bool:
        """Whether somebody has given the token."""
        return hmac.compare_digest(given.strip().encode(), self.token.encode())

    def _has_token(self, authorization: str) -> bool:
        kind, _, given = authorization.partition(" ")
        return kind.lower() == "bearer" and self.is_token(given)

    def _has_cookie(self, headers: Mapping[str, str]) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(name_cookie(headers.get("host", "")))
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self.cookie.encode())

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {"localhost", socket.gethostname().lower(), *self.names}
        return True  # nobody's DNS has a say in an address


def name_cookie(host: str) -> str:
    """Name the cookie by the port too: a browser keeps one jar for all services of a machine."""
    return f"rltune-{host.rpartition(':')[2] if ':' in host else '80'}"
