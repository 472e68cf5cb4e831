"""Say why a trial went wrong: one line for a person, and a file with all that is known. Runs in the driver.

The line comes from the worker where it could still speak, from its supervisor where it hung, from Ray where it was
killed; the file adds the end of what the process had written to its standard error.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store
from rltune.compat.ray_start import find_logs
from rltune.config.uris import redact
from rltune.formatting import first_line
from rltune.trial.supervisor import STACK_FILE

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


def describe_dead_process(store: Store, trial_dir: str, error: str, pid: int | None) -> Failure:
    """Describe a worker that lost its process.

    Args:
        store: The sweep's.
        trial_dir: The trial's folder in it.
        error: What Ray says.
        pid: The process, if it ever reported; else Ray may say.
    """
    reason, stack = describe_death(store, trial_dir, error), store.folder / trial_dir / STACK_FILE
    trace = stack.read_text() if stack.is_file() else error.strip() or "unknown"
    return _write_failure(store, trial_dir, reason, trace, _read_worker_log(pid or _find_pid(error)))


def describe_death(store: Store, trial_dir: str, error: str) -> str:
    """Return in one line why a worker lost its process; the arguments are those of `describe_dead_process`."""
    stack = store.folder / trial_dir / STACK_FILE
    with contextlib.suppress(StoreError, OSError):
        store.fetch([f"{trial_dir}/{STACK_FILE}"], is_quick=True)
    if stack.is_file():
        return f"{first_line(stack.read_text())}; see {stack}"
    error = error.strip() or "unknown"
    detail = re.search(r"Worker exit detail: (.+)", error)
    line = first_line(detail[1] if detail else next((line for line in error.splitlines() if "Error" in line), error))
    short = "out of memory" if any(word in error for word in MEMORY_WORDS) else line
    return f"worker died: {short[:300]}"


def describe_error(store: Store, trial_dir: str, reason: str, trace: str) -> Failure:
    """Describe a trial whose work raised; its process lives on."""
    return _write_failure(store, trial_dir, describe_reason(reason, trace), trace, _read_env_runner_log(reason, trace))


def describe_reason(reason: str, trace: str) -> str:
    """Return the reason, or what an env runner had raised: RLlib ends its process at any exception (2.60)."""
    raised = [line for line in _read_env_runner_log(reason, trace).splitlines() if RAISED.match(line)]
    telling = [line for line in raised if ": " in line] or raised  # what its end raises besides may say nothing
    return f"env runner died: {telling[-1].strip()[:300]}" if telling else reason


def read_last_error(file: str | None) -> str:
    """Read the newest error in Tune's file of a trial's errors; empty without one.

    Tune's own ``get_error`` looks where the file is copied only later (Ray 2.60).
    """
    try:
        return Path(file or "").read_text().rpartition("Failure # ")[2].partition("\n")[2]
    except OSError:
        return ""


def read_error(trial: Any) -> BaseException | None:
    """Read what Ray said of a Tune trial's lost process, as it was raised; None where it cannot be read."""
    try:
        with Path(trial.pickled_error_file or "").open("rb") as file:
            error = pickle.load(file)  # noqa: S301, Tune wrote it in this process
    except Exception:  # whatever a class of another library needs to be read
        return None
    return error if isinstance(error, BaseException) else None


def find_lost_actor(reason: str, trace: str) -> tuple[str | None, BaseException | None]:
    """Find which process of a trial's own was lost, such as an env runner, and how; None where none was."""
    from ray.exceptions import ActorUnavailableError

    kind = reason.partition(":")[0]
    found = re.search(r"(?:actor_id: |The actor )([0-9a-f]{32})", trace)
    if found is None or kind not in ("ActorDiedError", "ActorUnavailableError"):
        return None, None
    return found[1], ActorUnavailableError(reason, None) if kind == "ActorUnavailableError" else None


def _read_env_runner_log(reason: str, trace: str) -> str:
    """Read the end of what a dead env runner wrote; empty where something else went wrong."""
    return _read_worker_log(_find_pid(trace)) if reason.startswith("ActorDiedError") else ""


def _find_pid(text: str) -> int | None:
    """Find the process that Ray's error is about."""
    found = re.search(r"^\s*pid: (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _read_worker_log(pid: int | None) -> str:
    """Read the end of what a worker wrote to standard error; empty where its log is on another machine."""
    logs = find_logs()
    found = sorted(logs.glob(f"worker-*-{pid}.err")) if pid and logs else []
    try:
        return found[-1].read_text(errors="replace")[-MAX_LOG:] if found else ""
    except OSError:
        return ""


def _write_failure(store: Store, trial_dir: str, reason: str, trace: str, written: str) -> Failure:
    reason, trace, written = redact(reason), redact(trace), redact(written)
    path = store.folder / trial_dir / FAILURE_FILE
    parts = [reason, trace, *(["standard error of the worker:", written] if written else [])]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(part.rstrip() for part in parts) + "\n")
    except OSError:  # a full disk must not cost the reason
        pass
    return Failure(reason, (f"{trace}\n{written}" if written else trace)[-MAX_TRACE:], f"{trial_dir}/{FAILURE_FILE}")
