"""Run each sweep as a process of its own, which outlives the service that has started it.

The process is ``rltune run --composed name=X`` in a session of its own. It reads its composed settings from standard
input and writes its output to a file. The queue has its `ProcessMark`, by which the next service finds it again. A
process that cannot be seen, and one that no service has started, are known by the lease in the sweep's ledger.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from omegaconf import OmegaConf
from sqlalchemy.exc import OperationalError

from rltune.cluster.resources import available_cpus
from rltune.cluster.stale_processes import GONE, RUNNING, ProcessMark, mark_process
from rltune.compose.composing import COMPOSED
from rltune.compose.overrides import spell_value
from rltune.config.uris import redact_address
from rltune.driver.requests.handle import open_handle
from rltune.errors import UnavailableError
from rltune.formatting import spell_command
from rltune.ledger.lease import LeaseState, LeaseWatch
from rltune.ledger.ledger import Ledger
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import STOP
from rltune.service.dispatcher import Ending
from rltune.service.folder import TAIL_BYTES, ServiceFolder
from rltune.service.submissions import Submission

HEADING = "--- rltune serve: "  # Each command's part of a log begins with such a line.
ERROR = re.compile(r"^error: (.+(?:\n  allowed: .+)?(?:\n  try: .+)?)", re.MULTILINE)
# The shell waits for a line before it becomes the sweep's process, so that nothing starts before the queue has its
# mark. Without a line, because the service was killed in between, it ends.
WAIT = 'read -r line && exec "$@" </dev/fd/{settings}'


def share_machine(width: int, address: str | None) -> dict[str, Any]:
    """Return the settings of ``cluster`` that give each sweep its share of a running Ray or of this machine.

    Args:
        width: How many sweeps run at a time.
        address: The address of a running Ray, which shares its resources itself; None is a Ray for each sweep with its
            part of the CPUs.
    """
    if address is not None:
        return {"address": address}
    return {"num_cpus": max(1, available_cpus() // width)} if width > 1 else {}


class SweepProcesses:
    """Start, observe and end the processes of sweeps.

    Args:
        folder: The service's folder.
        share: Settings of ``cluster`` for sweeps that were submitted without any, as `share_machine` returns them.
        program: The command that starts a sweep, without its arguments.
    """

    def __init__(self, folder: ServiceFolder, share: Mapping[str, Any], program: Sequence[str] | None = None) -> None:
        self._folder, self._share = folder, share
        self._program = program or (sys.executable, "-m", "rltune", "run")
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._watches: dict[int, LeaseWatch] = {}

    def format_request(self, submission: Submission) -> str:
        """Format the input of a sweep's process: its settings, and the command that submits the same sweep by hand."""
        # The folder may have been moved since the sweep was submitted.
        settings = OmegaConf.merge(OmegaConf.create(submission.settings), {"output_dir": str(self._folder.sweeps)})
        if not any(word.lstrip("+~").startswith(("cluster=", "cluster.")) for word in submission.overrides):
            settings = OmegaConf.merge(settings, {"cluster": self._share})
        typed = shlex.join(["run", *map(redact_address, submission.overrides)])
        return json.dumps({"settings": OmegaConf.to_yaml(settings), "typed": spell_command(typed)})

    def start(self, submission: Submission, claim: Callable[[Mapping[str, Any]], bool]) -> None:
        """Start a sweep's process, which does nothing before ``claim`` has got the row's new values and agreed.

        Raises:
            OSError: The system gives no process, or the log cannot be written.
        """
        command = [*self._program, COMPOSED, f"name={spell_value('name', submission.name)}"]
        # The settings are in a file without a name: no other user can read them, and none is left behind.
        with self._folder.log_of(submission.name).open("ab") as log, tempfile.TemporaryFile() as settings:
            settings.write(self.format_request(submission).encode())
            settings.seek(0)
            log.write(f"{HEADING}{shlex.join(command)}\n".encode())
            log.flush()
            child = subprocess.Popen(
                ["/bin/sh", "-c", WAIT.format(settings=settings.fileno()), "sh", *command],
                pass_fds=[settings.fileno()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        assert child.stdin is not None
        self._children[child.pid] = child
        self._watches.pop(submission.id, None)
        with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
            if claim({"process": mark_process(psutil.Process(child.pid))}):
                pipe.write(b"\n")

    def is_driven(self, submission: Submission) -> bool | None:
        """Return whether any process drives a sweep; None if that is not known yet."""
        # If the database is down, the sweep's command says so and is tried again. It takes the lease before it begins.
        return self._is_driven(submission, if_down=False)

    def _is_driven(self, submission: Submission, if_down: bool | None) -> bool | None:
        read = functools.partial(_read_lease, self._folder.sweeps / submission.name)
        try:
            return self._watches.setdefault(submission.id, LeaseWatch(read)).look()
        except (UnavailableError, OperationalError):
            return if_down
        except Exception:  # The sweep's command says what is wrong with its ledger; no other sweep waits for that.
            return False

    def find_ending(self, submission: Submission) -> Ending | None:
        """Return how a running sweep's process has ended; None while it runs, or may run."""
        child = self._children.get(int(submission.process.get("pid", -1)))
        code = child.poll() if child else None
        state = _find_state(submission)
        if state == RUNNING or (child is not None and code is None):
            return None
        is_driven = self._is_driven(submission, if_down=None if child is None else False)
        is_replaced = is_driven and state == GONE and bool(submission.process)
        if is_driven is None or (is_driven and not is_replaced):
            return None
        self._watches.pop(submission.id)
        if child is not None:
            del self._children[child.pid]
        if is_replaced:
            return Ending(code, is_driven=True)
        message = self._read_message(submission.name)
        return self._read_ending(submission, Ending(code, message=message, was_adopted=not submission.process))

    def stop(self, submission: Submission) -> None:
        """Ask a sweep's driver to end cleanly: by a signal, a second time at once, or else by a request in its ledger.

        Raises:
            StudyError: The driver can be reached by neither.
        """
        state = _find_state(submission)
        if state == RUNNING:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(submission.process["pid"]), signal.SIGTERM)
        elif state != GONE or not submission.process:
            with open_handle(SweepRef(submission.name, self._folder.sweeps)) as sweep:
                if not sweep.ledger.read_requests(STOP):
                    sweep.send(STOP, {})

    def read_history(self, submission: Submission) -> dict[str, Any]:
        """Return ``last_request`` and ``last_driver`` of a sweep that is about to start, see `Submission`."""
        with contextlib.suppress(Exception), closing(self._open_ledger(submission)) as ledger:
            last_request = max((request.id for request in ledger.read_requests(waiting=False)), default=0)
            return {"last_request": last_request, "last_driver": ledger.read_lease().driver_id}
        return {"last_request": 0, "last_driver": None}

    def _open_ledger(self, submission: Submission) -> Ledger:
        return open_ledger(self._folder.sweeps / submission.name)

    def _read_ending(self, submission: Submission, ending: Ending) -> Ending:
        """Add what the sweep's ledger says, if there is one that can be read.

        A ledger that is damaged raises errors of the database's library; they must not hold up the other sweeps.
        """
        with contextlib.suppress(Exception), closing(self._open_ledger(submission)) as ledger:
            requests = ledger.read_requests(STOP, waiting=False)
            records = [*ledger.trials.records(), *ledger.runs.records()]
            return replace(
                ending,
                status=ledger.sweep().status,
                is_stop_requested=any(request.id > submission.last_request for request in requests),
                progress=sum(record.env_steps for record in records)
                + sum(record.state != "RUNNING" for record in records),
            )
        return ending

    def _read_message(self, name: str) -> str:
        """Return the last error that a sweep's last command has printed, in its parts; else its last line."""
        output = self._folder.read_log(name, -TAIL_BYTES)[0].rpartition(HEADING)[2]
        if errors := ERROR.findall(output):
            return str(errors[-1])
        return next((line for line in reversed(output.splitlines()[1:]) if line.strip()), "")


def _read_lease(folder: Path) -> LeaseState:
    with closing(open_ledger(folder)) as ledger:
        return ledger.read_lease()


def _find_state(submission: Submission) -> str | None:
    """Return the state of the process that a service has started for a sweep; None if it cannot be seen from here."""
    return ProcessMark(**submission.process).find_state() if submission.process else GONE
