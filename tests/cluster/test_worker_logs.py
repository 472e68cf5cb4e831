"""The logs of Ray's workers: bounded while a sweep runs, gone after it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rltune.cluster import worker_logs
from rltune.cluster.worker_logs import bound_logs, delete_session

GONE = 2**22 + 1  # More than Linux gives to any process.


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"MAX_LOGS": 1000, "MAX_LOG": 300, "KEPT": 20}.items():
        monkeypatch.setattr(worker_logs, name, size)


def write_log(folder: Path, name: str, content: str, age_s: int = 0) -> Path:
    path = folder / name
    path.write_text(content)
    os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return path


@pytest.mark.usefixtures("small")
def test_a_log_that_is_written_to_keeps_its_last_words(tmp_path: Path) -> None:
    path = tmp_path / f"worker-ab-01-{os.getpid()}.err"
    with path.open("a") as stream:
        stream.write("x" * 300 + "the last words 00000")
        stream.flush()
        bound_logs(tmp_path)
        assert path.read_text() == "the last words 00000"
        stream.write(" and more")
    assert path.read_text() == "the last words 00000 and more"


@pytest.mark.usefixtures("small")
def test_the_oldest_logs_of_ended_processes_go_first(tmp_path: Path) -> None:
    ended = [write_log(tmp_path, f"worker-{age}-01-{GONE}.out", "x" * 300, age) for age in (1, 2, 3, 4)]
    core = write_log(tmp_path, f"python-core-worker-ab_{GONE}.log", "x" * 300, 5)
    living = write_log(tmp_path, f"worker-5-01-{os.getpid()}.out", "x" * 300, 6)
    raylet = write_log(tmp_path, "raylet.out", "x" * 3000, 7)
    bound_logs(tmp_path)
    assert [path.exists() for path in ended] == [True, True, True, False]
    assert (core.exists(), living.exists(), raylet.stat().st_size) == (False, True, 3000)


@pytest.mark.parametrize("is_latest", [True, False])
def test_only_the_session_of_an_ended_ray_is_deleted(is_latest: bool, tmp_path: Path) -> None:
    for name in ("session_1", "session_2"):
        (tmp_path / name / "logs").mkdir(parents=True)
    latest = tmp_path / "session_latest"
    latest.symlink_to(tmp_path / ("session_1" if is_latest else "session_2"))
    delete_session(tmp_path / "session_1" / "logs")
    kept = {"session_2"} if is_latest else {"session_2", "session_latest"}
    assert {path.name for path in tmp_path.iterdir()} == kept
