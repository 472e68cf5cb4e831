"""Where MLflow is: the tracking address that is meant, whether it answers, how to show it without a password.

Works without importing mlflow, so that a wrong address costs no more than its time-out. Runs in the driver.
"""

from __future__ import annotations

import base64
import os
import queue
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

from rltune.errors import ConfigError, choices

SQL_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
SCHEMES = ("sqlite", "http", "https", *SQL_PORTS, "databricks")

# A password may hold any sign, an @ and a / too, so that only the last @ can be the login's end. A user without a
# password is kept: who reads the address later has no other way to know it.
_LOGIN = re.compile(r"://[^\s:]*:\S*@")
_LOGIN_OF_ONE = re.compile(r"(?s)://[^:]*:.*@")
_QUERY = r"(?i)([?&][\w-]*(?:password|passwd|token|secret|key)[\w-]*=)(?!\*\*\*)"
_QUERY_SECRET, _QUERY_SECRET_OF_ONE = re.compile(_QUERY + r"[^&\s]+"), re.compile(_QUERY + r"[^&]+")


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Take the login out of every URL in a text.

    White space ends a URL here: where one stands alone, `redact_address` knows more.

    Args:
        text: Anything that may be shown or written.
        secrets: Words that must not appear either, such as a password that is no part of a URL.
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    return _QUERY_SECRET.sub(r"\1***", _LOGIN.sub("://***@", text))


def redact_address(value: str) -> str:
    """Take the login out of a single value, such as a setting or a word of the command line, blanks and all."""
    return _QUERY_SECRET_OF_ONE.sub(r"\1***", _LOGIN_OF_ONE.sub("://***@", value))


def redact_settings(settings: Any) -> Any:
    """Take the logins out of all values of nested settings."""
    if isinstance(settings, dict):
        return {key: redact_settings(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [redact_settings(value) for value in settings]
    return redact_address(settings) if isinstance(settings, str) else settings


def resolve_uri(uri: str | None) -> str:
    """The tracking address that is meant, absolute; for None, what a plain ``mlflow ui`` here would show."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path.cwd() / uri.removeprefix('sqlite:///')}"
    return uri


def check(uri: str | None, timeout_s: float = 2.0) -> None:
    """Ask cheaply, without importing mlflow, whether the tracking address can be used.

    Args:
        uri: As in `TrackingSettings`.
        timeout_s: The longest wait for a server, name look-up included.

    Raises:
        ConfigError: It cannot; the message shows no password.
    """
    address = resolve_uri(uri)
    scheme = urlsplit(address).scheme.split("+")[0]
    if scheme == "sqlite":
        problem = _sqlite_problem(Path(address.removeprefix("sqlite:///")))
    elif scheme in ("http", "https"):
        problem = _within(timeout_s, lambda: _server_problem(address, timeout_s))
    elif scheme in SQL_PORTS:
        problem = _within(timeout_s, lambda: _database_problem(address, SQL_PORTS[scheme], timeout_s))
    elif address.startswith("databricks"):
        problem = None
    else:
        why = "MLflow keeps no runs in plain folders any more" if scheme in ("", "file") else "unknown scheme"
        raise ConfigError(
            f"tracking.uri={redact_address(address)}: {why}",
            choices(scheme, SCHEMES),
            "tracking.uri=sqlite:////absolute/path/mlflow.db, or leave it out for mlflow.db in this folder",
        )
    if problem:
        raise ConfigError(
            f"tracking.uri={redact_address(address)}: {redact(problem, secrets_of(address))}",
            "a server that answers, or a database file in a folder that can be written",
            "start it (mlflow server --port 5000), or type tracking=local (mlflow.db here) or tracking=off",
        )


def _within(timeout_s: float, ask: Callable[[], str | None]) -> str | None:
    # a socket's time-out does not cover the look-up of a name, which may take many seconds
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(ask()), daemon=True).start()
    try:
        return answers.get(timeout=timeout_s + 0.2)
    except queue.Empty:
        return f"no answer within {timeout_s:.0f} s"


def _server_problem(address: str, timeout_s: float) -> str | None:
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    user = unquote(parts.username or os.environ.get("MLFLOW_TRACKING_USERNAME", ""))
    password = unquote(parts.password or os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    token = os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1"
    request = urllib.request.Request(url)  # noqa: S310, the scheme is http or https
    if user:
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    elif token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        known = {401: "refuses the login", 403: "refuses the login", 404: "is not an MLflow server"}
        return known.get(error.code, f"answers with error {error.code}")
    except urllib.error.URLError as error:
        return f"cannot be reached ({error.reason})"
    except (OSError, ValueError, HTTPException) as error:
        return f"cannot be reached ({redact(str(error))})"


def _database_problem(address: str, port: int, timeout_s: float) -> str | None:
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "localhost", parts.port or port), timeout_s).close()
    except (OSError, ValueError) as error:
        return f"cannot be reached ({error})"
    return None


def _sqlite_problem(path: Path) -> str | None:
    if path.is_dir():
        return "is a folder, not a database file"
    if path.exists():
        with path.open("rb") as file:
            head = file.read(16)
        if head and head != b"SQLite format 3\0":
            return "is not an SQLite database"
        return None if os.access(path, os.W_OK) else "cannot be written"
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    return None if folder.is_dir() and os.access(folder, os.W_OK) else f"folder {folder} cannot be written"


def secrets_of(uri: str) -> list[str]:
    """Words that redacting URLs could miss, longest first; short ones would spoil ordinary text."""
    login = uri.partition("://")[2].rpartition("@")[0]
    password = login.partition(":")[2]
    given = {os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("PASSWORD", "TOKEN")}
    # libraries end a password where they see fit and decode it, and name the pieces in their errors
    words = {password, unquote(password), quote(password, safe=""), quote_plus(password)} | given
    words |= {word for piece in (password, unquote(password)) for word in re.split(r"[@:/?#\s]", piece)}
    return sorted((word for word in words if len(word) >= 6), key=len, reverse=True)
