"""Show that a node sees the sweep's files, its folder or its bucket: what it writes for itself alone is lost.

The driver leaves a token there for as long as it works. Each node has to read it before its first trial, one that joins
later too. Runs in the driver; `find_blindness` on each node.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rltune.cluster.shared_storage import not_shared
from rltune.errors import StudyError
from rltune.study.bucket import GLANCE_S, BucketError, find_bucket, open_bucket

PREFIX = ".shared-"  # a new name for each driver: network file systems remember what they did not find
VISIBLE_S = 2.0  # for a network's file system to show a new file


class BlindNodeError(Exception):
    """This node does not see the sweep's files: the trial is to run on another one."""


@contextmanager
def leave_token(folder: Path) -> Iterator[str]:
    """Leave a token in the sweep's folder, and in its bucket where it has one, while the block runs; yield its name."""
    for old in folder.glob(f"{PREFIX}*"):  # of a driver that was killed
        old.unlink(missing_ok=True)
    token, bucket = folder / f"{PREFIX}{secrets.token_hex(8)}", find_bucket(folder)
    token.write_text(token.name)
    try:
        if bucket:
            bucket.write(token.name, token.name.encode(), GLANCE_S)
        yield token.name
    finally:
        token.unlink(missing_ok=True)
        if bucket:
            bucket.submit(bucket.delete, token.name)


def read_token_name(folder: Path) -> str | None:
    """Read which token this driver has left; None where all trials run on its own node."""
    return next((path.name for path in folder.glob(f"{PREFIX}*")), None)


def find_blindness(folder: Path, place: str | None, token: str, patience_s: float = GLANCE_S) -> str:
    """Say why this node does not see the sweep's files; empty where it does.

    Args:
        folder: The sweep's, absolute.
        place: The sweep's address in a bucket; None without one.
        token: The driver's, by its name.
        patience_s: For a bucket that does not answer.
    """
    if place is not None:
        try:
            found = open_bucket(place).read(token, patience_s)
        except BucketError as error:
            return error.what
        return "" if found == token.encode() else f"{place} is another place there"
    deadline = time.monotonic() + VISIBLE_S
    while True:
        with contextlib.suppress(OSError):
            if (folder / token).read_text() == token:
                return ""
        if time.monotonic() > deadline:
            return f"{folder} cannot be seen there"
        time.sleep(0.1)


def make_blind_error(folder: Path, blind: Mapping[str, str]) -> StudyError:
    """Build the error for nodes that do not see a sweep's files.

    Args:
        folder: The sweep's.
        blind: Why, by node.
    """
    if find_bucket(folder) is None:
        return not_shared(folder, ", ".join(sorted(blind)))
    node, why = sorted(blind.items())[0]
    others = f" (and {', '.join(sorted(blind)[1:])})" if len(blind) > 1 else ""
    return StudyError(
        f"on node {node}{others}: {why}",
        "a bucket that every node can use, with the credentials in the environment in which its `ray start` was typed",
        "export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... there, before ray start",
    )
