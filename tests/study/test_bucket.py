"""A sweep's files in a bucket: a real S3 server over HTTP."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from s3 import Gate, Server

from rltune.records import CheckpointRecord
from rltune.study.bucket import (
    MANIFEST,
    Bucket,
    BucketAwayError,
    BucketError,
    choose_place,
    find_bucket,
    is_fetched_copy,
    link_bucket,
    make_place,
    open_bucket,
)
from rltune.study.checkpoints import (
    REPLAY,
    SupersededError,
    begin_attempt,
    drop_replays,
    is_recorded,
    is_whole,
    lend_checkpoint,
    read_state,
    write_checkpoint,
)

pytestmark = pytest.mark.slow  # a server


@pytest.fixture
def node(tmp_path: Path, s3: str, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Folders of several nodes, which lead to one sweep's place."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        link_bucket(folder, make_place(s3, request.node.name))
        return folder

    return make


def write(
    sweep: Path,
    env_steps: int,
    content: str = "weights",
    kind: str = "latest",
    replay: str = "",
    attempt: str = "",
    keep: Sequence[CheckpointRecord] = (),
) -> CheckpointRecord:
    def fill(folder: Path) -> None:
        (folder / "algorithm").mkdir()
        (folder / "algorithm" / "weights.bin").write_text(content)
        if replay:
            (folder / REPLAY).mkdir()
            (folder / REPLAY / "0").write_text(replay)

    state, kept = {"env_steps": env_steps, "objective": 1.5}, [record.path for record in keep]
    return write_checkpoint(sweep, "trials/7", kind, state, fill, attempt, kept)


def bucket_of(folder: Path) -> Bucket:
    bucket = find_bucket(folder)
    assert bucket is not None
    return bucket


def names_in(bucket: Bucket) -> set[str]:
    return {"/".join(name.split("/")[:3]) for name in bucket.list_files("trials")}


def test_a_checkpoint_of_one_node_is_read_on_another(node: Callable[[str], Path]) -> None:
    one, other = node("one"), node("other")
    record = write(one, 5000)
    assert is_recorded(other, record)
    assert not (other / record.path).exists(), "so far nothing was downloaded"
    folder = is_whole(other, record)
    assert folder == other / record.path
    assert (folder / "algorithm" / "weights.bin").read_text() == "weights"
    assert read_state(folder)["env_steps"] == 5000
    assert not list(folder.parent.glob(".*")), "no draft is left"


def test_what_has_no_manifest_yet_is_no_checkpoint(node: Callable[[str], Path]) -> None:
    one, other = node("one"), node("other")
    older = write(one, 100)
    newer = write(one, 200, keep=[older])
    bucket_of(one).delete(f"{newer.path}/{MANIFEST}")  # its worker was killed before it was written
    assert not is_recorded(other, newer)
    assert is_whole(other, newer) is None
    assert is_whole(other, older) is not None, "the state before it"
    third = write(one, 300, "at 300", keep=[older])
    assert names_in(bucket_of(one)) == {older.path, third.path}


def test_a_truncated_object_is_seen_without_a_download(node: Callable[[str], Path]) -> None:
    one, other = node("one"), node("other")
    record = write(one, 100)
    bucket_of(one).write(f"{record.path}/algorithm/weights.bin", b"weig")
    assert not is_recorded(other, record)
    assert is_whole(other, record) is None
    assert is_whole(one, record) is not None, "the node that wrote it has it whole"


def test_a_corrupted_object_of_the_same_size_is_refused(node: Callable[[str], Path]) -> None:
    one, other = node("one"), node("other")
    record = write(one, 100)
    bucket_of(one).write(f"{record.path}/algorithm/weights.bin", b"WEIGHTS")
    assert is_recorded(other, record), "sizes do not tell"
    assert is_whole(other, record) is None
    assert not (other / record.path).exists()


def test_what_the_ledger_names_is_kept_on_any_node(node: Callable[[str], Path]) -> None:
    one, other = node("one"), node("other")
    bucket = bucket_of(one)
    bucket.write("trials/7/latest-000000000050-deadbeef/algorithm/weights.bin", b"of a killed worker")
    best = write(one, 100, kind="best")
    recorded = write(one, 200, "at 200")
    again = write(other, 150, "at 150", keep=[recorded])
    assert names_in(bucket) == {record.path for record in (best, recorded, again)}
    third = write(other, 250, "at 250", keep=[again])
    assert names_in(bucket) == {record.path for record in (best, again, third)}


def test_a_name_that_comes_again_overwrites_nothing(node: Callable[[str], Path]) -> None:
    one, other = node("one"), node("other")
    before = write(one, 100, "first")
    again = write(other, 100, "second", keep=[before])
    assert before.path != again.path
    third = node("third")
    assert is_whole(third, before) is not None
    assert is_whole(third, again) is not None


def test_a_replay_memory_travels_and_is_dropped_alone(node: Callable[[str], Path]) -> None:
    one, other, third = node("one"), node("other"), node("third")
    record = write(one, 100, replay="memory")
    assert record.replay
    folder = is_whole(other, record)
    assert folder is not None
    assert (folder / REPLAY / "0").read_text() == "memory"
    drop_replays(one, "trials/7")
    assert bucket_of(one).flush(10)
    assert is_recorded(third, record)
    folder = is_whole(third, record)
    assert folder is not None
    assert not (folder / REPLAY).exists()


def test_a_lent_checkpoint_leaves_nothing(node: Callable[[str], Path]) -> None:
    one, other = node("one"), node("other")
    record = write(one, 100)
    with lend_checkpoint(other, record.path) as folder:
        assert (folder / "state.json").is_file()
    assert not folder.exists()
    assert not (other / record.path).exists()


def test_a_manifest_cannot_name_files_outside(node: Callable[[str], Path], tmp_path: Path) -> None:
    one, other = node("one"), node("other")
    record, bucket = write(one, 100), bucket_of(one)
    bucket.write("trials/7/stranger", b"run me")
    for name in ("../stranger", "/tmp/stranger"):
        files = {"digest": record.digest, "files": {name: 6}}
        bucket.write(f"{record.path}/{MANIFEST}", json.dumps(files).encode())
        assert is_whole(other, record) is None
    assert not list(tmp_path.rglob("stranger"))


def test_a_server_that_is_away_for_a_while_is_waited_for(s3_instance: Server, tmp_path: Path) -> None:
    gate = Gate(s3_instance)
    gate.open()
    link_bucket(tmp_path, make_place(gate.storage, "away"))
    first = write(tmp_path, 100, "at 100")
    gate.close()
    threading.Timer(8.0, gate.open).start()
    began = time.monotonic()
    second = write(tmp_path, 200, "at 200", keep=[first])
    assert 6 < time.monotonic() - began < 60
    gate.close()
    direct = tmp_path / "direct"
    direct.mkdir()
    link_bucket(direct, make_place(s3_instance.storage, "away"))
    assert is_whole(direct, first) is not None
    assert is_whole(direct, second) is not None


def test_a_bucket_that_stays_away_is_told(tmp_path: Path, s3: str) -> None:
    bucket = open_bucket(make_place("s3://sweeps/x?endpoint_override=http://127.0.0.1:9", "name"))
    with pytest.raises(BucketAwayError, match="storage=") as raised:
        bucket.write("a", b"", patience_s=0)
    assert "AWS_ACCESS_KEY_ID" in raised.value.allowed


class Outage(BaseHTTPRequestHandler):
    """A server that answers each request with a status of HTTP, the first folder of its path."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(int(re.findall(r"status-(\d+)", self.path)[0]))
        self.send_header("content-length", "0")
        self.end_headers()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def outage() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Outage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


GOOGLE = "gs://anonymous@sweeps/status-{}?scheme=http&retry_limit_seconds=1&endpoint_override={}"
AMAZON = "s3://sweeps/status-{}?endpoint_override=http://{}"


@pytest.mark.parametrize(
    ("place", "status", "kind"),
    [
        (GOOGLE, 0, BucketAwayError),  # nobody listens
        (GOOGLE, 503, BucketAwayError),
        (GOOGLE, 429, BucketAwayError),
        (GOOGLE, 403, BucketError),
        (AMAZON, 403, BucketError),
    ],
)
def test_an_outage_is_told_from_a_refusal(
    place: str, status: int, kind: type[BucketError], outage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(place.format(status, outage if status else "127.0.0.1:9"))
    with pytest.raises(BucketError) as raised:
        bucket.write("a", b"", patience_s=0)
    assert type(raised.value) is kind
    assert len(raised.value.what) < 300, raised.value.what


def test_a_gateway_without_its_servers_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:  # as Arrow says it, after 6 s
        raise OSError(
            "When uploading object with key 'x/a' in bucket 'b': AWS Error UNKNOWN (HTTP status 503) during PutObject "
            "operation: No response body."
        )

    monkeypatch.setattr(Bucket, "_write", fail)
    with pytest.raises(BucketAwayError):
        Bucket(AMAZON.format(503, "127.0.0.1:9")).write("a", b"", patience_s=0)


def test_in_a_hurry_a_server_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltune.study.bucket._leave_unfinished", lambda: None)  # this process goes on
    with socket.create_server(("127.0.0.1", 0), backlog=50) as hanging:
        bucket = Bucket(f"s3://sweeps/x?endpoint_override=http://127.0.0.1:{hanging.getsockname()[1]}")
        bucket.submit(bucket.write, "before", b"")
        threading.Timer(0.5, bucket.hurry, [9.0]).start()
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(BucketAwayError, match="storage="):
                bucket.write("a", b"")
        assert not bucket.flush(3.0)
        assert time.monotonic() - began < 40, "a client's own attempts take 100 s"


def test_a_bucket_that_hangs_keeps_no_process_from_its_end() -> None:
    code = """if True:
        import socket, time
        from rltune.study.bucket import Bucket, BucketAwayError
        from rltune.commands import end_command
        hanging = socket.create_server(("127.0.0.1", 0), backlog=50)
        bucket = Bucket(f"s3://sweeps/x?endpoint_override=http://127.0.0.1:{hanging.getsockname()[1]}")
        bucket.hurry(0.5)
        try:
            bucket.write("a", b"")
        except BucketAwayError:
            end_command(75)
    """
    assert subprocess.run([sys.executable, "-c", code], timeout=40).returncode == 75


def test_a_bucket_that_is_not_there_is_told_at_once(s3: str) -> None:
    with pytest.raises(BucketError, match="strange"):
        open_bucket(make_place(s3.replace("sweeps", "strange", 1))).check()
    open_bucket(make_place(s3)).check()


def test_sweeps_are_listed_by_a_file_that_they_hold(s3: str) -> None:
    for name, file in (("good", "config.yaml"), ("other", "stray.txt")):
        open_bucket(make_place(f"s3://sweeps/listed{s3[s3.index('?') :]}", name)).write(file, b"x")
    found = open_bucket(make_place(f"s3://sweeps/listed{s3[s3.index('?') :]}")).list_folders("config.yaml")
    assert found.keys() == {"good"}
    assert abs(found["good"] - time.time()) < 60


def test_the_endpoint_of_the_environment_travels_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert make_place("s3://b/runs/", "one") == "s3://b/runs/one?endpoint_override=http%3A%2F%2Fminio%3A9000"
    assert make_place("s3://b?endpoint_override=http://x:1", "one") == "s3://b/one?endpoint_override=http://x:1"
    assert make_place("gs://b/runs", "one") == "gs://b/runs/one"


def test_a_renamed_folder_keeps_its_place(tmp_path: Path, s3: str) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    link_bucket(folder, choose_place(folder, s3), copy=True)
    assert is_fetched_copy(folder)
    folder = folder.rename(tmp_path / "second")
    place = choose_place(folder, s3)
    assert place == make_place(s3, "first")
    link_bucket(folder, place)
    assert not is_fetched_copy(folder)
    link_bucket(folder, choose_place(folder, None))
    assert find_bucket(folder) is None


def test_a_worker_that_was_cut_off_drops_nothing_of_the_one_that_goes_on(node: Callable[[str], Path]) -> None:
    cut_off, other, driver = map(node, ("cut-off", "other", "driver"))
    write(cut_off, 100, "first")
    write(cut_off, 200, "second")
    name = begin_attempt(driver, "trials/7")
    kept = [write(other, 300, "300", attempt=name)]
    kept.append(write(other, 400, "400", attempt=name, keep=kept))
    with pytest.raises(SupersededError, match="trials/7"):
        write(cut_off, 300, "third")
    assert all(is_recorded(driver, one) for one in kept)


def test_a_worker_that_was_replaced_while_it_uploaded_drops_its_own_alone(
    node: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other, driver = map(node, ("slow", "other", "driver"))
    for env_steps in (100, 200):
        write(slow, env_steps, str(env_steps))
    upload, kept = Bucket.upload, []

    def wait_while_another_goes_on(bucket: Bucket, folder: Path, name: str, digest: str) -> None:
        monkeypatch.setattr(Bucket, "upload", upload)
        attempt = begin_attempt(driver, "trials/7")
        kept.append(write(other, 300, "300", attempt=attempt))
        kept.append(write(other, 400, "400", attempt=attempt, keep=kept))
        upload(bucket, folder, name, digest)

    monkeypatch.setattr(Bucket, "upload", wait_while_another_goes_on)
    with pytest.raises(SupersededError):
        write(slow, 300, "late")
    assert all(is_recorded(driver, one) for one in kept)
    assert len([name for name in bucket_of(driver).list_files("trials/7") if name.endswith(MANIFEST)]) == 2
