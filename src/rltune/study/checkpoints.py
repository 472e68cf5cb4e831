"""Write and recognise a trial's checkpoints: whole or not at all, named by environment steps, known by a digest.

Layout: ``<trial_dir>/best-<env_steps>`` and ``latest-<env_steps>``, each with ``state.json``, ``algorithm/``,
``episodes.json`` and ``policy/`` (``seed-1/...`` and so on beside them when a trial runs several seeds). The latest may
have ``replay/``, the trial's replay memory: the rest is whole without it, so that it can be dropped. Runs in a worker.

Where the sweep has a bucket (`rltune.study.bucket`), it holds them; a folder has copies of those that were used there.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rltune.config.settings_file import is_own_sweep
from rltune.records import CERTIFY, TRIALS, CheckpointRecord
from rltune.study.bucket import Bucket, find_bucket

REPLAY = "replay"  # the folder of the replay memories in a checkpoint, one for each seed


ATTEMPT = ".attempt"  # the file, in a trial's own folder, that names the only worker which may write there


class DamagedError(Exception):
    """A checkpoint is not as it was recorded."""


class SupersededError(Exception):
    """Another worker goes on with this trial."""


def begin_attempt(sweep: Path, trial_dir: str) -> str:
    """Name a new worker as the only one that may write a trial's checkpoints, and return the name.

    One that was cut off from the driver may come back, after another one went on with its trial.

    Args:
        sweep: The sweep's folder.
        trial_dir: The trial's own folder in it.
    """
    name = secrets.token_hex(8)
    if bucket := find_bucket(sweep):
        bucket.write(f"{trial_dir}/{ATTEMPT}", name.encode())
        return name
    home = sweep / trial_dir
    home.mkdir(parents=True, exist_ok=True)
    draft = home / f"{ATTEMPT}-draft"
    draft.write_text(name)
    draft.rename(home / ATTEMPT)
    return name


def _check_attempt(sweep: Path, trial_dir: str, attempt: str) -> None:
    """Raise `SupersededError` where another worker is named; the first one of a trial is not named."""
    if bucket := find_bucket(sweep):
        named = (bucket.read(f"{trial_dir}/{ATTEMPT}") or b"").decode()
    else:
        file = sweep / trial_dir / ATTEMPT
        named = file.read_text() if file.exists() else ""
    if named and named != attempt:
        raise SupersededError(f"another worker goes on with {trial_dir}")


def write_checkpoint(
    sweep: Path,
    trial_dir: str,
    kind: str,
    state: Mapping[str, Any],
    fill: Callable[[Path], None],
    attempt: str = "",
    keep: Collection[str] = (),
) -> CheckpointRecord:
    """Write one checkpoint, and drop the kind's others but those that the ledger may name.

    No clock decides what is dropped: clocks of nodes differ, and may be set back.

    Args:
        sweep: The sweep's folder.
        trial_dir: The trial's own folder in it, such as ``trials/7``.
        kind: ``best`` or ``latest``.
        state: JSON-able; must hold ``env_steps`` and ``objective``.
        fill: Writes the rest into the folder that it is given.
        attempt: The worker's name, of `begin_attempt`; "" is a trial's first one.
        keep: Paths, relative to the sweep's folder, of the trial's checkpoints that the ledger names, or will name
            once it has the trial's last report.

    Raises:
        SupersededError: Another worker goes on with the trial; nothing is written or dropped.
    """
    home = sweep / trial_dir
    _check_attempt(sweep, trial_dir, attempt)
    with _make_draft(home, kind) as draft:
        fill(draft)
        replay = {"replay": compute_digest(draft / REPLAY)} if (draft / REPLAY).is_dir() else {}
        (draft / "state.json").write_text(json.dumps({**state, **replay}))
        fingerprint = compute_digest(draft)
        _check_attempt(sweep, trial_dir, attempt)  # filling it takes a while
        target = draft.rename(_choose_name(sweep, home / f"{kind}-{state['env_steps']:012d}", fingerprint))
    path = str(target.relative_to(sweep))
    kept = {path, *keep}
    if bucket := find_bucket(sweep):
        bucket.upload(target, path, fingerprint)
        try:  # it may have waited for the bucket for minutes, and what it drops below would be the other's
            _check_attempt(sweep, trial_dir, attempt)
        except SupersededError:
            bucket.delete_folder(path)
            raise
        stored = [PurePosixPath(name).relative_to(trial_dir).parts[0] for name in bucket.list_files(trial_dir)]
        for name in {f"{trial_dir}/{name}" for name in stored if name.startswith(f"{kind}-")} - kept:
            bucket.delete_folder(name)  # older ones, and what killed workers had half written
    for old in home.glob(f"{kind}-[0-9]*"):
        if str(old.relative_to(sweep)) not in kept:
            shutil.rmtree(old, ignore_errors=True)
    has_replay = bool(replay)
    return CheckpointRecord(path, int(state["env_steps"]), state["objective"], fingerprint, time.time(), has_replay)


def choose_newest(records: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
    """Choose the checkpoint from which a trial goes on; None where there is none.

    One with a replay memory goes before a newer one without: the steps between the two are trained again sooner than a
    memory is filled.

    Args:
        records: What the trial has.
    """
    # By time, not by steps: a checkpoint that is damaged sends its trial back to fewer steps.
    return max(records, key=lambda record: (record.replay, record.saved_s), default=None)


def find_replay(folder: Path) -> Path | None:
    """Find the replay memories in a checkpoint's folder; None where there are none, or damaged ones."""
    digest = read_state(folder).get("replay")
    found = folder / REPLAY
    return found if digest and found.is_dir() and compute_digest(found) == digest else None


def drop_replays(sweep: Path, trial_dir: str) -> None:
    """Delete the replay memories in a trial's own folder, once it has ended; its checkpoints stay whole."""
    for found in (sweep / trial_dir).glob(f"*/{REPLAY}"):
        shutil.rmtree(found, ignore_errors=True)
    if bucket := find_bucket(sweep):
        bucket.submit(_drop_replays_in, bucket, trial_dir)


def _drop_replays_in(bucket: Bucket, trial_dir: str) -> None:
    paths = [PurePosixPath(name) for name in bucket.list_files(trial_dir)]
    for name in {str(PurePosixPath(*path.parts[:4])) for path in paths if path.parts[3:4] == (REPLAY,)}:
        bucket.delete_folder(name)


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


def _choose_name(sweep: Path, folder: Path, digest: str) -> Path:
    """Choose a name that is not taken: the ledger may still name a folder that a trial, gone back, comes by again.

    In a bucket the digest makes it one: other nodes may have written there.
    """
    return _find_free_name(folder.with_name(f"{folder.name}-{digest[:8]}") if find_bucket(sweep) else folder)


def _find_free_name(folder: Path) -> Path:
    names = (folder.with_name(f"{folder.name}-{again}") for again in itertools.count(2))
    return next(name for name in itertools.chain([folder], names) if not name.exists())


def is_whole(sweep: Path, record: CheckpointRecord | None) -> Path | None:
    """Return the folder of a recorded checkpoint where it is there and whole, else None.

    One that is in the sweep's bucket alone is downloaded.

    Raises:
        BucketError: The bucket cannot be used, so that nothing is known.
    """
    if record is None:
        return None
    folder = sweep / record.path
    if (folder / "state.json").is_file() and compute_digest(folder) == record.digest:
        return folder
    return _fetch(sweep, record.path, record.digest)


def is_recorded(sweep: Path, record: CheckpointRecord | None) -> bool:
    """Return whether a recorded checkpoint is there; of one in a bucket, only that all its files have their sizes."""
    if record is None:
        return False
    bucket = find_bucket(sweep)
    return bucket.is_whole(record.path, record.digest, REPLAY) if bucket else is_whole(sweep, record) is not None


def find_checkpoint(sweep: Path, path: str) -> Path:
    """Return a checkpoint's folder, which may be missing; one that is in the sweep's bucket alone is downloaded."""
    folder = sweep / path
    return folder if folder.is_dir() else _fetch(sweep, path) or folder


@contextlib.contextmanager
def lend_checkpoint(sweep: Path, path: str) -> Iterator[Path]:
    """Give a checkpoint's folder for a while, which may be missing; nothing of a bucket's stays here."""
    folder, bucket = sweep / path, find_bucket(sweep)
    if folder.is_dir() or bucket is None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="rltune-checkpoint-") as room:
        copy = Path(room) / folder.name
        digest = bucket.download(path, copy)
        yield copy if digest and compute_digest(copy) == digest else folder


def _fetch(sweep: Path, path: str, digest: str | None = None) -> Path | None:
    """Download a checkpoint into the sweep's folder; None where it is not in a bucket, or not whole.

    Args:
        sweep: The sweep's folder.
        path: The checkpoint, relative to it.
        digest: As it was recorded; None takes the manifest's word.
    """
    bucket = find_bucket(sweep)
    if bucket is None:
        return None
    home = (sweep / path).parent
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=home) as room:
        draft = Path(room) / "checkpoint"
        said = bucket.download(path, draft)
        if said is None or compute_digest(draft) != (digest or said):
            return None
        shutil.rmtree(sweep / path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another thread was faster
            draft.rename(sweep / path)
    return sweep / path


def read_state(folder: Path) -> dict[str, Any]:
    """Read what `write_checkpoint` was given as ``state``."""
    loaded: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return loaded


def is_own_checkpoint(folder: Path) -> bool:
    """Return whether a checkpoint lies in a sweep's folder that this user's rltune has marked."""
    sweep = folder.absolute().parents[2:3]  # sweep / kind / number / checkpoint
    return bool(sweep) and folder.absolute().parents[1].name in (TRIALS, CERTIFY) and is_own_sweep(sweep[0])


def compute_digest(folder: str | Path) -> str:
    """Compute the sha256 (hex) over a folder's relative paths, in order, and their contents.

    The folder ``replay/`` is left out: it may be dropped.
    """
    total, root = hashlib.sha256(), Path(folder)
    for path in sorted(p for p in root.rglob("*") if p.is_file() or p.is_symlink()):
        if path.relative_to(root).parts[0] == REPLAY:
            continue
        # Lengths keep "ab" + "c" apart from "a" + "bc".
        name = path.relative_to(root).as_posix().encode()
        if path.is_symlink():  # no sweep writes one; what it leads to could change, and a folder is not descended into
            total.update(b"%d>%b" % (len(name), name))
            continue
        total.update(b"%d:%b%d:" % (len(name), name, path.stat().st_size))
        with path.open("rb") as file:  # piece by piece: a replay memory is large
            hashlib.file_digest(file, lambda: total)
    return total.hexdigest()
