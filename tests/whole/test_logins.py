"""Logins of any signs: in no file, message, page, process list or log of a whole sweep, and in no error."""

from __future__ import annotations

import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import postgres
import psutil
import pytest
from mlflow import MlflowClient
from real import Project, finish
from server import Server
from sqlalchemy import MetaData, create_engine

from rltune.errors import RltuneError
from rltune.ledger.database import check_storage
from rltune.tracking.mlflow_client import check_uri

SIGNS = "/ @:#%'\"\\?&=+,;$<>{}[]()|^~`!*üß中§"
LEFT, RIGHT = "umbrella", "xylophone"  # that stand in no other text
SHORT_LEFT, SHORT_RIGHT = "q7", "z2"  # too short to be taken out of every text
TINY = (
    *("algo=ppo", "env=cartpole", "budget.trials=1", "budget.env_steps=3000", "certify=off", "~tuned"),
    *("resources.max_concurrent=1", "tracking=server"),
)

MARK = "RLTUNE_TEST_LOGINS"  # in the environment of a sweep's processes: tests beside it type logins, too


def draw_passwords(count: int) -> Iterator[str]:
    """Passwords that begin and end alike, with drawn signs between; short words stand between cutting signs."""
    draw = random.Random(0)
    for number in range(count):
        signs = "".join(draw.choices(SIGNS, k=draw.randint(1, 6)))
        yield SHORT_LEFT + "/" + signs + "@" + SHORT_RIGHT if number % 4 == 3 else LEFT + signs + RIGHT


def test_no_error_tells_a_login_whatever_its_signs() -> None:
    messages = []
    for password in draw_passwords(60):
        for spelt in (password, quote(password, safe=""), quote(password)):
            storage = f"postgresql+psycopg://me:{spelt}@127.0.0.1:9/rl"
            for check, address in ((check_storage, storage), (check_uri, f"http://me:{spelt}@127.0.0.1:9/x")):
                with pytest.raises(RltuneError) as refused:
                    check(address)
                messages.append(refused.value.pretty())
    assert [text for text in messages if any(word in text for word in (LEFT, RIGHT, SHORT_LEFT, SHORT_RIGHT))] == []


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if postgres.missing():
        pytest.skip(postgres.missing())
    with postgres.server() as url:
        yield url


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("mlflow")).start()
    yield started
    started.kill()


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a sweep puts what is temporary, Ray's logs too: a neighbour's vanish while they are read."""
    with tempfile.TemporaryDirectory(prefix="l-", dir="/tmp", ignore_cleanup_errors=True) as short:  # for sockets
        monkeypatch.setenv("TMPDIR", short)
        yield Path(short)


@pytest.mark.nightly
def test_a_whole_sweep_leaves_no_login_anywhere(
    address: str, server: Server, tmp_path: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = postgres.database(address, "logins")
    uri = server.wait().uri.replace("://", f"://me:{quote(next(draw_passwords(1)), safe='')}@")
    monkeypatch.setenv("OUR_STORAGE", storage)
    monkeypatch.setenv("OUR_SERVER", uri)
    words = ["study.storage=${oc.env:OUR_STORAGE}", "tracking.uri=${oc.env:OUR_SERVER}"]
    monkeypatch.setenv(MARK, str(tmp_path))
    process = Project(tmp_path).start("-m", "sweeps.run", *TINY, "name=logins", *words)
    seen: set[str] = set()
    watch = threading.Thread(target=watch_processes, args=(process, str(tmp_path), seen), daemon=True)
    watch.start()
    done = finish(process)
    watch.join()
    assert done.code == 0, done.out
    assert any("ray::" in words or "raylet" in words for words in seen)

    files = [path for place in (tmp_path, server.folder, room) for path in place.rglob("*") if path.is_file()]
    texts = {str(path): path.read_bytes() for path in files}
    for end in ("sweep.log", "index.html", "policy.json", "mlflow.db", "MLmodel", ".out"):
        assert any(name.endswith(end) for name in texts), end
    version = MlflowClient(server.uri).search_model_versions("tags.`rltune.sweep` = 'logins'")[0]
    texts["model card"] = f"{version.description} {version.tags}".encode()
    texts |= {"terminal": done.out.encode(), "database": read_database(storage).encode()}
    texts["processes"] = "\n".join(seen).encode()
    assert read_hits(texts) == []


def read_hits(texts: dict[str, bytes]) -> list[str]:
    """Which texts hold half of a password."""
    words = [word.encode() for word in (LEFT, RIGHT, *postgres.HALVES)]
    return [name for name, text in texts.items() if any(word in text for word in words)]


def watch_processes(process: subprocess.Popen[str], mark: str, seen: set[str]) -> None:
    """Collect the words of a sweep's processes, Ray's among them, while it runs."""
    while process.poll() is None:
        for one in psutil.process_iter():
            try:
                if one.environ().get(MARK) == mark:
                    seen.add(" ".join(one.cmdline()))
            except psutil.Error:
                continue
        time.sleep(0.1)


def read_database(url: str) -> str:
    """All rows of all tables."""
    engine, rows = create_engine(url), []
    for schema in ("public", "rltune"):
        tables = MetaData()
        tables.reflect(engine, schema=schema)
        with engine.connect() as connection:
            rows += [str(row) for table in tables.tables.values() for row in connection.execute(table.select())]
    engine.dispose()
    return "\n".join(rows)
