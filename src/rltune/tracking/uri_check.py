"""Refuse an MLflow address that cannot work before a sweep starts."""

from __future__ import annotations

import base64
import os
import queue
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rltune.config.uris import redact_address, redact_error, resolve_uri
from rltune.errors import ConfigError, choices

SQL_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
UNREADABLE = "cannot be read: a password's signs are written as %2F and the like"
SCHEMES = ("sqlite", "http", "https", *SQL_PORTS, "databricks")


def check_uri(uri: str | None, timeout_s: float = 2.0) -> None:
    """Check a tracking address cheaply, without importing mlflow.

    Args:
        uri: As in `TrackingSettings`.
        timeout_s: The longest wait for a server, name look-up included.

    Raises:
        ConfigError: It cannot; the message shows no password.
    """
    address = resolve_uri(uri)
    scheme = address.partition(":")[0].split("+")[0] if ":" in address else ""
    if scheme == "sqlite":
        problem = _find_sqlite_problem(Path(address.removeprefix("sqlite:///")))
    elif scheme in ("http", "https"):
        problem = _wait_for(timeout_s, lambda: _find_server_problem(address, timeout_s))
    elif scheme in SQL_PORTS:
        problem = _wait_for(timeout_s, lambda: _find_database_problem(address, SQL_PORTS[scheme], timeout_s))
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
            f"tracking.uri={redact_address(address)}: {redact_error(address, problem)}",
            "a server that answers, or a database file in a folder that can be written",
            "start it (mlflow server --port 5000), or type tracking=local (mlflow.db here) or tracking=off",
        )


def _wait_for(timeout_s: float, find_problem: Callable[[], str | None]) -> str | None:
    # A socket's time-out does not cover the look-up of a name, which may take many seconds.
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(find_problem()), daemon=True).start()
    try:
        return answers.get(timeout=timeout_s + 0.2)
    except queue.Empty:
        return f"no answer within {timeout_s:.0f} s"


def _find_server_problem(address: str, timeout_s: float) -> str | None:
    try:
        parts = urlsplit(address)
    except ValueError:  # whose words may quote a piece of a login
        return UNREADABLE
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
    except (ValueError, HTTPException):
        return UNREADABLE
    except OSError as error:
        return f"cannot be reached ({error})"


def _find_database_problem(address: str, port: int, timeout_s: float) -> str | None:
    try:
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "localhost", parts.port or port), timeout_s).close()
    except ValueError:
        return UNREADABLE
    except OSError as error:
        return f"cannot be reached ({error})"
    return None


def _find_sqlite_problem(path: Path) -> str | None:
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
