"""Sign the sweep folders that this user has made, because loading a sweep can run code of whoever made it.

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

from rltune.errors import describe_exception

logger = logging.getLogger(__name__)
MARK = ".made-by"  # The name of the signature's file.
KEY_BYTES = 32


def find_key_file() -> Path:
    """Return the path of this user's signing key, which may not exist yet; it starts with ~ if there is no home."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    # os.path, because Path.expanduser raises an error if there is no home.
    return Path(os.path.expanduser(state)) / "rltune" / "key"


def find_key_problem() -> str | None:
    """Return why this user's signing key cannot be stored, which is made where it is missing; None if it can be."""
    try:
        _make_key()
    except OSError as error:
        return describe_exception(error)
    return None


def mark_own(folder: Path, digest: str) -> None:
    """Sign a sweep's folder with this user's key; if no key can be stored or the disk is full, only log a warning.

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
    """Return whether a sweep's folder has a signature of this user for settings with this digest."""
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
    """Return this user's signing key; None if it is missing or incomplete, as anybody could sign with an empty key."""
    path = find_key_file()
    key = path.read_bytes() if path.is_absolute() and path.exists() else b""
    return key if len(key) == KEY_BYTES else None


def _make_key() -> bytes:
    """Return this user's signing key; create it atomically if it is missing, because several drivers may start at once.

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
    # A temporary file has mode 0600, as a secret key needs.
    with tempfile.NamedTemporaryFile(dir=path.parent) as draft:
        draft.write(secrets.token_bytes(KEY_BYTES))
        draft.flush()
        os.fsync(draft.fileno())
        with contextlib.suppress(FileExistsError):  # Another driver may have created the key first.
            os.link(draft.name, path)
    return path.read_bytes()
