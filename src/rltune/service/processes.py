"""Run each sweep as a process of its own, which outlives the service that has started it.

The process is ``rltune run --composed name=X`` in a session of its own. It reads its composed settings from standard
input and writes its output to a file. Its number and its starting time together identify it, so that the next service
finds it again.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

import psutil
from omegaconf import OmegaConf

from rltune.cluster.resources import available_cpus
from rltune.cluster.stale_processes import is_running, mark_process
from rltune.composition.composing import COMPOSED
from rltune.composition.overrides import spell_value
from rltune.config.uris import redact_address
from rltune.formatting import spell_command
from rltune.records import STOP
from rltune.service.dispatcher import Ending
from rltune.service.folder import LAST_BYTES, ServiceFolder
from rltune.service.submissions import Submission

BEGUN = "--- rltune serve: "  # how the line of a log begins that stands before what a command says
ERROR = re.compile(r"^error: (.+(?:\n  allowed: .+)?(?:\n  try: .+)?)", re.MULTILINE)
# The shell waits for its line and becomes the sweep: nothing has begun before the queue has its number. Without a line,
# because the service was killed in between, it ends.
WAIT = 'read -r go && exec "$@" </dev/fd/{settings}'


def share_machine(width: int, address: str | None) -> dict[str, Any]:
    """Return the settings of ``cluster`` by which each sweep gets its share: of a Ray that runs, or of this machine.

    Args:
        width: How many run at a time.
        address: Of the running Ray, which shares itself; None is a Ray for each sweep with its part of the CPUs.
    """
    if address is not None:
        return {"address": address}
    return {"num_cpus": max(1, available_cpus() // width)} if width > 1 else {}


class SweepProcesses:
    """Starts, finds and ends the processes of sweeps.

    Args:
        folder: The service's.
        share: Settings of ``cluster`` for sweeps that were submitted without any, as `share_machine` returns them.
        program: The command that begins a sweep, without its arguments.
    """

    def __init__(self, folder: ServiceFolder, share: Mapping[str, Any], program: Sequence[str] | None = None) -> None:
        self._folder, self._share = folder, share
        self._program = program or (sys.executable, "-m", "rltune", "run")
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def format_request(self, submission: Submission) -> str:
        """Format what the sweep's process reads: its settings, and the command that submits the same sweep by hand."""
        settings = OmegaConf.create(submission.settings)
        if not any(word.lstrip("+~").startswith(("cluster=", "cluster.")) for word in submission.words):
            settings = OmegaConf.merge(settings, {"cluster": self._share})
        typed = shlex.join(["run", *map(redact_address, submission.words)])
        return json.dumps({"settings": OmegaConf.to_yaml(settings), "typed": spell_command(typed)})

    def start(self, submission: Submission, claim: Callable[[Mapping[str, Any]], bool]) -> None:
        """Start a sweep's process, which does nothing before ``claim`` has taken its mark and agreed.

        Raises:
            OSError: The system gives no process, or the log cannot be written.
        """
        command = [*self._program, COMPOSED, f"name={spell_value('name', submission.name)}"]
        # The settings are in a file without a name: no other user can read them, and none is left behind.
        with self._folder.log_of(submission.name).open("ab") as log, tempfile.TemporaryFile() as settings:
            settings.write(self.format_request(submission).encode())
            settings.seek(0)
            log.write(f"{BEGUN}{shlex.join(command)}\n".encode())
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
        with contextlib.suppress(BrokenPipeError), child.stdin as line:
            if claim(mark_process(psutil.Process(child.pid))):
                line.write(b"\n")

    def look(self, submission: Submission) -> Ending | None:
        """Return how a sweep's process has ended; None while it runs."""
        child = self._children.get(int(submission.process.get("pid", -1)))
        code = None
        if child is not None:
            if (code := child.poll()) is None:
                return None
            del self._children[child.pid]
        elif submission.process and is_running(submission.process):
            return None
        return self._read_ending(submission, Ending(code, message=self._read_message(submission.name)))

    def stop(self, submission: Submission) -> None:
        """Ask a sweep's process to end cleanly; a second time, at once."""
        if submission.process and is_running(submission.process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(submission.process["pid"]), signal.SIGTERM)

    def _read_ending(self, submission: Submission, ending: Ending) -> Ending:
        """Add what the sweep's ledger says, if there is one that can be read.

        A ledger that is damaged raises errors of the database's library; they must not hold up the other sweeps.
        """
        from rltune.study.storage import open_ledger

        with contextlib.suppress(Exception), closing(open_ledger(self._folder.sweeps / submission.name)) as ledger:
            requests, begun_s = ledger.read_requests(STOP, waiting=False), submission.begun_s or 0.0
            records = [*ledger.trials.records(), *ledger.runs.records()]
            return replace(
                ending,
                status=ledger.sweep().status,
                stop_requested=any(request.asked_s >= begun_s for request in requests),
                progress=sum(record.env_steps for record in records)
                + sum(record.state != "RUNNING" for record in records),
            )
        return ending

    def _read_message(self, name: str) -> str:
        """Return the last error that a sweep's commands have printed, in its parts; else their last line."""
        said = self._folder.read_log(name, -LAST_BYTES)[0].rpartition(BEGUN)[2]
        if errors := ERROR.findall(said):
            return str(errors[-1])
        return next((line for line in reversed(said.splitlines()[1:]) if line.strip()), "")
