"""Print a command's result as text for a person, or with ``json=true`` as one JSON document for a program.

A command returns an `Answer`. Standard output is the command's own: what anybody else writes to descriptor 1, such as a
simulator below Python or a child process, goes to standard error. With ``json=true`` so does everything that is printed
while the command works, so that standard output has the document alone: the answer, or the parts of the error with
which the command was refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

from yaml import MarkedYAMLError

from rltune.errors import CONTROLS, ConfigError, RltuneError, UnexpectedError
from rltune.formatting import to_plain

JSON = "json"


@dataclass(frozen=True)
class Answer:
    """The result of a command, for a program and for a person.

    Attributes:
        data: The answer for a program; None if there is none.
        show: Prints it for a person. A command that has printed it while it worked needs none.
        exit_code: The exit code of the command.
    """

    data: Mapping[str, Any] | None
    show: Callable[[], None] = lambda: None
    exit_code: int = 0


def take_switch(name: str, words: Sequence[str]) -> tuple[bool, list[str]]:
    """Remove a true/false switch that all commands have, such as ``json=true``, from the words of a command line.

    Returns:
        Whether it is on, and the other words.

    Raises:
        ConfigError: Its value is neither true nor false.
    """
    values = [word.partition("=")[2].lower() for word in words if word.partition("=")[0] == name]
    if wrong := next((value for value in values if value not in ("true", "false")), None):
        raise ConfigError(name, wrong, "", "true or false", f"{name}=true")
    return values[-1:] == ["true"], [word for word in words if word.partition("=")[0] != name]


def wants_json() -> bool:
    """Return whether this process was started with ``json=true``."""
    return [word.lower() for word in sys.argv[1:] if word.startswith(f"{JSON}=")][-1:] == [f"{JSON}=true"]


def own_output() -> None:
    """Keep standard output for this command's own prints from now on, and point descriptor 1 to standard error.

    Where standard output is another stream, as in a notebook or a test, or was closed, nothing changes.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sys.stdout.fileno() == 1:
            encoding = sys.stdout.encoding
            own = open(os.dup(1), "w", buffering=1, encoding=encoding, errors="backslashreplace")  # noqa: SIM115
            sys.stdout.flush()
            os.dup2(2, 1)
            # The width of the terminal is read from the latter.
            vars(sys).update(stdout=own, __stdout__=own)


@contextlib.contextmanager
def keep_output_clean() -> Iterator[None]:
    """With ``json=true``, redirect standard output to standard error, so that only the JSON document is on stdout."""
    with contextlib.redirect_stdout(sys.stderr) if wants_json() else contextlib.nullcontext():
        yield


def print_answer(answer: Answer) -> int:
    """Print a command's answer as text or JSON, and return its exit code."""
    if not wants_json():
        answer.show()
    elif answer.data is not None:
        print(to_json(answer.data), flush=True)
    return answer.exit_code


def leave(error: RltuneError) -> NoReturn:
    """Print an error and exit with its code: 2 for a wrong request, 75 for a request that may succeed later."""
    if not wants_json():
        print(error.pretty(), file=sys.stderr)
    print_parts(sys.stdout, error)
    sys.exit(error.exit_code)


def print_parts(stream: TextIO, error: RltuneError, exit_code: int | None = None) -> None:
    """Print the parts of the error that ends a command, if the command line asks for JSON.

    Args:
        stream: Where to print.
        error: The error.
        exit_code: The exit code of the command; None is the error's.
    """
    if wants_json():
        parts = {**error.to_dict(), "exit_code": exit_code or error.exit_code}
        with contextlib.suppress(OSError):  # Without a reader, or on a full disk, the exit code is the answer.
            print(to_json(parts), file=stream, flush=True)


def explain_crash(error: Exception) -> RltuneError:
    """Turn an unexpected exception into an error in three parts.

    A file of settings that is no YAML is the user's, so that its place is named and no traceback is kept. Where
    packages have versions with which rltune does not work, these are named instead.
    """
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark):
        place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
        return RltuneError(f"{place}: {error.problem}", "a file in YAML", f"correct line {mark.line + 1} of the file")
    from rltune.config.versions import refuse_other_versions  # What it imports takes a tenth of a second.

    try:
        refuse_other_versions()
    except ConfigError as refusal:
        return refusal
    return UnexpectedError.of(error)


def to_json(value: Any) -> str:
    """Serialize a value as one line of JSON; NaN and infinite numbers become null."""
    text = json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False)
    text = CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text)  # What changes a terminal is escaped.
    return text.encode("utf-8", "backslashreplace").decode()  # An escaped half character is JSON, and can be printed.
