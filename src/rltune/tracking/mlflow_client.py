"""Create an MLflow client with short time-outs and no console output; create a local store atomically.

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
# MLflow would retry for four minutes by itself. The feed has its own retries, and must notice an outage in seconds.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class _FeedFilter(logging.Filter):
    """Drop log records of MLflow and alembic from the feed's thread, which reports errors in one line itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.threadName != "feed-MLflow"


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
            if not any(isinstance(existing, _FeedFilter) for existing in handler.filters):
                handler.addFilter(_FeedFilter())
    make_store(uri)
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
