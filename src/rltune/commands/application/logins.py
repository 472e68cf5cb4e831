"""Take logins that were typed out of the list of processes, in which every user of the machine can read them."""

from __future__ import annotations

import os
import sys

from rltune.config.uris import holds_login_of, is_web, redact_notify

VARIABLES = {"study.storage": "RLTUNE_STORAGE", "tracking.uri": "RLTUNE_TRACKING_URI", "notify": "RLTUNE_NOTIFY"}


def hide_typed_logins() -> None:
    """Begin this process again with its logins in environment variables, which only its own user can read.

    Otherwise Ray would keep the words that it was started with, and the jobs of ``-m`` would repeat them.
    """
    words, moved = list(sys.argv[1:]), {}
    for place, word in enumerate(words):
        key, _, value = word.partition("=")
        variable = VARIABLES.get(key.lstrip("+"))
        if variable and _holds_secret(key.lstrip("+"), _unquote(value)):
            words[place], moved[variable] = f"{key}=${{oc.env:{variable}}}", _unquote(value)
            print(
                f"{key}: other users can read a login that is typed, in the list of processes; set {variable} to the "
                f"address and type {key}='${{oc.env:{variable}}}'",
                file=sys.stderr,
                flush=True,
            )
    if moved:
        os.execve(sys.executable, [*read_start(), *words], os.environ | moved)  # noqa: S606, the same program


def _holds_secret(key: str, value: str) -> bool:
    """Whether a value has what others should not read; of an address to notify any part may be secret."""
    return redact_notify(value) != value if key == "notify" and is_web(value) else holds_login_of(key, value)


def read_start() -> list[str]:
    """Return what this process was started with before its settings: Python with its options, and the command."""
    return sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]


def _unquote(value: str) -> str:
    """Read a value that is quoted for Hydra, as one with a blank has to be."""
    quote = value[:1]
    return value[1:-1].replace(f"\\{quote}", quote) if quote in "'\"" and value.endswith(quote) else value
