"""Check before a sweep starts whether its MLflow address can work."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rltune.config.uris import resolve_uri
from rltune.errors import ConfigError, RltuneError, UnavailableError, choices
from rltune.secrets import redact_error, reveal

SQL_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
SCHEMES = ("sqlite", "http", "https", *SQL_PORTS, "databricks")
Problem = tuple[type[RltuneError], str]
UNREADABLE: Problem = (RltuneError, "cannot be read: special characters of a password are written as %2F and so on")
REFUSALS = {401: "refuses the login", 403: "refuses the login", 404: "is not an MLflow server"}


def check_uri(uri: str | None, timeout_s: float = 2.0) -> None:
    """Check an MLflow address quickly, without importing mlflow.

    Args:
        uri: The setting ``tracking.uri``.
        timeout_s: The longest wait for a server, name look-up included.

    Raises:
        RltuneError: The address cannot work; the message shows no password.
        UnavailableError: The server does not answer at the moment.
    """
    address = resolve_uri(uri)
    scheme = address.partition(":")[0].split("+")[0] if ":" in address else ""
    problem: Problem | None = None
    if scheme == "sqlite":
        problem = _find_sqlite_problem(Path(address.removeprefix("sqlite:///")))
    elif scheme in ("http", "https"):
        problem = _wait_for(timeout_s, lambda: _find_server_problem(reveal(address), timeout_s))
    elif scheme in SQL_PORTS:
        problem = _wait_for(timeout_s, lambda: _find_database_problem(reveal(address), SQL_PORTS[scheme], timeout_s))
    elif not address.startswith("databricks"):
        why = "MLflow keeps no runs in plain folders any more" if scheme in ("", "file") else "unknown scheme"
        raise ConfigError(
            "tracking.uri",
            address,
            f": {why}",
            choices(scheme, SCHEMES),
            "tracking.uri=sqlite:////absolute/path/mlflow.db, or leave it out for mlflow.db in this folder",
        )
    if problem:
        kind, why = problem
        raise kind(
            f": {redact_error(address, why)}",
            "a server that answers, or a database file in a folder that can be written",
            "start it (mlflow server --port 5000), or type tracking=local (mlflow.db here) or tracking=off",
            key="tracking.uri",
            value=address,
        )


def _wait_for(timeout_s: float, find_problem: Callable[[], Problem | None]) -> Problem | None:
    # The lookup of a host name may take many seconds and ignores the socket's time-out, so it runs in a thread.
    answers: queue.SimpleQueue[Problem | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(find_problem()), daemon=True).start()
    try:
        return answers.get(timeout=timeout_s + 0.5)
    except queue.Empty:
        return UnavailableError, f"no answer within {timeout_s:.0f} s"


def _find_server_problem(address: str, timeout_s: float) -> Problem | None:
    import requests  # The address is parsed by requests, as MLflow does, so that both understand it in the same way.

    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token and not user else {}
    login = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    url = f"{address.rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1"
    try:
        # Redirects are not followed, because the login must not be sent to another server.
        with requests.get(
            url,
            auth=login if user and "@" not in urlsplit(address).netloc else None,
            headers=headers,
            timeout=timeout_s,
            allow_redirects=False,
        ) as answer:
            code = answer.status_code
    # Errors of requests, such as InvalidURL, may quote a part of the login, so their text is not shown.
    except ValueError:
        return UNREADABLE
    except requests.RequestException as error:
        return UnavailableError, f"cannot be reached ({str(error).rpartition(': ')[2].rstrip(')' + chr(34))})"
    if code == 200:
        return None
    kind = UnavailableError if code >= 500 or code == 429 else RltuneError
    return kind, REFUSALS.get(code, f"answers with status {code}")


def _find_database_problem(address: str, port: int, timeout_s: float) -> Problem | None:
    try:
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "localhost", parts.port or port), timeout_s).close()
    except ValueError:
        return UNREADABLE
    except OSError as error:
        return UnavailableError, f"cannot be reached ({error})"
    return None


def _find_sqlite_problem(path: Path) -> Problem | None:
    if path.is_dir():
        return RltuneError, "is a folder, not a database file"
    if path.exists():
        with path.open("rb") as file:
            head = file.read(16)
        if head and head != b"SQLite format 3\0":
            return RltuneError, "is not an SQLite database"
        return None if os.access(path, os.W_OK) else (RltuneError, "cannot be written")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    writable = folder.is_dir() and os.access(folder, os.W_OK)
    return None if writable else (RltuneError, f"folder {folder} cannot be written")
