"""Create an MLflow client with short time-outs and no console output; create a local store atomically.

Runs in the driver, in the threads of the feed and of the registry; `check_uri` runs before a sweep starts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sqlite3
import tempfile
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rltune.compat.mlflow_store import PREFIX, check_version, follow_move
from rltune.config.uris import find_proxy, resolve_uri
from rltune.errors import ConfigError, UnavailableError
from rltune.secrets import redact_error, reveal

# The time-out of every request, also of the first one, which delays a sweep's start. MLflow reads the same variable, so
# that a user can raise it for a slow server.
TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
REGISTRY_THREAD = "registry-MLflow"  # The name of the threads in which the registry is called.
# MLflow would retry for four minutes by itself. The feed has its own retries, and must notice an outage in seconds.
ENVIRONMENT = {
    TIMEOUT: "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class _OwnThreadsFilter(logging.Filter):
    """Drop log records of MLflow and alembic from the threads of the sweep, which reports errors in one line itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.threadName not in ("feed-MLflow", REGISTRY_THREAD)


def check_uri(uri: str | None) -> None:
    """Send one request to an MLflow store before a sweep starts, without importing MLflow, which takes seconds.

    Args:
        uri: The setting ``tracking.uri``.

    Raises:
        ConfigError: The address or MLflow's time-out cannot work, or the server refuses the login; the message shows no
            password.
        UnavailableError: The server does not answer at the moment.
    """
    address = resolve_uri(uri)
    scheme = address.partition(":")[0].partition("+")[0] if ":" in address else ""
    problem, is_away, proxy = "", False, ""
    try:
        if scheme in ("http", "https"):
            proxy = find_proxy(reveal(address))
            status = _request_experiments(reveal(address), _read_timeout_s())
            problem = "" if status == 200 else f"answers with status {status}"
            is_away = status >= 500 or status == 429
        elif scheme in PORTS:
            server = urlsplit(reveal(address))
            place = server.hostname or "localhost", server.port or PORTS[scheme]
            socket.create_connection(place, _read_timeout_s()).close()
        elif scheme == "sqlite":
            _open_file(Path(address.removeprefix(PREFIX)))
            check_version(address, "tracking.uri")
        elif not address.startswith("databricks"):
            problem = "MLflow keeps runs in a database or on a server"
    except ValueError:  # Its text may quote a part of the login.
        problem = "cannot be read: special characters of a password are written as %2F and so on"
        problem = "cannot be requested" if proxy else problem
    except sqlite3.Error as error:
        problem = str(error)
    except OSError as error:  # The errors of requests are OSErrors, too.
        is_away, problem = True, f"cannot be reached ({str(error).rpartition(': ')[2].rstrip(')' + chr(34))})"
    if not problem:
        return
    key, value = "tracking.uri", address
    if proxy:
        host = urlsplit(reveal(address)).hostname
        problem += f", through the proxy that {proxy} names"
        allowed = "a proxy that reaches the server (for socks: pip install 'requests[socks]'), or none for this server"
        raise UnavailableError(
            f": {redact_error(address, problem)}", allowed, f"export no_proxy=$no_proxy,{host}", key=key, value=value
        )
    parts = (
        f": {redact_error(address, problem)}",
        "a server that answers, http(s)://host:port, or a database, such as sqlite:////absolute/path/mlflow.db",
        "start it (mlflow server --port 5000), or type tracking=local (mlflow.db here) or tracking=off",
    )
    raise UnavailableError(*parts, key=key, value=value) if is_away else ConfigError(key, value, *parts)


def _read_timeout_s() -> float:
    """Return the time-out that MLflow's requests will have, in seconds."""
    typed = os.environ.get(TIMEOUT, ENVIRONMENT[TIMEOUT])
    if not typed.isdecimal():
        raise ConfigError(TIMEOUT, typed, "is no number", "whole seconds", f"unset {TIMEOUT}")
    return float(typed)


def _request_experiments(address: str, timeout_s: float) -> int:
    """Request a server's experiments with the login that MLflow would send, and return the status of the answer."""
    import requests  # MLflow sends its requests by this library, so that both read an address in the same way.

    user, token = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "TOKEN"))
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    with requests.get(
        f"{address.rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1",
        auth=(user, password) if user and "@" not in urlsplit(address).netloc else None,
        headers={"Authorization": f"Bearer {token}"} if token and not user else None,
        timeout=timeout_s,
        allow_redirects=False,  # The login must not be sent to another server.
    ) as answer:
        return int(answer.status_code)


def _open_file(path: Path) -> None:
    """Open an existing SQLite file without a change; a missing one only needs a folder that can be written.

    Raises:
        sqlite3.Error: The file is no database, or it cannot be written.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.exists():
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            file.execute("PRAGMA schema_version")
    if not os.access(path if path.exists() else f"{folder}/.", os.W_OK):
        raise sqlite3.OperationalError(f"{path if path.exists() else folder} cannot be written")


def connect_mlflow(uri: str) -> Any:
    """Import MLflow, create a local store if there is none, and return an ``MlflowClient``; this takes seconds.

    Raises:
        Exception: MLflow raises any type while its store cannot be reached.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # When a run ends, MLflow would print the server's address, which may contain a login.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    # MLflow's warnings are advice for authors of tracking code, and would clutter the console.
    warnings.filterwarnings("ignore", module=r"mlflow\.")
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        for handler in logging.getLogger(name).handlers:
            if not any(isinstance(existing, _OwnThreadsFilter) for existing in handler.filters):
                handler.addFilter(_OwnThreadsFilter())
    make_store(uri)
    follow_move(uri)
    return MlflowClient(uri)


def make_artifact_folder(location: str) -> None:
    """Create the folder for MLflow's artifacts with access for its user only, if it is local and missing.

    Args:
        location: An experiment's ``artifact_location``.
    """
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        with contextlib.suppress(FileExistsError):
            Path(unquote(parts.path)).parent.mkdir(mode=0o700, parents=True)


def make_store(uri: str) -> None:
    """Create the SQLite file of an MLflow store if it is missing; do nothing for other addresses.

    MLflow creates its tables by dozens of migrations, which take seconds. A driver that is killed meanwhile would leave
    a file that no MLflow opens again ("table ... already exists", 3.17). So the file is linked when it is complete.

    Raises:
        OSError: Its folder cannot be written.
    """
    path = Path(uri.removeprefix(PREFIX).partition("?")[0])
    if not uri.startswith(PREFIX) or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        draft = Path(folder) / path.name
        MlflowClient(f"{PREFIX}{draft}").search_experiments(max_results=1)
        draft.chmod(0o600)  # The store contains the same data as the sweep's folder, so it is equally private.
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # Another sweep has created the store at the same time; that one is used.
        except OSError:  # This file system has no hard links, so the file is renamed instead.
            draft.rename(path)
