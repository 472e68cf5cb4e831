"""That trials learn of the sweep's end, by its folder or by its bucket."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rltune.study.bucket import find_bucket, link_bucket, make_place
from rltune.trial import stop_flag
from rltune.trial.stop_flag import STOP_FILE, StopFlag


def test_a_file_in_the_folder_is_seen_at_once(tmp_path: Path) -> None:
    flag = StopFlag(tmp_path)
    assert not flag.is_set()
    (tmp_path / STOP_FILE).touch()
    assert flag.is_set()


@pytest.mark.slow
def test_a_file_in_the_bucket_is_seen_soon(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_flag, "ASK_S", 0.1)
    link_bucket(tmp_path, make_place(s3, "flag"))
    flag = StopFlag(tmp_path)
    assert not flag.is_set()
    bucket = find_bucket(tmp_path)
    assert bucket is not None
    bucket.write(STOP_FILE, b"")
    deadline = time.monotonic() + 60
    while not flag.is_set() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert flag.is_set()
    assert not (tmp_path / STOP_FILE).exists(), "the bucket alone has said so"
