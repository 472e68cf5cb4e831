"""Read the views of many sweeps repeatedly, for example for the service's list. Runs anywhere.

A ledger in a file is read when the file has changed. The ledgers of one PostgreSQL database are read together, with as
many queries as one of them takes. Both read only what has changed since the last time.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from rltune.config.settings_file import read_identity
from rltune.errors import StudyError
from rltune.ledger.database import connect_ledger, file_of, make_storage_error
from rltune.ledger.ledger import Ledger, find_sweeps
from rltune.ledger.storage import locate_ledger
from rltune.ledger.sweep_folder import SETTINGS
from rltune.views.sweep_view import SweepView, read_views

_Version = tuple[int, ...]


class SweepReader:
    """Reads the views of sweeps, and caches them for the next call. Thread-safe.

    Args:
        ledger_url: The address of the sweeps' ledgers with its login, see `rltune.ledger.storage.locate_ledger`.
    """

    def __init__(self, ledger_url: str | None = None) -> None:
        self._ledger_url = ledger_url
        self._locations: dict[Path, tuple[_Version, tuple[str, str | None, str | None]]] = {}
        self._views: dict[Path, tuple[_Version, int, SweepView]] = {}
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def read(self, folders: Iterable[Path]) -> dict[Path, SweepView | StudyError]:
        """Read the views of the sweeps in these folders; one that cannot be read gives its error.

        Args:
            folders: The sweeps' folders.

        Returns:
            The view of each folder's sweep, or why it cannot be read.
        """
        results: dict[Path, SweepView | StudyError] = {}
        names: dict[str, dict[str, Path]] = defaultdict(dict)
        keys: dict[Path, str | None] = {}
        with self._lock:
            for folder in folders:
                try:
                    url, name, keys[folder] = self._locate(folder)
                    if file := file_of(url):
                        results[folder] = self._read_file(folder, file, url, name, keys[folder])
                    else:
                        names[url][name or folder.name] = folder
                except StudyError as error:
                    results[folder] = error
            for url, folders_by_name in names.items():
                try:
                    results |= self._read_database(url, folders_by_name, keys)
                except SQLAlchemyError as error:
                    results |= dict.fromkeys(folders_by_name.values(), make_storage_error(url, error))
        return {
            folder: result.in_folder(folder) if isinstance(result, SweepView) else result
            for folder, result in results.items()
        }

    def _locate(self, folder: Path) -> tuple[str, str | None, str | None]:
        version = _read_version(folder / SETTINGS)
        cached = self._locations.get(folder)
        if cached is None or cached[0] != version:
            cached = self._locations[folder] = version, locate_ledger(read_identity(folder), self._ledger_url)
        return cached[1]

    def _read_file(self, folder: Path, file: Path, url: str, name: str | None, key: str | None) -> SweepView:
        version = _read_version(file, file.with_name(f"{file.name}-wal"))
        read_version, _, view = self._views.get(folder, ((), 0, None))
        has_died = view is not None and view.status == "running" and view.snapshot.lease.is_abandoned()
        if view is None or version != read_version or has_died:
            with closing(Ledger(url, name, key)) as ledger:
                # A deleted sweep's name may be used again; the sweep's random key distinguishes the two.
                is_same = view is not None and view.record.key == ledger.key
                view = SweepView.read(ledger, view if is_same else None)
            self._views[folder] = version, ledger.sweep_id, view
        return view

    def _read_database(
        self, url: str, folders: Mapping[str, Path], keys: Mapping[Path, str | None]
    ) -> dict[Path, SweepView | StudyError]:
        """Read the sweeps whose ledgers are in one database.

        Args:
            url: The database's address.
            folders: The sweeps' folders by their names.
            keys: The sweeps' keys by their folders.
        """
        if url not in self._engines:
            self._engines[url] = connect_ledger(url)
        engine = self._engines[url]
        ids = find_sweeps(engine, folders)
        since = {}
        for name, sweep_id in ids.items():
            _, read_id, view = self._views.get(folders[name], ((), 0, None))
            if view is not None and read_id == sweep_id:
                since[sweep_id] = view
        views = read_views(engine, list(ids.values()), since)
        results: dict[Path, SweepView | StudyError] = {}
        for name, folder in folders.items():
            if (view := views.get(ids.get(name, 0))) and keys[folder] in (None, view.record.key):
                self._views[folder] = (), ids[name], view
                results[folder] = view
                continue
            try:  # It is missing, another sweep or of another format; opening its ledger gives the exact error.
                with closing(Ledger(url, name, keys[folder])) as ledger:
                    results[folder] = SweepView.read(ledger)
            except StudyError as error:
                results[folder] = error
        return results


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
