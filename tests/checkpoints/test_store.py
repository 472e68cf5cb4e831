"""One store, three kinds of storage: a local disk, an S3 server over HTTP, and a file system in memory."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem

from rltune.checkpoints.clients import Client, make_address
from rltune.checkpoints.store import MANIFEST, REPLAY, Store, compute_digest, find_replay, open_store, read_state
from rltune.records import CheckpointRecord

PATH = "trials/7/a1b2/latest-000000005000"


@dataclass
class Storage:
    """A storage with one sweep in it, which is used from several machines.

    Attributes:
        kind: ``local``, ``s3`` or ``memory``.
        open: Opens the store on a machine of a name.
    """

    kind: str
    open: Callable[[str], Store]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def store(self) -> Store:
        """The store on the first machine."""
        return self.open("first")


ON_SERVER = [pytest.mark.slow, pytest.mark.xdist_group("servers")]


@pytest.fixture(params=["local", pytest.param("s3", marks=ON_SERVER), "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    kind, name = request.param, request.node.name.replace("[", "-").replace("]", "")
    if kind == "local":  # The machines share the folder.
        yield Storage(kind, lambda machine: open_store(tmp_path / "sweep"))
    elif kind == "s3":
        address = make_address(request.getfixturevalue("s3"), name)
        yield Storage(kind, lambda machine: open_store(tmp_path / machine, address))
    else:
        memory = fsspec.filesystem("memory")
        filesystem = PyFileSystem(FSSpecHandler(memory))
        yield Storage(kind, lambda machine: Store(Client(lambda: filesystem), f"/{name}", tmp_path / machine))
        memory.rm(f"/{name}", recursive=True) if memory.exists(f"/{name}") else None


def save(store: Store, path: str = PATH, content: str = "weights", replay: str = "") -> CheckpointRecord:
    with store.make_draft(path) as draft:
        (draft / "algorithm").mkdir()
        (draft / "algorithm" / "weights.bin").write_text(content)
        state: dict[str, Any] = {"env_steps": 5000}
        if replay:
            (draft / REPLAY / "0").mkdir(parents=True)
            (draft / REPLAY / "0" / "rows.npy").write_text(replay)
            state[REPLAY] = compute_digest(draft / REPLAY)
        (draft / "state.json").write_text(json.dumps(state))
        digest = store.save(draft, path)
    return CheckpointRecord(path, 5000, 1.5, digest, replay=bool(replay))


def read_weights(folder: Path | None) -> str:
    assert folder is not None
    return (folder / "algorithm" / "weights.bin").read_text()


def test_a_file_is_written_read_and_deleted(storage: Storage) -> None:
    store = storage.store
    assert store.read("trials/7/stalled.txt") is None
    store.write("trials/7/stalled.txt", b"first")
    store.write("trials/7/stalled.txt", b"second")
    assert storage.open("other").read("trials/7/stalled.txt") == b"second"
    assert store.list("trials/7") == {"trials/7/stalled.txt": 6}
    store.delete("trials/7/stalled.txt")
    store.delete("trials/7/stalled.txt")
    assert store.read("trials/7/stalled.txt") is None
    assert store.list() == {}


def test_a_checkpoint_is_opened_on_another_machine(storage: Storage) -> None:
    record = save(storage.store)
    other = storage.open("other")
    assert other.has_all_files(record)
    folder = other.open(record)
    assert read_weights(folder) == "weights"
    assert folder is not None
    assert read_state(folder) == {"env_steps": 5000}
    assert compute_digest(folder) == record.digest
    assert not list(folder.parent.glob(".*")), "no draft is left"


def test_a_remote_checkpoint_is_downloaded_when_it_is_opened(storage: Storage) -> None:
    record, other = save(storage.store), storage.open("other")
    assert other.has_all_files(record)
    if storage.kind != "local":
        assert not (other.folder / record.path).exists()
    assert other.open(record) == other.folder / record.path
    assert other.open(record) == other.folder / record.path, "from the cache"


def test_a_checkpoint_without_its_manifest_does_not_count(storage: Storage) -> None:
    record = save(storage.store)
    storage.store.delete(f"{record.path}/{MANIFEST}")
    assert not storage.open("other").has_all_files(record)


def test_the_manifest_is_written_last(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("killed")

    store = storage.store
    monkeypatch.setattr(
        "rltune.checkpoints.store._replace_file" if storage.kind == "local" else f"{__name__}.Store.write", fail
    )
    with pytest.raises(OSError, match="killed"):
        save(store)
    monkeypatch.undo()
    assert f"{PATH}/{MANIFEST}" not in store.list()
    assert storage.open("other").find(PATH) is None


def test_a_draft_that_breaks_off_leaves_nothing(storage: Storage) -> None:
    store = storage.store

    def fill() -> None:
        with store.make_draft(PATH) as draft:
            (draft / "weights.bin").write_text("half")
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        fill()
    assert not list(store.folder.rglob("*weights*"))
    assert store.list() == {}


@pytest.mark.parametrize("name", ["algorithm/weights.bin", "state.json"])
def test_a_lost_or_shortened_file_is_seen_by_sizes_alone(storage: Storage, name: str) -> None:
    store, record = storage.store, save(storage.store)
    store.write(f"{record.path}/{name}", b"we")
    assert not store.has_all_files(record)
    store.delete(f"{record.path}/{name}")
    assert not store.has_all_files(record)
    assert storage.open("other").open(record) is None


def test_changed_content_of_the_same_size_is_refused(storage: Storage) -> None:
    record = save(storage.store)
    storage.store.write(f"{record.path}/algorithm/weights.bin", b"WEIGHTS")
    other = storage.open("other")
    assert other.has_all_files(record)
    assert other.open(record) is None


def test_another_checkpoint_at_the_same_path_is_refused(storage: Storage) -> None:
    record = save(storage.store)
    storage.store.drop(record.path)
    save(storage.store, content="others.")
    other = storage.open("other")
    assert not other.has_all_files(record)
    assert other.open(record) is None


def test_a_dropped_checkpoint_is_gone_and_others_stay(storage: Storage) -> None:
    store = storage.store
    first, second = save(store), save(store, "trials/7/a1b2/best-000000004000")
    store.drop(first.path)
    store.drop(first.path)
    assert not store.has_all_files(first)
    assert store.open(first) is None
    assert store.has_all_files(second)
    assert {name.rpartition("/")[0] for name in store.list()} == {second.path, f"{second.path}/algorithm"}


def test_a_replay_memory_travels_and_is_dropped_alone(storage: Storage) -> None:
    record = save(storage.store, replay="memory")
    folder = storage.open("second").open(record)
    assert folder is not None
    assert find_replay(folder) == folder / REPLAY
    storage.store.drop(f"{record.path}/{REPLAY}")
    third = storage.open("third")
    assert third.has_all_files(record)
    folder = third.open(record)
    assert folder is not None
    assert find_replay(folder) is None


def test_a_damaged_replay_memory_is_not_found(storage: Storage) -> None:
    record = save(storage.store, replay="memory")
    storage.store.write(f"{record.path}/{REPLAY}/0/rows.npy", b"Memory")
    folder = storage.open("other").open(record)
    assert folder is not None
    assert find_replay(folder) is None


def test_a_path_is_enough_to_find_a_checkpoint(storage: Storage) -> None:
    record, other = save(storage.store), storage.open("other")
    assert read_weights(other.find(record.path)) == "weights"
    assert other.find("trials/8/a1b2/best-000000000001") is None


def test_a_lent_checkpoint_leaves_no_copy(storage: Storage) -> None:
    record, other = save(storage.store), storage.open("other")
    with other.lend(record.path) as folder:
        assert read_weights(folder) == "weights"
    assert (other.folder / record.path).exists() == (storage.kind == "local")
    with other.lend("trials/8/a1b2/best-000000000001") as folder:
        assert folder is None


def test_a_manifest_cannot_name_files_outside(storage: Storage, tmp_path: Path) -> None:
    store, record = storage.store, save(storage.store)
    store.write("trials/7/a1b2/stranger", b"run me")
    for name in ("../stranger", "/tmp/stranger", ""):
        store.write(f"{record.path}/{MANIFEST}", json.dumps({"digest": record.digest, "files": {name: 6}}).encode())
        assert not store.has_all_files(record)
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        if storage.kind != "local":
            assert storage.open("other").open(record) is None
    assert [path for path in tmp_path.rglob("stranger") if path.parent.name != "a1b2"] == []


MANIFESTS = [b"", b"{", b"[]", b"1", b"[" * 10**5, b'{"digest": 1, "files": {}}', b'{"digest": "x"}']


@pytest.mark.parametrize("content", [*MANIFESTS, b'{"digest": "x", "files": ["a.txt"]}'], ids=range(8))
def test_a_damaged_manifest_makes_no_checkpoint(storage: Storage, content: bytes) -> None:
    record = save(storage.store)
    storage.store.write(f"{record.path}/{MANIFEST}", content)
    assert not storage.store.has_all_files(record)


def test_a_trial_without_a_checkpoint_has_none(storage: Storage) -> None:
    assert not storage.store.has_all_files(None)
    assert storage.store.open(None) is None


def test_published_files_are_fetched_on_another_machine(storage: Storage) -> None:
    store, other = storage.store, storage.open("other")
    for machine in (store, other):
        machine.folder.mkdir(exist_ok=True)
    (store.folder / "config.yaml").write_text("algo: ppo")
    store.publish(["config.yaml"])
    if storage.kind != "local":
        (other.folder / "summary.json").write_text("of an earlier end")
    other.fetch(["config.yaml", "summary.json"])
    assert (other.folder / "config.yaml").read_text() == "algo: ppo"
    assert not (other.folder / "summary.json").exists()


def test_only_its_user_reads_a_local_checkpoint(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir(mode=0o700)
    save(open_store(sweep))
    assert sweep.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["algorithm/weights.bin", "more"])
def test_a_link_is_no_content_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    """It may lead to a folder of pickles, or to a file that changes."""
    store = open_store(tmp_path / "sweep")
    record, aside = save(store), tmp_path / "aside"
    path = tmp_path / "sweep" / record.path / name
    if path.exists():
        path.rename(aside)
    else:
        aside.mkdir()
    path.symlink_to(aside)
    assert store.open(record) is None


def test_the_draft_of_a_hidden_file_is_hidden_by_one_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[str] = []
    monkeypatch.setattr(Path, "rename", lambda draft, _: drafts.append(draft.name))
    open_store(tmp_path).write(".stop", b"")
    open_store(tmp_path).write("summary.json", b"")
    assert [name.rpartition("-")[0] for name in drafts] == [".stop", ".summary.json"]


def test_a_moved_sweep_keeps_its_checkpoints(tmp_path: Path) -> None:
    record = save(open_store(tmp_path / "sweep"))
    (tmp_path / "sweep").rename(tmp_path / "moved")
    assert open_store(tmp_path / "moved").has_all_files(record)


def test_a_digest_tells_where_a_name_ends_and_its_content_begins(tmp_path: Path) -> None:
    for folder, name, content in (("one", "a", "bc"), ("two", "ab", "c")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(content)
    assert compute_digest(tmp_path / "one") != compute_digest(tmp_path / "two")


def test_a_digest_changes_with_content_name_and_place(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "sub").mkdir(parents=True)
    (folder / "x").write_text("1")
    (folder / "sub" / "y").write_text("2")
    first = compute_digest(folder)
    assert len(first) == 64
    (folder / "x").write_text("3")
    assert compute_digest(folder) != first
    (folder / "x").write_text("1")
    (folder / "sub" / "y").rename(folder / "y")
    assert compute_digest(folder) != first


def test_a_digest_does_not_depend_on_the_order_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    first, listed = compute_digest(tmp_path), Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: sorted(listed(self, pattern), reverse=True))
    assert compute_digest(tmp_path) == first
