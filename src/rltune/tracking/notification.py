"""Notify a user when a sweep has ended, by an HTTP POST. Runs in the driver."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from rltune.config.uris import conceal_setting, is_web, keep_local_direct
from rltune.errors import ConfigError
from rltune.formatting import spell_command
from rltune.ledger.outcome import Outcome
from rltune.ledger.sweep_folder import spell_output_dir
from rltune.secrets import lacks_login, reveal
from rltune.tracking.tracker import SweepDescription, Tracker

LIMIT_S = 10.0


def check_target(notify: str | None) -> None:
    """Refuse an address that is no HTTP URL; whether a server answers there is only seen when the sweep ends."""
    address = reveal(notify or "")
    # From saved settings, only the host of an address is known.
    if not address or lacks_login(address):
        return
    try:
        host = is_web(address) and urlsplit(address).hostname
    # urlsplit raises an error for some texts, such as an IPv6 address without its closing bracket.
    except ValueError:
        host = None
    if not host:
        raise ConfigError(
            "notify",
            conceal_setting("notify", address),
            "is not an address to post to",
            "null, http://... or https://...",
            f"notify='${{oc.env:RLTUNE_NOTIFY}}'; for a command: {spell_command('run ...')} && your-command",
        )


class NotificationTracker(Tracker):
    """The tracker that posts one notification at the end of a sweep; if it fails, a message says so.

    Args:
        sweep: The sweep.
        address: A web address, which receives `describe_outcome` as JSON; a login in it becomes basic authentication.
        limit_s: The longest wait for an answer, in seconds.
    """

    name = "notify"
    close_s = LIMIT_S + 1.0

    def __init__(self, sweep: SweepDescription, address: str, limit_s: float = LIMIT_S) -> None:
        super().__init__(sweep)
        self._address, self._limit_s = address, limit_s

    def end(self, status: str, outcome: Outcome | None) -> None:
        """Send the notification at the end of the sweep."""
        if outcome is None or lacks_login(self._address):
            return
        import requests  # Imported only here, because it is slow.

        keep_local_direct()
        try:
            # A redirect is not followed: it could send the login to another host, or turn the POST into a GET.
            answer = requests.post(
                reveal(self._address), json=describe_outcome(outcome), timeout=self._limit_s, allow_redirects=False
            )
            problem = None if answer.status_code < 300 else f"it answered with {answer.status_code}"
        except requests.Timeout:
            problem = f"no answer within {self._limit_s:.0f} s"
        except Exception as error:  # Its text would quote the path of the address, which may be secret.
            problem = type(error).__name__
        if problem:
            self.notify(f"notify: nobody was notified of the sweep's end ({problem})")

    def give_up(self) -> str:
        """Say what the user loses, because a resume does not know whom to notify."""
        return "did not end in time: nobody may have been notified of the sweep's end"


def describe_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return what is posted: ``summary.json``, the exit code, the command that shows the sweep, and a line of text."""
    show = spell_command(f"show sweep={outcome.name}{spell_output_dir(outcome.folder.parent)}")
    text = f"{outcome.name}: {outcome.status}"
    return {**outcome.to_dict(), "exit_code": outcome.exit_code, "show": show, "text": text}
