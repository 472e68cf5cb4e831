"""Name a damaged ledger file in an error that says how to recover from it. Runs anywhere."""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
from datetime import datetime
from pathlib import Path

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext

from rltune.errors import StudyError
from rltune.formatting import first_line
from rltune.ledger.sweep_folder import LEDGER_COPY

_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY_CODE = 0xFF  # The lowest byte of SQLite's extended error codes.


def report_damage(engine: Engine, path: Path) -> None:
    """Raise a `StudyError` with the file's name wherever a statement meets damage in a SQLite file.

    SQLite notices damage only in the pages that it happens to read, so any read may be the first to fail.

    Args:
        engine: The connections to the file.
        path: The file.
    """

    def replace_error(context: ExceptionContext) -> None:
        error = context.original_exception
        # Python raises an error without a code where bytes are no text.
        is_garbled = isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error)
        if getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _DAMAGE_CODES or is_garbled:
            raise make_damage_error(path, str(error)) from None

    event.listen(engine, "handle_error", replace_error)


def find_damage(path: Path) -> str:
    """Return what is wrong with a ledger's file, after a look at every page; empty if nothing is."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as ledger:
            (verdict,) = ledger.execute("PRAGMA quick_check(1)").fetchone()
            if verdict == "ok" and not ledger.execute("SELECT count(*) FROM sweeps").fetchone()[0]:
                verdict = "it holds no sweep"
    except sqlite3.Error as error:
        verdict = str(error)
    return "" if verdict == "ok" else first_line(str(verdict))


def make_damage_error(path: Path, damage: str) -> StudyError:
    """Make the error that names a damaged file.

    Args:
        path: The file.
        damage: What is wrong with it.
    """
    return StudyError(f"{path} is damaged: {damage}", "the file as rltune wrote it", suggest_recovery(path))


def suggest_recovery(path: Path) -> str:
    """Return the command that puts the copy of a ledger in its place, or what to do without a copy."""
    copy = path.with_name(LEDGER_COPY)
    if not copy.exists():
        return "put a copy of yours there; without one, the trials can only be run again under a new name"
    age = datetime.fromtimestamp(copy.stat().st_mtime).astimezone().isoformat(" ", "seconds")
    file, copied = shlex.quote(str(path)), shlex.quote(str(copy))
    return f"rm -f {file}*; cp {copied} {file}   # its state of {age}; what came after it is trained again"
