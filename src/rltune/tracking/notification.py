"""Notify a user when a sweep has ended, by an HTTP POST or a shell command. Runs in the driver."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from rltune.config.uris import HIDDEN, hide_login, is_web, redact, redact_address, redact_error
from rltune.errors import ConfigError, describe_exception
from rltune.ledger.outcome import Outcome
from rltune.tracking.tracker import SweepDescription, Tracker

LIMIT_S = 10.0


def check_target(target: str | None) -> None:
    """Refuse an address that is no HTTP URL; whether a server answers there is only seen when the sweep ends."""
    if target is None or not re.match(r"[\w+.-]+://", target):
        return
    try:
        host = is_web(target) and urlsplit(target).hostname
    # urlsplit raises an error for some texts, such as an IPv6 address without its closing bracket.
    except ValueError:
        host = None
    if not host:
        raise ConfigError(
            "notify",
            redact_address(target),
            "is not an address to post to",
            "null, http://... or https://..., or a shell command, which reads the summary from its standard input",
            "notify='mail -s \"$RLTUNE_SWEEP $RLTUNE_STATUS\" me@example.org'",
        )


class NotificationTracker(Tracker):
    """The tracker that sends one notification at the end of a sweep; if it fails, a message says so.

    Args:
        sweep: The sweep.
        target: A web address, which receives the content of ``summary.json`` by POST; or a command for the shell, which
            receives it on its standard input, and ``RLTUNE_SWEEP``, ``RLTUNE_STATUS``, ``RLTUNE_FOLDER``,
            ``RLTUNE_EXIT_CODE`` and ``RLTUNE_WINNER`` (``trial 7``, or empty) as environment variables.
        limit_s: The longest wait for an answer, in seconds.
    """

    name = "notify"
    close_s = LIMIT_S + 1.0

    def __init__(self, sweep: SweepDescription, target: str, limit_s: float = LIMIT_S) -> None:
        super().__init__(sweep)
        self._target, self._limit_s = target, limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_given_up = False

    def end(self, status: str, outcome: Outcome | None) -> None:
        """Send the notification at the end of the sweep."""
        target = self._target
        # The address was read from saved settings, where its login is replaced by ***, so nothing is sent.
        if outcome is None or HIDDEN in target:
            return
        try:
            summary = json.dumps(outcome.to_dict()).encode()
            if is_web(target):
                post(target, summary, self._limit_s)
            else:
                run_command(target, summary, describe_in_variables(outcome), self._limit_s, self._keep)
        except Exception as error:
            # When the driver stopped waiting, it told the user that the notification failed; no second message is
            # shown.
            if self._is_given_up:
                return
            reason = describe_exception(error)
            if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
                reason = f"no answer within {self._limit_s:.0f} s"
            reason = redact_error(target, reason) if is_web(target) else redact(reason)
            self.notify(f"notify: nobody was notified of the sweep's end ({reason})")

    def give_up(self) -> str:
        """Kill the user's command if it still runs, because it must not outlive the driver."""
        self._is_given_up = True
        if self._process and self._process.returncode is None:
            kill_session(self._process)
        return "did not end in time: nobody may have been notified of the sweep's end"

    def _keep(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self._is_given_up:
            kill_session(process)


def describe_in_variables(outcome: Outcome) -> dict[str, str]:
    """Return the environment variables that describe a sweep's end to the user's command."""
    return {
        "RLTUNE_SWEEP": outcome.name,
        "RLTUNE_STATUS": outcome.status,
        "RLTUNE_FOLDER": str(outcome.folder),
        "RLTUNE_EXIT_CODE": str(outcome.exit_code),
        "RLTUNE_WINNER": str((outcome.winner or {}).get("name", "")),
    }


def post(address: str, content: bytes, limit_s: float) -> None:
    """Send JSON by POST; a login in the address becomes basic authentication.

    Raises:
        OSError: The server cannot be reached, or refuses the request.
    """
    hide_login(address)
    parts = urlsplit(address)
    headers = {"Content-Type": "application/json", "User-Agent": "rltune"}
    if "@" in parts.netloc:
        login, _, host = parts.netloc.rpartition("@")
        headers["Authorization"] = f"Basic {base64.b64encode(unquote(login).encode()).decode()}"
        address = urlunsplit((parts.scheme, host, *parts[2:]))
    request = urllib.request.Request(address, content, headers)  # noqa: S310, http or https alone
    urllib.request.build_opener(_NoRedirect).open(request, timeout=limit_s).close()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they could send the login to another host, or turn the POST into a GET."""

    def redirect_request(self, *_: Any) -> None:
        """Treat a redirect as an error."""


def run_command(
    command: str,
    content: bytes,
    variables: Mapping[str, Any],
    limit_s: float,
    on_start: Callable[[subprocess.Popen[bytes]], None],
) -> None:
    """Run a shell command in a new process session, and kill the session at the time limit.

    Args:
        command: The command.
        content: What it reads from its standard input.
        variables: Environment variables to add to the driver's.
        limit_s: The limit, in seconds.
        on_start: Receives the process, which `kill_session` may end early.

    Raises:
        subprocess.TimeoutExpired: The command has not ended in time.
        OSError: The command has failed.
    """
    with subprocess.Popen(  # noqa: S602, the user's own command
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        start_new_session=True,
    ) as process:
        on_start(process)
        try:
            _, errors = process.communicate(content, timeout=limit_s)
        except subprocess.TimeoutExpired:
            kill_session(process)
            raise
    if process.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise OSError(f"the command ended with {process.returncode}: {last[:200]}")


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with all processes of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
