"""Keep a sweep's files in a bucket: of S3, of what speaks its protocol such as MinIO, or of Google Cloud Storage.

A checkpoint is there whole or not at all: its files are written first, and last the manifest that names them. A folder
of the sweep's on any machine leads to the bucket by the file ``.bucket``. Runs anywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

from rltune.errors import StudyError, UnavailableError, describe_exception

LINK = ".bucket"  # the file that leads from a folder to the bucket
COPY = "copy"  # its second line, in a folder that was fetched and that no driver works in
MANIFEST = "manifest.json"
PATIENCE_S = 120.0  # for a server that is started again
GLANCE_S = 3.0  # where something else is to go on meanwhile
SLICE_S = 0.1  # how soon a hurry is noticed
THREADS = 8  # files that travel at once
NO_ANSWER = "does not answer"
BUCKET_AWAY = f"the bucket {NO_ANSWER}"  # why a sweep ends for want of it
# Arrow's errors of an outage are plain OSErrors without a number: these are the words of AWS's client and of Google's.
_LOST = re.compile(
    r"NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|REQUEST_TIMEOUT|THROTTLING"
    r"|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|INTERNAL:|ABORTED|CURL error|curlCode"
    r"|HTTP status (code: )?(429|5\d\d)"
)
T = TypeVar("T")


class BucketError(StudyError):
    """A bucket that cannot be used."""


class BucketAwayError(BucketError, UnavailableError):
    """A bucket that does not answer: waiting may help."""


class Bucket:
    """One sweep's files in a bucket. Names are relative to the sweep, with slashes.

    Args:
        address: The sweep's place, such as ``s3://bucket/prefix/sweep``.

    Raises:
        BucketError: The address cannot be used.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._fs, self._root = _connect(address)
        self._ends = math.inf  # when there is no more time for it
        self._is_given_up = False
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="bucket")
        self._waiting: list[Future[Any]] = []

    @property
    def is_hurried(self) -> bool:
        """Whether the process has seconds left."""
        return self._ends < math.inf

    def hurry(self, left_s: float) -> None:
        """From now on, give up soon on a bucket that does not answer, and ask it no more.

        Args:
            left_s: The seconds for all that is still asked of it.
        """
        self._ends = time.monotonic() + left_s

    # -- single files -------------------------------------------------------------------------------------------------

    def write(self, name: str, content: bytes, patience_s: float = PATIENCE_S) -> None:
        """Write a file."""
        self._ask(lambda: self._write(name, content), patience_s, extra_s=len(content) / 2**20)

    def read(self, name: str, patience_s: float = PATIENCE_S) -> bytes | None:
        """Read a file; None where there is none."""

        def read() -> bytes:
            with self._fs.open_input_stream(self._path(name)) as stream:
                return bytes(stream.read())

        try:
            return self._ask(read, patience_s)
        except FileNotFoundError:
            return None

    def delete(self, name: str, patience_s: float = PATIENCE_S) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda: self._fs.delete_file(self._path(name)), patience_s)

    def rename(self, name: str, other: str) -> None:
        """Give a file another name, if it is there."""
        content = self.read(name)  # a move of what is not there has an error of its own for each kind of bucket
        if content is not None:
            self.write(other, content)
            self.delete(name)

    def list_files(self, folder: str = "", depth: int | None = None) -> dict[str, tuple[int, float]]:
        """List the files below a folder: size in bytes and time in seconds of the epoch, by name.

        Args:
            folder: Which; "" is the sweep's own.
            depth: 1 lists the folder's own files alone; None those of all folders below, too.
        """
        from pyarrow.fs import FileSelector, FileType

        place = FileSelector(self._path(folder), allow_not_found=True, recursive=depth is None)
        start = len(self._root) + 1
        return {
            info.path[start:]: (int(info.size), float(info.mtime_ns or 0) / 1e9)
            for info in self._ask(lambda: self._fs.get_file_info(place))
            if info.type == FileType.File and info.size is not None
        }

    def list_folders(self, holding: str) -> dict[str, float]:
        """List the folders beside each other that hold a file: its time in seconds of the epoch, by folder."""
        from pyarrow.fs import FileSelector, FileType

        place = FileSelector(self._root, allow_not_found=True)
        folders = [
            info.base_name for info in self._ask(lambda: self._fs.get_file_info(place), GLANCE_S) if not info.is_file
        ]
        paths = [self._path(f"{folder}/{holding}") for folder in folders]
        found = zip(folders, self._ask(lambda: self._fs.get_file_info(paths)), strict=True) if paths else ()
        return {folder: float(info.mtime_ns or 0) / 1e9 for folder, info in found if info.type == FileType.File}

    def check(self) -> None:
        """Refuse a bucket that is not there or does not answer.

        Raises:
            BucketError: It is so.
        """
        from pyarrow.fs import FileType

        name = self._root.partition("/")[0]
        if self._ask(lambda: self._fs.get_file_info(name), GLANCE_S).type == FileType.NotFound:
            raise _make_error(self.address, f"cannot be used: there is no bucket {name}", BucketError)

    def delete_folder(self, name: str) -> None:
        """Delete a folder; a checkpoint loses its manifest first, so that it is never half there."""
        self.delete(f"{name}/{MANIFEST}")
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda: self._fs.delete_dir(self._path(name)))

    def submit(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Do some work with the bucket later, in the order in which it was asked for; `flush` waits for it."""
        self._waiting = [one for one in self._waiting if not one.done() or one.exception()]
        self._waiting.append(self._aside.submit(work, *arguments))

    def flush(self, timeout_s: float) -> bool:
        """Wait for what `submit` was given; return whether all of it was done."""
        deadline, waiting, self._waiting = time.monotonic() + timeout_s, self._waiting, []
        done = True
        for one in waiting:
            try:
                one.result(max(0.0, deadline - time.monotonic()))
            except (TimeoutError, BucketError, OSError):
                done = False
        return done

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def upload(self, folder: Path, name: str, digest: str) -> None:
        """Write a checkpoint: its files, then the manifest that says that it is whole.

        Args:
            folder: Its files.
            name: Where to.
            digest: `rltune.study.checkpoints.compute_digest` of the folder.
        """
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}

        def write(item: tuple[str, Path]) -> None:
            self._ask(lambda: self._upload(f"{name}/{item[0]}", item[1]))

        self._each(write, files.items())
        sizes = {file: path.stat().st_size for file, path in sorted(files.items())}
        self.write(f"{name}/{MANIFEST}", json.dumps({"digest": digest, "files": sizes}).encode())

    def read_manifest(self, name: str) -> dict[str, Any] | None:
        """Read a checkpoint's manifest: its ``digest``, and the sizes of its ``files`` by name; None without one."""
        content = self.read(f"{name}/{MANIFEST}")
        try:
            found = json.loads(content or b"null")
            plain = all(_is_inside(file) for file in found["files"])
            return found if plain and isinstance(found["digest"], str) else None
        except (ValueError, TypeError, KeyError):
            return None

    def is_whole(self, name: str, digest: str, optional: str = "") -> bool:
        """Return whether a checkpoint is there with all its files, by their sizes: nothing is downloaded.

        Args:
            name: Where it is.
            digest: The one that was recorded.
            optional: A folder of it that may be gone.
        """
        manifest = self.read_manifest(name)
        if manifest is None or manifest["digest"] != digest:
            return False
        there = {file.removeprefix(f"{name}/"): size for file, (size, _) in self.list_files(name).items()}
        needed = {file: size for file, size in manifest["files"].items() if not _is_below(file, optional)}
        return all(there.get(file) == size for file, size in needed.items())

    def download(self, name: str, folder: Path) -> str | None:
        """Download a checkpoint into a folder that it makes.

        Args:
            name: Where it is.
            folder: Where to.

        Returns:
            The digest that its manifest has; None where it has no manifest or lacks a file.
        """
        manifest = self.read_manifest(name)
        if manifest is None:
            return None

        def fetch(file: str) -> None:
            target = folder / file
            with contextlib.suppress(FileNotFoundError):  # the digest tells whether it was needed
                self._ask(lambda: self._download(f"{name}/{file}", target))

        self._each(fetch, manifest["files"])
        return str(manifest["digest"])

    # -- the way there ------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _write(self, name: str, content: bytes) -> None:
        with self._fs.open_output_stream(self._path(name)) as stream:
            stream.write(content)

    def _upload(self, name: str, file: Path) -> None:
        with file.open("rb") as source, self._fs.open_output_stream(self._path(name)) as stream:
            shutil.copyfileobj(source, stream, 2**20)

    def _download(self, name: str, target: Path) -> None:
        with self._fs.open_input_stream(self._path(name)) as source:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(source, file, 2**20)

    def _each(self, work: Callable[[Any], None], items: Any) -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(work, items):
                pass

    def _ask(self, work: Callable[[], T], patience_s: float = PATIENCE_S, extra_s: float = 0.0) -> T:
        """Do some work, again and again while the server does not answer.

        Args:
            work: What is asked of the bucket.
            patience_s: For how long.
            extra_s: What the work takes beside the bucket's answer, in a hurry.

        Raises:
            FileNotFoundError: There is no such file.
            BucketAwayError: It has not answered for so long.
            BucketError: It refuses.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._wait_for(work, extra_s)
            except FileNotFoundError:
                raise
            except OSError as error:
                if not _is_away(error):
                    raise _make_error(self.address, f"cannot be used ({_describe(error)})", BucketError) from None
                self._is_given_up |= self.is_hurried
                if self.is_hurried or time.monotonic() >= deadline:
                    raise _make_error(self.address, f"{NO_ANSWER} ({_describe(error)})", BucketAwayError) from None
            time.sleep(1.0)

    def _wait_for(self, work: Callable[[], T], extra_s: float) -> T:
        """Do some work in another thread: a client's call takes 6 s without a server, and 100 s with one that hangs.

        Meanwhile this thread hears signals, and no longer waits once there is a hurry.

        Raises:
            TimeoutError: There is a hurry, and no answer in time.
        """
        if self._is_given_up:
            raise TimeoutError("it did not answer before")
        done: Future[T] = Future()
        threading.Thread(target=_fulfil, args=(done, work), name="ask-bucket", daemon=True).start()
        hurried_s = 0.0
        while not wait([done], SLICE_S).done:
            hurried_s += SLICE_S * self.is_hurried
            if hurried_s > GLANCE_S + extra_s or time.monotonic() > self._ends:
                _leave_unfinished()
                raise TimeoutError("no answer in time")
        return done.result()


def _fulfil(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


def _leave_unfinished() -> None:
    """Let the process end while a call is under way, for which Arrow would wait."""
    from pyarrow import fs

    if finalize := getattr(fs, "ensure_s3_finalized", None):
        atexit.unregister(finalize)


def find_bucket(folder: Path) -> Bucket | None:
    """Return the bucket that a sweep's folder leads to; None where the sweep has none."""
    try:
        address = (folder / LINK).read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return open_bucket(address)


@functools.cache  # connecting costs 50 ms, and a client is for any number of threads
def open_bucket(address: str) -> Bucket:
    """Open a sweep's place in a bucket, once a process."""
    return Bucket(address)


def link_bucket(folder: Path, place: str | None, *, copy: bool = False) -> None:
    """Let a folder lead to the sweep's place in a bucket.

    Args:
        folder: The sweep's, or a worker's for it.
        place: Its address; None for no bucket.
        copy: Whether the folder was only fetched to be read.
    """
    if place is None:
        (folder / LINK).unlink(missing_ok=True)
        return
    draft = folder / f"{LINK}-draft"
    draft.write_text(f"{place}\n{COPY if copy else ''}\n")
    draft.rename(folder / LINK)


def choose_place(folder: Path, storage: str | None) -> str | None:
    """Choose a sweep's place: by the name of its folder, or as before where that was renamed; None without a bucket."""
    if storage is None:
        return None
    before = find_bucket(folder)
    return make_place(storage, PurePosixPath(before.address.partition("?")[0]).name if before else folder.name)


def make_place(storage: str, sweep: str = "") -> str:
    """Make the address of a sweep's place in a bucket, with the endpoint that the environment names for S3.

    So a worker needs no more of the environment than the credentials.

    Args:
        storage: As the settings have it.
        sweep: Its name; "" is the place of all sweeps.
    """
    address, _, query = storage.partition("?")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and address.startswith("s3:") and "endpoint_override=" not in query:
        query = "&".join(filter(None, (query, f"endpoint_override={quote(endpoint, safe='')}")))
    return "/".join(filter(None, (address.rstrip("/"), sweep))) + (f"?{query}" if query else "")


def is_fetched_copy(folder: Path) -> bool:
    """Return whether a folder was fetched from a bucket, and no driver has worked in it since."""
    try:
        return (folder / LINK).read_text().splitlines()[1:2] == [COPY]
    except OSError:
        return False


def _connect(address: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem

    if address.startswith("s3:"):  # one request for a small file instead of three
        address += f"{'&' if '?' in address else '?'}allow_delayed_open=true"
    elif "retry_limit_seconds=" not in address:  # we try again ourselves; by itself it does so for 15 minutes
        address += f"{'&' if '?' in address else '?'}retry_limit_seconds={GLANCE_S:.0f}"
    try:
        found, root = FileSystem.from_uri(address)
    except (OSError, ValueError, NotImplementedError) as error:
        raise _make_error(address, f"cannot be used ({_describe(error)})", BucketError) from None
    return found, str(root).rstrip("/")


def _is_away(error: OSError) -> bool:
    return isinstance(error, TimeoutError | ConnectionError) or bool(_LOST.search(str(error)))


def _describe(error: Exception) -> str:
    """Keep what a person needs of Arrow's long lines."""
    return re.split(r" \(Request ID|; Details:| error_info=", describe_exception(error))[0]


def _make_error(address: str, why: str, kind: type[BucketError]) -> BucketError:
    return kind(
        f"storage={address.partition('?')[0]} {why}",
        "a bucket that is there and answers, with the credentials in the environment of every node: AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY, or what else the cloud's own tools take",
        "storage=s3://bucket/prefix; for MinIO also AWS_ENDPOINT_URL=http://host:9000",
    )


def _is_inside(name: str) -> bool:
    """Return whether a file's name stays in its folder: who can write a bucket writes its manifests."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts


def _is_below(file: str, folder: str) -> bool:
    return bool(folder) and file.startswith(f"{folder}/")
