"""Machines on this one, each with network, processes, mounts, shared memory and host name of its own.

They lose power, and their cables are pulled. The switch between them has no way out. All of it ends with the processes
that hold it: nothing has a name of its own that could stay behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

NET = "10.77.0"
OWN = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
# The first process of a machine, which takes the orphans of all others. A machine's own /tmp/ray is where Ray finds
# "the cluster on this machine".
BOOT = """
hostname "$1"
mount --bind /dev/shm /mnt
mount -t tmpfs -o size=1g tmpfs /dev/shm
for kept in /mnt/pytest-of-*; do # the tests' own folders, which all machines see
    [ -d "$kept" ] && mkdir "/dev/shm/${kept##*/}" && mount --bind "$kept" "/dev/shm/${kept##*/}"
done
umount /mnt
mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray
mount --bind "$2" /etc/hosts
ip link set lo up
touch "$3"
sleep infinity & wait
"""
SWITCH = "ip link add br0 type bridge && ip link set br0 up && touch $1 && exec sleep infinity"
PATIENCE_S = 120.0


def can_isolate() -> bool:
    """Whether this user may make such machines."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    tried = "hostname other && mount -t tmpfs tmpfs /mnt && ip link add br0 type bridge"
    return subprocess.run(["unshare", *OWN, "sh", "-c", tried], capture_output=True).returncode == 0


class Machine:
    """One of them."""

    def __init__(self, name: str, address: str, switch: int, port: str, folder: Path) -> None:
        self.name, self.address, self._switch, self._port = name, address, switch, port
        self._hosts, self._ready = folder / "hosts", folder / f"{name}.ready"
        self.boot()

    def boot(self) -> None:
        """Switch it on, for the first time or again."""
        self._ready.unlink(missing_ok=True)
        words = ["sh", "-c", BOOT, "sh", self.name, str(self._hosts), str(self._ready)]
        self._process = subprocess.Popen(["unshare", *OWN, *words], start_new_session=True, stderr=subprocess.DEVNULL)
        _wait_until(self._ready.exists, f"{self.name} does not start")
        (first,) = psutil.Process(self._process.pid).children()
        self.pid = first.pid
        mac = f"02:00:0a:4d:00:{int(self.address.rpartition('.')[2]):02x}"  # its own again after a loss of power
        peer = ("peer", "name", "eth0", "address", mac, "netns", self.pid)
        # A machine that has just lost its power may still have its end of the cable.
        gone = ["nsenter", f"--target={self._switch}", "--net", "ip", "link", "delete", self._port]
        subprocess.run(gone, check=False, capture_output=True)
        _ip("link", "add", self._port, "netns", self._switch, "type", "veth", *peer)
        _inside(self._switch, "ip", "link", "set", self._port, "master", "br0", "up")
        _inside(self.pid, "ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        _inside(self.pid, "ip", "link", "set", "eth0", "up")

    def start(self, words: Sequence[str], environment: Mapping[str, str], **popen: Any) -> subprocess.Popen[str]:
        """Type a command there, and do not wait."""
        there = ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid"]
        place = [f"--wd={popen.pop('cwd')}"] if "cwd" in popen else []
        return subprocess.Popen([*there, *place, "--", *words], env=dict(environment), text=True, **popen)

    def kill(self) -> None:
        """Take its power: all its processes end at once, its disks stay."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # the first process: the kernel ends the others with it
        self._process.wait()

    def cut(self) -> None:
        """Pull its cable."""
        _inside(self._switch, "ip", "link", "set", self._port, "down")

    def join(self) -> None:
        """Plug the cable in again."""
        _inside(self._switch, "ip", "link", "set", self._port, "up")


class Network:
    """The switch, and what is plugged into it."""

    def __init__(self, folder: Path) -> None:
        self.machines: dict[str, Machine] = {}
        self._folder = folder
        ready = folder / "switch.ready"
        words = ["unshare", "--net", "sh", "-c", SWITCH, "sh", str(ready)]
        self._process = subprocess.Popen(words, start_new_session=True)
        _wait_until(ready.exists, "no switch")

    def add(self, name: str) -> Machine:
        """Set one more machine up. Each knows the names of those that came before it, and its own."""
        address = f"{NET}.{10 + len(self.machines)}"
        hosts = self._folder / "hosts"
        with hosts.open("a") as known:  # one file for all: they see later ones too
            known.write("" if hosts.stat().st_size else "127.0.0.1 localhost\n")
            known.write(f"{address} {name}\n")
        made = Machine(name, address, self._process.pid, f"port{len(self.machines)}", self._folder)
        self.machines[name] = made
        return made

    def end(self) -> None:
        """Take it all down."""
        for machine in self.machines.values():
            machine.kill()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network without machines, until the end."""
    with tempfile.TemporaryDirectory(prefix="net-") as folder:
        made = Network(Path(folder))
        try:
            yield made
        finally:
            made.end()


def _inside(pid: int, *words: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", *words], check=True, stdout=sys.stderr)


def _ip(*words: Any) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, stdout=sys.stderr)


def _wait_until(true: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
