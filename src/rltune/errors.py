"""Errors for users, in parts: the key and the value, what is wrong with them, what is allowed, what to type next.

The driver and the workers raise them. The commands print them without a traceback and exit with the error's
`exit_code`: 2 for a request that is wrong whenever it is typed, 75 for one that may succeed when it is typed again.
No code reads a part back from an error's text.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, ClassVar, Final, Self

from rltune.other_tools import list_names
from rltune.secrets import redact

EXIT_FAULT = 1  # Exit code for faults, and for a sweep without a winner.
EXIT_REQUEST = 2  # Exit code for a wrong request, which would fail again.
EXIT_TRY_AGAIN = 75  # Exit code EX_TEMPFAIL of sysexits.h: the same command may succeed later.
MAX_TEXT = 200  # The length to which a long value is cut in an error.
MAX_EXCEPTION = 1_000  # The length to which the text of an exception is cut, which may be a whole array or frame.
COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


GUEST_FAULTS = (Exception, SystemExit)
"""What the user's code may raise. Interrupts and `rltune.envs.step_count.SamplingEnded` are others' and pass."""


class Absent(Enum):
    """The type of `ABSENT`, which is no value, and so is different from None, a setting's ``null``."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""The value of an error that concerns a setting without a value, or no setting at all."""


class Cause(StrEnum):
    """What ended a call, an attempt or a trial. Whoever saw it says it, and nobody guesses it from a text later."""

    ENVIRONMENT = "environment"
    """Code of the user's, such as the environment or a wrapper, has raised or called ``sys.exit``."""
    REPEATED = "repeated"
    """It has raised at the same step of an episode each time that this was played from its seed."""
    REWARD = "reward"
    """A reward is no single finite number."""
    OBSERVATION = "observation"
    """An observation is not finite or does not fit its space."""
    OBJECTIVE = "objective"
    """The objective's function has raised, or given no finite number."""
    STALLED = "stalled"
    """A call has not returned within its time limit."""
    DIVERGED = "diverged"
    """A loss, a weight or a return has become infinite or NaN in training."""
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "disk full"
    LOST_PROCESS = "lost process"
    """A process has ended without saying why."""
    LOST_NODE = "lost node"
    REFUSED = "refused"
    """The request is wrong whenever it is made."""
    OUTAGE = "outage"
    """A server, a disk or a cluster does not work at the moment."""
    UNKNOWN = "unknown"
    """An exception of which nobody knows more, such as one of a library."""


class RltuneError(Exception):
    """Base class of errors for users.

    The first line of the text is ``key=value problem``. There is no blank before a problem that begins with a colon, a
    comma or a semicolon.

    Args:
        problem: What is wrong with the key and the value, or what failed.
        allowed: What would be right, with the nearest name where there is one.
        fix: What to type next.
        key: The setting or argument that is wrong, such as ``training.lr``, the first one of several; empty if the
            error concerns none.
        value: Its wrong value, without secrets, as a Python value.

    Attributes:
        what: The first line, of key, value and problem.
        value: The value as JSON has it. Infinite numbers, NaN, lists and mappings are text; None is also no value.
        cause: The kind of fault.
    """

    exit_code: ClassVar[int] = EXIT_REQUEST
    cause: Cause = Cause.REFUSED

    def __init__(
        self, problem: str, allowed: str = "", fix: str = "", *, key: str = "", value: object = ABSENT
    ) -> None:
        self.key, self.problem, self.allowed, self.fix = map(clean_text, (key, problem, allowed, fix))
        self.value = None if value is ABSENT else _to_json_value(value)
        self.has_value = value is not ABSENT  # None is also the value of a setting that is null.
        self.what = _join(self.key if value is ABSENT else f"{self.key}={spell(value)}", self.problem)
        super().__init__("\n".join([self.what, *self._label_parts()]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts and not the constructor's arguments, so that subclasses may have other constructors."""
        return _restore, (type(self), self.args, vars(self))

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Self:
        """Make an error of this class from what `to_dict` has returned in another process."""
        error = cls.__new__(cls)
        RltuneError.__init__(error, parts["error"], parts["allowed"], parts["try"])
        error.key, error.value = parts["key"] or "", parts["value"]
        return error

    def suggest(self, fix: str) -> None:
        """Give other advice on what to type next."""
        self.fix = clean_text(fix)
        self.args = ("\n".join([self.what, *self._label_parts()]),)

    def pretty(self) -> str:
        """Return the first line, what is allowed and what to type, one per line, as commands print them."""
        return f"error: {self}"

    def to_dict(self) -> dict[str, Any]:
        """Return the parts as a dictionary, as ``json=true`` and the REST interface return them."""
        return {
            "error": self.what,
            "key": self.key or None,
            "value": self.value,
            "allowed": self.allowed,
            "try": self.fix,
            "exit_code": self.exit_code,
        }

    def _label_parts(self) -> list[str]:
        return [f"{label}{part}" for label, part in (("  allowed: ", self.allowed), ("  try:     ", self.fix)) if part]


def clean_text(text: str) -> str:
    """Remove logins and colours, and escape what changes a terminal or cannot be printed, such as unknown bytes."""
    text = COLOURS.sub("", redact(text)).encode("utf-8", "backslashreplace").decode()
    return CONTROLS.sub(lambda control: ascii(control[0])[1:-1], text)


def _restore(kind: type[RltuneError], args: tuple[Any, ...], state: Mapping[str, Any]) -> RltuneError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


def _join(subject: str, problem: str) -> str:
    return subject + (" " if subject and problem and problem[0] not in ":;," else "") + problem


def _to_json_value(value: object) -> str | int | float | bool | None:
    """Return numbers, truth values and None as they are, and everything else as text."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _shorten(redact(value)) if isinstance(value, str) else spell(value)


def spell(value: object) -> str:
    """Write a setting's value on one line, nearly as a user would type it for Hydra.

    ``true``, ``null``, ``0.3``, ``[pow2,64,256]``, ``{gravity:9.8}``, ``'two words'``; a long value is cut.
    """
    return _shorten(redact(_spell(value)))


def _spell(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:.10g}"  # Ten digits leave the noise of floating point out.
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_spell_item(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_spell_item, value)) + "]"
    text = str(value)
    return repr(text) if not text or any(character.isspace() for character in text) else text


def _spell_item(item: object) -> str:
    """Write an element of a list or mapping, in which some characters of a text need quotes."""
    return repr(item) if isinstance(item, str) and any(mark in item for mark in " ,[]{}") else _spell(item)


def _shorten(text: str, most: int = MAX_TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


class UnexpectedError(RltuneError):
    """An unexpected exception, which is a fault of rltune or of code that it calls."""

    exit_code: ClassVar[int] = EXIT_FAULT
    cause = Cause.UNKNOWN

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Make the error for an exception, and save its traceback to a file without passwords."""
        # An exception's text may hold half a character, as of an unknown byte in a file's name, that no terminal shows.
        text = redact("".join(traceback.format_exception(error))).encode(errors="backslashreplace").decode()
        try:
            # mkstemp gives the file mode 0600, so that only this user can read the traceback.
            handle, path = tempfile.mkstemp(prefix="rltune-error-", suffix=".txt")
            with os.fdopen(handle, "w") as file:
                file.write(text)
            fix = f"see {path}"
        except OSError:
            # The traceback cannot be written, for example because the disk is full.
            print(text, end="", file=sys.stderr)
            fix = "see the traceback above"
        return cls(describe_exception(error), "a fault of rltune, or of code that it called", fix)


class ConfigError(RltuneError):
    """A setting is unknown, out of range or in conflict with another one.

    Args:
        key: The setting, as for `RltuneError`.
        value: Its value without secrets; ABSENT if it has none.
        problem: What is wrong with it.
        allowed: What would be right.
        fix: What to type next.
    """

    def __init__(self, key: str, value: object, problem: str, allowed: str = "", fix: str = "") -> None:
        super().__init__(problem, allowed, fix, key=key, value=value)


class ResourceError(RltuneError):
    """The requested CPUs, GPUs or memory exceed what this machine or cluster has."""


class StudyError(RltuneError):
    """A sweep's folder or ledger is missing, damaged or in use."""


class UnavailableError(RltuneError):
    """A server, disk, database or cluster does not work at the moment; the same command may succeed later."""

    exit_code: ClassVar[int] = EXIT_TRY_AGAIN
    cause = Cause.OUTAGE


class StudyUnavailableError(StudyError, UnavailableError):
    """A sweep's ledger, disk or bucket does not work at the moment, or another driver holds the sweep's lease."""


class PolicyError(RltuneError):
    """A policy cannot be found, loaded or used."""


class GuestError(RltuneError):
    """Code of the user's has raised, called ``sys.exit``, not returned in time, or returned what it may not return.

    Args:
        problem: What is wrong, beginning with the call, such as ``step 12 of copy 3 fails with ValueError: ...``.
        allowed: What would be right.
        fix: What to type next.
        key: The setting that names the code, as for `RltuneError`.
        value: Its value.
        cause: The kind of fault.
        call: Which call it was, such as ``step 12 of copy 3`` or ``import of my_project.walk``.
        place: The last line of the user's own code in the traceback, such as ``walk.py, line 42``; empty if there is
            none.
        elapsed_s: How long the call took, in seconds.
    """

    def __init__(
        self,
        problem: str,
        allowed: str = "",
        fix: str = "",
        *,
        key: str = "",
        value: object = ABSENT,
        cause: Cause = Cause.ENVIRONMENT,
        call: str = "",
        place: str = "",
        elapsed_s: float = 0.0,
    ) -> None:
        super().__init__(problem, allowed, fix, key=key, value=value)
        self.cause, self.call, self.place, self.elapsed_s = cause, call, place, elapsed_s

    @property
    def is_chance(self) -> bool:
        """Whether the same call may well succeed when it is made again: its process has died or hung."""
        return self.cause in (Cause.LOST_PROCESS, Cause.STALLED)

    def rewrite(
        self,
        problem: str,
        allowed: str | None = None,
        fix: str | None = None,
        *,
        key: str = "",
        value: object = ABSENT,
    ) -> GuestError:
        """Return the same error in other words, and with the setting that names the code; None keeps what it says."""
        parts = {name: vars(self)[name] for name in ("cause", "call", "place", "elapsed_s")}
        allowed, fix = self.allowed if allowed is None else allowed, self.fix if fix is None else fix
        return GuestError(problem, allowed, fix, key=key, value=value, **parts)

    def advise(self, fix: str) -> GuestError:
        """Return the same error with other advice."""
        return self.rewrite(self.problem, fix=fix, key=self.key, value=self.value if self.has_value else ABSENT)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name closest to ``name``, by spelling or meaning: ``lr`` for ``learning_rate``; else None.

    Capitals make no difference, and the words of other tools come before names that are merely spelled alike.

    Args:
        name: What was typed.
        known: What would have been right.
        cutoff: How alike they must be, from 0 to 1.
    """
    names = {text.casefold(): text for text in reversed(list(known))}
    typed = name.casefold()
    for meant in (typed, *(name.rpartition(".")[2] for name in list_names(typed))):
        if meant in names:
            return names[meant]
    close = difflib.get_close_matches(typed, names, n=1, cutoff=cutoff)
    initials = "".join(part[:1] for part in typed.split("_"))
    return names[close[0]] if close else names.get(initials) if len(initials) > 1 else None


def choices(name: str, known: Iterable[str], meant: str | None = None) -> str:
    """List all allowed names for an error about ``name``, and ask whether the nearest one was meant."""
    names = sorted(known)
    close = meant or nearest(name, names)
    if not names:
        return "there is none yet"
    listed = ", ".join(names)
    return f"one of: {listed}" + (f"; did you mean '{close}'?" if close else "")


def describe_exception(error: BaseException) -> str:
    """Return the type of another library's exception and the first line of its message, without logins.

    If it was raised from another exception, then that one follows: where code calls back through a library, the library
    says only that something failed.
    """
    root, passed = error, {id(error)}
    while root.__cause__ is not None and id(root.__cause__) not in passed:
        root = root.__cause__
        passed.add(id(root))
    text, reason = _describe_alone(error), _describe_alone(root)
    return text if root is error or read_text(root).strip() in text else f"{text}, caused by {reason}"


def _describe_alone(error: BaseException) -> str:
    lines = read_text(error).strip().splitlines()
    line = clean_text(lines[0][: 2 * MAX_EXCEPTION]) if lines else ""  # What is cut off may be the end of a login.
    return f"{type(error).__name__}: {_shorten(line, MAX_EXCEPTION)}" if line else type(error).__name__


def read_text(error: BaseException) -> str:
    """Return an exception's own text; one of the user's may fail to say it, and then has none."""
    try:
        return str(error)
    except (Exception, SystemExit):
        return ""


class NonFiniteError(RltuneError):
    """Raised if a loss, a weight or a return becomes NaN or infinite, from which a trial cannot recover.

    Args:
        problem: Which number, and when.
        allowed: What would be right.
        fix: What to type next.
    """

    cause = Cause.DIVERGED

    def __init__(
        self,
        problem: str,
        allowed: str = "losses, weights and returns that stay finite; a NaN never heals",
        fix: str = "lower training.lr, set training.grad_clip, or normalise observations and rewards",
    ) -> None:
        super().__init__(problem, allowed, fix)


class RewardError(GuestError):
    """Raised for a reward that is no finite number: a fault of the environment, and not a divergence of training.

    Args:
        problem: Which reward, and when. Gymnasium, which raises again what a copy in a process of its own has raised,
            passes that error instead.
        allowed: What would be right.
        fix: What to type next.
    """

    def __init__(
        self,
        problem: str | RewardError,
        allowed: str = "rewards that are finite numbers",
        fix: str = "look for a division by zero, a root or a logarithm in the environment's step",
    ) -> None:
        if isinstance(problem, RewardError):
            allowed, fix, problem = problem.allowed, problem.fix, problem.problem
        super().__init__(problem, allowed, fix, cause=Cause.REWARD)
