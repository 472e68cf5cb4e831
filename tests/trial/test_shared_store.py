"""A node shows that it uses the driver's store, or says why it cannot."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem
from toy import ToyTrial, make_task

from rltune.checkpoints import clients
from rltune.checkpoints.clients import Client, StoreUnavailableError, UnsharedStoreError, make_address
from rltune.checkpoints.store import Store, open_store
from rltune.errors import Cause
from rltune.trial import shared_store
from rltune.trial.shared_store import check_node, leave_token, name_token


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "VISIBLE_S", 0.2)


def check(store: Store, driver_id: str = "now") -> None:
    check_node(store, name_token(driver_id), "trials/0")


def test_a_node_that_sees_the_token_may_run_trials(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with leave_token(store, "now"):
        check(store)
    with pytest.raises(UnsharedStoreError):
        check(store)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("is_remote", [False, True])
def test_the_tokens_of_killed_drivers_go(is_remote: bool, tmp_path: Path) -> None:
    filesystem = PyFileSystem(FSSpecHandler(MemoryFileSystem()))
    store = (
        Store(Client(lambda: filesystem), "/tokens", tmp_path, address="memory://tokens")
        if is_remote
        else open_store(tmp_path)
    )
    store.write("trials/0/state.json", b"{}")
    for driver_id in ("first", "second"):
        store.write(name_token(driver_id), b"")
    with leave_token(store, "now"):
        assert store.list().keys() == {name_token("now"), "trials/0/state.json"}
    assert store.list().keys() == {"trials/0/state.json"}


def test_an_older_copy_of_the_folder_is_not_taken_for_it(tmp_path: Path) -> None:
    driver, node = tmp_path / "driver", tmp_path / "node"
    driver.mkdir()
    with leave_token(open_store(driver), "before"):
        shutil.copytree(driver, node)
    with leave_token(open_store(driver), "now"):
        check(open_store(driver))
        with pytest.raises(UnsharedStoreError) as raised:
            check(open_store(node))
    assert (raised.value.key, bool(raised.value.fix)) == ("output_dir", True)
    assert str(tmp_path) in raised.value.what
    assert list(node.iterdir()) == [node / name_token("before")], "a node that fails the check writes nothing"


def test_a_node_that_cannot_write_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    store = open_store(tmp_path)
    with leave_token(store, "now"), monkeypatch.context() as patch:
        patch.setattr(store, "write", refuse)
        with pytest.raises(UnsharedStoreError, match="Read-only"):
            check(store)


def test_a_passing_error_of_the_file_system_fails_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [OSError(errno.ESTALE, "Stale file handle")]
    read = Store.read

    def read_later(store: Store, name: str, **more: bool) -> bytes | None:
        if errors:
            raise errors.pop()
        return read(store, name, **more)

    monkeypatch.setattr(Store, "read", read_later)
    store = open_store(tmp_path)
    with leave_token(store, "now"):
        check(store)
    assert not errors


def test_the_token_of_a_killed_driver_is_dropped(tmp_path: Path) -> None:
    (tmp_path / name_token("before")).touch()
    with leave_token(open_store(tmp_path), "now"):
        assert [path.name for path in tmp_path.iterdir()] == [name_token("now")]


def test_a_trial_on_a_bad_node_fails_its_attempt_and_names_node_path_and_remedy(tmp_path: Path) -> None:
    trial = ToyTrial(make_task(tmp_path, token=name_token("now")))
    result = trial.step()
    trial.stop()
    assert (result["done"], result["cause"]) == (True, Cause.OUTAGE)
    for part in (f"output_dir={tmp_path.parent}", result["node"], "output_dir=/shared/outputs"):
        assert part in result["failed"]
    assert UnsharedStoreError.__name__ in result["traceback"]


@pytest.mark.slow
def test_a_node_without_credentials_says_so(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PATIENCE_S", 1.0)  # A request to a server that is away is sent again for so long.
    address = make_address(s3, "seen")
    store = open_store(tmp_path, address)
    with leave_token(store, "now"):
        check(open_store(tmp_path / "node", address))
        for other, error in (
            (address.replace("s3://sweeps", "s3://another"), UnsharedStoreError),
            (address.partition("?")[0] + "?endpoint_override=http://127.0.0.1:9", StoreUnavailableError),
        ):
            with pytest.raises(error) as raised:
                check(open_store(tmp_path / "node", other))
            assert raised.value.key == "storage"
    assert store.read(name_token("now")) is None
