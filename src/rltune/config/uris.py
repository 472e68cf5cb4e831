"""Where MLflow is: the tracking address that is meant, whether it answers, how to show it without a password.

Works without importing mlflow, so that a wrong address costs no more than its time-out. Runs in the driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

# A password may hold any sign, an @ and a / too, so that only the last @ can be the login's end. A user without a
# password is kept: who reads the address later has no other way to know it.
_LOGIN = re.compile(r"://[^\s:]*:\S*@")
_LOGIN_OF_ONE = re.compile(r"(?s)://[^:]*:.*@")
_QUERY = r"(?i)([?&][\w-]*(?:password|passwd|token|secret|key)[\w-]*=)(?!\*\*\*)"
_QUERY_SECRET, _QUERY_SECRET_OF_ONE = re.compile(_QUERY + r"[^&\s]+"), re.compile(_QUERY + r"[^&]+")


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Take the login out of every URL in a text.

    White space ends a URL here: where one stands alone, `redact_address` knows more.

    Args:
        text: Anything that may be shown or written.
        secrets: Words that must not appear either, such as a password that is no part of a URL.
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    return _QUERY_SECRET.sub(r"\1***", _LOGIN.sub("://***@", text))


def redact_address(value: str) -> str:
    """Take the login out of a single value, such as a setting or a word of the command line, blanks and all."""
    return _QUERY_SECRET_OF_ONE.sub(r"\1***", _LOGIN_OF_ONE.sub("://***@", value))


def redact_settings(settings: Any) -> Any:
    """Take the logins out of all values of nested settings."""
    if isinstance(settings, dict):
        return {key: redact_settings(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [redact_settings(value) for value in settings]
    return redact_address(settings) if isinstance(settings, str) else settings


def resolve_uri(uri: str | None) -> str:
    """The tracking address that is meant, absolute; for None, what a plain ``mlflow ui`` here would show."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path.cwd() / uri.removeprefix('sqlite:///')}"
    return uri


def secrets_of(uri: str) -> list[str]:
    """Words that redacting URLs could miss, longest first; short ones would spoil ordinary text."""
    login = uri.partition("://")[2].rpartition("@")[0]
    password = login.partition(":")[2]
    given = {os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("PASSWORD", "TOKEN")}
    # libraries end a password where they see fit and decode it, and name the pieces in their errors
    words = {password, unquote(password), quote(password, safe=""), quote_plus(password)} | given
    words |= {word for piece in (password, unquote(password)) for word in re.split(r"[@:/?#\s]", piece)}
    return sorted((word for word in words if len(word) >= 6), key=len, reverse=True)
