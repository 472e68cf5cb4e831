"""Explain why an attempt at a trial failed, for the ledger, the user and the retry rules. Runs in the driver.

A worker that raised explains it itself, the supervisor explains a worker that hung, and Ray one whose process is gone.
If the trial fails, everything is written to a file, with the end of what the process wrote to its standard error.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltune.checkpoints.clients import STORAGE_AWAY, StoreError
from rltune.checkpoints.store import Store
from rltune.compat.ray_start import find_logs
from rltune.errors import Cause, clean_text
from rltune.formatting import first_line
from rltune.ledger.disk_full import DISK_FULL
from rltune.trial.supervisor import STACK_FILE, STOP_FILE, has_stacks

FAILURE_FILE = "failure.txt"  # The file in a trial's folder that describes its failure.
MAX_TRACE = 4000  # The last characters of a traceback that the ledger and MLflow keep.
MAX_LOG = 20_000
EXCEPTION_LINE = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")  # Matches the last line of a traceback.
# Not "OOM", which Ray mentions among the possible causes of any death.
OUT_OF_MEMORY = ("OutOfMemory", "low on memory")
CONNECTION_LOST = "Worker unexpectedly exits with a connection error"  # All that Ray sees of a crash (2.60).
CRASHED = "its process has crashed in a library, such as by a segmentation fault, or was killed"
# Ray says by the second one that an actor's node has died, and by the third one that nothing answers at the actor's
# address, as it does until it knows of the node. The first is the name of an error of Ray's, which
# `rltune.compat.tune_controller` puts into the text.
LOST_NODE = ("NodeDiedError", "its node has died", "is temporarily unavailable")


@dataclass(frozen=True)
class Failure:
    """Why an attempt at a trial failed.

    Attributes:
        reason: In one line.
        trace: The traceback, the stacks of the threads, or what Ray said.
        worker_log: The end of what the process wrote to its standard error; empty if that is unknown.
        cause: What ended the attempt, as whoever saw it says.
    """

    reason: str
    trace: str
    worker_log: str = ""
    cause: Cause = Cause.UNKNOWN

    @property
    def counts_against_trial(self) -> bool:
        """Whether the trial's own code ended the attempt: it raised, hung, or took all memory.

        A process that is lost for any other cause may have been taken down with its node.
        """
        return self.cause not in (Cause.LOST_PROCESS, Cause.LOST_NODE, Cause.OUTAGE)

    @property
    def is_nodes_fault(self) -> bool:
        """Whether the node cannot use the sweep's store, so that no trial can run there."""
        return self.cause is Cause.OUTAGE


def explain_death(store: Store, trial_dir: str, error: str, pid: int | None = None) -> Failure:
    """Explain why a worker process died, from its stack file, Ray's error and its log.

    Args:
        store: The sweep's store.
        trial_dir: The trial's folder in the store.
        error: Ray's text.
        pid: The process, if it ever reported; else Ray's text may name it.
    """
    stack, worker_log = store.folder / trial_dir / STACK_FILE, _read_worker_log(pid or _find_pid(error))
    with contextlib.suppress(StoreError, OSError):
        store.fetch([f"{trial_dir}/{STACK_FILE}"], is_quick=True)
    trace = stack.read_text(errors="backslashreplace") if stack.is_file() else ""
    if has_stacks(trace):
        return _make_failure(f"{first_line(trace)}; see {stack}", trace, worker_log, Cause.STALLED)
    error = error.strip() or "unknown"
    cause, reason = explain_ray_death(error)
    return _make_failure(f"worker died: {reason}", error, worker_log, cause)


def explain_ray_death(error: str) -> tuple[Cause, str]:
    """Read the cause and the reason of a process's end from Ray's text, which is all that Tune passes on (2.60)."""
    if any(word in error for word in OUT_OF_MEMORY):
        return Cause.OUT_OF_MEMORY, "out of memory"
    detail = re.search(r"Worker exit detail: (.+)", error)
    is_node_lost = any(words in error for words in LOST_NODE)
    if CONNECTION_LOST in error and not is_node_lost:
        return Cause.LOST_PROCESS, CRASHED
    said = (line for line in error.splitlines() if "Error" in line or any(words in line for words in LOST_NODE))
    line = first_line(detail[1] if detail else next(said, error))
    return Cause.LOST_NODE if is_node_lost else Cause.LOST_PROCESS, line[:300]


def explain_report(result: Mapping[str, Any]) -> Failure:
    """Explain an exception that a worker has caught and reported.

    RLlib ends the process of an env runner at any exception (2.60). So the reason is the exception in the log of the
    env runner's process, if that is on this machine.

    Args:
        result: Its ``failed`` (the reason in one line), ``cause`` and ``traceback``.
    """
    reason, trace = str(result["failed"]), str(result.get("traceback", ""))
    cause = Cause(result.get("cause", Cause.UNKNOWN))
    if cause is not Cause.LOST_PROCESS:
        return _make_failure(reason, trace, "", cause)
    worker_log = _read_worker_log(_find_pid(trace))
    raised = [line for line in worker_log.splitlines() if EXCEPTION_LINE.match(line)]
    # Exceptions without a message come from the process's shutdown and explain nothing.
    if raised:
        line = next((line for line in reversed(raised) if ": " in line), raised[-1])
        return _make_failure(f"env runner died: {line.strip()[:300]}", trace, worker_log, Cause.UNKNOWN)
    return _make_failure(reason, trace, worker_log, cause)


def write_failure(store: Store, trial_dir: str, failure: Failure) -> dict[str, str]:
    """Write a failure report to the trial's folder, and return the fields that the ledger stores."""
    path = store.folder / trial_dir / FAILURE_FILE
    parts = [failure.reason, failure.trace]
    if failure.worker_log:
        parts += ["standard error of the worker:", failure.worker_log]
    with contextlib.suppress(OSError):  # If the disk is full, the ledger still gets the reason.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(part.rstrip() for part in parts) + "\n", errors="backslashreplace")
    trace = f"{failure.trace}\n{failure.worker_log}" if failure.worker_log else failure.trace
    return {"traceback": trace[-MAX_TRACE:], "cause": failure.cause.value, "log": f"{trial_dir}/{FAILURE_FILE}"}


def find_outage(store: Store, failure: Failure) -> str:
    """Return the outage, a full disk or unreachable storage, that ended an attempt and affects all; "" if none."""
    if failure.cause is Cause.DISK_FULL:
        return DISK_FULL
    if failure.cause is Cause.OUTAGE:
        # Only the worker's node may be cut off, so the driver tries the storage itself.
        try:
            store.read(STOP_FILE, is_quick=True)
        except StoreError:
            return STORAGE_AWAY
    return ""


def read_last_error(file: str | None) -> str:
    """Read the latest error from the file in which Tune keeps a trial's errors; empty without one.

    Tune's own ``get_error`` looks in a folder to which the file is copied only later (Ray 2.60).
    """
    try:
        return Path(file or "").read_text().rpartition("Failure # ")[2].partition("\n")[2]
    except OSError:
        return ""


def _make_failure(reason: str, trace: str, worker_log: str, cause: Cause) -> Failure:
    return Failure(clean_text(reason), clean_text(trace), clean_text(worker_log), cause)


def _find_pid(text: str) -> int | None:
    """Find the pid of the dead process in the text of Ray's error."""
    match = re.search(r"^\s*pid: (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _read_worker_log(pid: int | None) -> str:
    """Read the end of a worker's standard error from Ray's logs; empty if these are on another machine."""
    logs = find_logs()
    files = sorted(logs.glob(f"worker-*-{pid}.err")) if pid and logs else []
    try:
        return files[-1].read_text(errors="replace")[-MAX_LOG:] if files else ""
    except OSError:
        return ""
