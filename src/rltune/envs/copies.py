"""Tell the living copies of environments apart: each has a number, a port, a folder or a server of its own.

Most simulators hold a port, a licence or a folder. The copies of all trials, seeds, env runners, evaluations, checks
and films of all sweeps of a user on a machine take them from one file of locks, without a server in between. The locks
are record locks on single bytes of that file: the kernel frees them when their process ends, even by SIGKILL, and a
forked process does not inherit them, so that a simulator's own child never keeps the number of a copy that is gone. (A
``flock`` survives in forked processes.) Record locks end as soon as their process closes any descriptor of the file, so
each process opens it once and never closes it.

Where copies are bounded (``env.max_copies``, ``one_of``), a trial that had some copies and waited for others, beside
another such trial, would wait for ever. So whoever wants copies stands in a queue until it has all of them.

Runs in every process that makes environments.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import pickle
import shutil
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltune.envs.guest import call_guest
from rltune.envs.spec import CONTEXTS, MAX_NUMBERS, MAX_PORT, EnvSpec, spell_element
from rltune.errors import ConfigError, UnavailableError

logger = logging.getLogger(__name__)

VARIABLE = "RLTUNE_COPIES"
"""Environment variable with the folder of the locks, where /tmp is not one for all processes of the machine."""

WAIT_S = 300.0  # A check, an evaluation or a script waits for a free copy at most this long; a trial waits on.
POLL_S = 0.2
NOT_MOVED = "each copy has a number of its own (env.per_copy, env.max_copies)"
# The bytes of the file of locks, by what they stand for. A byte need not exist to be locked.
PORTS, SLOTS, ELEMENTS, QUEUE = 2**20, 2**21, 2**40, 2**50


class _Locks:
    """The locks of this process on the file of locks in one folder. Any thread may use them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / "locks"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.forget()

    def forget(self) -> None:
        """Forget all locks, which this process has not inherited from the one that has forked it."""
        self._held: set[int] = set()
        self._guard = threading.Lock()  # The forking process may have held the other one.

    def is_current(self) -> bool:
        """Return whether the file is still the one in the folder, and keep it from looking abandoned."""
        with contextlib.suppress(OSError):
            os.utime(self._file)  # Old files in /tmp are deleted on many systems.
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        return False

    def lock(self, bytes_: Iterable[int]) -> bool:
        """Lock all of the bytes, or none if another copy has one of them; return whether they are locked."""
        done: list[int] = []
        with self._guard:
            for byte in bytes_:
                if byte in self._held or not self._lock_byte(byte):
                    self._unlock(done)
                    return False
                self._held.add(byte)
                done.append(byte)
        return True

    def unlock(self, bytes_: Iterable[int]) -> None:
        """Free bytes that this process has locked."""
        with self._guard:
            self._unlock(bytes_)

    def holds(self, byte: int) -> bool:
        """Return whether this process has locked a byte."""
        return byte in self._held

    def _lock_byte(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise _make_folder_error(self.folder, error) from error
        return True

    def _unlock(self, bytes_: Iterable[int]) -> None:
        for byte in bytes_:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
            self._held.discard(byte)


_opened: dict[Path, _Locks] = {}
_opening = threading.Lock()


def _forget_after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    for locks in _opened.values():
        locks.forget()


os.register_at_fork(after_in_child=_forget_after_fork)


def find_folder() -> Path:
    """Return the folder with the locks and folders of all copies of this user on this machine.

    It is not the system's temporary folder: batch systems give each job one of its own, where a job's copies would not
    see those of another job on the same machine.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    return Path(f"/tmp/rltune-{os.getuid()}/copies")  # noqa: S108 - `_require_own` refuses another user's folder


def _open_locks() -> _Locks:
    folder = find_folder()
    with _opening:
        locks = _opened.get(folder)
        if locks is None or not locks.is_current():
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if VARIABLE not in os.environ:
                    _require_own(folder.parent)
                    folder.parent.chmod(0o700)
                locks = _opened[folder] = _Locks(folder)
            except OSError as error:
                raise _make_folder_error(folder, error) from error
    return locks


def _require_own(folder: Path) -> None:
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to another user")


def _make_folder_error(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        VARIABLE,
        folder,
        f"cannot hold the locks of copies: {error.strerror}",
        "a folder of yours, the same for all processes of this machine",
        f"export {VARIABLE}=/path/to/folder",
    )


@dataclass(frozen=True)
class _Place:
    """What a living copy has: its number, the locked bytes, and the element of each ``one_of`` by its argument."""

    number: int
    bytes: tuple[int, ...]
    elements: Mapping[str, Any]
    locks: _Locks
    pid: int


def _list_pools(spec: EnvSpec) -> dict[str, list[tuple[int, Any]]]:
    """List what bounds the copies: by its setting the bytes of which each copy needs one, with what each stands for."""
    pools: dict[str, list[tuple[int, Any]]] = {}
    if spec.max_copies is not None:
        # From the end, so that sweeps with a smaller bound find free ones at the beginning.
        pools["env.max_copies"] = [(SLOTS + slot, None) for slot in reversed(range(spec.max_copies))]
    for name, form in spec.per_copy.items():
        if isinstance(form, Sequence) and form[0] == "one_of":
            pool = pools[f"env.per_copy.{name}"] = []
            for element in form[1:]:
                digest = hashlib.sha256(spell_element(element).encode()).digest()
                pool.append((ELEMENTS + int.from_bytes(digest[:5], "big"), element))
    return pools


def _assign(spec: EnvSpec, locks: _Locks) -> _Place | None:
    """Lock what one more copy needs; return None, with nothing locked, if something that it needs is not free."""
    taken: list[int] = []
    elements: dict[str, Any] = {}
    for key, pool in _list_pools(spec).items():
        free = next(((byte, element) for byte, element in pool if locks.lock([byte])), None)
        if free is None:
            locks.unlock(taken)
            return None
        taken.append(free[0])
        elements[key.rpartition(".")[2]] = free[1]
    firsts = [form[1] for form in spec.per_copy.values() if isinstance(form, Sequence) and form[0] == "port"]
    # Ports are locked, too: the numbers of two ranges of ports that overlap would lead to the same port.
    for number in range(min([MAX_NUMBERS, *(MAX_PORT + 1 - first for first in firsts)])):
        if locks.lock(needed := [number, *(PORTS + first + number for first in firsts)]):
            _remove_leftovers(locks, number)
            return _Place(number, (*taken, *needed), elements, locks, os.getpid())
    locks.unlock(taken)
    return None


def _remove_leftovers(locks: _Locks, own: int) -> None:
    """Remove the folders of copies whose processes were killed, also of the one that had a new copy's own number."""
    for path in locks.folder.iterdir():
        if path.name == str(own):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.isdecimal() and locks.lock([int(path.name)]):
            shutil.rmtree(path, ignore_errors=True)
            locks.unlock([int(path.name)])


class Copy:
    """One copy of an environment. It keeps its number until `release`, however often it is made again.

    Args:
        spec: The environment.
        worker_index: RLlib's number of the env runner that steps it.
        vector_index: Its place among the copies that step together.
        is_queued: Whether somebody stands in the queue for it already (`wait_for_copies`), as a trial does for all of
            its copies.
    """

    def __init__(self, spec: EnvSpec, worker_index: int = 0, vector_index: int = 0, *, is_queued: bool = False) -> None:
        self.spec, self.worker_index, self.vector_index = spec, worker_index, vector_index
        self._is_queued = is_queued
        self._taken: _Place | None = None

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle a copy that has no number; another process cannot have this one's."""
        if self._taken is not None:
            raise pickle.PicklingError(NOT_MOVED)
        return _restore, (self.spec, self.worker_index, self.vector_index, self._is_queued)

    @property
    def number(self) -> int:
        """The smallest number that no other living copy on this machine has."""
        return self._take().number

    def make_arguments(self) -> dict[str, Any]:
        """Return what the constructor gets for this copy alone; its folder is made anew, and empty.

        Raises:
            UnavailableError: All copies that may live at once are in use, see `wait_for_copies`.
        """
        arguments: dict[str, Any] = {}
        for name in CONTEXTS:
            if isinstance(value := self.spec.kwargs.get(name), Mapping):
                arguments[name] = _make_context(value, self.worker_index, self.vector_index)
        if not self.spec.is_numbered:
            return arguments
        place = self._take()
        for name, form in self.spec.per_copy.items():
            kind = form if isinstance(form, str) else form[0]
            if kind == "number":
                arguments[name] = place.number
            elif kind == "port":
                arguments[name] = form[1] + place.number
            elif kind == "one_of":
                arguments[name] = place.elements[name]
            else:
                folder = place.locks.folder / str(place.number) / name
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(mode=0o700, parents=True)
                arguments[name] = str(folder)
        return arguments

    def release(self) -> None:
        """Free the number for other copies, and remove the copy's folder; does nothing in a forked process."""
        place, self._taken = self._find_place(), None
        if place is not None:
            shutil.rmtree(place.locks.folder / str(place.number), ignore_errors=True)
            place.locks.unlock(place.bytes)

    def take(self) -> Copy:
        """Take a number now, and return this copy, which keeps it until it is made."""
        self._take()
        return self

    def take_if_free(self) -> bool:
        """Take a number if a copy may be made now; return whether this copy has one, or needs none."""
        if not self.spec.is_numbered:
            return True
        self._taken = self._find_place() or _assign(self.spec, _open_locks())
        return self._taken is not None

    def _find_place(self) -> _Place | None:
        """Return what this copy has; a forked process has inherited this object, but not its number."""
        return self._taken if self._taken is not None and self._taken.pid == os.getpid() else None

    def _take(self) -> _Place:
        if (place := self._find_place()) is not None:
            return place
        with contextlib.nullcontext() if self._is_queued else wait_for_copies(self.spec):
            wait = _Wait(self.spec, 1)
            while not self.take_if_free():
                wait.pause()
        assert self._taken is not None
        return self._taken


def _restore(spec: EnvSpec, worker_index: int, vector_index: int, is_queued: bool) -> Copy:
    return Copy(spec, worker_index, vector_index, is_queued=is_queued)


def take_copies(spec: EnvSpec, count: int) -> list[Copy]:
    """Take the numbers of copies that step together: all of them at once, and none while it waits.

    Args:
        spec: The environment.
        count: How many there are to be.

    Raises:
        ConfigError: There can never be so many.
        UnavailableError: They were not free for `WAIT_S`.
    """
    copies = [Copy(spec, vector_index=index, is_queued=True) for index in range(count)]
    with wait_for_copies(spec, count):
        wait = _Wait(spec, count)
        while not all(copy.take_if_free() for copy in copies):
            for copy in copies:
                copy.release()
            wait.pause()
    return copies


@contextlib.contextmanager
def wait_for_copies(
    spec: EnvSpec,
    count: int = 1,
    limit_s: float | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> Iterator[float]:
    """Stand in the queue until so many copies are free, and make them in the ``with`` block.

    Whoever waits comes before those who come later, and nobody who has copies that are needed stands in the queue. So
    trials and sweeps that together want more copies than there may be neither wait for each other nor fail.

    Args:
        spec: The environment. Where nothing bounds its copies, nothing is waited for.
        count: How many.
        limit_s: For how long to wait; None is `WAIT_S`.
        on_wait: Called several times a second while it waits.

    Yields:
        For how long it has waited, in seconds.

    Raises:
        ConfigError: There can never be so many.
        UnavailableError: They were not free in time.
    """
    queue = sorted({QUEUE + byte for pool in _list_pools(spec).values() for byte, _ in pool})
    limit = spec.copy_limit
    if limit is not None and count > limit[1]:
        raise make_limit_error(spec, count, "that step together")
    locks = _open_locks() if queue else None
    if locks is None or locks.holds(queue[0]):  # A thread or a caller of this process stands there already.
        yield 0.0
        return
    wait, standing = _Wait(spec, count, limit_s, on_wait), list[int]()
    try:
        for byte in queue:  # All of them go along the queues in the same order, so that nobody waits in a circle.
            while not locks.lock([byte]):
                wait.pause()
            standing.append(byte)
        while not _are_free(spec, count, locks):
            wait.pause()
        yield wait.elapsed_s
    finally:
        locks.unlock(standing)


def _are_free(spec: EnvSpec, count: int, locks: _Locks) -> bool:
    places: list[_Place] = []
    while len(places) < count and (place := _assign(spec, locks)) is not None:
        places.append(place)
    locks.unlock(byte for place in places for byte in place.bytes)
    return len(places) == count


class _Wait:
    """A wait for copies, which says so once, and ends with an error after its limit."""

    def __init__(
        self, spec: EnvSpec, count: int, limit_s: float | None = None, on_pause: Callable[[], None] = lambda: None
    ) -> None:
        self._spec, self._count, self._on_pause = spec, count, on_pause
        self._limit_s = WAIT_S if limit_s is None else limit_s
        self._began: float | None = None

    @property
    def elapsed_s(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def pause(self) -> None:
        """Wait for a moment.

        Raises:
            UnavailableError: The limit is reached.
        """
        key, limit = self._spec.copy_limit or ("env.per_copy", MAX_NUMBERS)
        if self._began is None:
            self._began = time.monotonic()
            logger.warning("waiting for a free copy of %s: %s allows %d at once", self._spec.id, key, limit)
        if self.elapsed_s > self._limit_s:
            raise UnavailableError(
                f"allows {limit} copies at once, and other processes of yours use them: fewer than {self._count} of "
                f"{self._spec.id} were free for {self._limit_s:.0f} s",
                "copies that other trials, evaluations and sweeps leave free",
                "the same command again when they have ended, or a larger env.max_copies or list in env.per_copy, or a "
                "smaller algo.env_runners.num_envs_per_env_runner in the other sweep",
                key=key,
                value=limit,
            )
        self._on_pause()
        with call_guest("wait for a free copy", self._began):  # Each such call is a sign of life.
            time.sleep(POLL_S)


def make_limit_error(spec: EnvSpec, count: int, what: str, fewer: str = "") -> ConfigError:
    """Make the error for more copies than a machine may ever have at once.

    Args:
        spec: The environment, whose copies are bounded.
        count: How many are wanted.
        what: What they are, with the settings that say how many.
        fewer: Smaller values of these settings that fit together.
    """
    key, limit = spec.copy_limit or ("env.max_copies", 0)
    if key == "env.max_copies":
        value, fix = limit, f"{key}={count}"
    else:
        value = spec.per_copy[key.rpartition(".")[2]]
        fix = f"'++{key}=[port,5005]'" if value[0] == "port" else f"'++{key}=[one_of,...]' with {count} elements"
    problem = f"allows {limit} copies at once, which is less than the {count} {what}"
    return ConfigError(key, value, problem, f"at least {count}", f"{fewer}, or {fix}" if fewer else fix)


class ReleasingClose:
    """The ``close`` of an environment that is a numbered copy: it closes the environment, and then frees the number.

    Args:
        close: The environment's own.
        copy: The copy that it is.
    """

    def __init__(self, close: Callable[[], None], copy: Copy) -> None:
        self._close, self._copy = close, copy

    def __call__(self) -> None:
        """Close the environment, and free the number whether or not that raises."""
        try:
            self._close()
        finally:
            self._copy.release()

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Refuse to be pickled or copied with the environment, as the copy itself does."""
        raise pickle.PicklingError(NOT_MOVED)


def release_on_close(env: Any, copy: Copy) -> Any:
    """Return an environment that frees the copy's number, if it has one, when it is closed or garbage.

    Args:
        env: An environment of one or of several agents, with all of its wrappers.
        copy: The copy that it is.
    """
    if not copy.spec.is_numbered:
        return env
    if copy.spec.policies is None:
        import gymnasium

        # Were its own ``close`` replaced, the environment would refer to itself, and be garbage only when Python looks.
        env = gymnasium.Wrapper(env)
        env.close = ReleasingClose(env.env.close, copy)
    else:
        env.close = ReleasingClose(env.close, copy)
    weakref.finalize(env, copy.release)
    return env


def build_own(copy: Copy, make: Callable[[Copy], Any]) -> Any:
    """Build an environment that releases its copy when it is closed; the copy is also released if it cannot be built.

    Args:
        copy: The copy that it is.
        make: Builds it with all of its wrappers.
    """
    try:
        return release_on_close(make(copy), copy)
    except BaseException:
        copy.release()
        raise


def build_copy(spec: EnvSpec, copy: Copy | None, make: Callable[[Copy], Any]) -> Any:
    """Build an environment as a copy that the caller releases, or, with None, as one that releases itself."""
    return build_own(Copy(spec), make) if copy is None else make(copy)


class _Context(dict[str, Any]):
    """A stand-in for RLlib's ``EnvContext`` where RLlib is not loaded, with the attributes that environments read."""

    def __init__(self, env_config: Mapping[str, Any], worker_index: int, vector_index: int = 0) -> None:
        super().__init__(env_config)
        self.worker_index, self.vector_index, self.num_workers = worker_index, vector_index, None
        self.remote = self.recreated_worker = False


def _make_context(values: Mapping[str, Any], worker_index: int, vector_index: int) -> dict[str, Any]:
    module = sys.modules.get("ray.rllib.env.env_context")  # Importing RLlib would take seconds.
    kind: Any = _Context if module is None else module.EnvContext
    context: dict[str, Any] = kind(values, worker_index, vector_index)
    return context
