"""Connect to MLflow by a client that gives up quickly, logs nothing, and makes a local store whole or not at all.

Runs in the driver, in the feed's thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PREFIX = "sqlite:///"
# An outage must be noticed in seconds, not in MLflow's four minutes; the feed does the retrying.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class _NotOurs(logging.Filter):
    """Drop what MLflow and alembic log in the feed's thread, which reports it in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.threadName != "feed-MLflow"


def connect_mlflow(uri: str) -> Any:
    """Return an ``MlflowClient``; importing MLflow takes 2 s, making a local store some more.

    Raises:
        Exception: Whatever MLflow raises while there is no store.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Otherwise MLflow prints a server's address, login included, whenever a run ends.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    warnings.filterwarnings("ignore", module=r"mlflow\.")  # advice to authors of models, over the console
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        for handler in logging.getLogger(name).handlers:
            if not any(isinstance(known, _NotOurs) for known in handler.filters):
                handler.addFilter(_NotOurs())
    make_store(uri)
    return MlflowClient(uri)


def make_artifact_folder(location: str) -> None:
    """Make the folder that holds the artifacts of all experiments, private, unless it is there or elsewhere.

    Args:
        location: An experiment's ``artifact_location``.
    """
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        with contextlib.suppress(FileExistsError):
            Path(unquote(parts.path)).parent.mkdir(mode=0o700, parents=True)


def make_store(uri: str) -> None:
    """Make the file that an SQLite address names, unless it is there; do nothing for other addresses.

    MLflow makes its tables by dozens of migrations, seconds long; a driver that is killed meanwhile would leave a file
    that no MLflow opens again ("table ... already exists", 3.17).

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
        draft.chmod(0o600)  # its tables tell what the sweep's folder keeps private
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another sweep was first
        except OSError:  # a file system without links
            draft.rename(path)
