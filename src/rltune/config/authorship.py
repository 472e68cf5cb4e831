"""Mark the folders of this user's sweeps, so that those made by somebody else are recognized.

The owner of a file does not show who made it: whoever unpacks an archive owns its files, and a bucket has no owners.
Each sweep's folder has a mark instead: HMAC-SHA256 over the digest of its settings, with a key that only this user can
read. Without the key, a mark can be copied together with its settings, but not made for other settings.
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
MARK = ".made-by"  # The file with the mark, in the sweep's folder and in its bucket.
KEY_BYTES = 32


def find_key_file() -> Path:
    """Return the path of this user's key, which is made at its first use; it begins with ~ if the user has no home."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.expanduser(state)) / "rltune" / "key"  # Path.expanduser raises an error without a home.


def mark_own(folder: Path, digest: str) -> None:
    """Mark a sweep's folder as made by this user; without a home for the key, or on a full disk, it stays unmarked.

    The marks of earlier settings stay, because a driver may be killed before it has written the new settings.

    Args:
        folder: The sweep's folder.
        digest: The SHA-256 digest (hex) of its settings.
    """
    try:
        mark, draft = folder / MARK, folder / f"{MARK}-draft"
        before = mark.read_text(errors="replace").split() if mark.exists() else []
        draft.write_text("\n".join(dict.fromkeys([*before, _sign(_make_key(), digest)])))
        draft.rename(mark)
    except OSError as error:
        logger.warning("%s cannot be marked as yours, so that resuming it needs trust=true: %s", folder, error)


def is_own(folder: Path, digest: str) -> bool:
    """Return whether this user has marked a sweep's folder for settings with this digest."""
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
    """Return the key; None if it is missing or cut short, as a crash may leave it: anybody could guess such a key."""
    path = find_key_file()
    key = path.read_bytes() if path.is_absolute() and path.exists() else b""
    return key if len(key) == KEY_BYTES else None


def _make_key() -> bytes:
    """Return the key, and make it if it is missing. It is made atomically, because several drivers may start at once.

    Raises:
        OSError: The key cannot be written.
    """
    path = find_key_file()
    if key := _read_key():
        return key
    if not path.is_absolute():
        raise FileNotFoundError("the user has no home folder")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() and not _read_key():
        path.unlink()
    with tempfile.NamedTemporaryFile(dir=path.parent) as draft:  # Its mode is 0600.
        draft.write(secrets.token_bytes(KEY_BYTES))
        draft.flush()
        os.fsync(draft.fileno())
        with contextlib.suppress(FileExistsError):  # Another driver was faster.
            os.link(draft.name, path)
    return path.read_bytes()
