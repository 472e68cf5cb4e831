"""A PostgreSQL server of the tests' own, on a free port of this machine, ended with them."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

# What must appear nowhere: two halves, and between them every sign that ends a password somewhere.
HALVES = ("correct-horse", "battery-staple")
PASSWORD = """/ @:#%'"\\?&=+,;$§ü""".join(HALVES)
SPELT = quote(PASSWORD, safe="")  # in an address


def binaries() -> Path | None:
    """Where PostgreSQL's programs are; None where it is not installed."""
    program = shutil.which("initdb")
    if program:
        return Path(program).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[-3])
    return places[-1].parent if places else None


def missing() -> str:
    """Why no server can be started here; empty when one can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'rltune[postgres]'"
    if binaries() is None:
        return "PostgreSQL is not installed: apt install postgresql"
    return ""


@contextmanager
def server() -> Iterator[str]:
    """A running server; the address of its database without a scheme: ``user:password@host:port/``."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    (folder / "word").write_text(PASSWORD, encoding="utf-8")
    (folder / "word").chmod(0o644)
    home = binaries()
    assert home is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = [home / "initdb", "-D", folder / "data", "-U", "sweeper", "-A", "scram-sha-256", "--no-sync"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "cwd": folder, **user}
    subprocess.run([*made, f"--pwfile={folder / 'word'}"], check=True, **quiet)
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
    control = [home / "pg_ctl", "-D", folder / "data", "-w", "-t", "60"]
    try:
        subprocess.run([*control, "-o", options, "-l", folder / "log", "start"], check=True, **quiet)
        yield f"sweeper:{SPELT}@127.0.0.1:{port}/"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=False, **quiet)
        shutil.rmtree(folder, ignore_errors=True)


def database(address: str, name: str) -> str:
    """A new database; its address with SQLAlchemy's scheme."""
    import psycopg

    with psycopg.connect(f"postgresql://{address}postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return f"postgresql+psycopg://{address}{name}"
