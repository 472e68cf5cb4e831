"""Verify that every node can read the sweep's store: checkpoints that a node writes for itself alone are lost.

The driver leaves a token in the store while it works. Each node has to read it before its first trial, and so does a
node that joins later. Runs in the driver; `find_blindness` runs on each node.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store, open_store

PREFIX = ".shared-"  # Each driver takes a new name: network file systems remember which files they did not find.
VISIBLE_S = 2.0  # How long a network's file system may take to show a new file.


class BlindNodeError(Exception):
    """This node does not see the sweep's store: the trial is to run on another one."""


@contextmanager
def leave_token(store: Store) -> Iterator[str]:
    """Leave a token in the store while the block runs; yield its name."""
    for leftover in store.folder.glob(f"{PREFIX}*"):  # A driver that was killed has left it.
        leftover.unlink(missing_ok=True)
    token = store.folder / f"{PREFIX}{secrets.token_hex(8)}"
    token.write_text(token.name)
    try:
        store.publish([token.name])
        yield token.name
    finally:
        token.unlink(missing_ok=True)
        with suppress(StoreError):
            store.delete(token.name, is_quick=True)


def read_token_name(folder: Path) -> str | None:
    """Read which token this driver has left; None where all trials run on its own node."""
    return next((path.name for path in folder.glob(f"{PREFIX}*")), None)


def find_blindness(folder: Path, address: str | None, token: str, *, is_quick: bool = True) -> str:
    """Say why this node does not see the sweep's store; empty where it does.

    Args:
        folder: The sweep's, absolute.
        address: The store's address in remote storage; None where the folder is the store.
        token: The name of the driver's token.
        is_quick: Whether to give up after seconds where the storage does not answer.
    """
    store, deadline = open_store(folder, address), time.monotonic() + VISIBLE_S
    while True:
        with suppress(OSError):
            try:
                if store.read(token, is_quick=is_quick) == token.encode():
                    return ""
            except StoreError as error:
                return error.what
        if time.monotonic() > deadline:
            return f"{address.partition('?')[0] if address else folder} does not show the driver's files there"
        time.sleep(0.1)


def make_blind_error(store: Store, blind: Mapping[str, str]) -> StoreError:
    """Describe the nodes that do not see a sweep's store.

    Args:
        store: The sweep's.
        blind: Why, by node.
    """
    node, why = sorted(blind.items())[0]
    others = f" (and {', '.join(sorted(blind)[1:])})" if len(blind) > 1 else ""
    return store.make_unshared_error(f"cannot be used on node {node}{others}: {why}")
