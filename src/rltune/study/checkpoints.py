"""Write and recognise a trial's checkpoints: whole or not at all, named by environment steps, known by a digest.

Layout: ``<trial_dir>/best-<env_steps>`` and ``latest-<env_steps>``, each with ``state.json``, ``algorithm/`` and
``policy/`` (``seed-1/...`` and so on beside them when a trial runs several seeds). Runs in a worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltune.records import CheckpointRecord

KEEP = 2  # the newest, and the one before it, which the ledger may still name


class DamagedError(Exception):
    """A checkpoint is not as it was recorded."""


def write_checkpoint(
    sweep: Path, trial_dir: str, kind: str, state: Mapping[str, Any], fill: Callable[[Path], None]
) -> CheckpointRecord:
    """Write one checkpoint and drop the kind's older ones.

    Args:
        sweep: The sweep's folder.
        trial_dir: The trial's own folder in it, such as ``trials/7``.
        kind: ``best`` or ``latest``.
        state: JSON-able; must hold ``env_steps`` and ``objective``.
        fill: Writes the rest into the folder that it is given.
    """
    home = sweep / trial_dir
    with _make_draft(home, kind) as draft:
        fill(draft)
        (draft / "state.json").write_text(json.dumps(state))
        fingerprint = compute_digest(draft)
        target = draft.rename(_find_free_name(home / f"{kind}-{state['env_steps']:012d}"))
    # By time, not by name: a trial that went back to an earlier state writes a lower number than those before it.
    written = sorted(home.glob(f"{kind}-[0-9]*"), key=lambda path: path.stat().st_mtime_ns)
    for old in written[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    path = str(target.relative_to(sweep))
    return CheckpointRecord(path, int(state["env_steps"]), state["objective"], fingerprint, time.time())


def copy_checkpoint(sweep: Path, record: CheckpointRecord, trial_dir: str) -> CheckpointRecord | None:
    """Copy another trial's checkpoint, from which a trial is to go on; None where it is not whole.

    Args:
        sweep: The sweep's folder.
        record: The other's.
        trial_dir: The trial's own folder in it.
    """
    source = is_whole(sweep, record)
    if source is None:
        return None
    home = sweep / trial_dir
    with _make_draft(home, "latest") as draft:
        shutil.copytree(source, draft, dirs_exist_ok=True)
        target = draft.rename(_find_free_name(home / f"latest-{record.env_steps:012d}"))
    os.utime(target)  # the copy has the other's time, by which it would be dropped as an old one
    return replace(record, path=str(target.relative_to(sweep)), saved_s=time.time())


@contextlib.contextmanager
def _make_draft(home: Path, kind: str) -> Iterator[Path]:
    """Give a folder to fill, which is removed where filling it breaks off: a full disk gets its room back."""
    for leftover in home.glob(f".{kind}-*"):  # of a worker that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    draft = home / f".{kind}-{os.getpid()}"
    draft.mkdir(parents=True)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _find_free_name(folder: Path) -> Path:
    """Find a name that is not taken: the ledger may still name a folder that a trial, gone back, comes by again."""
    names = (folder.with_name(f"{folder.name}-{again}") for again in itertools.count(2))
    return next(name for name in itertools.chain([folder], names) if not name.exists())


def is_whole(sweep: Path, record: CheckpointRecord | None) -> Path | None:
    """Return the folder of a recorded checkpoint where it is there and whole, else None."""
    if record is None:
        return None
    folder = sweep / record.path
    if not (folder / "state.json").is_file() or compute_digest(folder) != record.digest:
        return None
    return folder


def read_state(folder: Path) -> dict[str, Any]:
    """Read what `write_checkpoint` was given as ``state``."""
    loaded: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return loaded


def compute_digest(folder: str | Path) -> str:
    """Compute the sha256 (hex) over a folder's relative paths, in order, and their contents."""
    total, root = hashlib.sha256(), Path(folder)
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        content = path.read_bytes()
        # Lengths keep "ab" + "c" apart from "a" + "bc".
        name = path.relative_to(root).as_posix().encode()
        total.update(b"%d:%b%d:" % (len(name), name, len(content)))
        total.update(content)
    return total.hexdigest()
