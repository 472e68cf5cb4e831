"""Send requests to a local or remote file system, and tell outages from other errors. Runs anywhere.

The time-outs of a request are settings of Arrow's client. Waiting for minutes is not: a request cannot be interrupted,
and Arrow makes no new client while a request of another one is under way. So a request fails within seconds and is sent
again, in a thread of its own: its caller still gets signals.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from rltune.background import call_in_thread
from rltune.config.buckets import BUCKETS, find_bucket_kind
from rltune.errors import Cause, StudyError, UnavailableError, describe_exception
from rltune.secrets import reveal

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

PATIENCE_S = 120.0  # How long failed requests are retried, long enough for a storage server to restart.
QUICK_S = 3.0  # How long failed requests are retried if the caller must not be delayed.
CONNECT_S, ANSWER_S = 3.0, 10.0  # Time-outs in seconds; a server under load may take seconds to answer.
RETRY_S = 1.0  # Seconds between two attempts of a request.
STORAGE_AWAY = "the storage does not answer"  # Why a sweep has ended if its storage was unreachable.
_OUTAGE = re.compile("|".join((r"HTTP status (code: )?(429|5\d\d)", *(kind.outage for kind in BUCKETS.values()))))
T = TypeVar("T")


class StoreError(StudyError):
    """The checkpoint storage, a disk or a bucket, cannot be used."""


class StoreUnavailableError(StoreError, UnavailableError):
    """The checkpoint storage does not answer at the moment; the same request may succeed later."""


class UnsharedStoreError(StoreError):
    """A node of the cluster cannot use the sweep's storage, or does not share it with the other nodes."""

    cause = Cause.OUTAGE  # Other nodes may run the trial.


class Client:
    """Runs requests on a file system that answers at once, such as a local disk; errors are passed on unchanged.

    Args:
        connect: Returns the file system.
    """

    def __init__(self, connect: Callable[[], FileSystem]) -> None:
        self._connect = connect

    def call(self, request: Callable[[FileSystem], T], *, is_quick: bool = False) -> T:
        """Run a request on the file system and return its result.

        Args:
            request: What to do with the file system.
            is_quick: Whether to give up after seconds instead of minutes where it does not answer.
        """
        return request(self._connect())

    def set_deadline(self, left_s: float) -> None:
        """Limit the time for all further requests; without effect on a local disk, which answers at once."""


class RemoteClient(Client):
    """Sends requests to remote storage, and retries failed ones until a time limit.

    The file system is connected at the first request: its threads do not survive a fork.

    Args:
        address: The storage, for errors.
        connect: Connects to it.
    """

    def __init__(self, address: str, connect: Callable[[], FileSystem]) -> None:
        super().__init__(functools.cache(connect))
        self._address, self._deadline = address, math.inf

    def set_deadline(self, left_s: float) -> None:
        """Stop retrying: from now on each request is sent once, and is abandoned when this time is over."""
        self._deadline = time.monotonic() + left_s

    def call(self, request: Callable[[FileSystem], T], *, is_quick: bool = False) -> T:
        """Send a request, retry it during outages, and return its result; the arguments are those of `Client.call`.

        Raises:
            FileNotFoundError: There is no such file.
            StoreUnavailableError: The storage does not answer.
            StoreError: It refuses.
        """
        give_up_at = time.monotonic() + (QUICK_S if is_quick else PATIENCE_S)
        while True:
            try:
                return call_in_thread(
                    lambda: request(self._connect()),
                    "store-request",
                    lambda: self._deadline < math.inf and time.monotonic() > min(self._deadline, give_up_at),
                    _let_process_exit,
                )
            except FileNotFoundError:
                raise
            except OSError as error:
                if not is_outage(error):
                    raise make_store_error(self._address, f"cannot be used ({_describe(error)})", StoreError) from None
                if self._deadline < math.inf or time.monotonic() >= give_up_at:
                    problem = f"does not answer ({_describe(error)})"
                    raise make_store_error(self._address, problem, StoreUnavailableError) from None
            time.sleep(RETRY_S)


def _let_process_exit() -> None:
    """Let the process exit while an abandoned request still runs: Arrow's exit handler would wait for it."""
    from pyarrow import fs

    if finalize := getattr(fs, "ensure_s3_finalized", None):
        atexit.unregister(finalize)


def is_outage(error: OSError) -> bool:
    """Return whether an error of remote storage is an outage, which may pass, rather than a refusal."""
    return isinstance(error, TimeoutError | ConnectionError) or bool(_OUTAGE.search(str(error)))


def make_address(storage: str, sweep: str = "") -> str:
    """Make a sweep's address in remote storage, which includes the server that environment variables name.

    With the server in the address, a worker needs no more of the environment than the credentials.

    Args:
        storage: The setting ``storage``.
        sweep: The sweep's name; "" is the folder of all sweeps.
    """
    address, _, query = reveal(storage).partition("?")
    servers = [os.environ.get(variable) for variable in find_bucket_kind(address).endpoint_variables]
    endpoint = next(filter(None, servers), None)
    if endpoint and "endpoint_override=" not in query:
        query = "&".join(filter(None, (query, f"endpoint_override={quote(endpoint, safe='')}")))
    return "/".join(filter(None, (address.rstrip("/"), sweep))) + (f"?{query}" if query else "")


@functools.cache  # Cached, because opening a connection takes 50 ms, and any number of threads can share it.
def connect(address: str) -> tuple[RemoteClient, str]:
    """Prepare one client for each remote address; it connects at its first request.

    Args:
        address: Such as ``s3://bucket/prefix/sweep``.

    Returns:
        The client, and the path in its file system.
    """
    parts = urlsplit(address)
    root = f"{parts.hostname or ''}{unquote(parts.path)}".rstrip("/")
    return RemoteClient(address, functools.partial(_open_filesystem, address)), root


def forget_clients() -> None:
    """Drop the cached clients, and with them their deadlines, so that the process can run another sweep."""
    connect.cache_clear()


def _open_filesystem(address: str) -> FileSystem:
    from pyarrow.fs import FileSystem

    try:
        if address.startswith("s3:"):
            return _open_s3(address)
        for option, value in find_bucket_kind(address).options.items():
            if f"{option}=" not in address:
                address += f"{'&' if '?' in address else '?'}{option}={value}"
        filesystem, _ = FileSystem.from_uri(address)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise make_store_error(address, f"cannot be used ({_describe(error)})", StoreError) from None
    return filesystem


def _open_s3(address: str) -> FileSystem:
    """Open an S3 client with the options of its address; Arrow's ``from_uri`` accepts no retries or time-outs."""
    from pyarrow import fs

    parts = urlsplit(address)
    options: dict[str, Any] = {
        name: value == "true" if value in ("true", "false") else value for name, value in parse_qsl(parts.query)
    }
    if parts.username and parts.password:
        options |= {"access_key": parts.username, "secret_key": parts.password}
    if "endpoint_override" not in options and "region" not in options:
        options["region"] = fs.resolve_s3_region(parts.hostname)
    return fs.S3FileSystem(
        **options,
        # Lets Arrow write a small file with one request instead of three.
        allow_delayed_open=True,
        connect_timeout=CONNECT_S,
        request_timeout=ANSWER_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(1),
    )


def make_store_error(address: str, problem: str, kind: type[StoreError]) -> StoreError:
    """Make an error that says what is wrong with a storage and how to give it valid credentials.

    Args:
        address: The storage.
        problem: What is wrong with it.
        kind: The error's class.
    """
    bucket = find_bucket_kind(address)
    return kind(
        problem,
        f"an existing bucket that answers, with the credentials in the environment of every node: {bucket.login}, "
        "or another login of the cloud's own tools",
        f"storage={bucket.example}",
        key="storage",
        value=address.partition("?")[0],
    )


def _describe(error: Exception) -> str:
    """Shorten an error of Arrow: drop its request ids and debugging details."""
    return re.split(r" \(Request ID|; Details:| error_info=", describe_exception(error))[0]
