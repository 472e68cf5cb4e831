"""Show URIs without their logins, and resolve the one of MLflow's tracking server.

MLflow is not imported, which would take seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

# A password may hold any sign, even @ and /, so that only the last @ can be the login's end. A user name without a
# password is kept: whoever reads the URI later has no other way to know it.
_LOGIN = re.compile(r"://[^\s:]*:\S*@")
_LOGIN_OF_ONE = re.compile(r"(?s)://[^:]*:.*@")
_QUERY = r"(?i)([?&][\w-]*(?:password|passwd|token|secret|key)[\w-]*=)(?!\*\*\*)"
_QUERY_SECRET, _QUERY_SECRET_OF_ONE = re.compile(_QUERY + r"[^&\s]+"), re.compile(_QUERY + r"[^&]+")


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Remove the logins of all URLs in a text.

    White space ends a URL here. Where a URL stands alone, use `redact_address`, which also finds passwords with blanks.

    Args:
        text: Anything that may be shown or written.
        secrets: Further words that must not appear, such as those of `secrets_of`.
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    return _QUERY_SECRET.sub(r"\1***", _LOGIN.sub("://***@", text))


def redact_address(value: str) -> str:
    """Remove the login of a single value, such as a setting or a word of the command line, blanks and all."""
    return _QUERY_SECRET_OF_ONE.sub(r"\1***", _LOGIN_OF_ONE.sub("://***@", value))


def redact_settings(settings: Any) -> Any:
    """Remove the logins of all values of nested settings."""
    if isinstance(settings, dict):
        return {key: redact_settings(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [redact_settings(value) for value in settings]
    return redact_address(settings) if isinstance(settings, str) else settings


def resolve_uri(uri: str | None) -> str:
    """Return MLflow's tracking URI with an absolute path; None is the store that a plain ``mlflow ui`` here shows."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path.cwd() / uri.removeprefix('sqlite:///')}"
    return uri


def secrets_of(uri: str) -> list[str]:
    """Return the words of a URI's login that `redact` could miss, longest first; short ones would spoil plain text."""
    login = uri.partition("://")[2].rpartition("@")[0]
    password = login.partition(":")[2]
    given = {os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("PASSWORD", "TOKEN")}
    # Libraries end a password at one of its signs, or decode it, and their errors then quote the pieces.
    words = {password, unquote(password), quote(password, safe=""), quote_plus(password)} | given
    words |= {word for piece in (password, unquote(password)) for word in re.split(r"[@:/?#\s]", piece)}
    return sorted((word for word in words if len(word) >= 6), key=len, reverse=True)
