"""Keep the logins of addresses out of every text.

An address with a login is a `Secret` from the moment its setting is resolved. As a string it is the address without the
login, so whatever prints, stores, pickles or compares it cannot leak the login. Only `reveal` returns it whole,
where a connection is opened. The library that connects may quote the address in its errors and logs, whole, cut or
decoded. So text that leaves the process (errors, logs, output, ledger, MLflow) passes `redact`, which knows the logins
of all secrets.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"  # The text that replaces logins in messages and files.
MIN_LETTERS = 4  # Shorter pieces of a password are not hidden, because they occur in any text.
# In texts, white space ends a URL. A password may contain any other character, even @ and /, so the login ends at the
# last @. A user name without a password is not secret and stays.
_LOGIN = re.compile(r"://[^\s:]*:\S*@")
_NAME = r"(?i)([?&][\w-]*(?:password|passwd|token|secret|key)[\w-]*=)(?!\*\*\*)"
_QUERY, _QUERY_OF_ONE = re.compile(_NAME + r"[^&\s]+"), re.compile(_NAME + r"([^&]+)")
_CUTTING = re.compile(r"[@/?#\[\]\s'\"\\]")  # Characters at which libraries may cut off a password.
# Variables with which the clients of databases, buckets and trackers log in. What ends in FILE or URL is none.
_SECRET_VARIABLE = re.compile(r"(?i)(?:password|passwd|(?:^|_)(?:token|secret|api_?key|access_?key|private_?key))$")
MIN_VALUE = 6  # Shorter values of such variables are switches, such as false.
_known: dict[str, re.Pattern[str]] = {}  # The secret words of this process, with the patterns that find them.


class Secret(str):
    """An address without its login, which `reveal` returns whole. A copy, in a pickle for example, has no login."""

    __slots__ = ("whole",)
    whole: str

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle and copy only what the string shows: Ray and Tune write pickles to files."""
        return str, (str(self),)


def conceal(address: str, shown: str | None = None) -> str:
    """Return an address as a `Secret`, whose login `redact` removes from now on; one without a login is returned as is.

    Args:
        address: The address, or any setting; everything from ``://`` to the last @ may be a login.
        shown: What the string shows; None is the address without its login.
    """
    if isinstance(address, Secret):
        return address
    start, mark, rest = address.partition("://")
    login, _, place = rest.rpartition("@")
    has_login = ":" in login
    if has_login:
        remember(login.partition(":")[2])
        # A short password is hidden only where it stands between the user and the host.
        _known.setdefault(login, re.compile(rf"(?<=://){re.escape(login)}(?=@)"))
    for _, word in _QUERY_OF_ONE.findall(address):
        remember(word)
    if shown is None:
        shown = _QUERY_OF_ONE.sub(rf"\1{HIDDEN}", f"{start}{mark}{HIDDEN}@{place}" if has_login else address)
    if shown == address:
        return address
    secret = Secret(shown)
    secret.whole = address
    return secret


def reveal(address: str) -> str:
    """Return an address with its login. Call this where a connection is opened, and keep the result nowhere."""
    remember_variables()
    return address.whole if isinstance(address, Secret) else address


def lacks_login(address: str) -> bool:
    """Return whether an address was read from a file or a pickle, which keep no login."""
    return HIDDEN in reveal(address)


def remember(word: str, *, in_pieces: bool = True) -> None:
    """Let `redact` remove a secret word from this process's texts.

    Args:
        word: The word.
        in_pieces: Whether to remove its pieces between special characters, too, at which libraries may cut a password.
    """
    meant = {read(word) for read in (str, unquote, unquote_plus)}
    # Spelled twice, because an error may quote another error.
    words = {spelling for text in meant for once in _spell(text) for spelling in _spell(once)}
    if in_pieces:
        words |= {piece for text in meant for piece in re.split(r"[@:/?#%&\s'\"\\]", text)}
    for text in words:
        if len(text) >= MIN_LETTERS:
            # A word is not hidden inside longer ones, such as "postgres" in "postgresql".
            before, after = (r"(?<![^\W_])" * text[0].isalnum(), r"(?![^\W_])" * text[-1].isalnum())
            _known.setdefault(text, re.compile(f"{before}{re.escape(text)}{after}"))


def remember_variables() -> None:
    """Let `redact` remove the values of this process's environment variables with which clients log in.

    A client takes them by itself, and may quote them in its errors.
    """
    for name, value in os.environ.items():
        if len(value) >= MIN_VALUE and value not in _known and _SECRET_VARIABLE.search(name):
            remember(value, in_pieces=False)


def _spell(word: str) -> set[str]:
    """Return a word as it may occur in texts: plain, percent-encoded, and escaped in Python or JSON strings."""
    coded = {quote(word), quote(word, safe=""), quote_plus(word)}
    return {word, *coded, repr(word)[1:-1], json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1]}


def redact(text: str) -> str:
    """Remove the logins of all secrets from a text, and the logins of all other URLs that have no white space."""
    for word in sorted(_known, key=len, reverse=True):
        if word in text:
            text = _known[word].sub(HIDDEN, text)
    return _QUERY.sub(rf"\1{HIDDEN}", _LOGIN.sub(f"://{HIDDEN}@", text))


def redact_error(address: str, text: str) -> str:
    """Return a library's error about an address without its password, or a fixed text if pieces of it could remain.

    If the password has a character at which a library may take it to end, the error may quote any piece of it, however
    short. Then nothing of the error is kept.
    """
    password = reveal(address).partition("://")[2].rpartition("@")[0].partition(":")[2]
    if _CUTTING.search(password):
        return (
            "the reason is not shown, because it may contain the password; "
            "special characters of a password are written as %2F and so on"
        )
    return redact(text)


class RedactingStream:
    """A stream that removes logins from what is written to it: output, warnings, and tracebacks of any thread.

    Args:
        stream: The stream that gets the rest.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text without logins."""
        self._stream.write(redact(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write lines without logins."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def filter_output(*names: str) -> None:
    """Remove logins from everything that this process writes to its ``stdout`` or ``stderr`` from now on."""
    remember_variables()
    for name in names:
        if not isinstance(stream := getattr(sys, name), RedactingStream):
            setattr(sys, name, RedactingStream(stream))
