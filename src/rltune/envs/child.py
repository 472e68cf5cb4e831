"""Call a function in a plain process of its own that can be ended, and name an end without an answer.

The user's code runs in such processes and never in the driver's or the service's: it may hang, call ``sys.exit``,
change the folder, print, or break its process. The function returns JSON, because a pickled answer would import the
user's modules here. Unlike a call of the fork server it needs no Ray, so it works before and beside Ray's start,
without our replacements, and on every platform.

There are two processes. The first one supervises: it runs no code of the user's, so that it notices at once when its
parent closes it or is killed, and then ends the second one with all that this has started. The second one calls the
function. `Child` runs in the driver or the service, `main` in the process itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, cast

from rltune import errors
from rltune.envs.guest import ARGUMENTS, RUNNING, find_place, make_fault, make_stall
from rltune.errors import Cause, GuestError, RltuneError, UnexpectedError
from rltune.formatting import find_start, use_start
from rltune.search_path import spell_python

POLL_S = 0.1  # How often the caller is asked whether it still wants the answer.
START_S = 300.0  # The shortest time limit until the first sign of life, because the imports before it take seconds.
CLOSE_S = 5.0  # How long the supervising process may take to end the other one, before it is killed itself.
MEANWHILE_S = 0.5  # How long the user's code has run before the caller does other work meanwhile.
REMIND_S = 5.0  # When the caller first hears what a slow call waits for, and then each time after four times as long.
MAX_OUTPUT = 4_000  # The last characters of what the process has printed that are kept.
MAX_LINES = 3  # The last of its lines that are part of an error.
PR_SET_PDEATHSIG = 1  # prctl's option for a signal that a process gets when its parent ends.
PR_SET_CHILD_SUBREAPER = 36  # prctl's option to become the parent of descendants whose own parents end, as of daemons.
_encode = json.JSONEncoder().encode  # The user's code may put another function in the place of json.dumps.
_sending = threading.Lock()  # Several threads of an evaluation may report.
Fork: TypeAlias = Callable[[Sequence[int]], int | None]
"""Forks a process that calls `supervise` from one that has the imports done, such as `rltune.cluster.fork_server`'s.

It takes the descriptors that `supervise` gets and returns the id of the process, which leads a session of its own; None
if it cannot.
"""


class CallGivenUpError(Exception):
    """The caller wants no answer any more, so the process was ended."""


class Child:
    """A process that calls one function. It starts with this object, so that its imports run beside other work.

    Args:
        imports: Modules that it imports before it has got its request.
        fork: Forks the process, which is then ready at once. None, or if it cannot: the process is started anew.
        print_output: Takes what the process prints. None: the last lines that it has printed become part of an error.
            Those of a process that has ended or hangs always do.

    Raises:
        GuestError: The user's code starts it, as a program does that is imported and has no main guard.

    Attributes:
        pid: The id of the supervising process, which leads a session of its own.
        call_name: The call into the user's code that began last.
    """

    def __init__(
        self,
        imports: Sequence[str] = ("rltune.envs.validation",),
        fork: Fork | None = None,
        print_output: Callable[[bytes], object] | None = None,
    ) -> None:
        if RUNNING.name:  # The process would make the same call, and so on without end.
            raise GuestError(
                f"{RUNNING.name} starts a sweep or an evaluation",
                "a module that only defines things when it is imported",
                'put what starts it below if __name__ == "__main__":',
                call=RUNNING.name,
            )
        lifeline, self._lifeline = os.pipe()
        requests, self._requests = os.pipe()
        self._printed, output = os.pipe()
        self._answers, answers = os.pipe()
        self._open = {self._lifeline, self._requests, self._printed, self._answers}
        theirs = lifeline, requests, output, answers
        self._process: subprocess.Popen[bytes] | None = None
        try:
            pid = fork(theirs) if fork else None
            if pid is None:
                self._process = subprocess.Popen(
                    spell_python(__name__, str(requests), str(answers), ",".join(imports)),
                    stdin=lifeline,
                    stdout=output,
                    stderr=output,
                    pass_fds=[requests, answers],
                    start_new_session=True,  # A terminal's Ctrl-C must reach only the driver, which ends this process.
                )
                pid = self._process.pid
        except OSError:
            self._close_pipes()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.pid, self._output, self._print_output = pid, b"", print_output
        self.call_name, self._call_began = "", time.monotonic()

    def call(
        self,
        function: str,
        arguments: Mapping[str, Any],
        *,
        limit_s: float,
        progress: Callable[[int, int], None] | None = None,
        is_given_up: Callable[[], bool] = lambda: False,
        remind: Callable[[str, float], None] = lambda call, elapsed_s: None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Any:
        """Call a function, and return its answer. The process and all that it has started have ended then.

        Args:
            function: ``module:function``, whose answer is such as JSON has.
            arguments: Its keyword arguments.
            limit_s: The longest time that it may take without a sign of life: a call into the user's code that begins
                (`rltune.envs.guest.call_guest`), or progress.
            progress: Called with the number of finished parts and of all parts. The function takes it as a further
                keyword argument if it is given.
            is_given_up: Whether the answer is not wanted any more.
            remind: Called with the name of the call that it waits for, and for how many seconds, after `REMIND_S`.
            meanwhile: Called once if the answer takes longer than `MEANWHILE_S`: work that is needed after it.

        Raises:
            RltuneError: What the function has raised, of our types; an `UnexpectedError` for any other exception.
            GuestError: The process has ended without an answer (LOST_PROCESS) or has not answered in time (STALLED).
            CallGivenUpError: `is_given_up` has said so.
        """
        request = {"function": function, "arguments": dict(arguments), "progress": progress is not None}
        request |= {"path": sys.path, "start": find_start()}
        try:
            self._send(request)
            answer = self._wait(limit_s, progress or (lambda *made: None), is_given_up, remind, meanwhile)
            output = self._describe_output()
        finally:
            self.close()
        if "refused" in answer:
            raise _restore_error(answer, "" if self._print_output else output)
        return answer["answer"]

    def _send(self, request: Mapping[str, Any]) -> None:
        self._open.discard(self._requests)
        # A broken pipe means that it has died already, which `_wait` reports.
        with contextlib.suppress(BrokenPipeError), open(self._requests, "wb") as stream:
            # It is pickled because JSON would turn the numbers among an argument's keys to text.
            stream.write(pickle.dumps(request))

    def close(self) -> None:
        """End the process with all that it has started."""
        if not self._open:
            return
        with contextlib.suppress(OSError):
            os.write(self._lifeline, b"end")  # A process that was forked here meanwhile would keep a closed pipe open.
        deadline = time.monotonic() + CLOSE_S
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._process:
            self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _is_running(self) -> bool:
        if self._process:
            return self._process.poll() is None
        try:
            os.kill(self.pid, 0)
        except OSError:  # There is none, or another user's process has got the id.
            return False
        return True

    def _wait(
        self,
        limit_s: float,
        progress: Callable[[int, int], None],
        is_given_up: Callable[[], bool],
        remind: Callable[[str, float], None],
        meanwhile: Callable[[], object] | None,
    ) -> dict[str, Any]:
        received, began = b"", time.monotonic()
        heard, remind_s, is_ready = began, REMIND_S, False
        guest_began = None
        while True:
            has_ended = not self._is_running()
            ready = select.select([self._answers, self._printed], [], [], POLL_S)[0]
            now = time.monotonic()
            if is_given_up():
                raise CallGivenUpError
            if self._printed in ready:
                self._read_output()
            if self._answers in ready and (content := os.read(self._answers, 65536)):
                heard = now
                *lines, received = (received + content).split(b"\n")
                for message in map(json.loads, lines):
                    is_ready = True
                    if "call" in message:
                        self.call_name = message["call"]
                        self._call_began = now - message.get("elapsed_s", 0.0)
                        guest_began = guest_began or (now if self.call_name else None)
                    if "progress" in message:
                        progress(*message["progress"])
                    if "ended" in message:
                        raise self._make_death_error(message["ended"])
                    if "answer" in message or "refused" in message:
                        return cast(dict[str, Any], message)
            elif has_ended:
                raise self._make_death_error(self._process.wait() if self._process else None)
            elif now - heard > (limit_s if is_ready else max(limit_s, START_S)):
                stall = make_stall(self.call_name, now - heard)
                raise stall.rewrite(stall.problem + self._describe_output())
            if now - began > remind_s:
                remind(self.call_name, now - self._call_began)
                remind_s *= 4
            if meanwhile and guest_began and now - guest_began > MEANWHILE_S:
                meanwhile()
                meanwhile = None

    def _read_output(self) -> None:
        """Read what the process has printed since, without waiting for more."""
        while select.select([self._printed], [], [], 0)[0] and (printed := os.read(self._printed, 65536)):
            self._output = (self._output + printed)[-MAX_OUTPUT:]
            if self._print_output:
                self._print_output(printed)

    def _make_death_error(self, code: int | None) -> GuestError:
        how = "has ended" if code is None else describe_exit(code)
        during = f" in {self.call_name}" if self.call_name else ""
        return GuestError(
            f"the environment's process {how}{during}{self._describe_output()}",
            "an environment that leaves its process alive",
            "look for os._exit, a crash in a library, or too little memory",
            cause=Cause.LOST_PROCESS,
            call=self.call_name,
        )

    def _describe_output(self) -> str:
        """Return the last lines that were printed for an error's text: simulators often say there why they fail."""
        self._read_output()
        lines = self._output.decode(errors="backslashreplace").splitlines()
        last = [line.strip() for line in lines if line.strip()][-MAX_LINES:]
        return f"; it printed: {' / '.join(last)}" if last else ""


def _restore_error(answer: Mapping[str, Any], output: str) -> RltuneError:
    refused = answer["refused"]
    error: RltuneError = getattr(errors, answer["type"]).from_dict({**refused, "error": refused["error"] + output})
    vars(error).update(answer["parts"])
    error.cause = Cause(answer["cause"])
    return error


def describe_exit(code: int) -> str:
    """Describe the end of a process by its exit code, which is negative after a signal."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def call_again(
    start_child: Callable[[], Child],
    max_retries: int,
    on_lost: Callable[[GuestError], object],
    *request: Any,
    **more: Any,
) -> Any:
    """Call a function by `Child.call`, and call it again in another process if the last one has died or hung.

    Args:
        start_child: Starts a process.
        max_retries: How often it is called again.
        on_lost: Called with how a process has ended before the next one is started.
        request: The arguments of `Child.call`.
        more: Its keyword arguments.

    Raises:
        GuestError: As for `Child.call`, for the last process.
    """
    while True:
        try:
            return start_child().call(*request, **more)
        except GuestError as error:
            if not error.is_chance or not max_retries:
                raise
            max_retries -= 1
            on_lost(error)


_early: list[Child] = []  # At most one child, started before the command's settings are composed.


def begin_child() -> None:
    """Start the child of a check early, so that its imports are done when `acquire_child` needs it.

    If no check follows, then it ends with this process.
    """
    if not _early:
        _early.append(Child())


def acquire_child() -> Child:
    """Return the child that was started early, or start one."""
    return _early.pop() if _early else Child()


# -- Functions that run in the supervising process ---------------------------------------------------------------------


def main(requests: str, answers: str, imports: str) -> NoReturn:
    """Be the supervising process, with descriptors and the names of modules as they come on a command line."""
    supervise(int(requests), int(answers), imports.split(",") if imports else [])


def supervise(requests: int, answers: int, imports: Sequence[str] = ()) -> NoReturn:
    """Start the process that carries out the request, and end it with all that it has started when the parent says so.

    Standard input is a pipe that says so: it closes when the parent ends, too.

    Args:
        requests: The descriptor of the pipe that the request comes from.
        answers: The descriptor of the pipe for the answer.
        imports: Modules that the process imports before it reads the request.
    """
    _set_option(PR_SET_CHILD_SUBREAPER, 1)
    # Forked before anything else is imported: a process with the threads of a library does not survive it everywhere.
    guest = os.fork()
    with contextlib.suppress(OSError):  # Both of the two do it, because either may come first.
        os.setpgid(guest, guest)
    if not guest:
        _serve(requests, answers, imports)
    os.close(requests)
    while not select.select([0], [], [], POLL_S)[0]:
        pid, status = os.waitpid(guest, os.WNOHANG)
        if pid:
            _send(answers, {"ended": os.waitstatus_to_exitcode(status)})
            break
    _end_guest(guest)
    os._exit(0)


def _end_guest(guest: int) -> None:
    """Kill a process, its process group, and all descendants of this process, also those that the group has lost."""
    import psutil

    descendants: list[Any] = []
    with contextlib.suppress(psutil.Error):
        descendants = psutil.Process().children(recursive=True)
    with contextlib.suppress(OSError):
        os.killpg(guest, signal.SIGKILL)
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.kill()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(guest, 0)


def _set_option(option: int, value: int) -> None:
    """Set an option of this process that Linux has."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, value)


# -- Functions that run in the process that calls the function ---------------------------------------------------------


def _serve(requests: int, answers: int, imports: Sequence[str]) -> NoReturn:
    """Carry out the request and send the answer; then wait to be ended."""
    _set_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The user's code and what it starts must neither keep the pipes open nor write into the answers.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    for module in imports:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    with open(requests, "rb") as stream:
        request = pickle.load(stream)  # noqa: S301 - from the parent, through a pipe
        _send(answers, _answer(request, answers))
    # The supervising process finds what was started here only while this process lives. Exit handlers may hang.
    while True:
        signal.pause()


def _answer(request: Mapping[str, Any], answers: int) -> dict[str, Any]:
    sys.path[:], sys.argv = request["path"], [*ARGUMENTS]
    use_start(request["start"])
    call_names = [""]

    def report(call: str) -> None:
        call_names.append(call)
        _send(answers, {"call": call, "elapsed_s": time.monotonic() - RUNNING.since if call else 0.0})

    RUNNING.on_begin = report
    try:
        module, _, name = request["function"].partition(":")
        named = {"progress": functools.partial(_report_progress, answers)} if request["progress"] else {}
        function = getattr(importlib.import_module(module), name)
        report("")  # The imports, which have a time limit of their own, are done.
        message = {"answer": function(**request["arguments"], **named)}
        _encode(message)
    except BaseException as error:
        # Attributes are read outside of the door. No signal reaches this process, so the user's code interrupts it.
        is_guests = find_place(error) or not isinstance(error, Exception)
        message = _describe_error(make_fault(error, call_names[-1]) if is_guests else error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # The user's code may have replaced or closed it.
            stream.flush()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)  # What libraries have printed, which Python's own buffers do not have.
    return message


def _report_progress(answers: int, *made: int) -> None:
    _send(answers, {"progress": made, "call": RUNNING.name})


def _send(answers: int, message: Mapping[str, Any]) -> None:
    content = _encode(message).encode() + b"\n"
    with _sending, contextlib.suppress(BrokenPipeError):  # The parent has ended, and so will this process.
        while content:
            content = content[os.write(answers, content) :]


def _describe_error(error: BaseException) -> dict[str, Any]:
    refusal = error if isinstance(error, RltuneError) else UnexpectedError.of(error)
    known_type = next(base for base in type(refusal).__mro__ if base.__module__ == errors.__name__)
    parts = {name: vars(refusal)[name] for name in ("call", "place", "elapsed_s") if name in vars(refusal)}
    return {"refused": refusal.to_dict(), "type": known_type.__name__, "cause": refusal.cause, "parts": parts}
