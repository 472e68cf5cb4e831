"""The one door through which code of the user's is called: environments, wrappers, objectives, and their modules.

The environment is a guest: it may raise, call ``sys.exit``, hang or print, and was never written for a framework. The
door names the call, keeps its time, and raises a `GuestError` with a cause for whatever comes out of it. Seldom calls,
such as an import, ``make`` or ``reset``, go through `call_guest`. In hot loops the door stands around the loop, since a
``try`` costs nothing until it catches: the loop catches `GUEST_FAULTS`, and `make_fault` names the call, the step and
the copy then.

Runs wherever the user's code runs, which is never the driver's process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import importlib.metadata
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from rltune.errors import GUEST_FAULTS, Cause, GuestError, RltuneError, describe_exception, read_text

ONE_PORT_EACH = (
    "a port for each copy that no other copy or program uses",
    "'++env.per_copy.port=[port,5005]' for an argument port of the constructor, or env.max_copies=1 if only one copy "
    "may live on a machine",
)
"""What is allowed, and what to type, where an address is in use."""

FOLLOWS_SEED = (
    "failures that do not follow the episode's seed, or an episode that ends there",
    "unless what it runs on is away, let the environment draw its failures from a generator that no seed sets, such as "
    "numpy.random.default_rng() in place of self.np_random, or return truncated=True where it raises",
)
"""What is allowed, and what to do, where an episode fails at the same step each time it is played from its seed."""

STACK = ("rltune", "gymnasium", "pettingzoo", "ray", "torch", "numpy", "omegaconf")
"""Packages whose lines in a traceback are not the user's own."""

LIBRARY = Path(sysconfig.get_paths()["stdlib"])


class RunningCall:
    """The call into the user's code that runs in this process; another thread may read it to say what hangs.

    Attributes:
        name: The innermost call, such as ``make of copy 3``; empty outside of the user's code.
        since: When it began, on the monotonic clock.
        count: How many calls have begun, each of which is a sign of life.
        on_begin: Called with the name of each call as it begins.
    """

    def __init__(self) -> None:
        self.name, self.since, self.count = "", 0.0, 0
        self.on_begin: Callable[[str], None] = lambda name: None


RUNNING = RunningCall()

ARGUMENTS = ("rltune", "--this-module-is-imported-as-an-environment")
"""The command line that modules of the user's see, which is the same in the check, in trials and in evaluations. A
module that reads it when it is imported refuses it, or finds no option of its own."""


class _CommandLine(list[str]):
    """A command line that knows whether its arguments were read."""

    was_read = False

    def __getitem__(self, index: Any) -> Any:
        self.was_read |= index != 0
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[str]:
        self.was_read = True
        return super().__iter__()


def import_guest(name: str) -> ModuleType:
    """Import a module of the user's through the door.

    Raises:
        GuestError: It cannot be imported; says where to put a module that is missing, and names a command line that it
            reads, as training scripts do.
    """
    if (module := sys.modules.get(name)) is not None:
        return module
    typed, line = sys.argv, _CommandLine(ARGUMENTS)
    sys.argv = line
    try:
        with call_guest(f"import of {name}"):
            return importlib.import_module(name)
    except GuestError as fault:
        package = name.partition(".")[0]
        if isinstance(fault.__cause__, ModuleNotFoundError) and fault.__cause__.name == package:
            raise fault.rewrite(
                f"module '{name}' cannot be imported: {fault.__cause__}",
                "an installed package, or a file that Python finds",
                f"put {package}.py into this folder or on PYTHONPATH, or install the package that has it",
            ) from fault.__cause__
        if not line.was_read or isinstance(fault.__cause__, ImportError):
            raise
        raise fault.rewrite(
            f"the module {name} reads a command line when it is imported: {fault.problem}",
            "a module that only defines things when it is imported",
            'put what reads the command line below if __name__ == "__main__":',
        ) from None
    finally:
        if sys.argv is line:
            sys.argv = typed


@contextlib.contextmanager
def call_guest(call: str, since: float | None = None) -> Iterator[None]:
    """Run a call into the user's code in the ``with`` block.

    Args:
        call: The call's name, such as ``reset`` or ``import of my_project.walk``.
        since: When what it goes on with began, on the monotonic clock; None: now.

    Raises:
        GuestError: The code has raised or called ``sys.exit``. An `RltuneError` of our own passes as it is.
    """
    outer, began = (RUNNING.name, RUNNING.since), time.monotonic() if since is None else since
    RUNNING.name, RUNNING.since, RUNNING.count = call, began, RUNNING.count + 1
    RUNNING.on_begin(call)
    try:
        yield
    except GUEST_FAULTS as error:
        raise_fault(error, call, elapsed_s=time.monotonic() - began)
    finally:
        RUNNING.name, RUNNING.since = outer


def make_fault(error: BaseException, call: str, *, elapsed_s: float = 0.0) -> RltuneError:
    """Make the error for an exception of the user's code, which names the call and the last line of that code.

    An error of ours is returned itself; one about what a call has returned, such as a `RewardError`, then names the
    call.

    Args:
        error: One of `GUEST_FAULTS`.
        call: The call's name.
        elapsed_s: How long the call took, in seconds.
    """
    if isinstance(error, GuestError) and call and not error.call:
        RltuneError.__init__(error, f"{error.problem} by {call}", error.allowed, error.fix)
        error.call = call
    if isinstance(error, RltuneError):
        return error
    place = find_place(error)
    if isinstance(error, SystemExit):
        what = f"calls sys.exit({'' if error.code is None else repr(error.code)})"
        allowed, fix = "code that raises an exception where something is wrong", "raise RuntimeError(...) in its place"
    else:
        what = f"fails with {describe_exception(error)}"
        allowed, fix = "an environment that is made, reset, stepped and closed without an exception", "correct it"
        if is_address_in_use(error):
            allowed, fix = ONE_PORT_EACH
        elif (library := find_outdated(error)) is not None:
            (name, version), author = library, _find_distribution(_list_own_frames(error)[-1].filename)
            what = f"{what}, which {name} {version} does not have"
            allowed = f"an environment and a version of {name} that go together"
            older = f"pip install '{name}<{'.'.join(version.split('.')[:2])}' or older"
            newer = f"pip install --upgrade {author}" if author else f"correct {place}"
            fix = f"{newer}, or {older}, if pip check then names no conflict"
    at = f" ({place})" if place else ""
    subject = call or "a call into the environment"
    return GuestError(f"{subject} {what}{at}", allowed, fix, call=call, place=place, elapsed_s=elapsed_s)


def raise_fault(error: BaseException, call: str, *, elapsed_s: float = 0.0) -> NoReturn:
    """Raise what `make_fault` makes of an exception, or of the one that it carries, for the traceback's sake from it.

    An error of ours keeps its own cause: Tune (2.60) follows causes without end if one leads back to itself. A signal
    is none of the user's and passes.
    """
    if is_termination(error):
        raise error
    root = find_root(error)
    fault = make_fault(root, call, elapsed_s=elapsed_s)
    raise fault from (fault.__cause__ if fault is root else root)


def is_address_in_use(error: BaseException) -> bool:
    """Return whether an exception says, itself or by what it follows from, that an address is already in use."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and not any(link is other for other in seen):
        if isinstance(link, OSError) and link.errno == errno.EADDRINUSE:
            return True
        seen.append(link)
        link = link.__cause__ or link.__context__
    return False


def is_termination(error: BaseException) -> bool:
    """Return whether an exception is how a Ray worker ends on SIGTERM: its handler calls ``sys.exit`` (Ray 2.60)."""
    frames = traceback.extract_tb(error.__traceback__) if isinstance(error, SystemExit) else []
    return bool(frames) and Path(frames[-1].filename).name == "_raylet.pyx"


def find_root(error: BaseException) -> BaseException:
    """Return the error of ours that an exception carries, or else the innermost one that others have only wrapped.

    An exception that others raise while they handle one of ours is about it: RLlib (2.60) copies exceptions, and those
    of some constructors cannot be copied.
    Ray gives what a remote process has raised as ``cause``, Gymnasium raises what a process has raised with the
    exception as its argument, and RLlib raises a RuntimeError without a text from an environment's exception.
    """
    chain, root = [error], error
    while (inner := _unwrap(chain[-1])) is not None and not any(inner is seen for seen in chain):
        if root is chain[-1] and (inner is not root.__cause__ or not read_text(root).strip()):
            root = inner
        chain.append(inner)
    context = error.__context__ and find_root(error.__context__)
    ours = (link for link in [*chain, context] if isinstance(link, RltuneError))
    return next(ours, root)


def _unwrap(error: BaseException) -> BaseException | None:
    inner = (vars(error).get("cause"), *error.args[:1], error.__cause__)
    return next((link for link in inner if isinstance(link, BaseException)), None)


def find_place(error: BaseException) -> str:
    """Return the last line of the user's own code in a traceback, such as ``walk.py, line 42``; empty if none is."""
    own = _list_own_frames(error)
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


def _list_own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """List the frames of the user's own code in a traceback, and those of its libraries that look no name up."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.name != "__getattr__" and not _is_of_stack(frame.filename)
    ]


def is_raised_within(error: BaseException, env: Any) -> bool:
    """Return whether a method of an environment, or of one of the layers in it, was running when an error was raised.

    Wrappers around it call it, so that none of its methods runs where one of theirs fails by itself.
    """
    import gymnasium

    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        first = frame.f_locals.get(arguments[0]) if arguments else None
        if any(first is layer for layer in layers):
            return True
    return False


def find_outdated(error: BaseException) -> tuple[str, str] | None:
    """Return name and version of the installed library that lacks what the user's code takes from it; else None.

    It lacks a module, a name in a module or an attribute, as libraries drop them between versions.
    """
    if isinstance(error, ImportError):
        lacking = error.name or ""
        if lacking not in sys.modules and not isinstance(error, ModuleNotFoundError):
            return None  # The module is there and cannot be loaded, such as for want of a system library.
    elif not isinstance(error, AttributeError):
        return None
    elif isinstance(error.obj, ModuleType):
        lacking = error.obj.__name__
    elif error.obj is not None:
        lacking = (error.obj if isinstance(error.obj, type) else type(error.obj)).__module__
    else:  # A module's own `__getattr__` raises without saying of what.
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_lookup = frame.f_code.co_name == "__getattr__" and "self" not in frame.f_locals
        lacking = frame.f_globals["__name__"] if is_lookup else ""
    package = lacking.partition(".")[0]
    module, own = sys.modules.get(package), _list_own_frames(error)
    if module is None or package in sys.stdlib_module_names or not own:
        return None
    names = _list_distributions().get(package, [])
    if not names or _find_distribution(own[-1].filename) in names:
        return None
    return names[0], importlib.metadata.version(names[0])


@functools.cache
def _list_distributions() -> dict[str, list[str]]:
    return {package: list(names) for package, names in importlib.metadata.packages_distributions().items()}


def _find_distribution(file: str) -> str:
    """Return the distribution that has installed a file; empty for a file of the user's own."""
    parts = Path(file).parts
    if "site-packages" not in parts:
        return ""
    after = parts[len(parts) - parts[::-1].index("site-packages") :]
    return next(iter(_list_distributions().get(Path(after[0]).stem, [])), "")


def _is_of_stack(file: str) -> bool:
    """Return whether a file belongs to Python's standard library or to a package of `STACK`."""
    if file.startswith("<"):
        return True
    path = Path(file)
    for package in STACK:
        module = sys.modules.get(package)
        root = Path(module.__file__).parent if module is not None and module.__file__ else None
        if root is not None and path.is_relative_to(root):
            return True
    return path.is_relative_to(LIBRARY) and "site-packages" not in path.parts


def make_stall(call: str, elapsed_s: float, setting: str = "failures.stall_s") -> GuestError:
    """Make the error for a call that has not returned in time.

    Args:
        call: The call's name; empty if nobody knows it.
        elapsed_s: For how long it has run, in seconds.
        setting: The setting of the time limit.
    """
    return GuestError(
        f"{call or 'a call into the environment'} has not returned for {elapsed_s:.0f} s",
        f"calls that return within {setting}",
        f"{setting}=3600 if the environment needs that long; otherwise find out where it hangs",
        cause=Cause.STALLED,
        call=call,
        elapsed_s=elapsed_s,
    )
