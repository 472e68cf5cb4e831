"""A write-ahead log on a local disk, a rollback journal where hosts share a file; damage is named."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import postgres
import psutil
import pytest
from ended import damage_table
from ledger import add_reports, ask, make_ledger
from sqlalchemy import text
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.exc import OperationalError

from rltune.config.settings_file import FORMAT
from rltune.errors import StudyError
from rltune.ledger import database
from rltune.ledger.database import choose_journal, connect_ledger, find_network_file_system
from rltune.ledger.ledger import Ledger
from rltune.ledger.storage import open_ledger, set_journal, start_ledger
from rltune.views.sweep_view import SweepView


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch):
    """Say what is mounted where, below a local root."""

    def say(**kinds: str) -> None:
        table = [SimpleNamespace(mountpoint="/", fstype="ext4")]
        table += [SimpleNamespace(mountpoint=folder, fstype=kind) for folder, kind in kinds.items()]
        monkeypatch.setattr(database.psutil, "disk_partitions", lambda all: table)

    return say


def mode_of(file: Path) -> str:
    """Return the journal that a file keeps, as a reader sees it."""
    with closing(sqlite3.connect(file)) as raw:
        (mode,) = raw.execute("pragma journal_mode").fetchone()
    return str(mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(f"format: {FORMAT}\nstudy:\n  storage: null\n")
    return tmp_path


def drive(folder: Path, *, new: bool, shared: bool = False) -> str:
    """Do what a driver does; return the journal of the ledger while it is at work."""
    with closing(start_ledger(None, folder, new=new)) as ledger:
        set_journal(ledger, shared)
        number, _ = ask(ledger)
        add_reports(ledger, number, {100: 1.0})
        return mode_of(folder / "ledger.db")


def test_a_disk_that_other_hosts_see_has_a_rollback_journal(folder: Path) -> None:
    assert drive(folder, new=True, shared=True) == "delete"
    assert drive(folder, new=False) == "wal", "resumed on this machine alone"


def test_on_a_local_disk_readers_do_not_block_the_sweep(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert drive(folder, new=True) == "wal"
    assert "PostgreSQL" not in caplog.text


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "lustre", "9p", "beegfs", "gpfs", "ceph", "gfs2", "virtiofs", "fuse.sshfs"]
)
def test_on_a_network_file_system_the_journal_is_plain(
    kind: str, folder: Path, mount, caplog: pytest.LogCaptureFixture
) -> None:
    mount(**{str(folder): kind})
    with caplog.at_level(logging.WARNING, "rltune"):
        assert drive(folder, new=True) == "delete"
    assert not list(folder.glob("*-wal"))
    assert f"({kind})" in caplog.text
    assert "study.storage=postgresql" in caplog.text


def test_a_sweep_that_was_moved_gets_the_journal_of_its_new_place(folder: Path, mount) -> None:
    assert drive(folder, new=True) == "wal"
    mount(**{str(folder): "nfs4"})
    assert drive(folder, new=False) == "delete"
    mount()
    assert drive(folder, new=False) == "wal"


def test_a_reader_leaves_the_journal_as_the_driver_chose_it(folder: Path, mount) -> None:
    """The host whose disk it is sees a local file, while the driver works on it over the network."""
    mount(**{str(folder): "nfs4"})
    with closing(start_ledger(None, folder, new=True)) as ledger:
        set_journal(ledger, shared=False)
        mount()
        with closing(open_ledger(folder)) as read:
            assert read.trials.records() == []
        assert mode_of(folder / "ledger.db") == "delete"
        ask(ledger)
        with closing(open_ledger(folder)) as read:
            assert len(read.trials.records()) == 1


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ({}, None),
        ({"/data": "nfs4"}, "nfs4"),
        ({"/data": "nfs4", "/data/local": "xfs"}, None),
        ({"/data/local": "fuse.glusterfs"}, "fuse.glusterfs"),
        ({"/data/loc": "nfs"}, None),
        ({"/data": "fuseblk"}, None),
        ({"/data": "fuse.fuse-overlayfs"}, None),
        ({"/data": "NFS"}, "nfs"),
    ],
)
def test_the_innermost_mount_decides(mounts: dict[str, str], kind: str | None, mount) -> None:
    mount(**mounts)
    assert find_network_file_system(Path("/data/local/sweep/ledger.db")) == kind


def test_a_link_is_followed_to_where_the_file_lies(tmp_path: Path, mount) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "outputs").symlink_to(tmp_path / "shared")
    mount(**{str(tmp_path / "shared"): "ceph"})
    assert find_network_file_system(tmp_path / "outputs" / "ledger.db") == "ceph"


def test_a_file_that_somebody_writes_is_not_changed_under_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "TIMEOUT_S", 0.1)
    file = tmp_path / "one.db"
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("create table a (b)")
        writer.execute("begin immediate")
        writer.execute("insert into a values (1)")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            choose_journal(file)


def test_damage_that_a_read_meets_is_named_with_its_file_and_can_be_repaired(tmp_path: Path) -> None:
    with closing(make_ledger(tmp_path)) as ledger:
        ask(ledger)
    damage_table(tmp_path / "ledger.db", "sweep_trials")
    with (
        closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "sweep")) as ledger,
        pytest.raises(StudyError, match=r"ledger\.db") as refused,
    ):
        ledger.trials.records()
    assert refused.value.exit_code == 2
    assert ".recover" in refused.value.fix


def test_of_several_open_files_the_damaged_one_is_named(tmp_path: Path) -> None:
    engines = []
    for name in ("first", "damaged", "last"):
        (tmp_path / name).mkdir()
        with closing(make_ledger(tmp_path / name)) as ledger:
            ask(ledger)
        engines.append(connect_ledger(f"sqlite:///{tmp_path / name / 'ledger.db'}"))
        with engines[-1].connect() as connection:
            connection.execute(text("SELECT count(*) FROM sweeps"))
    damaged = tmp_path / "damaged/ledger.db"
    damage_table(damaged, "sweep_trials")
    with engines[1].connect() as connection, pytest.raises(StudyError) as refused:
        connection.execute(text("SELECT * FROM sweep_trials"))
    assert str(damaged) in refused.value.what
    assert refused.value.fix.startswith(f"mv {damaged} ")
    for engine in engines:
        engine.dispose()


def test_text_that_cannot_be_decoded_counts_as_damage(tmp_path: Path) -> None:
    with closing(make_ledger(tmp_path)) as ledger:
        ask(ledger)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw, raw:
        raw.execute("UPDATE sweep_trials SET params = CAST(x'a5a5' AS TEXT)")
    with (
        closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "sweep")) as ledger,
        pytest.raises(StudyError, match=r"ledger\.db"),
    ):
        ledger.trials.records()


@pytest.mark.slow
@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
def test_no_wait_for_a_suspended_server_is_without_a_limit(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "ANSWER_S", 1.0)
    monkeypatch.setattr(database, "CONNECT_S", 2)  # The shortest that libpq has.
    monkeypatch.setattr(database, "RESTART_S", 0.0)
    engine = connect_ledger(postgres.database(postgres_server, "suspended"))
    with engine.connect() as connection:
        backend = psutil.Process(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        with pytest.raises(OperationalError):  # The server's own limit.
            connection.execute(text("SELECT pg_sleep(20)"))
    suspended = [backend.pid, backend.ppid()]
    for pid in suspended:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        # The connection of the pool is tried first, and after that a new one.
        with pytest.raises(OperationalError):
            engine.connect()
    finally:
        for pid in suspended:
            os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began < 10
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1


@pytest.mark.fast
def test_the_time_limits_in_a_url_are_kept() -> None:
    limits = database._choose_time_limits("postgresql+psycopg://host/db?connect_timeout=60")
    assert limits.keys() >= {"keepalives_idle", "tcp_user_timeout"}
    assert "connect_timeout" not in limits


def test_the_statements_of_many_files_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        make_ledger(tmp_path / name).close()
    compiled: list[object] = []
    construct = SQLiteCompiler.__init__

    def note(self: SQLiteCompiler, *arguments: Any, **more: Any) -> None:
        compiled.append(self)
        construct(self, *arguments, **more)

    monkeypatch.setattr(SQLiteCompiler, "__init__", note)
    for name in "aab":
        compiled.clear()
        with closing(Ledger(f"sqlite:///{tmp_path / name / 'ledger.db'}")) as ledger:
            assert SweepView.read(ledger).trials == ()
    assert compiled == []
