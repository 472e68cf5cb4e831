"""Run each sweep as a process of its own, which outlives the service that started it.

The process is ``rltune run --composed name=X`` in a session of its own. It reads its composed settings from standard
input and writes its output to a file. Whether a sweep is driven, by this process or by any other one, is known from the
lease in its ledger alone; a process is only observed for its exit code, and until it has taken the lease.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from rltune.cluster.resources import available_cpus
from rltune.compose.composing import COMPOSED
from rltune.compose.overrides import spell_value
from rltune.config.settings_file import dump_settings, load_settings
from rltune.driver.requests.handle import open_handle
from rltune.errors import UnavailableError, clean_text
from rltune.formatting import spell_command
from rltune.ledger.lease import LeaseState, LeaseWatch
from rltune.ledger.outcome import load_outcome
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import STOP
from rltune.service.folder import TAIL_BYTES, ServiceFolder
from rltune.service.submissions import Submission

HEADING = "--- rltune serve: "  # In a log, each command's output begins with a line that starts like this.
ERROR = re.compile(r"^error: (.+(?:\n  allowed: .+)?(?:\n  try: .+)?)", re.MULTILINE)
# A process without the lease after this time counts as lost. That may be a process which an earlier service started
# just before it was killed. If it is only slow, no harm is done, because the lease refuses it or the process that
# replaces it.
START_S = 60.0


@dataclass(frozen=True)
class Ending:
    """How a sweep's process has ended, from its exit code, its output and the ledger.

    Attributes:
        code: Its exit code, negative for a signal; None if this service is not its parent.
        status: The status in the sweep's ledger; None without a ledger.
        message: The last message that it printed.
        is_stop_requested: Whether somebody has asked the sweep to stop since its process started, with or without a
            service.
        progress: Environment steps and ended trials in its ledger; it grows with each report and each end of a trial.
        is_driven: Whether another process drives the sweep now.
    """

    code: int | None
    status: str | None = None
    message: str = ""
    is_stop_requested: bool = False
    progress: int = 0
    is_driven: bool = False


def share_machine(width: int, address: str | None) -> dict[str, Any]:
    """Return the settings of ``cluster`` that give each sweep its share of this machine or of a running Ray cluster.

    Args:
        width: How many sweeps run at a time.
        address: The address of a running Ray, which shares its resources itself; None is a Ray for each sweep with its
            part of the CPUs.
    """
    if address is not None:
        return {"address": address}
    return {"num_cpus": max(1, available_cpus() // width)} if width > 1 else {}


class SweepProcesses:
    """Start, observe and stop the processes of sweeps.

    Args:
        folder: The service's folder.
        share: Settings of ``cluster`` for sweeps that were submitted without any, as `share_machine` returns them.
        program: The command that starts a sweep, without its arguments.
    """

    def __init__(self, folder: ServiceFolder, share: Mapping[str, Any], program: Sequence[str] | None = None) -> None:
        self._folder, self._share = folder, share
        self._program = program or (sys.executable, "-m", "rltune", "run")
        self._children: dict[int, subprocess.Popen[bytes]] = {}  # The child processes by the id of their submission.
        self._watches: dict[int, LeaseWatch] = {}

    def format_request(self, submission: Submission) -> str:
        """Format the standard input of a sweep's process: its settings, and the command that would run it by hand."""
        settings = load_settings(submission.settings)
        # The sweeps' folder may have been moved since the submission, so its path is set again.
        settings["output_dir"] = str(self._folder.sweeps)
        cluster = settings.get("cluster", {})
        is_typed = any(word.lstrip("+~").startswith(("cluster=", "cluster.")) for word in submission.overrides)
        # An experiment's file may also choose the cluster.
        if not is_typed and all(cluster.get(key) is None for key in ("address", "num_cpus", "num_gpus")):
            settings["cluster"] = {**cluster, **self._share}
        return json.dumps({"settings": dump_settings(settings), "typed": spell_run(submission.overrides)})

    def start(self, submission: Submission) -> None:
        """Start the process of a sweep.

        Raises:
            OSError: The system gives no process, or the log cannot be written.
        """
        command = [*self._program, COMPOSED, f"name={spell_value('name', submission.name)}"]
        # An unnamed temporary file passes the settings: other users cannot read it, and it leaves nothing behind.
        with self._folder.log_of(submission.name).open("ab") as log, tempfile.TemporaryFile() as settings:
            settings.write(self.format_request(submission).encode())
            settings.seek(0)
            typed = spell_run([*submission.overrides, f"name={submission.name}"])
            log.write(f"{HEADING}{typed}\n".encode())
            log.flush()
            self._children[submission.id] = subprocess.Popen(
                command,
                stdin=settings,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def is_driven(self, submission: Submission, if_down: bool | None = False) -> bool | None:
        """Return whether a live process holds the sweep's lease; None if that is not known yet.

        Args:
            submission: The sweep.
            if_down: The answer while the database of its ledger is down. By default nobody drives it, since a sweep's
                command takes the lease before it begins, and says that the database is down.
        """
        watch = self._watch(submission)
        try:
            return watch.look()
        except (UnavailableError, OperationalError):
            return if_down
        except Exception:  # If the ledger is damaged, then the sweep's own command will report it.
            return False

    def _watch(self, submission: Submission) -> LeaseWatch:
        read = functools.partial(read_lease, self._folder.sweeps / submission.name)
        return self._watches.setdefault(submission.id, LeaseWatch(read))

    def find_ending(self, submission: Submission) -> Ending | None:
        """Return how a running sweep's process has ended; None while it runs or may still be running."""
        child = self._children.get(submission.id)
        code = child.poll() if child else None
        if child is not None and code is None:
            return None
        is_driven = self.is_driven(submission, if_down=None if child is None else False)
        if is_driven is None or (child is None and (is_driven or self._may_start(submission))):
            return None
        self._children.pop(submission.id, None)
        if is_driven:
            return Ending(code, is_driven=True)
        del self._watches[submission.id]
        ending = self._read_ending(submission, Ending(code, message=self._read_message(submission.name)))
        return replace(ending, message=clean_text(ending.message))  # An environment may have printed anything.

    def _may_start(self, submission: Submission) -> bool:
        """Return whether a process that an earlier service started may soon take the lease, see `START_S`."""
        state = self._watch(submission).state
        has_started = submission.is_adopted or (state.driver_id if state else None) != submission.last_driver
        return not has_started and 0 <= time.time() - (submission.started_s or 0.0) < START_S

    def stop(self, submission: Submission) -> None:
        """Ask a sweep's driver to stop: by a signal to a child process, or else by a request in the ledger.

        Raises:
            StudyError: The driver cannot be reached.
        """
        if child := self._children.get(submission.id):
            # Only one SIGTERM is sent: the driver takes a second one as the wish to exit at once.
            child.send_signal(signal.SIGTERM)
        else:
            self.request_stop(submission)

    def request_stop(self, submission: Submission) -> None:
        """Write a stop request into a sweep's ledger, unless it has one or the driver is a child of this process.

        A driver that starts withdraws earlier requests. So this does nothing while the sweep has no driver yet, and is
        called again until the sweep has ended.

        Raises:
            StudyError: The ledger cannot be written from here.
        """
        if submission.id in self._children or not self.is_driven(submission):
            return
        with open_handle(SweepRef(submission.name, self._folder.sweeps)) as sweep:
            requests = sweep.ledger.read_requests(STOP, waiting=False)
            if not any(request.id > submission.last_request for request in requests):
                sweep.send(STOP, {})

    def read_history(self, submission: Submission) -> dict[str, Any]:
        """Return the last request and driver in a sweep's ledger before the sweep starts, see `Submission`."""
        with contextlib.suppress(Exception), closing(open_ledger(self._folder.sweeps / submission.name)) as ledger:
            last_request = max((request.id for request in ledger.read_requests(waiting=False)), default=0)
            return {"last_request": last_request, "last_driver": ledger.read_lease().driver_id}
        return {"last_request": 0, "last_driver": None}

    def _read_ending(self, submission: Submission, ending: Ending) -> Ending:
        """Add the status, stop requests and progress from the sweep's ledger, if it can be read.

        A ledger that is damaged raises errors of the database's library; they must not hold up the other sweeps.
        """
        with contextlib.suppress(Exception), closing(open_ledger(self._folder.sweeps / submission.name)) as ledger:
            requests = ledger.read_requests(STOP, waiting=False)
            has_started = ledger.read_lease().driver_id != submission.last_driver
            records = [*ledger.trials.records(), *ledger.runs.records()]
            # Unless this process took the lease, the ledger's status is that of an earlier run.
            status = ledger.sweep().status if has_started else None
            outcome = load_outcome(self._folder.sweeps / submission.name) if status == "failed" else None
            if outcome and outcome.reason:
                ending = replace(ending, message=outcome.reason)
            return replace(
                ending,
                status=status,
                is_stop_requested=any(request.id > submission.last_request for request in requests),
                progress=sum(record.env_steps + (record.state != "RUNNING") for record in records),
            )
        return ending

    def _read_message(self, name: str) -> str:
        """Return the last error in the log of a sweep's last command, or else the log's last line."""
        output = self._folder.read_log(name, -TAIL_BYTES)[0].rpartition(HEADING)[2]
        if errors := ERROR.findall(output):
            return str(errors[-1])
        return next((line.strip() for line in reversed(output.splitlines()[1:]) if line.strip()), "")


def spell_run(overrides: Sequence[str]) -> str:
    """Return the command that would run a submission by hand."""
    return spell_command(shlex.join(["run", *overrides]))


def read_lease(folder: Path) -> LeaseState:
    """Read the lease of the sweep in a folder.

    Raises:
        StudyError: The sweep has no ledger, or its ledger cannot be read.
    """
    with closing(open_ledger(folder)) as ledger:
        return ledger.read_lease()
