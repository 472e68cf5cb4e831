"""Verify that a node of a cluster uses the same store as the driver: checkpoints on its own disk would be lost.

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
VISIBLE_S = 5.0  # A network file system may take this long to show a new file.


def name_token(driver_id: str) -> str:
    """Name the token of a driver; each has its own, because network file systems remember files that they lacked."""
    return PREFIX + driver_id


@contextmanager
def leave_token(store: Store, driver_id: str) -> Iterator[None]:
    """Leave the driver's token in the store while the block runs."""
    for name in store.list(is_recursive=False):
        if name.startswith(PREFIX):  # A driver that was killed has left a token behind.
            store.delete(name)
    token = name_token(driver_id)
    store.write(token, b"")
    try:
        yield
    finally:
        with suppress(StoreError, OSError):
            store.delete(token, is_quick=True)


def check_node(store: Store, token: str, trial_dir: str) -> None:
    """Verify that this node sees the driver's token, and can write where the trial's checkpoints will be.

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
    """Describe why the token cannot be read at the moment; empty if it can."""
    try:
        return "" if store.read(token) is not None else "the driver's files are not there"
    except OSError as error:  # A network file system may have lost its handle of the folder, and finds it again.
        return describe_exception(error)
