"""Store a sweep's checkpoints and other files on a local disk, in S3 or in Google Cloud Storage.

A checkpoint is a folder ``trials/<number>/<attempt>/<best or latest>-<env_steps>`` with ``state.json``, ``algorithm/``,
``episodes.json``, ``policy/`` (``seed-1/...`` and so on beside them when a trial runs several seeds), and last
``manifest.json``, which names its digest and the sizes of its files: a folder without a manifest is no checkpoint.
``replay/`` has the trial's replay memory; the rest is whole without it, so that it can be dropped alone. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rltune.checkpoints.clients import (
    Client,
    StoreError,
    UnsharedStoreError,
    connect,
    make_address,
    make_store_error,
)
from rltune.config.settings_file import SweepIdentity, is_own_sweep
from rltune.records import CERTIFY, TRIALS, CheckpointRecord

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

MANIFEST = "manifest.json"
REPLAY = "replay"  # The subfolder of a checkpoint with the replay memory of each seed.
NUM_THREADS = 8  # The number of files that are transferred in parallel.
CHUNK_BYTES = 2**20


class Store:
    """Reads and writes the files of one sweep. File names are relative to the sweep's folder, with slashes.

    Args:
        client: Sends the requests to the file system.
        root: The sweep's folder there.
        cache: The local folder for copies of remote files; None if the root is a local folder itself.
        address: What another process needs to open this store, besides a folder; None if the root is a local folder.

    Attributes:
        address: See above.
        client: See above.
        folder: The sweep's folder on this machine.
    """

    def __init__(
        self, client: Client, root: str | Path, cache: Path | None = None, *, address: str | None = None
    ) -> None:
        self.address, self.client = address, client
        self.folder = Path(root) if cache is None else cache
        self._root, self._is_local = str(root).rstrip("/"), cache is None

    # -- Methods for single files -------------------------------------------------------------------------------------

    def read(self, name: str, *, is_quick: bool = False) -> bytes | None:
        """Read a file's content; None if it does not exist.

        Args:
            name: The file.
            is_quick: Whether to give up after seconds instead of minutes where the storage does not answer.
        """

        def read(filesystem: FileSystem) -> bytes:
            with filesystem.open_input_stream(self._path(name)) as stream:
                return bytes(stream.read())

        try:
            return self.client.call(read, is_quick=is_quick)
        except FileNotFoundError:
            return None

    def exists_locally(self, name: str) -> bool:
        """Return whether a file exists on this machine's disk; False for remote storage, which is not asked."""
        return self._is_local and (self.folder / name).exists()

    def write(self, name: str, content: bytes, *, is_quick: bool = False) -> None:
        """Write a file atomically: readers see all of it or nothing."""
        if self._is_local:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            _replace_file(self.folder / name, content)
            return

        def write(filesystem: FileSystem) -> None:
            with filesystem.open_output_stream(self._path(name)) as stream:
                stream.write(content)

        self.client.call(write, is_quick=is_quick)

    def delete(self, name: str, *, is_quick: bool = False) -> None:
        """Delete a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.client.call(lambda filesystem: filesystem.delete_file(self._path(name)), is_quick=is_quick)

    def list(self, prefix: str = "", *, is_recursive: bool = True, is_quick: bool = False) -> dict[str, int]:
        """List the files below a folder, and map their names to their sizes in bytes.

        Args:
            prefix: The folder; "" is the sweep's own.
            is_recursive: Whether to list the files in its subfolders, too.
            is_quick: Whether to give up after seconds instead of minutes where the storage does not answer.
        """
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._path(prefix), allow_not_found=True, recursive=is_recursive)
        start = len(self._root) + 1
        return {
            info.path[start:]: int(info.size)
            for info in self.client.call(lambda filesystem: filesystem.get_file_info(selector), is_quick=is_quick)
            if info.type == FileType.File and info.size is not None
        }

    # -- Methods for checkpoints --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def make_draft(self, path: str) -> Iterator[Path]:
        """Yield an empty local folder for a checkpoint's files, and remove what `save` has not taken over.

        Args:
            path: Where the checkpoint is to be saved.
        """
        target = self.folder / path
        draft = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
        draft.mkdir(parents=True)
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def save(self, draft: Path, path: str) -> str:
        """Save a draft folder as a checkpoint and return its digest; a local disk renames the draft instead of copying.

        Args:
            draft: The checkpoint's files, of `make_draft`.
            path: Where to, which nobody has used before.
        """
        files = _list_folder(draft)
        digest = compute_digest(draft)
        manifest = json.dumps({"digest": digest, "files": {name: size for name, (_, size) in files.items()}}).encode()
        if self._is_local:
            _replace_file(draft / MANIFEST, manifest, is_durable=True)
            draft.rename(self.folder / path)
            return digest

        def upload(name: str) -> None:
            file, _ = files[name]
            self.client.call(lambda filesystem: _upload(filesystem, file, self._path(f"{path}/{name}")))

        _run_for_each(upload, files)
        self.write(f"{path}/{MANIFEST}", manifest)
        return digest

    def has_all_files(self, record: CheckpointRecord | None) -> bool:
        """Return whether a recorded checkpoint is complete, by its manifest and file sizes, without a download."""
        if record is None or (manifest := self._read_manifest(record.path)) is None:
            return False
        sizes = self.list(record.path)
        needed = {name: size for name, size in manifest["files"].items() if not name.startswith(f"{REPLAY}/")}
        is_complete = all(sizes.get(f"{record.path}/{name}") == size for name, size in needed.items())
        return is_complete and manifest["digest"] == record.digest

    def open(self, record: CheckpointRecord | None) -> Path | None:
        """Return a local folder with a recorded checkpoint; None if its files do not match the recorded digest.

        A checkpoint in remote storage is downloaded once.
        """
        if record is None:
            return None
        folder = self.folder / record.path
        if folder.is_dir() and compute_digest(folder) == record.digest:
            return folder
        return None if self._is_local else self._fetch(record.path, record.digest)

    def find(self, path: str) -> Path | None:
        """Return a local folder with the checkpoint at a path, whatever digest is recorded; None if there is none."""
        folder = self.folder / path
        if folder.is_dir():
            return folder
        return None if self._is_local else self._fetch(path)

    @contextlib.contextmanager
    def lend(self, path: str) -> Iterator[Path | None]:
        """Yield a local folder with the checkpoint at a path; a remote one is downloaded to a temporary folder."""
        folder = self.folder / path
        if self._is_local or folder.is_dir():
            yield folder if folder.is_dir() else None
            return
        with tempfile.TemporaryDirectory(prefix="rltune-checkpoint-") as parent:
            copy = Path(parent) / folder.name
            yield copy if self._download(path, copy) else None

    def drop(self, path: str) -> None:
        """Delete a checkpoint or a part of it, such as its replay memory; the manifest first, which marks it complete.

        A storage that does not answer is given up after seconds: the next driver drops what is left.
        """
        self.delete(f"{path}/{MANIFEST}", is_quick=True)
        with contextlib.suppress(FileNotFoundError):
            self.client.call(lambda filesystem: filesystem.delete_dir(self._path(path)), is_quick=True)
        if not self._is_local:
            shutil.rmtree(self.folder / path, ignore_errors=True)

    # -- Methods that share a sweep's files with other machines -------------------------------------------------------

    def publish(self, files: Iterable[str] | Mapping[str, str]) -> None:
        """Upload local files of the sweep for other machines; does nothing if the store is a local folder.

        Args:
            files: The files, relative to the sweep's folder; a mapping has those that are published under another name.
        """
        sources = files if isinstance(files, Mapping) else {name: name for name in files}
        for name, source in () if self._is_local else sources.items():
            self.write(name, (self.folder / source).read_bytes())

    def fetch(self, names: Iterable[str], *, is_quick: bool = False) -> None:
        """Download files that another machine has published; delete local copies of files that the storage lacks."""
        for name in () if self._is_local else names:
            content = self.read(name, is_quick=is_quick)
            if content is None:
                (self.folder / name).unlink(missing_ok=True)
            else:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                _replace_file(self.folder / name, content)

    @property
    def is_shared_folder(self) -> bool:
        """Whether all nodes use the same sweep folder, on a shared disk, rather than local copies from a bucket."""
        return self._is_local

    def can_see(self, path: str) -> bool:
        """Return whether a checkpoint that another machine saved is visible here; always True for remote storage."""
        folder = self.folder / path
        if not self._is_local or folder.is_dir():
            return True
        # Listing a folder makes an NFS client fetch new entries from its server.
        for parent in reversed(folder.parents):
            with contextlib.suppress(OSError):
                os.listdir(parent)
        return folder.is_dir()

    def make_unshared_error(self, problem: str) -> StoreError:
        """Make an `UnsharedStoreError` for a node that does not share the sweep's files with the other nodes.

        Args:
            problem: What is wrong, and on which node.
        """
        if self.address:
            return make_store_error(self.address, problem, UnsharedStoreError)
        return UnsharedStoreError(
            f": {problem}",
            "a folder on storage that all nodes of the cluster share, under the same path",
            "output_dir=/shared/outputs, or the same storage mounted there on each node",
            key="output_dir",
            value=self.folder.parent,
        )

    def list_folders(self, holding: str) -> dict[str, float]:
        """Find the folders that contain a certain file, with the file's modification time in seconds of the epoch."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._root, allow_not_found=True)
        folders = [
            info.base_name
            for info in self.client.call(lambda filesystem: filesystem.get_file_info(selector), is_quick=True)
            if not info.is_file
        ]
        paths = [self._path(f"{folder}/{holding}") for folder in folders]
        infos = self.client.call(lambda filesystem: filesystem.get_file_info(paths)) if paths else []
        times = zip(folders, infos, strict=True)
        return {folder: float(info.mtime_ns or 0) / 1e9 for folder, info in times if info.type == FileType.File}

    def check(self) -> None:
        """Raise an error if the bucket does not exist or does not answer.

        Raises:
            StoreError: The storage cannot be used.
        """
        from pyarrow.fs import FileType

        bucket = self._root.partition("/")[0]
        if bucket and (
            self.client.call(lambda filesystem: filesystem.get_file_info(bucket), is_quick=True).type
            == FileType.NotFound
        ):
            raise make_store_error(self.address or "", f"cannot be used: there is no bucket {bucket}", StoreError)

    # -- Private methods ----------------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _read_manifest(self, path: str) -> dict[str, Any] | None:
        """Read a checkpoint's manifest; None if it is missing, malformed, or names files outside of the checkpoint."""
        content = self.read(f"{path}/{MANIFEST}")
        try:
            manifest: dict[str, Any] = json.loads(content or b"null")
            is_valid = all(map(_is_inside, dict(manifest["files"]))) and isinstance(manifest["digest"], str)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return manifest if is_valid else None

    def _fetch(self, path: str, digest: str | None = None) -> Path | None:
        """Download a checkpoint into the local cache; None if it is incomplete or damaged.

        Args:
            path: The checkpoint.
            digest: The recorded one; None takes the manifest's.
        """
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetched-", dir=target.parent) as parent:
            draft = Path(parent) / "checkpoint"
            if not self._download(path, draft, digest):
                return None
            shutil.rmtree(target, ignore_errors=True)
            with contextlib.suppress(OSError):  # Another thread may have downloaded this checkpoint first.
                draft.rename(target)
        return target

    def _download(self, path: str, folder: Path, digest: str | None = None) -> bool:
        """Download a checkpoint, and return whether its files match the digest."""
        manifest = self._read_manifest(path)
        if manifest is None:
            return False

        def download(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):  # Comparing digests reveals the missing file later.
                self.client.call(lambda filesystem: _download(filesystem, self._path(f"{path}/{name}"), folder / name))

        _run_for_each(download, manifest["files"])
        return folder.is_dir() and compute_digest(folder) == (digest or manifest["digest"])


def open_store(folder: str | Path, address: str | None = None) -> Store:
    """Open the store of a sweep, in a local folder or in remote storage.

    Args:
        folder: The sweep's folder on this machine, or a worker's own one for the sweep.
        address: The sweep's address in remote storage, see `rltune.checkpoints.clients.make_address`; None where the
            folder itself is the store.
    """
    if address is None:
        return Store(Client(_open_local), folder)
    client, root = connect(address)
    return Store(client, root, Path(folder), address=address)


def _open_local() -> FileSystem:
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


def find_store(sweep: SweepIdentity) -> Store:
    """Open the store of a sweep; without ``storage``, the sweep's folder is the store."""
    return open_store(sweep.folder, make_address(sweep.storage, sweep.name) if sweep.storage else None)


def is_own_checkpoint(folder: Path) -> bool:
    """Return whether a checkpoint belongs to a sweep that this user has made, by the mark in the sweep's folder."""
    # The parents of a checkpoint's folder are its attempt, trial number and kind, and the sweep's folder.
    parents = folder.absolute().parents
    return len(parents) > 3 and parents[2].name in (TRIALS, CERTIFY) and is_own_sweep(parents[3])


def read_state(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's ``state.json``, which a worker has written."""
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def find_replay(folder: Path) -> Path | None:
    """Find the folder with a checkpoint's replay memories; None if it is missing or damaged."""
    digest, replay = read_state(folder).get(REPLAY), folder / REPLAY
    return replay if digest and replay.is_dir() and compute_digest(replay) == digest else None


def compute_digest(folder: str | Path) -> str:
    """Compute a checkpoint's digest: SHA-256 (hex) over the relative paths and contents of its files, in order.

    The manifest, which names the digest, is left out, and so is the folder ``replay/``, which may be dropped.
    """
    total, root = hashlib.sha256(), Path(folder)
    for path in sorted(path for path in root.rglob("*") if path.is_file() or path.is_symlink()):
        relative = path.relative_to(root)
        if relative.parts[0] in (REPLAY, MANIFEST):
            continue
        # Without the lengths, files "ab" + "c" and "a" + "bc" would have the same digest.
        name = relative.as_posix().encode()
        # The content behind a symbolic link could change unnoticed, so only its name enters the digest.
        if path.is_symlink():
            total.update(b"%d>%b" % (len(name), name))
            continue
        total.update(b"%d:%b%d:" % (len(name), name, path.stat().st_size))
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: total)
    return total.hexdigest()


def _list_folder(folder: Path) -> dict[str, tuple[Path, int]]:
    """List a local folder's files: map their relative names to their paths and sizes in bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): (path, path.stat().st_size) for path in files}


def _replace_file(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Write a local file atomically, by renaming a temporary file.

    Args:
        path: The file.
        content: What it is to hold.
        is_durable: Whether the file is to outlive a crash of the machine.
    """
    draft = path.with_name(f".{path.name.removeprefix('.')}-{secrets.token_hex(4)}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _upload(filesystem: FileSystem, file: Path, path: str) -> None:
    with file.open("rb") as source, filesystem.open_output_stream(path) as target:
        shutil.copyfileobj(source, target, CHUNK_BYTES)


def _download(filesystem: FileSystem, path: str, file: Path) -> None:
    with filesystem.open_input_stream(path) as source:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)


def _run_for_each(work: Callable[[str], None], names: Iterable[str]) -> None:
    """Call a function for each name in a thread pool; the first exception is raised."""
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        for _ in threads.map(work, names):
            pass


def _is_inside(name: str) -> bool:
    """Return whether a file's name stays inside its folder: a forged manifest could name files elsewhere."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts
