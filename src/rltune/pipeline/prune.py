"""Delete checkpoints that no winner and no unfinished trial needs. Runs where it is typed."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TextIO

from rich.console import Console
from rich.table import Table

from rltune.certification.result import Certification
from rltune.config.settings_file import read_settings
from rltune.errors import RltuneError
from rltune.formatting import first_line, spell_command
from rltune.records import CERTIFY, TRIALS, SweepRecord, TrialRecord
from rltune.study.bucket import find_bucket
from rltune.study.checkpoints import is_recorded
from rltune.study.ranking import rank_records
from rltune.study.storage import open_ledger
from rltune.study.sweep_folder import find_sweep, list_sweep_folders, lock_sweep

ALL = "all"
UNSETTLED = ("running", "interrupted")  # such a sweep's certification goes on from any of its runs' checkpoints
CHECKPOINTS = ("best-", "latest-")


@dataclass(frozen=True)
class SpareCheckpoints:
    """What one sweep has to spare.

    Attributes:
        sweep: Its name.
        checkpoints: Those that nobody needs, relative to the sweep's folder.
        size: Of them, in bytes.
        kept: How many others it has.
        why: Why nothing is touched; None where it may be.
    """

    sweep: str
    checkpoints: tuple[str, ...] = ()
    size: int = 0
    kept: int = 0
    why: str | None = None


def prune_sweeps(
    sweep: str,
    output_dir: str,
    sure: bool,
    stream: TextIO | None = None,
    storage: str | None = None,
    bucket: str | None = None,
) -> None:
    """Say what would be freed, and with ``sure`` free it.

    Args:
        sweep: Its name, ``latest`` or ``all``.
        output_dir: The folder of all sweeps.
        sure: Delete.
        stream: Where to print; None is standard output.
        storage: As for `rltune.study.storage.open_ledger`.
        bucket: As for `rltune.study.sweep_folder.find_sweep`.

    Raises:
        StudyError: There is no such sweep.
    """
    folders = list_sweep_folders(output_dir, bucket) if sweep == ALL else [find_sweep(sweep, output_dir, bucket=bucket)]
    found = [_prune(folder, sure, storage) for folder in folders]
    out = Console(file=stream or sys.stdout, highlight=False)
    if not found:
        out.print(f"no sweeps in {output_dir}", soft_wrap=True)
        return
    out.print(_make_table(found, sure))
    size = sum(spare.size for spare in found)
    if sure or not size:
        out.print(f"freed {_format_megabytes(size)}" if sure else "nothing to free")
        return
    where = "" if output_dir == "outputs" else f" output_dir={output_dir}"
    out.print(
        "nothing is deleted yet. Kept are the winners, what an extended sweep would certify, and what unfinished trials"
        " go on from; MLflow, unless it was off, keeps the policies of all trials that ran to their end.",
        soft_wrap=True,
    )
    out.print(f"to delete: {spell_command(f'prune sweep={sweep} delete=true{where}')}", soft_wrap=True)


def _prune(folder: Path, sure: bool, storage: str | None) -> SpareCheckpoints:
    """Look through one sweep while no driver can have it, and delete where that is wanted."""
    try:
        with lock_sweep(folder) as ours:
            if not ours:
                return SpareCheckpoints(folder.name, why="it is running")
            found = find_spare(folder, storage)
            for checkpoint in found.checkpoints if sure else ():
                _delete(folder, checkpoint)
            return found
    except RltuneError as error:
        return SpareCheckpoints(folder.name, why=f"unreadable: {first_line(error.what)}")
    except OSError as error:  # another person's
        return SpareCheckpoints(folder.name, why=str(error))


def find_spare(folder: Path, storage: str | None = None) -> SpareCheckpoints:
    """Find what a sweep has to spare.

    Args:
        folder: The sweep's.
        storage: As for `rltune.study.storage.open_ledger`.

    Raises:
        StudyError: Its ledger cannot be read.
    """
    with closing(open_ledger(folder, storage)) as ledger:
        sweep, trials = ledger.sweep(), ledger.trials.records()
    needed, there = _find_needed(folder, sweep, trials), _list_checkpoints(folder)
    spared = tuple(name for name in there if name not in needed and _has_ended(name, sweep, trials))
    return SpareCheckpoints(folder.name, spared, sum(there[name] for name in spared), len(there) - len(spared))


def _find_needed(folder: Path, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> set[str]:
    """Find the winner's checkpoint, those that an extension chooses from, and each certified configuration's best."""
    top = int(read_settings(folder).certify.top)
    best = (
        one.checkpoint.path for one in rank_records(trials) if one.checkpoint and is_recorded(folder, one.checkpoint)
    )
    needed = set(itertools.islice(best, max(1, top)))
    if sweep.winner:
        needed.add(str(sweep.winner["checkpoint"]))
    if sweep.certification:
        for one in Certification.from_dict(sweep.certification).configurations:
            if one.per_seed:
                needed.add(max(one.per_seed, key=lambda result: result.mean).checkpoint)
    return needed


def _has_ended(checkpoint: str, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> bool:
    """Whether a checkpoint is of a trial that has ended, or of a certification that has."""
    kind, number, _ = PurePosixPath(checkpoint).parts
    if kind == CERTIFY:
        return sweep.status not in UNSETTLED
    return number in {str(record.number) for record in trials if record.state != "RUNNING"}


def _list_checkpoints(folder: Path) -> dict[str, int]:
    """List a sweep's checkpoints in its bucket, or without one in its folder: their sizes in bytes, by name."""
    sizes: Counter[str] = Counter()
    for name, size in _list_files(folder):
        parts = PurePosixPath(name).parts
        if parts[0] in (TRIALS, CERTIFY) and len(parts) > 3 and parts[2].startswith(CHECKPOINTS):
            sizes["/".join(parts[:3])] += size
    return dict(sizes)


def _list_files(folder: Path) -> Iterator[tuple[str, int]]:
    if bucket := find_bucket(folder):
        yield from ((name, size) for name, (size, _) in bucket.list_files().items())
        return
    for kind in (TRIALS, CERTIFY):
        for path in (folder / kind).rglob("*"):
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path.stat().st_size


def _delete(folder: Path, checkpoint: str) -> None:
    if bucket := find_bucket(folder):
        bucket.delete_folder(checkpoint)
        shutil.rmtree(folder / checkpoint, ignore_errors=True)  # a copy, if there is one
    else:
        shutil.rmtree(folder / checkpoint)


def _make_table(found: Sequence[SpareCheckpoints], sure: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("sweep", "freed" if sure else "would free", "checkpoints", "kept"):
        table.add_column(heading, overflow="fold")
    for one in found:
        shown = (
            (_format_megabytes(one.size), str(len(one.checkpoints)), str(one.kept))
            if one.why is None
            else (one.why, "", "")
        )
        table.add_row(one.sweep, *shown)
    return table


def _format_megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
