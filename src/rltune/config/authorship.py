"""Mark the sweeps' folders that this user has made, to tell them from those that others made.

Whoever unpacks an archive owns its files, and a bucket has no owners. So each sweep's folder has a mark, made with a
key that only this user can read: HMAC-SHA256 over the digest of its settings. Whoever lacks the key can copy a mark
together with its settings, but not make one for other settings. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)
MARK = ".made-by"  # The name of the mark's file, both in the sweep's folder and in its bucket.
KEY_BYTES = 32


def find_key_file() -> Path:
    """Return where the key is: among this user's own state, made at the first use; a path with ~ without a home."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.expanduser(state)) / "rltune" / "key"  # Path.expanduser raises an error if there is no home.


def mark_own(folder: Path, digest: str) -> None:
    """Mark a sweep's folder as this user's; without a home for the key, or on a full disk, the folder stays unmarked.

    Marks of earlier settings of the folder stay: a driver may be killed before it has written the new ones.

    Args:
        folder: The sweep's.
        digest: sha256 (hex) of its settings.
    """
    try:
        mark, draft = folder / MARK, folder / f"{MARK}-draft"
        before = mark.read_text(errors="replace").split() if mark.exists() else []
        draft.write_text("\n".join(dict.fromkeys([*before, _sign(_make_key(), digest)])))
        draft.rename(mark)
    except OSError as error:
        logger.warning("%s cannot be marked as yours, so that resuming it needs trust=true: %s", folder, error)


def is_own(folder: Path, digest: str) -> bool:
    """Return whether this user has marked a sweep's folder when its settings had this digest."""
    try:
        marks, key = (folder / MARK).read_text().split(), _read_key()
    except (OSError, ValueError):
        return False
    if key is None:
        return False
    wanted = _sign(key, digest).encode()
    return any(hmac.compare_digest(mark.encode(), wanted) for mark in marks)


def _sign(key: bytes, digest: str) -> str:
    return hmac.new(key, f"rltune:{digest}".encode(), "sha256").hexdigest()


def _read_key() -> bytes | None:
    """Return the key; None without a whole one: with an empty one, as a crash may leave it, anybody could sign."""
    path = find_key_file()
    key = path.read_bytes() if path.is_absolute() and path.exists() else b""
    return key if len(key) == KEY_BYTES else None


def _make_key() -> bytes:
    """Return the key; make it where there is none, whole or not at all: several drivers may start at once.

    Raises:
        OSError: There is no place for it.
    """
    path = find_key_file()
    if key := _read_key():
        return key
    if not path.is_absolute():
        raise FileNotFoundError("no home directory is set")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() and not _read_key():
        path.unlink()
    with tempfile.NamedTemporaryFile(dir=path.parent) as draft:  # Temporary files have mode 0600, as the key needs.
        draft.write(secrets.token_bytes(KEY_BYTES))
        draft.flush()
        os.fsync(draft.fileno())
        with contextlib.suppress(FileExistsError):  # Another driver may have created the key first.
            os.link(draft.name, path)
    return path.read_bytes()
