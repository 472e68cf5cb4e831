"""Delete checkpoints that the ledger no longer refers to. Runs only in the driver that holds the sweep's lease.

A checkpoint that the ledger names is never dropped: a driver first commits that the ledger names it no longer. What one
driver may drop another one cannot name, because every attempt at a trial has a folder of its own.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import PurePosixPath

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import REPLAY, Store
from rltune.records import CheckpointRecord, TrialRecord, trial_dir_of

logger = logging.getLogger(__name__)
DEPTH = 4  # The number of parts of a checkpoint's path, trials/<number>/<attempt>/<name>.
BATCH = 20  # Checkpoints deleted per check of the lease; in a bucket, deleting one takes about a second.
DROP_S = 1.0  # The longest time for which one run of this chore deletes checkpoints.


class Retention:
    """Queues checkpoints for deletion, so that no caller waits for slow storage; a chore of the driver deletes them.

    Args:
        store: The sweep's store.
        check_lease: Raises an error if another driver has taken the sweep over.
    """

    def __init__(self, store: Store, check_lease: Callable[[], object]) -> None:
        self._store, self._check_lease = store, check_lease
        self._pending: deque[str] = deque()

    def drop(self, records: Iterable[CheckpointRecord | None], keep: Iterable[CheckpointRecord | None]) -> None:
        """Queue recorded checkpoints for deletion, except those that the ledger still refers to.

        Args:
            records: The checkpoints.
            keep: Those that the ledger names; some may be among `records`.
        """
        self._pending += sorted(_paths_of(records) - _paths_of(keep))

    def drop_unnamed(self, records: Collection[TrialRecord]) -> None:
        """Queue all files of trials without a running worker for deletion, unless the ledger refers to them.

        Of a trial that has ended the replay memory goes, too: only a trial that goes on needs it. What is dropped is
        decided before this returns, since a worker that starts afterwards writes checkpoints that no report has named.

        Args:
            records: The trials, as the ledger has them.
        """
        try:
            self._pending += self._find_unnamed(records)
        except (StoreError, OSError) as error:
            _log_failure(error)

    def drop_pending(self, timeout_s: float = DROP_S) -> None:
        """Delete the queued checkpoints until a time-out.

        Args:
            timeout_s: When to begin no further batch; what is left then is dropped by the next call.
        """
        deadline_s = time.monotonic() + timeout_s
        while self._pending and time.monotonic() < deadline_s:
            self._drop([self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))])

    def _find_unnamed(self, records: Collection[TrialRecord]) -> list[str]:
        unnamed: set[str] = set()
        # One listing of trials/ or certify/ takes a single request, also for a thousand trials.
        folders = {trial_dir_of(record.kind, record.number): record for record in records}
        prefixes = folders if len(folders) == 1 else {folder.partition("/")[0] for folder in folders}
        for name in [name for prefix in prefixes for name in self._store.list(prefix, is_quick=True)]:
            parts = PurePosixPath(name).parts
            record = folders.get("/".join(parts[:2]))
            if record is None or len(parts) <= DEPTH:
                continue
            path = "/".join(parts[:DEPTH])
            if path not in _paths_of((record.checkpoint, record.latest)):
                unnamed.add(path)
            elif parts[DEPTH] == REPLAY and record.state != "RUNNING":
                unnamed.add(f"{path}/{REPLAY}")
        return sorted(unnamed)

    def _drop(self, paths: Sequence[str]) -> None:
        try:
            # The queued paths were listed before this check. If this driver still holds the lease now, then none of
            # them belongs to another driver.
            self._check_lease()
            for path in paths:
                self._store.drop(path)
        except Exception as error:  # Checkpoints that could not be deleted are deleted by the next driver.
            _log_failure(error)


def _paths_of(records: Iterable[CheckpointRecord | None]) -> set[str]:
    return {record.path for record in records if record is not None}


def _log_failure(error: Exception) -> None:
    logger.warning("checkpoints that nobody needs could not be dropped", exc_info=error)
