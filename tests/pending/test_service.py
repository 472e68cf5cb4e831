"""What the service does not do yet: each test waits for the change of design that will let it pass."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import postgres
import pytest
from ended import write_sweep
from ledger import add_reports
from real import Project
from serviced import run_service
from sqlalchemy import event
from sqlalchemy.engine import Engine

from rltune.study.ledger import Ledger
from rltune.study.storage import open_ledger

pytestmark = pytest.mark.slow


@pytest.mark.xfail(strict=True, reason="move 5: one read model names a damaged ledger and goes on")
def test_a_damaged_ledger_leaves_all_other_sweeps_listed(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with run_service(tmp_path / "outputs") as service:
        for name in ("good", "bad"):
            service.queue.change(service.queue.add(name, []), state="complete", ended_s=1.0)
            folder = write_sweep(tmp_path / "outputs" / name, 0)
            with closing(open_ledger(folder)) as ledger:
                for _ in range(60):
                    add_reports(ledger, ledger.trials.add({"lr": 0.1, "note": "x" * 300}, [1]).number, {200: 1.0})
        damaged = tmp_path / "outputs" / "bad" / "ledger.db"
        content = bytearray(damaged.read_bytes())
        for offset in range(4096 * 6, len(content), 4096):
            content[offset] = 0xAA  # No page of SQLite begins so.
        damaged.write_bytes(content)
        page = service.ask("GET", "/", headers=service.log_in())
        listed = project.type("-m", "sweeps.list")
    assert (page.status_code, listed.code) == (200, 0)
    assert "good" in listed.out


@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
@pytest.mark.xfail(strict=True, reason="move 5: a list reads what is new, with one query for all ledgers")
def test_a_second_list_asks_postgresql_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *facts: object) -> None:
        if "psycopg" in type(cursor).__module__:
            statements.append(statement)

    num_sweeps = 12
    with postgres.server() as address, run_service(tmp_path / "outputs") as service:
        postgres.database(address, "sweeps")
        url = f"postgresql+psycopg://sweeper@{address.rpartition('@')[2]}sweeps"
        for number in range(num_sweeps):
            name = f"sweep-{number}"
            service.queue.change(service.queue.add(name, []), state="complete", ended_s=1.0)
            folder = write_sweep(tmp_path / "outputs" / name, 0, None, "complete", f"study.storage='{url}'")
            (folder / "ledger.db").unlink()
            with closing(Ledger(url, name, create=True)) as ledger:
                ledger.trials.add({"lr": 0.1}, [1])
        first = service.client.list()
        event.listen(Engine, "before_cursor_execute", note)
        try:
            second = service.client.list()
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert len(second) == num_sweeps
    assert second == first
    assert all(sweep["trials"] for sweep in first), "the ledgers were read"
    assert len(statements) < num_sweeps
