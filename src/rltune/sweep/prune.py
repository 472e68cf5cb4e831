"""Delete checkpoints that no winner and no unfinished trial needs. Runs where it is typed."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table

from rltune.certification.finalists import rank_finalists
from rltune.certification.result import Certification
from rltune.config.settings_file import read_settings
from rltune.errors import RltuneError
from rltune.formatting import first_line
from rltune.records import CERTIFY, TRIALS, SweepRecord, TrialRecord
from rltune.study.storage import open_ledger
from rltune.study.sweep_folder import find_sweep, list_sweep_folders, lock_sweep

ALL = "all"
UNSETTLED = ("running", "interrupted")  # such a sweep's certification goes on from any of its runs' checkpoints
CHECKPOINTS = ("best-*", "latest-*")


@dataclass(frozen=True)
class SpareCheckpoints:
    """What one sweep has to spare.

    Attributes:
        sweep: Its name.
        folders: The checkpoints that nobody needs.
        size: Of them, in bytes.
        kept: How many others it has.
        why: Why nothing is touched; None where it may be.
    """

    sweep: str
    folders: tuple[Path, ...] = ()
    size: int = 0
    kept: int = 0
    why: str | None = None


def prune_sweeps(
    sweep: str, output_dir: str, sure: bool, stream: TextIO | None = None, storage: str | None = None
) -> None:
    """Say what would be freed, and with ``sure`` free it.

    Args:
        sweep: Its name, ``latest`` or ``all``.
        output_dir: The folder of all sweeps.
        sure: Delete.
        stream: Where to print; None is standard output.
        storage: As for `rltune.study.storage.open_ledger`.

    Raises:
        StudyError: There is no such sweep.
    """
    folders = list_sweep_folders(output_dir) if sweep == ALL else [find_sweep(sweep, output_dir)]
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
    out.print(f"to delete: python -m sweeps.prune sweep={sweep} delete=true{where}", soft_wrap=True)


def _prune(folder: Path, sure: bool, storage: str | None) -> SpareCheckpoints:
    """Look through one sweep while no driver can have it, and delete where that is wanted."""
    try:
        with lock_sweep(folder) as ours:
            if not ours:
                return SpareCheckpoints(folder.name, why="it is running")
            found = find_spare(folder, storage)
            for checkpoint in found.folders if sure else ():
                shutil.rmtree(checkpoint)
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
    needed, there = _find_needed(folder, sweep, trials), list(_list_ended(folder, sweep, trials))
    spared = tuple(checkpoint for checkpoint in there if checkpoint not in needed)
    everything = sum(len(_list_checkpoints(home)) for kind in (TRIALS, CERTIFY) for home in folder.glob(f"{kind}/*"))
    return SpareCheckpoints(folder.name, spared, sum(map(_measure_size, spared)), everything - len(spared))


def _find_needed(folder: Path, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> set[Path]:
    """Find the winner's checkpoint, those that an extension chooses from, and each certified configuration's best."""
    top = int(read_settings(folder).certify.top)
    needed = {one.folder for one in itertools.islice(rank_finalists(folder, trials), max(1, top))}
    if sweep.winner:
        needed.add(folder / sweep.winner["checkpoint"])
    if sweep.certification:
        for one in Certification.from_dict(sweep.certification).configurations:
            if one.per_seed:
                needed.add(folder / max(one.per_seed, key=lambda result: result.mean).checkpoint)
    return needed


def _list_ended(folder: Path, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> Iterator[Path]:
    """List the checkpoints of trials that have ended, and of a certification that has."""
    unfinished = {str(record.number) for record in trials if record.state == "RUNNING"}
    for home in folder.glob(f"{TRIALS}/*"):
        if home.name not in unfinished:
            yield from _list_checkpoints(home)
    if sweep.status not in UNSETTLED:
        for home in folder.glob(f"{CERTIFY}/*"):
            yield from _list_checkpoints(home)


def _list_checkpoints(home: Path) -> list[Path]:
    return [path for pattern in CHECKPOINTS for path in home.glob(pattern)]


def _measure_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _make_table(found: Sequence[SpareCheckpoints], sure: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("sweep", "freed" if sure else "would free", "checkpoints", "kept"):
        table.add_column(heading, overflow="fold")
    for one in found:
        shown = (
            (_format_megabytes(one.size), str(len(one.folders)), str(one.kept))
            if one.why is None
            else (one.why, "", "")
        )
        table.add_row(one.sweep, *shown)
    return table


def _format_megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
