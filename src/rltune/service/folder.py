"""The folder of a service, ``<output_dir>/.service``: its queue, id, token, address and the logs of its sweeps."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from rltune.errors import StudyError

# Environment variables with the address and the token of a service on another machine or in another folder.
ADDRESS, TOKEN = "RLTUNE_SERVICE", "RLTUNE_SERVICE_TOKEN"
FOLDER = ".service"
TOKEN_BYTES = 32  # With this many random bytes, no two services have the same id.
LOG_BYTES = 64 * 1024  # A response contains at most this much of a log.
TAIL_BYTES = 16 * 1024  # The error of a sweep that ended is searched in this many bytes at the end of its log.


class ServiceFolder:
    """The files of a service that remain when its process ends.

    Args:
        output_dir: The folder of its sweeps.
    """

    def __init__(self, output_dir: str | Path) -> None:
        self.sweeps = Path(output_dir).expanduser().absolute()
        self.path = self.sweeps / FOLDER

    @property
    def database_file(self) -> Path:
        """The SQLite file of the queue, used unless ``storage`` names a database."""
        return self.path / "service.db"

    @property
    def database(self) -> str:
        """The URL of the queue's SQLite file."""
        return f"sqlite:///{self.database_file}"

    def log_of(self, name: str) -> Path:
        """Return the log file with the output of all commands of a sweep."""
        return self.path / "logs" / f"{name}.log"

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Create the folder with access for its user only, and lock it against other services.

        Raises:
            StudyError: Another service holds it, or it cannot be made.
        """
        try:
            (self.path / "logs").mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise StudyError(
                f": {error.strerror}",
                "a folder that you may write into",
                "output_dir=outputs",
                key="output_dir",
                value=self.sweeps,
            ) from None
        with self._lock_file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StudyError(
                    f": a service runs here already, {self.read_address() or 'just starting'}",
                    "one service for each folder of sweeps",
                    "use it, or end it with Ctrl-C where it runs",
                    key="output_dir",
                    value=self.sweeps,
                ) from None
            yield

    @property
    def _lock_file(self) -> Path:
        return self.path / ".lock"

    def _is_held(self) -> bool:
        """Return whether a running service has locked the folder."""
        try:
            with self._lock_file.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def check_free(self) -> None:
        """Refuse a folder in which another service runs; create no folder of a service.

        Raises:
            StudyError: Another service has it.
        """
        if self.path.is_dir():
            with self.hold():
                pass

    def make_token(self) -> str:
        """Return the service's token; generate it if the folder has none."""
        return self._read_or_make("token")

    def make_id(self) -> str:
        """Return the service's unique id; generate it if the folder has none.

        The id stays with the folder when it is moved, and two folders of the same path on two machines differ in it.
        """
        return self._read_or_make("id")

    def _read_or_make(self, file_name: str) -> str:
        """Return the random text in a file; generate it if the file is missing or was truncated by a crash.

        A token that is empty or too short must not count: anybody could send an empty token.
        """
        file = self.path / file_name
        text = _read_text(file) or ""
        if len(text) < TOKEN_BYTES:
            text = secrets.token_urlsafe(TOKEN_BYTES)
            draft = self.path / f".{file_name}"
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as content:
                content.write(text)
                content.flush()
                os.fsync(content.fileno())
            draft.rename(file)
        file.chmod(0o600)
        return text

    @property
    def token_file(self) -> Path:
        """The path of the file with the service's token."""
        return self.path / "token"

    def read_token(self) -> str | None:
        """Return the service's token; None if there is none or this user may not read it."""
        return _read_text(self.token_file)

    def write_address(self, address: str) -> None:
        """Write the service's address into the folder, for commands on the same host."""
        draft = self.path / ".address"
        draft.write_text(json.dumps({"address": address, "host": socket.gethostname()}))
        draft.rename(self.path / "address.json")

    def clear_address(self) -> None:
        """Delete the file with the service's address when the service ends."""
        (self.path / "address.json").unlink(missing_ok=True)

    def read_address(self) -> str | None:
        """Return the address of the service that runs on this host; None if none runs.

        The file outlives a service that was killed, and then anybody may listen on its port. So it counts only while
        the service holds its lock, and only on the service's own host, since the address is usually a loopback one.
        """
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads((self.path / "address.json").read_text())
            if content["host"] == socket.gethostname() and self._is_held():
                return str(content["address"])
        return None

    def read_log(self, name: str, start: int = 0) -> tuple[str, int]:
        """Read a part of a sweep's log from a byte offset.

        Args:
            name: The sweep.
            start: The first byte to read; a negative number counts from the end.

        Returns:
            The text, at most `LOG_BYTES` of it, and the byte at which the next part begins. The text ends with a whole
            line if it ends before the log does.
        """
        try:
            with self.log_of(name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = file.seek(min(start, size) if start >= 0 else max(0, size + start))
                content = file.read(LOG_BYTES)
        except FileNotFoundError:
            return "", 0
        if begin + len(content) < size:
            content = content[: content.rfind(b"\n") + 1] or content
        return content.decode(errors="replace"), begin + len(content)


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
