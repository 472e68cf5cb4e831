"""Run each sweep as a process of its own, which outlives the service that has started it.

The process is the command that anybody could type, ``rltune run name=X resume=auto ...``, in a session of its own with
its output in a file. It is known by its number and its starting time together, so that the next service finds it again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import psutil

from rltune.cluster.resources import available_cpus
from rltune.cluster.stale_processes import is_running, mark_process
from rltune.composition.overrides import spell_value
from rltune.errors import StudyError
from rltune.records import STOP
from rltune.service.dispatcher import Ending
from rltune.service.folder import LAST_BYTES, ServiceFolder
from rltune.service.submissions import Submission

BEGUN = "--- rltune serve: "  # how the line of a log begins that stands before what a command says
ERROR = re.compile(r"^error: (.+(?:\n  allowed: .+)?(?:\n  try: .+)?)", re.MULTILINE)
# The shell waits for its line and becomes the sweep: nothing has begun before the queue has its number. Without a line,
# because the service was killed in between, it ends.
WAIT = 'read -r go && exec "$@" </dev/null'


def share_machine(width: int, address: str | None) -> list[str]:
    """Return the settings by which each of several sweeps gets its share: of a Ray that runs, or of this machine.

    Args:
        width: How many run at a time.
        address: Of the running Ray, which shares itself; None is a Ray for each sweep with its part of the CPUs.
    """
    if address is not None:
        return ["cluster=address", f"cluster.address={spell_value('cluster.address', address)}"]
    return [f"cluster.num_cpus={max(1, available_cpus() // width)}"] if width > 1 else []


class SweepProcesses:
    """Starts, finds and ends the processes of sweeps.

    Args:
        folder: The service's.
        shared: Settings of each sweep that does not say ``cluster`` itself, as `share_machine` returns them.
        program: What is typed before the settings.
    """

    def __init__(self, folder: ServiceFolder, shared: Sequence[str], program: Sequence[str] | None = None) -> None:
        self._folder, self._shared = folder, tuple(shared)
        self._program = program or (sys.executable, "-m", "rltune", "run")
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def spell(self, submission: Submission) -> list[str]:
        """Spell the command of a sweep: typed again, it does what is left to do."""
        has_cluster = any(word.lstrip("+~").startswith(("cluster=", "cluster.")) for word in submission.words)
        shared = () if has_cluster else self._shared
        where = f"output_dir={spell_value('output_dir', str(self._folder.sweeps))}"
        return [*self._program, *shared, *submission.words, f"name={submission.name}", "resume=auto", where]

    def start(self, submission: Submission, claim: Callable[[Mapping[str, Any]], bool]) -> None:
        """Start a sweep's process, which does nothing before ``claim`` has taken its mark and agreed.

        Raises:
            OSError: The system gives no process, or the log cannot be written.
        """
        command = self.spell(submission)
        with self._folder.log_of(submission.name).open("ab") as log:
            log.write(f"{BEGUN}{shlex.join(command)}\n".encode())
            log.flush()
            child = subprocess.Popen(
                ["/bin/sh", "-c", WAIT, "sh", *command],
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
        """Add what the sweep's ledger says, if there is one that can be read."""
        from rltune.study.storage import open_ledger

        with contextlib.suppress(StudyError), closing(open_ledger(self._folder.sweeps / submission.name)) as ledger:
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
