"""A Ray that is there before the sweep, on this machine alone, and commands that join it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
START_S = 240.0
QUIET = ("--disable-usage-stats", "--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0")
# What a person would type, with the toy in the trials' place.
SCRIPT = """
import os
import sys
import rltune.driver.plan
import rltune.ledger.lease
from omegaconf import OmegaConf
from toy import TOY, ToyTrial
from composing import compose
from rltune.config.validation import parse_config
from rltune.errors import RltuneError
from rltune.driver.run import resume_sweep, run_sweep
from rltune.ledger.sweep_ref import SweepRef
from omegaconf import OmegaConf
from rltune.cli.application.command import leave

rltune.driver.plan.preflight = lambda *_: ()
rltune.ledger.lease.LEASE_S = float(os.environ.get("RLTUNE_TESTS_LEASE_S", rltune.ledger.lease.LEASE_S))
verb, outputs, *words = sys.argv[1:]
try:
    if verb == "run":
        settings = compose("run", *TOY, "tracking=off", "cluster=address", f"output_dir={outputs}", "name=toy", *words)
        code = run_sweep(parse_config(settings), trainable=ToyTrial).exit_code
    else:
        changes = OmegaConf.to_container(OmegaConf.from_dotlist(words))
        ref = SweepRef("toy", outputs, changes.get("storage"))
        code = resume_sweep(ref, changes=changes, trainable=ToyTrial).exit_code
except RltuneError as error:
    leave(error)
sys.exit(code)
"""


def can_unshare() -> bool:
    """Whether this user may give a process mounts and a host name of its own."""
    try:
        tried = ["unshare", "--mount", "--uts", "sh", "-c", "hostname other && mount -t tmpfs tmpfs /mnt"]
        return subprocess.run(tried, capture_output=True).returncode == 0
    except OSError:
        return False


needs_mounts = pytest.mark.skipif(not can_unshare(), reason="mounts of one's own need root (unshare --mount --uts)")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def clean_environment(home: Path, settings: Mapping[str, str] = {}) -> dict[str, str]:
    """Nothing of Ray's but what is given; a home without a token, but with the engine's compiled kernels."""
    strange = ("RAY_", "TUNE_", "MLFLOW_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    paths = os.pathsep.join((str(TESTS), str(TESTS.parents[1])))
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    env |= {"XDG_CACHE_HOME": cache}
    return env | {"HOME": str(home), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | dict(settings)


@contextlib.contextmanager
def ray_node(arguments: Sequence[str], settings: Mapping[str, str], before: Sequence[str] = ()) -> Iterator[int]:
    """A node that `ray start` makes, until the end.

    Args:
        arguments: More of them.
        settings: Of its environment.
        before: A command that becomes it.

    Yields:
        Its process.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # a socket's address has room for 107 letters
    log = folder / "log"
    place = ["--node-ip-address=127.0.0.1", *([f"--temp-dir={folder}"] if "--head" in arguments else [])]
    with log.open("w") as written:
        node = subprocess.Popen(
            [*before, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *QUIET, *arguments, *place],
            env=clean_environment(folder, settings),
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield node.pid
    finally:
        node.send_signal(signal.SIGTERM)  # it ends what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ray_head(num_cpus: int = 2, before: Sequence[str] = (), **settings: str) -> Iterator[str]:
    """A head; its address.

    Args:
        num_cpus: Its CPUs.
        before: A command that becomes it.
        settings: Of its environment.
    """
    port = free_port()
    head = (
        "--head",
        f"--port={port}",
        f"--num-cpus={num_cpus}",
        "--include-dashboard=false",
        "--dashboard-agent-listen-port=0",
    )
    with ray_node(head, settings, before):
        yield f"127.0.0.1:{port}"


def another_machine(address: str, host: str, hidden: Path | None = None) -> contextlib.AbstractContextManager[int]:
    """A node of two CPUs with host name and mounts of its own.

    Args:
        address: The head's.
        host: Its name.
        hidden: A folder that it has for itself; None shares all.
    """
    mount = f"mkdir -p {hidden} && mount -t tmpfs tmpfs {hidden} && " if hidden else ""
    apart = ("unshare", "--mount", "--uts", "sh", "-c", f'hostname {host} && {mount}exec "$@"', "sh")
    return ray_node((f"--address={address}", "--num-cpus=2"), {"RAY_AUTH_MODE": "disabled"}, apart)


def start_sweep(
    verb: str, folder: Path, *words: str, before: Sequence[str] = (), **settings: str
) -> subprocess.Popen[str]:
    """Type a command about a toy sweep named ``toy``, and do not wait.

    Args:
        verb: ``run`` or ``resume``.
        folder: Where it is typed.
        words: Its overrides.
        before: A command that becomes it.
        settings: Of its environment.
    """
    script = folder / "typed.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [*before, sys.executable, str(script), verb, str(folder / "outputs"), *words],
        cwd=folder,
        env=clean_environment(folder, settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def sweep(verb: str, folder: Path, *words: str, **settings: str) -> tuple[int, str]:
    """Type a command about a toy sweep named ``toy``; its exit code and what it said."""
    return finish(start_sweep(verb, folder, *words, **settings))


def finish(typed: subprocess.Popen[str], patience_s: float = 600) -> tuple[int, str]:
    """A command's exit code and what it said."""
    try:
        out, _ = typed.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        typed.kill()
        raise
    return typed.returncode, out
