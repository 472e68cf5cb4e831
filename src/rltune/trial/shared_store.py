"""Verify that a node of the cluster sees the driver's storage; otherwise its checkpoints would be lost.

The driver leaves a token in the store while it works. A worker reads the token before each trial, so that a node that
joins later, or loses its storage, is found out as well.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rltune.checkpoints.clients import StoreError, StoreUnavailableError
from rltune.checkpoints.store import Store
from rltune.errors import describe_exception

PREFIX = ".shared-"
VISIBLE_S = 5.0  # Over a network file system, a new file may become visible this late.


def name_token(driver_id: str) -> str:
    """Return the file name of a driver's token; it is unique, as network file systems cache missing files."""
    return PREFIX + driver_id


@contextmanager
def leave_token(store: Store, driver_id: str) -> Iterator[None]:
    """Keep a token file of the driver in the sweep's storage while the ``with`` block runs."""
    for name in store.list(is_recursive=False):
        # This is the token of an earlier driver, which was killed before it could delete the file.
        if name.startswith(PREFIX):
            store.delete(name)
    token = name_token(driver_id)
    store.write(token, b"")
    try:
        yield
    finally:
        with suppress(StoreError, OSError):
            store.delete(token, is_quick=True)


def check_node(store: Store, token: str, trial_dir: str) -> None:
    """Verify that this node can read the driver's token file, and can write into the trial's folder.

    Args:
        store: The sweep's store, as this node opens it.
        token: The name of the driver's token.
        trial_dir: The trial's folder in the store.

    Raises:
        UnsharedStoreError: The node cannot use the store, or has another one under the same path.
        StoreUnavailableError: The storage does not answer at the moment.
    """
    deadline, probe = time.monotonic() + VISIBLE_S, f"{trial_dir}/.writable"
    try:
        while problem := _find_problem(store, token):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        else:
            store.write(probe, b"")
            store.delete(probe)
            return
    except StoreUnavailableError:
        raise
    except (StoreError, OSError) as error:
        problem = error.what if isinstance(error, StoreError) else describe_exception(error)
    raise store.make_unshared_error(f"cannot be used on node {socket.gethostname()}: {problem}")


def _find_problem(store: Store, token: str) -> str:
    """Describe why the driver's token file cannot be read now; empty if it can be read."""
    try:
        return "" if store.read(token) is not None else "the driver's files are not there"
    # The file handle may be stale after an outage of a network file system, and work again at the next attempt.
    except OSError as error:
        return describe_exception(error)
