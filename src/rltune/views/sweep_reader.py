"""Read the views of many sweeps repeatedly, for example for the service's list. Runs anywhere.

A ledger in a file is read when the file has changed. The ledgers of one PostgreSQL database are read together, with as
many queries as one of them takes. Both read only what has changed since the last time.

Each database is read in a thread of its own, and no lock is held meanwhile. For one that does not answer in time the
last views are returned, marked as such, and its thread goes on.

A view that is returned can be described: a ledger with values that rltune never writes is that sweep's error alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from rltune.background import start_in_thread
from rltune.config.settings_file import read_identity
from rltune.errors import RltuneError, StudyError, StudyUnavailableError, describe_exception
from rltune.formatting import spell_command
from rltune.ledger.database import connect_ledger, file_of, make_storage_error
from rltune.ledger.ledger import Ledger, find_sweeps
from rltune.ledger.storage import locate_ledger
from rltune.ledger.sweep_folder import SETTINGS
from rltune.views.description import summarize
from rltune.views.sweep_view import SweepView, read_views

SILENT_S = 0.2  # How long a call waits for a database that did not answer the last time.
MAX_READS = 16  # How many databases a call reads at once.
_Version = tuple[int, ...]
# The names and keys that sweeps have in their database, by the sweeps' folders.
_Names: TypeAlias = dict[Path, tuple[str | None, str | None]]
Results: TypeAlias = dict[Path, SweepView | StudyError]


class SweepReader:
    """Reads the views of sweeps, and caches them for the next call. Thread-safe.

    Args:
        ledger_url: The address of the sweeps' ledgers with its login, see `rltune.ledger.storage.locate_ledger`.
        answer_s: How long a call waits for a database; None is for as long as `rltune.ledger.database` does.
    """

    def __init__(self, ledger_url: str | None = None, answer_s: float | None = None) -> None:
        self._ledger_url, self._answer_s = ledger_url, answer_s
        self._locations: dict[Path, tuple[_Version, tuple[str, str | None, str | None]]] = {}
        self._views: dict[Path, tuple[_Version, int, SweepView]] = {}
        self._engines: dict[str, Engine] = {}
        self._reads: dict[str, Future[Results]] = {}  # The last read of each database.
        self._silent: dict[str, float] = {}  # The databases that do not answer, and since when.

    def read(self, folders: Iterable[Path], first_s: float = 0.0) -> Results:
        """Read the views of the sweeps in these folders; one that cannot be read gives its error.

        Args:
            folders: The sweeps' folders.
            first_s: How long the call waits at least for a ledger of which there is no earlier view, unless it has
                been silent for as long.

        Returns:
            The view of each folder's sweep, or why it cannot be read. If nothing has changed, it is the object of the
            last call. If a ledger does not answer, the sweep's last view is returned, whose `SweepView.stale_since_s`
            is set then.
        """
        results: Results = {}
        by_url: dict[str, _Names] = defaultdict(dict)
        chosen = [*folders]
        for folder in chosen:
            try:
                url, *row = self._locate(folder)
                view = self._find_unchanged(folder, url)
            except StudyError as error:
                results[folder] = error
                continue
            if view:
                results[folder] = view
            else:
                by_url[url][folder] = row[0], row[1]
        urls = [*by_url]
        for first in range(0, len(urls), MAX_READS):
            results |= self._read_databases({url: by_url[url] for url in urls[first : first + MAX_READS]}, first_s)
        return {folder: results[folder] for folder in chosen}

    def _locate(self, folder: Path) -> tuple[str, str | None, str | None]:
        version = _read_version(folder / SETTINGS)
        cached = self._locations.get(folder)
        if cached is None or cached[0] != version:
            cached = self._locations[folder] = version, locate_ledger(read_identity(folder), self._ledger_url)
        return cached[1]

    def _find_unchanged(self, folder: Path, url: str) -> SweepView | None:
        """Return the last view of a sweep if its ledger is a file that has not changed since."""
        file, (read_version, _, view) = file_of(url), self._views.get(folder, ((), 0, None))
        if file is None or view is None or url in self._silent or read_version != _read_file_version(file):
            return None
        has_died = view.status == "running" and view.snapshot.lease.is_abandoned()
        return None if has_died else view

    def _read_databases(self, by_url: Mapping[str, _Names], first_s: float) -> Results:
        """Read several databases at once, and wait for none of them longer than for the others.

        Args:
            by_url: The sweeps in each database.
            first_s: As for `read`.
        """
        reads = {url: self._begin_read(url, names) for url, names in by_url.items()}
        wait([read for url, read in reads.items() if url not in self._silent], self._answer_s)
        wait(reads.values(), SILENT_S)
        now_s = time.time()
        unread = [url for url, names in by_url.items() if not names.keys() <= self._views.keys()]
        wait([reads[url] for url in unread if now_s - self._silent.get(url, now_s) < first_s], first_s)
        results: Results = {}
        for url, read in reads.items():
            if not read.done():
                self._silent.setdefault(url, time.time())
            answers = read.result() if read.done() else {}
            for folder in by_url[url]:
                answer = answers.get(folder)
                if answer is None or isinstance(answer, StudyUnavailableError):
                    answer = self._find_last(folder, self._silent.get(url), answer)
                results[folder] = answer
        return results

    def _find_last(
        self, folder: Path, since_s: float | None, error: StudyUnavailableError | None
    ) -> SweepView | StudyError:
        """Return the last view of a sweep whose ledger does not answer, or the error if there is none."""
        _, _, view = self._views.get(folder, ((), 0, None))
        if view:
            return replace(view, stale_since_s=since_s or time.time())
        return error or StudyUnavailableError(
            "does not answer yet",
            "a ledger that answers within seconds",
            spell_command(f"show sweep={folder.name}"),
            key="sweep",
            value=folder.name,
        )

    def _begin_read(self, url: str, names: _Names) -> Future[Results]:
        """Begin to read a database, unless it does not answer and a read of it is still waiting."""
        read = self._reads.get(url)
        if read is None or read.done() or url not in self._silent:
            read = self._reads[url] = start_in_thread("read-database", self._read_database, url, names)
        return read

    def _read_database(self, url: str, names: _Names) -> Results:
        """Read the sweeps whose ledgers are in one database, and note whether it answers."""
        file = file_of(url)
        try:
            if file:
                results = {folder: self._read_file(folder, file, url, *row) for folder, row in names.items()}
            else:
                results = self._read_server(url, names)
        except StudyError as error:
            results = dict.fromkeys(names, error)
        except SQLAlchemyError as error:
            results = dict.fromkeys(names, make_storage_error(url, error))
        if any(isinstance(result, StudyUnavailableError) for result in results.values()):
            self._silent.setdefault(url, time.time())
        else:
            self._silent.pop(url, None)
        return results

    def _read_file(
        self, folder: Path, file: Path, url: str, name: str | None, key: str | None
    ) -> SweepView | StudyError:
        version = _read_file_version(file)
        with _keep_error(folder) as errors, closing(Ledger(url, name, key)) as ledger:
            _, _, view = self._views.get(folder, ((), 0, None))
            # A deleted sweep's name may be used again; the sweep's random key distinguishes the two.
            is_same = view is not None and view.record.key == ledger.key
            view = _check(SweepView.read(ledger, view if is_same else None).in_folder(folder))
            self._views[folder] = version, ledger.sweep_id, view
            return view
        return errors[0]  # Several sweeps may share the file, and the others can be read.

    def _read_server(self, url: str, names: _Names) -> Results:
        """Read the sweeps whose ledgers are in one database of a server.

        Args:
            url: The database's address.
            names: The sweeps' names and keys by their folders.
        """
        if url not in self._engines:
            self._engines[url] = connect_ledger(url)
        engine = self._engines[url]
        folders = {name or folder.name: folder for folder, (name, _) in names.items()}
        ids = find_sweeps(engine, folders)
        since = {}
        for name, sweep_id in ids.items():
            _, read_id, view = self._views.get(folders[name], ((), 0, None))
            if view is not None and read_id == sweep_id:
                since[sweep_id] = view
        views: Mapping[int, SweepView] = {}
        with _keep_error(engine.url.database):  # Where one of them is damaged, each is read alone below.
            views = read_views(engine, list(ids.values()), since)
        results: Results = {}
        for name, folder in folders.items():
            key = names[folder][1]
            with _keep_error(folder) as errors:
                if (view := views.get(ids.get(name, 0))) and key in (None, view.record.key):
                    view = results[folder] = _check(view.in_folder(folder))
                    self._views[folder] = (), ids[name], view
                    continue
                # It is missing, damaged, another sweep or of another format; opening its ledger gives the exact error.
                with closing(Ledger(url, name, key)) as ledger:
                    results[folder] = _check(SweepView.read(ledger).in_folder(folder))
            if errors:
                results[folder] = errors[0]
        return results


@contextlib.contextmanager
def _keep_error(folder: object) -> Iterator[list[StudyError]]:
    """Catch what is wrong with one sweep's ledger, and put it into a list; errors of its database are raised."""
    errors: list[StudyError] = []
    try:
        with explain_damage(Path(str(folder)).name):
            yield errors
    except StudyError as error:
        errors.append(error)


@contextlib.contextmanager
def explain_damage(name: str) -> Iterator[None]:
    """Raise a `StudyError` if a sweep cannot be read or described because of the values in its ledger.

    Args:
        name: The sweep.
    """
    try:
        yield
    except (RltuneError, SQLAlchemyError):
        raise
    except Exception as error:  # Text that is no JSON, another type, a key that is missing: anything may be damaged.
        raise StudyError(
            f"its ledger has values that rltune did not write, or cannot describe: {describe_exception(error)}",
            "a ledger as rltune wrote it",
            "restore the sweep's folder from a copy, or remove it",
            key="sweep",
            value=name,
        ) from error


def _check(view: SweepView) -> SweepView:
    """Return a view if all of it that lists show can be computed."""
    summarize(view)
    return view


def _read_file_version(file: Path) -> _Version:
    """Return the version of a ledger's file and its write-ahead log."""
    return _read_version(file, file.with_name(f"{file.name}-wal"))


def _read_version(*paths: Path) -> _Version:
    """Return inode, time and size of the files, which change when a file changes; a missing file adds nothing."""
    numbers: list[int] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        numbers += [status.st_ino, status.st_mtime_ns, status.st_size]
    return tuple(numbers)
