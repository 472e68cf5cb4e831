"""Checkpoints in a sweep's folder, saved as a worker does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rltune.checkpoints.store import REPLAY, compute_digest, open_store
from rltune.records import CheckpointRecord


def write_checkpoint(
    sweep: Path,
    trial_dir: str,
    kind: str,
    state: Mapping[str, Any],
    fill: Callable[[Path], Any] = lambda folder: None,
    attempt: str = "first",
) -> CheckpointRecord:
    """Save a checkpoint of a trial, and return its record."""
    store, path = open_store(sweep), f"{trial_dir}/{attempt}/{kind}-{state['env_steps']:012d}"
    with store.make_draft(path) as draft:
        fill(draft)
        has_replay = (draft / REPLAY).is_dir()
        replay = {REPLAY: compute_digest(draft / REPLAY)} if has_replay else {}
        (draft / "state.json").write_text(json.dumps({**state, **replay}))
        digest = store.save(draft, path)
    return CheckpointRecord(path, state["env_steps"], state["objective"], digest, replay=has_replay)


def open_checkpoint(sweep: Path, record: CheckpointRecord | None) -> Path | None:
    """Return the folder of a recorded checkpoint; None where it is damaged or gone."""
    return open_store(sweep).open(record)
