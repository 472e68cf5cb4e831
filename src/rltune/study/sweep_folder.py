"""Lock a sweep's folder, and say how to resume the sweep. Runs anywhere."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from rltune.config.settings_file import read_settings
from rltune.config.uris import HIDDEN, redact_address
from rltune.errors import StudyError
from rltune.formatting import spell_command
from rltune.study.bucket import GLANCE_S, Bucket, find_bucket, is_fetched_copy, link_bucket, make_place, open_bucket

SETTINGS = "config.yaml"
LEDGER, LEDGER_COPY = "ledger.db", "ledger.backup.db"
LEDGER_BEFORE = "ledger.before.db"  # in the bucket, for a person, should the driver never end
DRIVERS = ".drivers"  # a line for each driver that took the sweep, in the bucket and in the folder that it worked in
KEPT_FILES = (DRIVERS, ".made-by", "summary.json", "certification.csv", "certification.json", LEDGER, SETTINGS)
"""What a bucket keeps of a sweep and is read elsewhere.

Who drove it comes first, so that another driver is noticed that begins meanwhile; the settings last, which make the
folder a sweep's.
"""

TOLD = "rltune.sweep"  # the logger of what a person is told: a sweep's log has it, and no other handler
DRIVER = ".driver"  # the file in which a driver shows that it lives, for other hosts
BEAT_S = 3.0  # how often
SILENT_S = 15.0  # a driver that has shown nothing for so long is gone: a pause of its file system is shorter
HALF_MADE = (".lock", DRIVER, ".processes", ".shared-", ".bucket", ".made-by", ".config.yaml")  # how its entries begin
FREED_S = 120.0  # for a file system to free the lock of a host that is gone: NFS takes 90 s


def fetch_sweep(folder: Path, storage: str | None) -> None:
    """Fetch a sweep's files but its checkpoints into a folder that is there to be read, again if need be.

    Args:
        folder: Where to.
        storage: The sweeps' ``storage``; None is where the folder came from.
    """
    stored = open_bucket(make_place(storage, folder.name)) if storage else find_bucket(folder)
    assert stored is not None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    link_bucket(folder, stored.address, copy=True)
    for name in KEPT_FILES:
        content, draft = stored.read(name), folder / f".fetched-{name}"
        if content is None:  # a ledger that the bucket lost is one that another driver works on
            (folder / name).unlink(missing_ok=True)
        else:
            draft.write_bytes(content)
            draft.rename(folder / name)


def take_sweep(folder: Path, bucket: Bucket) -> None:
    """Write down that this driver takes the sweep: from now on, the bucket's ledger and those of others are older.

    Args:
        folder: The sweep's, where this driver works.
        bucket: The sweep's.

    Raises:
        StudyError: Another machine has taken it.
    """
    if not _has_newest(folder, bucket):
        raise make_distant_ledger_error(folder)
    draft, taken = (
        folder / f"{DRIVERS}-draft",
        f"{_read_drivers(folder)}{socket.gethostname()} {secrets.token_hex(8)}\n",
    )
    draft.write_text(taken)
    draft.rename(folder / DRIVERS)  # here first: killed in between, it goes on here, and so may any other machine
    bucket.write(DRIVERS, taken.encode())
    bucket.rename(LEDGER, LEDGER_BEFORE)


def follow_sweep(folder: Path) -> str | None:
    """Fetch a sweep's newest files where another machine has gone on with it; the ledger that was here is kept aside.

    Args:
        folder: The sweep's, whose settings are there.

    Returns:
        What a person should know; None where this folder's files are the newest.

    Raises:
        StudyError: The newest ledger is on another machine. Or the bucket cannot be used.
    """
    bucket = find_bucket(folder)
    if bucket is None or is_fetched_copy(folder):  # the latter is fetched whenever it is looked for
        return None
    with lock_sweep(folder) as is_free:
        if not is_free or _has_newest(folder, bucket):
            return None
        kept = folder / f"ledger.{time.strftime('%Y%m%d-%H%M%S')}.db"
        if (folder / LEDGER).exists():
            if bucket.read(LEDGER) is None:
                raise make_distant_ledger_error(folder)
            for path in folder.glob(f"{LEDGER}*"):  # its write-ahead log, too
                path.rename(kept.with_name(kept.name + path.name.removeprefix(LEDGER)))
        for derived in (folder / LEDGER_COPY, *folder.glob("study.db*")):
            derived.unlink(missing_ok=True)
        fetch_sweep(folder, None)
    aside = f"; the ledger that was here is kept as {kept}" if kept.exists() else ""
    return f"another machine has gone on with {folder.name}: what it left in the bucket is fetched{aside}"


def is_newest(folder: Path) -> bool:
    """Whether a folder has a sweep's newest files, and is no copy that was fetched from its bucket to be read.

    Raises:
        BucketError: The bucket cannot be used.
    """
    bucket = find_bucket(folder)
    return bucket is None or (not is_fetched_copy(folder) and _has_newest(folder, bucket))


def _has_newest(folder: Path, bucket: Bucket) -> bool:
    """Return whether no other machine has taken the sweep since a driver worked in this folder."""
    taken = (bucket.read(DRIVERS, GLANCE_S) or b"").decode().splitlines()
    return not taken or taken[-1] in _read_drivers(folder).splitlines()


def _read_drivers(folder: Path) -> str:
    return (folder / DRIVERS).read_text() if (folder / DRIVERS).exists() else ""


def make_distant_ledger_error(folder: Path) -> StudyError:
    """Say that a sweep's ledger is a file of another machine's, which gives the bucket a copy when its driver ends."""
    return StudyError(
        f"sweep={folder.name}: its ledger is a file on the machine where it runs, and its bucket has no copy of it",
        "a sweep whose driver has ended by itself, or one with its ledger in PostgreSQL",
        "study.storage=postgresql+psycopg://host/db when a sweep is started; until then, go on where this one ran; if "
        f"that machine is gone, copy {LEDGER_BEFORE} in the bucket to {LEDGER}: what came after it is trained again",
    )


def is_half_made(folder: Path) -> bool:
    """Whether a driver was killed between making this folder and writing its settings: nothing is lost in it.

    A folder with anything in it that such a driver does not leave is somebody's own.
    """
    return folder.is_dir() and all(entry.name.startswith(HALF_MADE) for entry in folder.iterdir())


@contextlib.contextmanager
def lock_sweep(folder: Path) -> Iterator[bool]:
    """Keep other drivers from a sweep; yield False where one has it."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def claim_sweep(folder: Path, on_taken: Callable[[], None] | None = None) -> Iterator[str | None]:
    """Claim a sweep for this driver alone, whatever host another one is on.

    The lock settles it within a host. Over hosts a file system may know no locks (Lustre's ``localflock``, an NFS
    mounted with ``nolock``), or keep that of a host that is gone. So a driver also writes down, again and again, that
    it lives. Clocks of hosts differ: what counts is whether the file changes while one looks.

    Args:
        folder: The sweep's.
        on_taken: Called when another host has taken the sweep over, which thought this driver gone: it stood still
            for longer than `SILENT_S`. None is a SIGTERM to this process, which ends the sweep cleanly.

    Yields:
        None where it is ours; else where the other driver is.
    """
    deadline = time.monotonic() + FREED_S
    with contextlib.ExitStack() as stack:
        while not stack.enter_context(lock_sweep(folder)):
            other = _read_driver(folder)
            if not _is_elsewhere(other) or _is_beating(folder) or time.monotonic() > deadline:
                yield _describe_driver(other)
                return
        other = _read_driver(folder)
        if _is_elsewhere(other) and _is_beating(folder):
            yield _describe_driver(other)
            return
        stack.enter_context(_beat(folder, on_taken or (lambda: os.kill(os.getpid(), signal.SIGTERM))))
        yield None


def find_driver(folder: Path) -> str | None:
    """Find where the driver of a sweep is; None where none lives, which takes seconds to see of another host's.

    Args:
        folder: The sweep's.
    """
    driver = _read_driver(folder)
    if is_locked(folder) or (_is_elsewhere(driver) and _is_beating(folder)):
        return _describe_driver(driver)
    return None


def is_driven_elsewhere(folder: Path) -> bool:
    """Whether the driver of a sweep is, or was when it was killed, on another host."""
    return _is_elsewhere(_read_driver(folder))


def is_locked(folder: Path) -> bool:
    """Return whether a driver or a service holds a folder's lock; one that starts in this instant may be refused."""
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def _beat(folder: Path, on_taken: Callable[[], None]) -> Iterator[None]:
    """Show that this driver lives, until the end, and see whether another one took over."""
    ours, ended = {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid()}, threading.Event()
    _write_driver(folder, ours | {"beat": time.time()})

    def beat() -> None:
        while not ended.wait(BEAT_S):
            found = _read_driver(folder)
            if found and {name: found.get(name) for name in ours} != ours:
                on_taken()
                return
            _write_driver(folder, ours | {"beat": time.time()})

    thread = threading.Thread(target=beat, name="show-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(BEAT_S)
        found = _read_driver(folder)
        if {name: found.get(name) for name in ours} == ours:
            (folder / DRIVER).unlink(missing_ok=True)


def _write_driver(folder: Path, content: dict[str, Any]) -> None:
    with contextlib.suppress(
        OSError
    ):  # a full disk; in place, for a file system shows others that sooner than a rename
        (folder / DRIVER).write_text(json.dumps(content))


def _read_driver(folder: Path) -> dict[str, Any]:
    """Read who works on a sweep, or did when it was killed; empty where nobody did, or it is just being written."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((folder / DRIVER).read_text())
        return content if isinstance(content, dict) else {}
    return {}


def _is_elsewhere(driver: dict[str, Any]) -> bool:
    """Whether a driver's host is another one, for which this host's locks say nothing."""
    return bool(driver) and driver.get("boot") != _boot()


def _is_beating(folder: Path) -> bool:
    """Watch whether a driver shows that it lives."""
    first, deadline = _read_driver(folder), time.monotonic() + SILENT_S
    while time.monotonic() < deadline:
        time.sleep(BEAT_S / 3)
        if (found := _read_driver(folder)) and found != first:
            return True
    return False


def _describe_driver(driver: dict[str, Any]) -> str:
    return f"on {driver['host']} (process {driver['pid']})" if driver.keys() >= {"host", "pid"} else "on this host"


def _boot() -> str:
    """Return what tells a running host from all others; containers of one host share it, and its locks."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def make_resume_command(folder: Path, settings: Mapping[str, Any] | None = None) -> str:
    """Make what to type to go on with a sweep: from the present folder, or on any machine where it has a bucket.

    Args:
        folder: The sweep's.
        settings: Its own; None reads them, where they are there already.
    """
    if settings is None:
        with contextlib.suppress(StudyError):
            settings = cast(Mapping[str, Any], OmegaConf.to_container(read_settings(folder)))
    found = settings or {}
    words = [_format_override("sweep", folder.name) + spell_output_dir(folder.parent)]
    if storage := found.get("storage"):
        words.append(_format_override("storage", redact_address(storage)))
    for group, key in (("study", "storage"), ("tracking", "uri")):  # a login is kept in no file
        if HIDDEN in ((found.get(group) or {}).get(key) or ""):
            words.append(f"{group}.{key}=...")
    return spell_command(f"resume {' '.join(words)}")


def _format_override(key: str, value: str) -> str:
    """Format an override for a shell, quoted for Hydra inside where a value has other signs than plain words have."""
    if re.fullmatch(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z/_][\w./:@+%-]*", value, re.ASCII):
        return f"{key}={value}"
    return shlex.quote('{}="{}"'.format(key, value.replace('"', '\\"')))


def spell_output_dir(root: Path) -> str:
    """Return the override that names the folder of all sweeps; empty for the usual one."""
    return "" if root == Path("outputs").absolute() else f" {_format_override('output_dir', str(root))}"
