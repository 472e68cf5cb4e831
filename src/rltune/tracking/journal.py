"""Keep what MLflow has yet to receive in a file that survives the driver."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltune.config.uris import redact

Op = dict[str, Any]

JOURNAL = "reports.jsonl"
DAMAGED = "reports.damaged"
JOINING = ("report", "progress")  # operations that may be sent together


def to_plain(value: Any, secrets: Sequence[str] = ()) -> Any:
    """Return a value as JSON gives it back, without logins: what is sent now equals what a crash would leave."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, secrets) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return to_plain(value.item(), secrets)
    return redact(str(value), secrets)


@dataclass
class Call:
    """A function that the driver waits for, called by the sender thread in its turn."""

    function: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    cancelled: bool = False
    result: Any = None
    error: Exception | None = None

    def run(self) -> None:
        """Call the function, unless nobody waits any more."""
        if not self.cancelled:
            try:
                self.result = self.function()
            except Exception as error:
                self.error = error
        self.done.set()


@dataclass(eq=False)
class QueuedOperation:
    """One operation on its way; ``offset`` is its first byte in the journal, None when it is only in memory."""

    op: Op
    offset: int | None = None
    call: Call | None = None
    queued: float = field(default_factory=time.monotonic)

    def can_join(self, first: QueuedOperation) -> bool:
        """Return whether this may be sent in one request with ``first``: reports of one trial may."""
        return (
            self.op.get("op") == first.op.get("op") in JOINING
            and self.op.get("trial") == first.op.get("trial")
            and not self.call
        )


class Journal:
    """Operations on disk as JSON lines. A line that was sent starts with ``-`` instead of ``{``.

    Lines are handed to the operating system, not flushed to the disk: they survive the process, not a power cut.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self._file: int | None = None
        self._size = 0

    def open(self) -> tuple[list[QueuedOperation], int]:
        """Open the file; return what an earlier driver left unsent, and how many damaged lines were put aside."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        unsent: list[QueuedOperation] = []
        damaged: list[tuple[int, bytes]] = []
        for line in self.path.read_bytes().splitlines(keepends=True):
            if not line.startswith(b"-") and line.strip():
                op = self._decode(line)
                if op is None:
                    damaged.append((self._size, line))
                else:
                    unsent.append(QueuedOperation(op, self._size))
            self._size += len(line)
            if not line.endswith(b"\n"):  # cut short by a kill: the next line must not be glued to it
                os.pwrite(self._file, b"\n", self._size)
                self._size += 1
        self._put_aside(damaged)
        return unsent, len(damaged)

    def _put_aside(self, damaged: Sequence[tuple[int, bytes]]) -> None:
        if damaged and self._file is not None:
            with (self.path.parent / DAMAGED).open("ab") as aside:
                aside.writelines(line.rstrip(b"\n") + b"\n" for _, line in damaged)
            for offset, _ in damaged:
                os.pwrite(self._file, b"-", offset)

    @staticmethod
    def _encode(op: Op) -> bytes:
        text = json.dumps(op)
        return f'{{"crc": {zlib.crc32(text.encode())}, "op": {text}}}\n'.encode()

    @staticmethod
    def _decode(line: bytes) -> Op | None:
        try:
            record = json.loads(line)
            op: Op = record["op"]
            return op if zlib.crc32(json.dumps(op).encode()) == record["crc"] else None
        except (ValueError, KeyError, TypeError):
            return None

    def append(self, op: Op) -> int | None:
        """Append an operation and return its offset; None when the disk does not take it."""
        if self._file is None:
            return None
        line, offset = self._encode(op), self._size
        try:
            if os.pwrite(self._file, line, offset) != len(line):
                raise OSError("disk full")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, offset)
            return None
        self._size += len(line)
        return offset

    def strike_out(self, operations: Sequence[QueuedOperation], *, empty: bool) -> None:
        """Mark operations as sent; ``empty`` says that nothing is left and the file may start anew."""
        if self._file is None:
            return
        if empty:
            os.ftruncate(self._file, 0)
            self._size = 0
            return
        for operation in operations:
            if operation.offset is not None:
                os.pwrite(self._file, b"-", operation.offset)

    def close(self, *, empty: bool) -> None:
        """Close the file, and remove it when nothing is in it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if empty:
                self.path.unlink(missing_ok=True)
