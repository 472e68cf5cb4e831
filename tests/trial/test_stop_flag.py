"""That trials learn of the sweep's end by a file in its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import Store, open_store
from rltune.trial.stop_flag import STOP_FILE, StopFlag


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(tmp_path)
    return open_store(tmp_path, make_address(request.getfixturevalue("s3"), "flag"))


def test_a_file_in_the_store_asks_trials_to_stop(store: Store) -> None:
    flag = StopFlag(store)
    assert not flag.look()
    store.write(STOP_FILE, b"")
    assert flag.look()
    assert StopFlag(store).is_set(), "a trial that begins later sees it, too"
    store.delete(STOP_FILE)
    assert flag.look()
