"""Call a function in a plain process of its own that can be ended, and name an end without an answer.

The user's code runs in such processes and never in the driver's or the service's: it may hang, call ``sys.exit``,
change the folder, print, or break its process. The function gets and returns JSON, because a pickled answer would
import the user's modules here. Unlike a call of the fork server it needs no Ray, so it works before and beside Ray's
start, without our replacements, and on every platform.

`Child` runs in the driver or the service, `main` in the process itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from rltune import errors
from rltune.envs.guest import RUNNING, make_stall
from rltune.errors import Cause, GuestError, RltuneError, UnexpectedError, describe_exception

START_S = 300.0  # The shortest time limit until the first sign of life, because the imports before it take seconds.
POLL_S = 0.1  # How often the caller is asked whether it still wants the answer.
END_S = 5.0  # How long an ended process that is not a child of this one is waited for.
MAX_OUTPUT = 4_000  # The last characters of what the process has printed, for the error if it dies.
_sending = threading.Lock()  # Several threads of an evaluation may report.
Fork: TypeAlias = Callable[[Sequence[int]], int | None]
"""Forks a process that calls `main` from one that has the imports done, such as `rltune.cluster.fork_server`'s.

It takes the descriptors of the requests, the output and the answers, and returns the id of a process that leads a
session of its own and, at the end, sends how it has ended; None if it cannot.
"""


class CallGivenUpError(Exception):
    """The caller wants no answer any more, so the process was ended."""


class Child:
    """A process that calls one function. It starts with this object, so that its imports run beside other work.

    Args:
        imports: Modules that it imports before it has got its request.
        fork: Forks the process, which is then ready at once. None, or if it cannot: the process is started anew.
        print_output: Takes what the process prints. The last of it is also in the error if the process dies.

    Attributes:
        pid: The id of the process, which leads a session of its own.
        call_name: The call into the user's code that began last.
    """

    def __init__(
        self,
        imports: Sequence[str] = (),
        fork: Fork | None = None,
        print_output: Callable[[bytes], object] = lambda printed: None,
    ) -> None:
        requests, self._requests = os.pipe()
        self._printed, output = os.pipe()
        self._answers, answers = os.pipe()
        theirs = requests, output, answers
        self._process: subprocess.Popen[bytes] | None = None
        try:
            pid = fork(theirs) if fork else None
            if pid is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "rltune.envs.child", str(answers), *imports],
                    stdin=requests,
                    stdout=output,
                    stderr=output,
                    pass_fds=[answers],
                    start_new_session=True,  # A terminal's Ctrl-C must reach only the driver, which ends this process.
                )
                pid = self._process.pid
        except OSError:
            self._close_pipes()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.pid, self._is_closed = pid, False
        self._output, self._print_output = b"", print_output
        self.call_name = ""

    def call(
        self,
        function: str,
        arguments: Mapping[str, Any],
        *,
        limit_s: float,
        progress: Callable[[int, int], None] | None = None,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Call a function, and return its answer. The process and all that it has started have ended then.

        Args:
            function: ``module:function``. It gets ``progress`` as a keyword argument if the caller gives one.
            arguments: Its other keyword arguments, as JSON has them.
            limit_s: The longest time that it may take without a sign of life: a call into the user's code that begins
                (`rltune.envs.guest.call_guest`), or progress. Before the first one it is at least `START_S`.
            progress: Called with the number of finished parts and of all parts.
            is_given_up: Whether the answer is not wanted any more.

        Raises:
            RltuneError: What the function has raised, of our types; an `UnexpectedError` for any other exception.
            GuestError: The process has ended without an answer (LOST_PROCESS) or has not answered in time (STALLED).
            CallGivenUpError: `is_given_up` has said so.
        """
        request = {"function": function, "arguments": arguments, "progress": progress is not None}
        request |= {"path": sys.path, "argv": sys.argv, "limit_s": limit_s}
        try:
            content = json.dumps(request).encode() + b"\n"
            with contextlib.suppress(BrokenPipeError):  # It has died already, which reading its answer will say.
                while content:
                    content = content[os.write(self._requests, content) :]
            answer = self._receive(limit_s, progress, is_given_up)
        finally:
            self.close()
        if "refused" in answer:
            raise _restore_error(answer)
        return answer["answer"]

    def close(self) -> None:
        """End the process with its whole session."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._process:
            self._process.kill()
            self._process.wait()
        else:  # It is not a child of this process, which would be waited for.
            deadline = time.monotonic() + END_S
            while _is_running(self.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for descriptor in (self._requests, self._printed, self._answers):
            os.close(descriptor)

    def _receive(
        self, limit_s: float, progress: Callable[[int, int], None] | None, is_given_up: Callable[[], bool]
    ) -> dict[str, Any]:
        received, heard, streams = b"", time.monotonic(), [self._answers, self._printed]
        current_limit_s = max(limit_s, START_S)
        while True:
            ready = select.select(streams, [], [], POLL_S)[0]
            if is_given_up():
                raise CallGivenUpError
            if self._printed in ready:
                if printed := os.read(self._printed, 65536):
                    self._output = (self._output + printed)[-MAX_OUTPUT:]
                    self._print_output(printed)
                else:  # It has closed its output, and may go on nevertheless.
                    streams.remove(self._printed)
            if self._answers in ready:
                content = os.read(self._answers, 65536)
                if not content:
                    raise self._make_death_error()
                heard, current_limit_s = time.monotonic(), limit_s
                *lines, received = (received + content).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    self.call_name = message.get("call", self.call_name)
                    if "progress" in message and progress:
                        progress(*message["progress"])
                    if "ended" in message:
                        raise self._make_death_error(message["ended"])
                    if "answer" in message or "refused" in message:
                        return cast(dict[str, Any], message)
            elif self._process and self._process.poll() is not None:  # A process of its may keep the pipe open.
                if not select.select([self._answers], [], [], 0)[0]:  # It may have answered since.
                    raise self._make_death_error()
            elif time.monotonic() - heard > current_limit_s:
                raise make_stall(self.call_name, time.monotonic() - heard)

    def _make_death_error(self, code: int | None = None) -> GuestError:
        if self._process:  # It has closed its pipe, which the user's code may do that goes on.
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(END_S)
        if code is None:
            how = "has closed the pipe for its answer"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        during = f" in {self.call_name}" if self.call_name else ""
        printed = self._output.decode(errors="backslashreplace").strip().splitlines()
        last = f"; it printed: {printed[-1]}" if printed else ""
        return GuestError(
            f"the environment's process {how}{during}{last}",
            "an environment that leaves its process alive",
            "look for os._exit, a crash in a library, or too little memory",
            cause=Cause.LOST_PROCESS,
            call=self.call_name,
        )


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # Another user's process has got the id.
        return False
    return True


def _restore_error(answer: Mapping[str, Any]) -> RltuneError:
    error: RltuneError = getattr(errors, answer["type"]).from_dict(answer["refused"])
    vars(error).update(answer["parts"])
    error.cause = Cause(answer["cause"])
    return error


# -- Functions that run in the process itself -------------------------------------------------------------------------


def main(answers: int, imports: Sequence[str]) -> None:
    """Call the function that the parent names, and send it the answer."""
    # The user's code and what it starts must neither read the request nor write into the answers.
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(answers, False)
    for module in imports:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    with open(requests, "rb") as stream:
        request = json.loads(stream.readline() or b"null")
        if request is None:
            os._exit(0)
        threading.Thread(target=_end_with_parent, args=(stream,), daemon=True).start()
        sys.path[:], sys.argv = request["path"], request["argv"]
        RUNNING.on_begin = lambda call: _send(answers, {"call": call})
        try:
            module, _, name = request["function"].partition(":")
            report = functools.partial(_report_progress, answers)
            named = {"progress": report} if request["progress"] else {}
            message = {"answer": getattr(importlib.import_module(module), name)(**request["arguments"], **named)}
            json.dumps(message)
        except BaseException as error:
            message = _describe_error(error)
        _send(answers, message)
        os._exit(0)  # The user's threads and exit handlers may hang.


def send_end(answers: int, code: int) -> None:
    """Send how a process has ended that was forked, for its parent, which is not the driver; useless after an answer.

    Args:
        answers: The descriptor of the answers.
        code: Its exit code, or the negative number of the signal.
    """
    with contextlib.suppress(OSError):  # After an answer nobody reads any more.
        _send(answers, {"ended": code})


def _report_progress(answers: int, *made: int) -> None:
    _send(answers, {"progress": made, "call": RUNNING.name})


def _send(answers: int, message: Mapping[str, Any]) -> None:
    content = json.dumps(message).encode() + b"\n"
    with _sending:
        while content:
            content = content[os.write(answers, content) :]


def _end_with_parent(stream: Any) -> None:
    stream.read()
    os._exit(1)


def _describe_error(error: BaseException) -> dict[str, Any]:
    if error.__cause__ or not isinstance(error, RltuneError):  # Its traceback belongs to the output.
        traceback.print_exception(error)
    refusal = (
        error
        if isinstance(error, RltuneError)
        else UnexpectedError(describe_exception(error), "code that only defines things", "correct it")
    )
    known_type = next(base for base in type(refusal).__mro__ if base.__module__ == errors.__name__)
    parts = {name: vars(refusal)[name] for name in ("call", "place", "elapsed_s") if name in vars(refusal)}
    return {"refused": refusal.to_dict(), "type": known_type.__name__, "cause": refusal.cause, "parts": parts}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
