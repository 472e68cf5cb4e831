"""Remove passwords from URIs and other texts, and resolve MLflow's tracking URI.

MLflow is not imported, which would take seconds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from rltune.errors import ConfigError

# A password may contain any character, even @ and /, so the login ends at the last @. A user name without a password is
# not secret and stays.
_LOGIN = re.compile(r"://[^\s:]*:\S*@")
_LOGIN_OF_ONE = re.compile(r"(?s)://[^:]*:.*@")
_QUERY = r"(?i)([?&][\w-]*(?:password|passwd|token|secret|key)[\w-]*=)(?!\*\*\*)"
_QUERY_SECRET, _QUERY_SECRET_OF_ONE = re.compile(_QUERY + r"[^&\s]+"), re.compile(_QUERY + r"([^&]+)")
_PLAIN_LOGIN = re.compile(
    r"(?i)://[^/\s:@]*:(?!\d+/)\S+@|[?&](?:\w+[_-])?(?:password|passwd|token|secret|key)=(?!\*\*\*)"
)
_CUTTING = re.compile(r"[@/?#\[\]\s'\"\\]")  # Characters at which libraries may cut off a password.
# Matches ${oc.env:NAME,default}; group 1 is the default.
_VARIABLE = re.compile(r"\$\{oc\.env:[^},]*(?:,\s*['\"]?([^}]*?)['\"]?\s*)?\}")
SECRET_VARIABLES = {"study.storage": "RLTUNE_STORAGE", "tracking.uri": "RLTUNE_TRACKING_URI", "notify": "RLTUNE_NOTIFY"}
"""The settings that may hold a secret, and the environment variable that errors suggest for each."""
HIDDEN = "***"  # The text that replaces passwords in messages and files.
_QUOTES = "'\""
_NOTIFY_WORD = re.compile(r"(?s)(\+{0,2}notify=)(?!null$|\$\{)(.*)")
_HOOK = re.compile(r"(?s)([\w+.-]+://)([^/?#\s]*@)?([^/?#@\s]*)([^@]*)")  # An @ after the host may be a password's.
_MIN_LETTERS = 4  # Shorter pieces of a password are not hidden, because they occur in any text.
_hidden: dict[str, re.Pattern[str]] = {}  # The secret words of this process, with the patterns that find them.


def hide_login(uri: str) -> None:
    """Register the password in a URI, so that `redact` removes it from every text of this process.

    Call this before an address is used: libraries may cut a password at one of its characters, or decode it, and then
    quote the pieces in their errors, where nothing looks like an address any more.
    """
    login = uri.partition("://")[2].rpartition("@")[0]
    given = {login.partition(":")[2], *(secret for _, secret in _QUERY_SECRET_OF_ONE.findall(uri))}
    given |= {os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("PASSWORD", "TOKEN")}
    meant = {read(word) for word in given for read in (str, unquote, unquote_plus)}
    words = {spelling for word in meant for spelling in _spell(word)}
    words |= {piece for word in meant for piece in re.split(r"[@:/?#%&\s'\"\\]", word)}
    for word in words:
        if len(word) >= _MIN_LETTERS:
            # A word is not hidden inside longer ones, such as "postgres" in "postgresql".
            before, after = (r"(?<![^\W_])" * word[0].isalnum(), r"(?![^\W_])" * word[-1].isalnum())
            _hidden.setdefault(word, re.compile(f"{before}{re.escape(word)}{after}"))


def _spell(word: str) -> set[str]:
    """Return a word as it may occur in texts: plain, percent-encoded, and escaped in Python or JSON strings."""
    coded = {quote(word), quote(word, safe=""), quote_plus(word)}
    return {word, *coded, repr(word)[1:-1], json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1]}


def redact(text: str) -> str:
    """Remove the logins of all URLs in a text, and every secret that `hide_login` has registered.

    White space ends a URL here. For a single URL use `redact_address`, which also finds passwords with blanks.
    """
    for word in sorted(_hidden, key=len, reverse=True):
        if word in text:
            text = _hidden[word].sub("***", text)
    return _QUERY_SECRET.sub(r"\1***", _LOGIN.sub("://***@", text))


def redact_error(address: str, text: str) -> str:
    """Return a library's error about an address without its password, or a fixed text if pieces of it could remain.

    If the password has a character at which a library may take it to end, the error may quote any piece of it, however
    short. Then nothing of the error is kept.
    """
    password = address.partition("://")[2].rpartition("@")[0].partition(":")[2]
    if _CUTTING.search(password):
        return (
            "the reason is not shown, because it may contain the password; "
            "special characters of a password are written as %2F and so on"
        )
    return redact(text)


def redact_address(value: str) -> str:
    """Remove the login from a value that is a single address or setting, even if the password contains blanks."""
    if match := _NOTIFY_WORD.fullmatch(value):
        return f"{match[1]}{redact_notify(match[2].strip(_QUOTES))}"
    return _QUERY_SECRET_OF_ONE.sub(r"\1***", _LOGIN_OF_ONE.sub("://***@", value))


def redact_notify(value: str) -> str:
    """Return only the host of the URL in ``notify``, because its path and query may be secret; else a single word."""
    if match := _HOOK.fullmatch(value):
        scheme, login, host, rest = match.groups()
        return f"{scheme}{host}/{HIDDEN}" if login or rest.strip("/") else value
    return value if value.isalnum() else HIDDEN


def is_web(value: str) -> bool:
    """Return whether a value is an HTTP address."""
    return value.startswith(("http://", "https://"))


def holds_login(value: str) -> bool:
    """Return whether a value may contain a login, that is, whether `redact_address` changes it."""
    return redact_address(value) != value


def holds_plain_login(value: str) -> bool:
    """Return whether a value certainly contains a login; colons and @ may also occur without one."""
    return bool(_PLAIN_LOGIN.search(value))


def holds_secret(key: str, value: str) -> bool:
    """Return whether a setting contains a password or token in plain text, instead of ``${oc.env:NAME}``.

    Args:
        key: The setting. Everything in an HTTP address of ``notify`` but its host may be secret. In settings that are
            not addresses, other colons and @ are usual.
        value: Its value as it is typed or composed, with interpolations unresolved.
    """
    # If the password comes from a variable, an empty password is left, which is not secret.
    literal = _VARIABLE.sub(r"\1", value).replace(":@", "@")
    if key == "notify" and is_web(literal):
        return redact_notify(literal) != literal
    return holds_login(literal) if key in SECRET_VARIABLES and key != "notify" else holds_plain_login(literal)


def refuse_secret(key: str, value: str) -> None:
    """Refuse a password or token in plain text, because lists of processes and a service's queue would show it.

    Raises:
        ConfigError: There is one. The message shows the value without it, and the variable to use.
    """
    if holds_secret(key, value):
        variable = SECRET_VARIABLES.get(key, "NAME")
        redacted = redact_notify(value) if key == "notify" else redact_address(value)
        visible = HIDDEN if redacted == value else redacted
        raise ConfigError(
            f"{key}={visible} holds a secret, which other users could read in the list of processes",
            "the name of an environment variable that holds the whole value",
            f"{key}='${{oc.env:{variable}}}', after {variable} has been exported",
        )


def refuse_typed_secrets(words: Iterable[str]) -> None:
    """Refuse typed overrides that contain a password or token in plain text.

    Raises:
        ConfigError: One of them does.
    """
    for word in words:
        key, _, value = word.partition("=")
        quote_sign = value[:1]
        if quote_sign and quote_sign in _QUOTES and value.endswith(quote_sign):
            value = value[1:-1].replace(f"\\{quote_sign}", quote_sign)
        refuse_secret(key.lstrip("+"), value)


def redact_settings(settings: Any) -> Any:
    """Remove the logins from all values of nested settings."""
    if isinstance(settings, dict):
        return {key: redact_settings(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [redact_settings(value) for value in settings]
    return redact_address(settings) if isinstance(settings, str) else settings


def resolve_uri(uri: str | None) -> str:
    """Return MLflow's tracking URI, with an SQLite file's path made absolute; None is the default of ``mlflow ui``."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    hide_login(uri)
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path.cwd() / uri.removeprefix('sqlite:///')}"
    return uri
