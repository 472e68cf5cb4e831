"""Why a trial went wrong, for a person: one line, and a file with all that is known. Runs in the driver.

The line comes from the worker where it could still speak, from its watchdog where it hung, from Ray where it was
killed; the file adds the end of what the process had written to its standard error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rltune.compat.ray_start import find_logs
from rltune.trial.watchdog import STACK_FILE

FAILURE_FILE = "failure.txt"  # in the trial's folder
MAX_TRACE = 4000  # characters kept in the ledger and in MLflow
MAX_LOG = 20_000
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")  # as a traceback's last line begins
MEMORY_WORDS = ("OutOfMemory", "low on memory")  # not OOM, which is among the causes that Ray guesses of any death


@dataclass(frozen=True)
class Failure:
    """One failure.

    Attributes:
        reason: In one line.
        trace: The traceback, or where its threads were, or what Ray said.
        log: Its file, relative to the sweep's folder.
    """

    reason: str
    trace: str
    log: str


def describe_dead_process(sweep: Path, place: str, error: str, pid: int | None) -> Failure:
    """A worker that lost its process.

    Args:
        sweep: The sweep's folder.
        place: The trial's own folder in it.
        error: What Ray says.
        pid: The process, if it ever reported.
    """
    stack = sweep / place / STACK_FILE
    written = _written(pid)
    if stack.is_file():
        trace = stack.read_text()
        return _kept(sweep, place, f"{trace.splitlines()[0]}; see {stack}", trace, written)
    error = error.strip() or "unknown"
    detail = re.search(r"Worker exit detail: (.+)", error)
    line = detail[1] if detail else next((line for line in error.splitlines() if "Error" in line), error)
    line = line.strip().splitlines()[0]
    short = "out of memory" if any(word in error for word in MEMORY_WORDS) else line
    return _kept(sweep, place, f"worker died: {short[:300]}", error, written)


def describe_error(sweep: Path, place: str, reason: str, trace: str) -> Failure:
    """A trial whose work raised; its process lives on."""
    return _kept(sweep, place, describe_in_its_words(reason, trace), trace, _of_runner(reason, trace))


def describe_in_its_words(reason: str, trace: str) -> str:
    """The reason, or what an env runner of the trial's had raised: RLlib ends its process at any exception (2.60)."""
    raised = [line for line in _of_runner(reason, trace).splitlines() if RAISED.match(line)]
    told = [line for line in raised if ": " in line] or raised  # what its end raises besides may say nothing
    return f"env runner died: {told[-1].strip()[:300]}" if told else reason


def failure_kind(reason: str) -> str:
    """What reasons that differ in their numbers alone have in common: process, trial, step, address."""
    return re.sub(r"\b(?=\w*\d)(0x[0-9a-f]+|[0-9a-f]{8,})\b|-?\d+(\.\d+)?(e[+-]?\d+)?", "#", reason)


def read_last_words(file: str | None) -> str:
    """The newest entry of Tune's file of a trial's errors: ``get_error`` would look where it is copied later (2.60)."""
    try:
        return Path(file or "").read_text().rpartition("Failure # ")[2].partition("\n")[2]
    except OSError:
        return ""


def _of_runner(reason: str, trace: str) -> str:
    """The end of what an env runner wrote that has died; empty where it is something else that went wrong."""
    pid = re.search(r"^\s*pid: (\d+)$", trace, re.MULTILINE)
    return _written(int(pid[1])) if pid and reason.startswith("ActorDiedError") else ""


def _written(pid: int | None) -> str:
    """The end of what a worker wrote to standard error, as far as its log is on this machine."""
    logs = find_logs()
    found = sorted(logs.glob(f"worker-*-{pid}.err")) if pid and logs else []
    try:
        return found[-1].read_text(errors="replace")[-MAX_LOG:] if found else ""
    except OSError:
        return ""


def _kept(sweep: Path, place: str, reason: str, trace: str, written: str) -> Failure:
    path = sweep / place / FAILURE_FILE
    parts = [reason, trace, *(["standard error of the worker:", written] if written else [])]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(part.rstrip() for part in parts) + "\n")
    except OSError:  # a full disk must not cost the reason
        pass
    return Failure(reason, (f"{trace}\n{written}" if written else trace)[-MAX_TRACE:], str(path.relative_to(sweep)))
