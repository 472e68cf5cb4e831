"""A Ray of several nodes that is there before the sweep: on machines of their own where root makes them, else all on
this host, by `ray start` for each.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from joined import QUIET, START_S, clean_environment, free_port
from machines import Machine, Network, can_isolate, network

PORT = 6379
HEAD = ("--head", "--include-dashboard=false", "--dashboard-agent-listen-port=0")


class Cluster:
    """Its nodes by name; the first is the head.

    Args:
        folder: For logs and homes; all nodes see it.
        lan: Where each node is a machine of its own; None is this host for all.
        settings: Of every node's environment.
    """

    def __init__(self, folder: Path, lan: Network | None, settings: Mapping[str, str]) -> None:
        self.address = ""
        self.folder, self._lan, self._settings = folder, lan, dict(settings)
        self._nodes: dict[str, subprocess.Popen[str]] = {}

    @property
    def store(self) -> str:
        """Where MLflow keeps what commands on the nodes tell it."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    def add(self, name: str, num_cpus: int, **settings: str) -> None:
        """Start a node, or start one again that has lost its power; wait until it has joined."""
        first = not self.address
        machine = self.machine(name)
        where = machine.address if machine else "127.0.0.1"
        if first:
            port = PORT if machine else free_port()
            self.address = f"{where}:{port}"
        words = [*HEAD, f"--port={port}"] if first else [f"--address={self.address}"]
        if first and machine is None:  # not the host's own "cluster on this machine"
            words.append(f"--temp-dir={self.folder / 'ray'}")
        words += [f"--num-cpus={num_cpus}", f"--node-ip-address={where}", f"--node-name={name}", "--block", *QUIET]
        log = self.folder / f"{name}.log"
        self._nodes[name] = self.type(name, "-m", "ray.scripts.scripts", "start", *words, log=log, **settings)
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            assert self._nodes[name].poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def type(self, name: str, *words: str, log: Path | None = None, **settings: str) -> subprocess.Popen[str]:
        """Type ``python <words>`` on a node, in the shared folder, and do not wait."""
        environment = clean_environment(self.folder, self._settings | settings)
        machine = self.machine(name)
        with contextlib.ExitStack() as stack:
            written = stack.enter_context(log.open("w")) if log else subprocess.PIPE
            options = {"stdout": written, "stderr": subprocess.STDOUT, "cwd": str(self.folder)}
            if machine:
                return machine.start([sys.executable, *words], environment, **options)
            return subprocess.Popen(
                [sys.executable, *words], env=environment, text=True, start_new_session=True, **options
            )

    def kill(self, name: str) -> None:
        """Let a node lose its power."""
        node = self._nodes.pop(name)
        if machine := self.machine(name):
            machine.kill()
            machine.boot()
        else:
            for process in (*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)):
                process.kill()
        node.wait()

    def cut(self, name: str) -> None:
        """Pull a node's cable; only where nodes are machines."""
        assert self._lan
        self._lan.machines[name].cut()

    def join(self, name: str) -> None:
        """Plug it in again."""
        assert self._lan
        self._lan.machines[name].join()

    def end(self) -> None:
        """End all nodes."""
        for node in self._nodes.values() if self._lan is None else ():
            node.send_signal(signal.SIGTERM)
        for name, node in list(self._nodes.items()) if self._lan is None else ():
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(15)
                continue
            self.kill(name)

    def machine(self, name: str) -> Machine | None:
        """A node's machine, which is made with the first use of its name; None where all are this host."""
        if self._lan is None:
            return None
        return self._lan.machines.get(name) or self._lan.add(name)


@contextlib.contextmanager
def cluster(folder: Path, isolated: bool | None = None, **settings: str) -> Iterator[Cluster]:
    """A cluster without nodes, until the end.

    Args:
        folder: As `Cluster` has it.
        isolated: Whether each node is a machine of its own; None: where that can be.
        settings: Of every node's environment, such as RAY_AUTH_TOKEN.
    """
    with contextlib.ExitStack() as stack:
        lan = stack.enter_context(network()) if (can_isolate() if isolated is None else isolated) else None
        made = Cluster(folder, lan, settings)
        stack.callback(made.end)
        yield made
