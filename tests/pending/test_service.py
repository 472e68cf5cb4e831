"""What the service does not do yet: each test waits for the change of design that will let it pass."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import postgres
import pytest
from ended import write_sweep
from serviced import run_service
from sqlalchemy import event
from sqlalchemy.engine import Engine

from rltune.study.ledger import Ledger

pytestmark = pytest.mark.slow


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
