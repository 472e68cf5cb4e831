"""Tell somebody that a sweep has ended: by a POST to an address, or a person's own command. Runs in the driver."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from rltune.config.uris import HIDDEN, hide_login, is_web, redact, redact_error
from rltune.errors import describe_exception
from rltune.study.outcome import Outcome

LIMIT_S = 10.0


def notify_end(target: str, outcome: Outcome, limit_s: float = LIMIT_S) -> str:
    """Tell how a sweep has ended, and wait for that at most so long.

    Args:
        target: An address, which gets what ``summary.json`` has as JSON by POST; else a command for the shell, which
            gets it on its standard input, and ``RLTUNE_SWEEP``, ``RLTUNE_STATUS``, ``RLTUNE_FOLDER``,
            ``RLTUNE_EXIT_CODE`` and ``RLTUNE_WINNER`` (``trial 7``, or empty) as variables.
        outcome: How it has ended.
        limit_s: The longest wait, in seconds.

    Returns:
        What went wrong, for a person, without logins; empty where nothing did.
    """
    if HIDDEN in target:  # a resume that was not given the login again has said so
        return ""
    by_web, problems = is_web(target), [f"no answer within {limit_s:.0f} s"]
    summary = json.dumps(outcome.to_dict()).encode()

    def tell() -> None:
        try:
            if by_web:
                post(target, summary, limit_s)
            else:
                run_command(target, summary, describe_in_variables(outcome), limit_s)
            problems.clear()
        except subprocess.TimeoutExpired:
            pass
        except Exception as error:
            why = describe_exception(error)
            problems[:] = [redact_error(target, why) if by_web else redact(why)]

    thread = threading.Thread(target=tell, name="notify", daemon=True)  # a name server may take longer than any limit
    thread.start()
    thread.join(limit_s + 1.0)
    return f"notify: nobody was told of the sweep's end ({problems[0]})" if problems else ""


def describe_in_variables(outcome: Outcome) -> dict[str, str]:
    """Describe a sweep's end in variables for a command."""
    return {
        "RLTUNE_SWEEP": outcome.name,
        "RLTUNE_STATUS": outcome.status,
        "RLTUNE_FOLDER": str(outcome.folder),
        "RLTUNE_EXIT_CODE": str(outcome.exit_code),
        "RLTUNE_WINNER": str((outcome.winner or {}).get("name", "")),
    }


def post(address: str, content: bytes, limit_s: float) -> None:
    """Post JSON to an address; a login in it is sent as basic authentication.

    Raises:
        OSError: It cannot be reached, or refuses.
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
    """Takes a redirect for an error: the login is not for another host, and a GET there tells nobody."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def run_command(command: str, content: bytes, variables: Mapping[str, Any], limit_s: float) -> None:
    """Run a command in the shell, in a session of its own, and end all of it at the limit.

    Raises:
        subprocess.TimeoutExpired: It has not ended in time.
        OSError: It has failed.
    """
    with subprocess.Popen(  # noqa: S602, the person's own command
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(content, timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        last = (said.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise OSError(f"the command ended with {process.returncode}: {last[:200]}")
