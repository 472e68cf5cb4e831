"""Write and recognise a trial's checkpoints: whole or not at all, named by environment steps, known by a digest.

Layout: ``<trial_dir>/best-<env_steps>`` and ``latest-<env_steps>``, each with ``state.json``, ``algorithm/`` and
``policy/`` (``seed-1/...`` and so on beside them when a trial runs several seeds). Runs in a worker.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRIALS, CERTIFY = (
    "trials",
    "certify",
)  # kinds of trials, and the folders of both in a sweep's: the search's, the certification's runs
KEEP = 2  # the newest, and the one before it, which the ledger may still name


class DamagedError(Exception):
    """A checkpoint is not as it was recorded."""


@dataclass(frozen=True)
class CheckpointRecord:
    """What the ledger keeps of a checkpoint; one whose digest differs does not count.

    Attributes:
        path: Relative to the sweep's folder.
        env_steps: When it was taken.
        objective: The report's objective then; None before the first episode ended.
        digest: sha256 over its files.
    """

    path: str
    env_steps: int
    objective: float | None
    digest: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as the ledger stores it."""
        return dict(vars(self))


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
    home.mkdir(parents=True, exist_ok=True)
    for leftover in home.glob(f".{kind}-*"):  # of a worker that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    draft = home / f".{kind}-{os.getpid()}"
    draft.mkdir()
    try:
        fill(draft)
        (draft / "state.json").write_text(json.dumps(state))
        fingerprint = compute_digest(draft)
    except BaseException:  # a full disk gets its room back
        shutil.rmtree(draft, ignore_errors=True)
        raise
    target = _find_free_name(home / f"{kind}-{state['env_steps']:012d}")
    draft.rename(target)
    # By time, not by name: a trial that went back to an earlier state writes a lower number than those before it.
    written = sorted(home.glob(f"{kind}-[0-9]*"), key=lambda path: path.stat().st_mtime_ns)
    for old in written[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return CheckpointRecord(str(target.relative_to(sweep)), int(state["env_steps"]), state["objective"], fingerprint)


def _find_free_name(folder: Path) -> Path:
    """Find a name that is not taken: the ledger may still name a folder that a trial, gone back, comes by again."""
    names = (folder.with_name(f"{folder.name}-{again}") for again in itertools.count(2))
    return next(name for name in itertools.chain([folder], names) if not name.exists())


def is_whole(sweep: Path, record: Mapping[str, Any] | None) -> Path | None:
    """Return the folder of a recorded checkpoint where it is there and whole, else None."""
    if not record:
        return None
    folder = sweep / str(record["path"])
    if not (folder / "state.json").is_file() or compute_digest(folder) != record["digest"]:
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
