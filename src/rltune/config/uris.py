"""Remove logins from URIs and texts, refuse secrets in settings, and resolve the URI of MLflow's tracking server.

MLflow is not imported, because that takes seconds.
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

# A password may contain any character, even @ and /, so that a login ends at the last @. A user name without a password
# is kept, because the reader of a URI may need it.
_LOGIN = re.compile(r"://[^\s:]*:\S*@")
_LOGIN_OF_ONE = re.compile(r"(?s)://[^:]*:.*@")
_QUERY = r"(?i)([?&][\w-]*(?:password|passwd|token|secret|key)[\w-]*=)(?!\*\*\*)"
_QUERY_SECRET, _QUERY_SECRET_OF_ONE = re.compile(_QUERY + r"[^&\s]+"), re.compile(_QUERY + r"([^&]+)")
_PLAIN_LOGIN = re.compile(
    r"(?i)://[^/\s:@]*:(?!\d+/)\S+@|[?&](?:\w+[_-])?(?:password|passwd|token|secret|key)=(?!\*\*\*)"
)
_LOGIN_OPTION = re.compile(r"(?i)\s(?:-u|--user)[\s=]*\S+:\S|\bauthorization:")  # Of curl and the like.
_CUTTING = re.compile(r"[@/?#\[\]\s'\"\\]")  # Characters of a password at which some libraries end it.
_VARIABLE = re.compile(r"\$\{oc\.env:[^},]*(?:,\s*['\"]?([^}]*?)['\"]?\s*)?\}")  # The group is the default: plain text.
SECRET_VARIABLES = {"study.storage": "RLTUNE_STORAGE", "tracking.uri": "RLTUNE_TRACKING_URI", "notify": "RLTUNE_NOTIFY"}
"""The settings that may hold a secret, and the environment variable that errors suggest for each."""
HIDDEN = "***"  # Replaces a login.
BUCKET_SCHEMES = ("s3", "gs")
_QUOTES = "'\""
_NOTIFY_WORD = re.compile(r"(?s)(\+{0,2}notify=)(?!null$|\$\{)(.*)")
_WEB = re.compile(r"(?s)(https?://)([^/?#\s]*@)?([^/?#@\s]*)(.*)")
_MIN_LETTERS = 4  # Shorter words occur in every text.
_hidden: dict[str, re.Pattern[str]] = {}  # A pattern for each word in the logins that this process has used.


def hide_login(uri: str) -> None:
    """Let `redact` remove the words of a URI's login from all texts from now on.

    Call it before an address is used: the errors of libraries may quote pieces of a password, or its decoded form,
    which no longer look like an address.
    """
    login = uri.partition("://")[2].rpartition("@")[0]
    secrets = {login.partition(":")[2], *(match[1] for match in _QUERY_SECRET_OF_ONE.findall(uri))}
    secrets |= {os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("PASSWORD", "TOKEN")}
    decoded = {decode(word) for word in secrets for decode in (str, unquote, unquote_plus)}
    words = {spelling for word in decoded for spelling in _spell(word)}
    words |= {piece for word in decoded for piece in re.split(r"[@:/?#%&\s'\"\\]", word)}
    for word in words:
        if len(word) >= _MIN_LETTERS:
            # Only whole words are removed: the password "postgres" stays a part of "postgresql".
            before, after = (r"(?<![^\W_])" * word[0].isalnum(), r"(?![^\W_])" * word[-1].isalnum())
            _hidden.setdefault(word, re.compile(f"{before}{re.escape(word)}{after}"))


def _spell(word: str) -> set[str]:
    """Return the spellings of a word: as it is, in an address, in Python and in JSON."""
    coded = {quote(word), quote(word, safe=""), quote_plus(word)}
    return {word, *coded, repr(word)[1:-1], json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1]}


def redact(text: str) -> str:
    """Remove the logins of all URLs in a text, and every word that `hide_login` was given.

    White space ends a URL here. For a single URL use `redact_address`, which also finds passwords with blanks.
    """
    for word in sorted(_hidden, key=len, reverse=True):
        if word in text:
            text = _hidden[word].sub("***", text)
    return _QUERY_SECRET.sub(r"\1***", _LOGIN.sub("://***@", text))


def redact_error(address: str, text: str) -> str:
    """Remove the login of an address from a library's error about it.

    If the password contains a character at which some libraries end it, the error may quote any short piece of it, so
    that none of its text is kept.
    """
    password = address.partition("://")[2].rpartition("@")[0].partition(":")[2]
    if _CUTTING.search(password):
        return "not shown, because it may quote the password; write its special characters as %2F and the like"
    return redact(text)


def redact_address(value: str) -> str:
    """Remove the login from a single value, such as a setting or an override, even if the login contains blanks."""
    if match := _NOTIFY_WORD.fullmatch(value):
        return f"{match[1]}{redact_notify(match[2].strip(_QUOTES))}"
    return _QUERY_SECRET_OF_ONE.sub(r"\1***", _LOGIN_OF_ONE.sub("://***@", value))


def redact_notify(value: str) -> str:
    """Return the value of ``notify`` with only an address's host or a command's name; all else may be secret."""
    if match := _WEB.fullmatch(value):
        scheme, login, host, rest = match.groups()
        return f"{scheme}{host}/{HIDDEN}" if login or rest.strip("/") else value
    first, *rest = value.split() or [""]
    if not rest and "=" not in first:
        return value
    return HIDDEN if "=" in first else f"{first} {HIDDEN}"


def is_web(value: str) -> bool:
    """Return whether a value is a web address."""
    return value.startswith(("http://", "https://"))


def holds_plain_login(value: str) -> bool:
    """Return whether a value certainly contains a login; other uses of : and @ in addresses do not count."""
    return bool(_PLAIN_LOGIN.search(value))


def holds_secret(key: str, value: str) -> bool:
    """Return whether a setting contains a password or token in plain text rather than the name of a variable.

    Args:
        key: The setting. In a web address in ``notify``, everything except the host may be secret.
        value: The typed or composed value, with unresolved interpolations.
    """
    # Removing a variable that holds the password leaves an empty password.
    literal = _VARIABLE.sub(r"\1", value).replace(":@", "@")
    if key == "notify" and is_web(literal):
        return redact_notify(literal) != literal
    if key == "notify":
        return holds_plain_login(literal) or bool(_LOGIN_OPTION.search(literal))
    return redact_address(literal) != literal if key in SECRET_VARIABLES else holds_plain_login(literal)


def refuse_secret(key: str, value: str) -> None:
    """Refuse a password or token in plain text, because the list of processes and the queue would show it.

    Raises:
        ConfigError: The value contains one. The error shows the value without it, and the variable to use.
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
    """Refuse overrides that contain a password or token in plain text.

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
    if isinstance(settings, list):
        return [redact_settings(value) for value in settings]
    return redact_address(settings) if isinstance(settings, str) else settings


def is_bucket(address: str) -> bool:
    """Return whether an address is that of a bucket or of a folder in it."""
    scheme, _, rest = address.partition("://")
    return scheme in BUCKET_SCHEMES and bool(re.match(r"[\w.-]+(/|\?|$)", rest))


def resolve_uri(uri: str | None) -> str:
    """Return MLflow's tracking URI with an absolute path; None is the default of ``mlflow ui``."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    hide_login(uri)
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path.cwd() / uri.removeprefix('sqlite:///')}"
    return uri
