"""A Slurm of a controller and nodes, each a machine of its own; see machines.py. Debian: slurmctld, slurmd, munge."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from joined import clean_environment
from machines import can_isolate, network

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "srun")
PATH = f"{os.environ['PATH']}:/usr/sbin"
PATIENCE_S = 240.0
SETTINGS = """
ClusterName=tests
SlurmctldHost={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
MpiDefault=none
ReturnToService=2
KillWait=15
JobRequeue=1
NodeName={nodes} CPUs=1 State=UNKNOWN
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing() -> str:
    """Why there can be no Slurm here; empty where there can."""
    lacking = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if lacking:
        return f"{', '.join(lacking)} not installed: apt install slurmctld slurmd slurm-client munge"
    return "" if can_isolate() else "machines of one's own need root (unshare)"


class Slurm:
    """Its commands, as a person types them on the controller."""

    def __init__(self, run: Callable[..., str]) -> None:
        self.run = run

    def state(self, job: str) -> Mapping[str, str]:
        """What `scontrol show job` says, by key."""
        words = self.run("scontrol", "show", "job", "--oneliner", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, true: Callable[[Mapping[str, str]], bool], patience_s: float) -> Mapping[str, str]:
        """Wait until something holds of a job."""
        deadline = time.monotonic() + patience_s
        while not true(state := self.state(job)):
            assert time.monotonic() < deadline, state
            time.sleep(0.2)
        return state


@contextlib.contextmanager
def slurm(*names: str, folder: Path, **environment: str) -> Iterator[Slurm]:
    """A running Slurm.

    Args:
        names: Its nodes, of one CPU each.
        folder: Where its commands are typed; all nodes see it.
        environment: Of the commands, and of its jobs.
    """
    typed_in = folder
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        lan = stack.enter_context(network())
        controller = lan.add("controller")
        machines = [lan.add(name) for name in names]
        settings = folder / "slurm.conf"
        settings.write_text(
            SETTINGS.format(controller=f"controller({controller.address})", folder=folder, nodes=",".join(names))
        )
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        folder.chmod(0o711)
        env = {**clean_environment(folder), "SLURM_CONF": str(settings), "PATH": PATH}
        log = stack.enter_context((folder / "daemons.log").open("w"))
        streams = {"stdout": log, "stderr": subprocess.STDOUT}
        places = [
            f"--{key}={folder / f'munge.{end}'}"
            for key, end in (
                ("key-file", "key"),
                ("socket", "socket"),
                ("pid-file", "pid"),
                ("log-file", "log"),
                ("seed-file", "seed"),
            )
        ]
        # One for all machines: they reach its socket by the file system.
        guard = controller.start(["munged", "--foreground", "--force", *places], env, **streams)
        stack.callback(guard.wait)
        stack.callback(guard.terminate)
        _wait(lambda: (folder / "munge.socket").exists(), folder)
        controller.start(["slurmctld", "-D"], env, **streams)
        for machine in machines:
            machine.start(["slurmd", "-D", "-N", machine.name], env, **streams)

        def run(*words: str) -> str:
            process = controller.start(
                words, env | environment, cwd=str(typed_in), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            out, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, out
            return out

        def are_up() -> bool:
            with contextlib.suppress(AssertionError):
                return run("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * len(names)
            return False

        _wait(are_up, folder)
        yield Slurm(run)


def _wait(true: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "\n".join(path.read_text() for path in folder.glob("*.log"))
        time.sleep(0.2)
