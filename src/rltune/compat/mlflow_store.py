"""Read the version of MLflow's SQLite file, and let its paths follow a project's folder that was moved or copied.

MLflow itself refuses a file of another version in each request, after its import, which takes seconds. It keeps
absolute paths of artifacts, of which it says nothing when they lead nowhere, and makes the old folder again.

What: the tables and columns of `PLACES`, and ``store/db_migrations/versions/*.py``, with ``revision`` and
``down_revision`` as alembic reads them. Tested with MLflow 3.17 and 3.18.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import sqlite3
from pathlib import Path

from rltune.errors import ConfigError
from rltune.formatting import find_program

PREFIX = "sqlite:///"
PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Where MLflow keeps paths of artifacts."""
_REVISION = re.compile(r"^(revision|down_revision)\s*(?::[^=]+)?=\s*[\"'(]+([^\"']+)", re.MULTILINE)


def find_file(uri: str) -> Path | None:
    """Return the SQLite file of a tracking address; None for another kind of address."""
    return Path(uri.removeprefix(PREFIX).partition("?")[0]).absolute() if uri.startswith(PREFIX) else None


def check_version(uri: str, key: str) -> None:
    """Refuse an SQLite file of MLflow whose tables another version has made.

    Args:
        uri: MLflow's tracking address.
        key: The setting to name.

    Raises:
        ConfigError: The file is older, with the two commands that renew it, or newer than the installed MLflow.
    """
    path = find_file(uri)
    if path is None or not path.exists():
        return
    revisions: set[str] = set()
    with (
        contextlib.suppress(sqlite3.Error),  # A new or a damaged file has no version.
        contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file,
    ):
        revisions.update(row[0] for row in file.execute("SELECT version_num FROM alembic_version"))
    parents = read_revisions()
    heads = {*parents} - {*parents.values()}
    if not parents or not revisions or revisions == heads:
        return
    copy = path.with_name(f"{path.name}.old")
    upgrade = find_program(f"mlflow db upgrade {shlex.quote(f'{PREFIX}{path}')}")
    is_older = revisions <= parents.keys()
    raise ConfigError(
        key,
        uri,
        f": an {'older' if is_older else 'unknown, newer'} MLflow than the installed one made its tables"
        f" (version {', '.join(revisions)}, not {', '.join(heads)})",
        "a file of the installed MLflow, which it renews with all that is in it" if is_older else "a newer MLflow",
        f"cp {shlex.quote(str(path))} {shlex.quote(str(copy))} && {upgrade}" if is_older else "pip install -U mlflow",
    )


def read_revisions() -> dict[str, str]:
    """Return the versions of tables that the installed MLflow knows, and for each the one before it."""
    spec = importlib.util.find_spec("mlflow")
    folders = spec.submodule_search_locations if spec else None
    parents = {}
    for folder in folders or ():
        for path in Path(folder, "store", "db_migrations", "versions").glob("*.py"):
            names = dict(_REVISION.findall(path.read_text()))
            if "revision" in names:
                parents[names["revision"]] = names.get("down_revision", "")
    return parents


def follow_move(uri: str) -> None:
    """Let the paths of an SQLite file's artifacts lead to the folder ``mlruns`` beside it in a project that was moved.

    Their own folder is gone then. If it was copied, then that folder has another file of the same name beside it; the
    copy is a project of its own. Nothing is changed where the folder beside the file has none of the experiments.
    """
    path = find_file(uri)
    if path is None or not path.exists():
        return
    here = path.parent / "mlruns"
    with contextlib.closing(sqlite3.connect(path)) as file, contextlib.suppress(sqlite3.Error), file:
        locations = file.execute("SELECT artifact_location, experiment_id FROM experiments").fetchall()
        roots: dict[Path, list[str]] = {}
        for location, number in locations:
            if Path(location).name == str(number):
                roots.setdefault(Path(location).parent, []).append(str(number))
        for root, numbers in roots.items():
            # What lies in another user's folder cannot be seen. For Path.exists that is an error.
            original = root.parent / path.name
            is_left = os.path.exists(root) and (not os.path.exists(original) or os.path.samefile(original, path))
            if not root.is_absolute() or is_left or not any((here / number).exists() for number in numbers):
                continue
            for table, column in PLACES:
                file.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",  # noqa: S608
                    (f"{here}/", len(f"{root}/") + 1, len(f"{root}/"), f"{root}/"),
                )
