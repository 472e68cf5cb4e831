"""Choose the journal of a SQLite file by the file system that it lies on.

A write-ahead log shares memory between its readers and its writer, so all of them have to be on one host, and SQLite
supports it on no network file system. There a rollback journal serves, which costs a commit two waits for the disk and
lets readers wait for the writer. The driver chooses; readers leave a file as it is. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

import psutil

NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "virtiofs", "webdav", "wekafs",
})  # fmt: skip
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})  # a container's root, without privileges
TIMEOUT_S = 60.0  # another reader may hold the file for a moment
logger = logging.getLogger(__name__)


def find_network_file_system(path: Path) -> str | None:
    """Return the kind of the network file system that a path lies on, such as ``nfs4``; None on a local one.

    Everything that FUSE mounts counts as one, but disks: which of them share memory between hosts is not known.
    """
    real = path.absolute().resolve()
    mounts = {Path(mount.mountpoint): mount.fstype.lower() for mount in psutil.disk_partitions(all=True)}
    kind = next((mounts[folder] for folder in (real, *real.parents) if folder in mounts), "")
    return kind if kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind not in LOCAL_FUSE) else None


def choose_journal(file: Path, shared: bool = False) -> None:
    """Have a write-ahead log: readers do not block the sweep. Where other hosts see the file, have a rollback journal.

    Args:
        file: A SQLite file, which keeps the choice.
        shared: Whether other hosts see it, even if its file system here is a local one: a host may export its disk.

    Raises:
        sqlite3.Error: It cannot be written, or another process does not let go of it.
    """
    kind = find_network_file_system(file)
    if kind:
        logger.warning(
            "%s lies on a network file system (%s): it is written without a write-ahead log, which is slower; "
            "PostgreSQL is made for several hosts: study.storage=postgresql+psycopg://host/db",
            file,
            kind,
        )
    with contextlib.closing(sqlite3.connect(file, timeout=TIMEOUT_S)) as opened:
        opened.execute(f"PRAGMA journal_mode={'DELETE' if kind or shared else 'WAL'}")


def has_write_ahead_log(file: Path) -> bool:
    """Return whether a SQLite file is marked as one whose journal is a write-ahead log."""
    with file.open("rb") as opened:
        return opened.read(20)[18:] == b"\2\2"  # as SQLite's file format defines the mark


def connect_file(file: Path) -> sqlite3.Connection:
    """Connect to a SQLite file, also in a folder that cannot be written.

    Reading a file that has a write-ahead log needs a second file beside it for shared memory, which SQLite cannot make
    in a read-only folder. If the log is empty, nobody writes the file, so it is read as one that does not change.
    """
    log = file.with_name(f"{file.name}-wal")
    has_log_entries = log.exists() and log.stat().st_size > 0
    is_read_only = file.is_file() and not os.access(file.parent, os.W_OK)
    is_unchanging = is_read_only and not has_log_entries and has_write_ahead_log(file)
    address = f"file:{quote(str(file.absolute()))}{'?immutable=1' if is_unchanging else ''}"
    # SQLAlchemy hands connections from thread to thread, but never to two threads at once.
    return sqlite3.connect(address, timeout=TIMEOUT_S, uri=True, check_same_thread=False)
