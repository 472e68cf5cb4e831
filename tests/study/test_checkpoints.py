"""A trial's checkpoints: whole or not there, known by their content, and not more of them than needed."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from rltune.records import CheckpointRecord
from rltune.study.checkpoints import (
    REPLAY,
    SupersededError,
    begin_attempt,
    choose_newest,
    compute_digest,
    drop_replays,
    find_replay,
    is_whole,
    read_state,
    write_checkpoint,
)


@pytest.fixture
def write(tmp_path):
    def at(env_steps, kind="latest", content="weights", number=7, keep=()):
        state = {"env_steps": env_steps, "objective": 1.5, "note": "kept"}
        fill = lambda folder: (folder / "weights.bin").write_text(content)  # noqa: E731
        kept = [record.path for record in keep]
        return write_checkpoint(tmp_path, f"trials/{number}", kind, state, fill, keep=kept)

    return at


def folders(sweep, number=7):
    return sorted(path.name for path in (sweep / "trials" / str(number)).iterdir())


def test_a_checkpoint_is_found_again_with_its_state_and_files(write, tmp_path):
    before = time.time()
    record = write(5000)
    assert (record.path, record.env_steps, record.objective) == ("trials/7/latest-000000005000", 5000, 1.5)
    assert before <= record.saved_s <= time.time()
    assert CheckpointRecord(**json.loads(json.dumps(record.to_dict()))) == record, "as it travels through Tune"
    folder = is_whole(tmp_path, record)
    assert folder == tmp_path / record.path
    assert (folder / "weights.bin").read_text() == "weights"
    assert read_state(folder) == {"env_steps": 5000, "objective": 1.5, "note": "kept"}


def edit(folder):
    (folder / "weights.bin").write_text("other")


def tear(folder):
    (folder / "weights.bin").unlink()


def add(folder):
    (folder / "more.bin").write_text("")


def rename(folder):
    (folder / "weights.bin").rename(folder / "w.bin")


def lose_state(folder):
    (folder / "state.json").unlink()


def lose_all(folder):
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [edit, tear, add, rename, lose_state, lose_all])
def test_a_checkpoint_that_was_changed_or_torn_does_not_count(damage, write, tmp_path):
    record = write(5000)
    damage(tmp_path / record.path)
    assert is_whole(tmp_path, record) is None


def test_a_trial_without_a_checkpoint_has_no_valid_one(tmp_path):
    assert is_whole(tmp_path, None) is None


def test_a_moved_sweep_keeps_its_checkpoints(write, tmp_path):
    record = write(5000)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "trials").rename(moved / "trials")
    assert is_whole(moved, record) == moved / record.path


def test_what_the_ledger_names_is_kept_and_the_rest_dropped(write, tmp_path):
    first, second = write(1000), write(2000)
    assert [is_whole(tmp_path, record) is not None for record in (first, second)] == [False, True]
    third = write(500, keep=[second])  # a trial that went back writes a lower number
    assert folders(tmp_path) == ["latest-000000000500", "latest-000000002000"]
    assert is_whole(tmp_path, third)


@pytest.mark.parametrize("kind", ["best", "latest"])
def test_a_clock_that_was_set_back_drops_nothing_needed(kind, write, tmp_path, monkeypatch):
    recorded = write(100, kind)
    for path in (tmp_path / "trials" / "7").iterdir():
        os.utime(path, (time.time() + 3600, time.time() + 3600))  # a node whose clock is an hour ahead wrote it
    for steps in (200, 300, 400):
        written = write(steps, kind, keep=[recorded])
        assert is_whole(tmp_path, written)
        assert is_whole(tmp_path, recorded), "a driver that is killed now goes on from it"
        recorded = written


def test_the_best_is_not_dropped_for_a_newer_latest(write, tmp_path):
    best = write(1000, kind="best")
    for steps in (2000, 3000, 4000):
        write(steps)
    assert is_whole(tmp_path, best) is not None
    assert len(folders(tmp_path)) == 2


def test_trials_do_not_drop_each_others_checkpoints(write, tmp_path):
    first = write(1000, number=1)
    for steps in (2000, 3000, 4000):
        write(steps, number=11)
    assert is_whole(tmp_path, first) is not None


def test_writing_that_breaks_off_leaves_the_earlier_checkpoint_and_nothing_that_looks_like_one(write, tmp_path):
    record = write(1000)

    def fail(folder):
        (folder / "weights.bin").write_text("half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        write_checkpoint(tmp_path, "trials/7", "latest", {"env_steps": 2000, "objective": None}, fail)
    assert [name for name in folders(tmp_path) if not name.startswith(".")] == ["latest-000000001000"]
    assert is_whole(tmp_path, record) is not None
    write(2000, keep=[record])
    assert folders(tmp_path) == ["latest-000000001000", "latest-000000002000"], "the broken draft is gone"


def test_a_trial_that_comes_by_the_same_step_again_keeps_the_recorded_checkpoint_until_the_next_is(write, tmp_path):
    old = write(1000, content="before")
    new = write(1000, content="after", keep=[old])
    assert old.digest != new.digest
    assert is_whole(tmp_path, old) is not None  # a kill now leaves the ledger with this one
    write(1000, content="later still", keep=[new])
    assert is_whole(tmp_path, old) is None
    assert (is_whole(tmp_path, new) / "weights.bin").read_text() == "after"


def test_the_same_content_has_the_same_digest_and_another_content_another(write):
    first, same, other = write(1000, number=1), write(1000, number=2), write(1000, number=3, content="x")
    assert first.digest == same.digest != other.digest


def test_an_objective_that_is_not_known_yet_stays_unknown(tmp_path):
    record = write_checkpoint(tmp_path, "trials/0", "latest", {"env_steps": 10, "objective": None}, lambda folder: None)
    assert record.objective is None
    assert read_state(tmp_path / record.path)["objective"] is None


def test_a_digest_tells_where_a_name_ends_and_its_content_begins(tmp_path):
    for folder, name, content in (("one", "a", "bc"), ("two", "ab", "c")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(content)
    assert compute_digest(tmp_path / "one") != compute_digest(tmp_path / "two")


def test_a_digest_does_not_depend_on_the_order_of_a_folder(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text(name)
    first, listed = compute_digest(tmp_path), Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: sorted(listed(self, pattern), reverse=True))
    backwards = compute_digest(tmp_path)
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: sorted(listed(self, pattern)))
    assert backwards == compute_digest(tmp_path) == first


def test_a_digest_changes_with_content_name_and_place(tmp_path):
    folder = tmp_path / "a"
    (folder / "sub").mkdir(parents=True)
    (folder / "x").write_text("1")
    (folder / "sub" / "y").write_text("2")
    first = compute_digest(folder)
    assert len(first) == 64
    assert compute_digest(str(folder)) == first
    (folder / "x").write_text("3")
    assert compute_digest(folder) != first
    (folder / "x").write_text("1")
    (folder / "sub" / "y").rename(folder / "y")
    assert compute_digest(folder) != first


@pytest.fixture
def write_with_replay(tmp_path):
    def fill(folder):
        (folder / "weights.bin").write_text("weights")
        (folder / REPLAY / "0").mkdir(parents=True)
        (folder / REPLAY / "0" / "rows.npy").write_bytes(b"0" * 5_000_000)

    return lambda env_steps, number=7: write_checkpoint(
        tmp_path, f"trials/{number}", "latest", {"env_steps": env_steps, "objective": 1.5}, fill
    )


def test_a_checkpoint_is_whole_without_its_replay_memory(write_with_replay, tmp_path):
    record = write_with_replay(1000)
    assert find_replay(is_whole(tmp_path, record)) == tmp_path / record.path / REPLAY
    drop_replays(tmp_path, "trials/7")
    assert find_replay(is_whole(tmp_path, record)) is None


def test_a_damaged_replay_memory_is_not_found(write_with_replay, tmp_path):
    record = write_with_replay(1000)
    with (tmp_path / record.path / REPLAY / "0" / "rows.npy").open("r+b") as file:
        file.write(b"1")
    assert find_replay(is_whole(tmp_path, record)) is None


def test_a_checkpoint_without_a_replay_memory_has_none(write, tmp_path):
    assert find_replay(is_whole(tmp_path, write(1000))) is None


def test_a_replay_memory_goes_before_a_newer_state(write, write_with_replay, tmp_path):
    """Seconds of training are made up for sooner than a memory."""
    best, latest, newer = write(900, kind="best"), write_with_replay(1000), write(1100, kind="best")
    assert choose_newest([best, newer, latest]) == latest
    assert choose_newest([best, newer]) == newer
    assert choose_newest([]) is None


@pytest.mark.parametrize("name", ["weights.bin", "more"])
def test_a_link_is_no_content_of_a_checkpoint(write, tmp_path, name):
    """It may lead to a folder of pickles, or to a file that changes."""
    record, aside = write(1000), tmp_path / "aside"
    folder = is_whole(tmp_path, record)
    if (folder / name).exists():
        (folder / name).rename(aside)
    else:
        aside.mkdir()
    (folder / name).symlink_to(aside)
    assert is_whole(tmp_path, record) is None


def test_a_worker_that_was_replaced_writes_and_drops_nothing(tmp_path):
    """One that was cut off from the driver comes back when another one has gone on with its trial."""
    home, state = tmp_path / "trials" / "7", {"env_steps": 100, "objective": 1.0}
    write_checkpoint(tmp_path, "trials/7", "latest", state, lambda folder: None)
    name = begin_attempt(tmp_path, "trials/7")
    draft = home / ".latest-4711"
    draft.mkdir()
    before = folders(tmp_path)
    for attempt in ("", "an earlier one"):
        with pytest.raises(SupersededError, match="trials/7"):
            write_checkpoint(tmp_path, "trials/7", "latest", state, lambda folder: None, attempt)
    assert folders(tmp_path) == before, "the other's draft is there, too"
    assert write_checkpoint(tmp_path, "trials/7", "latest", state, lambda folder: None, name)


def test_a_worker_that_is_replaced_while_it_writes_leaves_nothing(tmp_path):
    state = {"env_steps": 100, "objective": 1.0}
    with pytest.raises(SupersededError):
        write_checkpoint(tmp_path, "trials/7", "best", state, lambda folder: begin_attempt(tmp_path, "trials/7"))
    assert folders(tmp_path) == [".attempt"]
