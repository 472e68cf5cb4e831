"""The kinds of remote storage: a row each, and nothing elsewhere."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from rltune.checkpoints.clients import StoreError, connect, make_address
from rltune.checkpoints.store import open_store
from rltune.config.buckets import BUCKETS, BucketKind, is_bucket


@pytest.mark.parametrize("kind", BUCKETS.values(), ids=BUCKETS)
def test_the_example_of_a_kind_is_an_address_of_it(kind: BucketKind) -> None:
    assert is_bucket(kind.example)


def test_a_row_is_all_that_a_kind_of_storage_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = "fsspec+memory://bucket/sweeps"
    assert not is_bucket(example)
    row = BucketKind("Memory", example, "MEMORY_LOGIN", "FORGOTTEN", endpoint_variables=("MEMORY_SERVER",))
    monkeypatch.setitem(BUCKETS, "fsspec+memory", row)
    assert is_bucket(example)
    address = make_address(example, "mine")
    store, other = open_store(tmp_path / "left", address), open_store(tmp_path / "right", address)
    with store.make_draft("trials/0/a/best-1") as draft:
        (draft / "state.json").write_text("{}")
        store.save(draft, "trials/0/a/best-1")
    fetched = other.find("trials/0/a/best-1")
    assert fetched is not None
    assert (fetched / "state.json").read_text() == "{}"
    with pytest.raises(StoreError) as missing:
        open_store(tmp_path, make_address("fsspec+memory://nowhere/sweeps")).check()
    assert ("MEMORY_LOGIN" in missing.value.allowed, missing.value.fix) == (True, f"storage={example}")
    connect.cache_clear()
    fsspec.filesystem("memory").rm("/bucket", recursive=True)
    monkeypatch.setenv("MEMORY_SERVER", "http://host:1")
    assert make_address(example).endswith("?endpoint_override=http%3A%2F%2Fhost%3A1")
