"""Say which settings may hold a secret, refuse typed secrets, and resolve MLflow's tracking URI.

MLflow is not imported, which would take seconds.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from rltune.errors import ABSENT, ConfigError
from rltune.secrets import HIDDEN, conceal, remember

_PLAIN_LOGIN = re.compile(
    r"(?is)://[^/\s:@]*:(?!\d+(?:[/\s]|$)).+@|[?&](?:\w+[_-])?(?:password|passwd|token|secret|key)=(?!\*\*\*)"
)
# Matches ${oc.env:NAME,default}; group 1 is the default.
_VARIABLE = re.compile(r"\$\{oc\.env:[^},]*(?:,\s*['\"]?([^}]*?)['\"]?\s*)?\}")
SECRET_VARIABLES = {"study.storage": "RLTUNE_STORAGE", "tracking.uri": "RLTUNE_TRACKING_URI", "notify": "RLTUNE_NOTIFY"}
"""The settings that may hold a secret, and the environment variable that errors suggest for each."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "127.0.0.0/8", "0.0.0.0", "::1")  # noqa: S104 - nothing listens there
_QUOTES = "'\""
_HOOK = re.compile(r"(?s)([\w+.-]+://)([^/?#\s]*@)?([^/?#@\s]*)([^@]*)")  # An @ after the host may be a password's.


def conceal_setting(key: str, value: str) -> str:
    """Conceal the login in a setting's value, and all of ``notify`` but its host, because the path may be secret.

    Args:
        key: The setting.
        value: Its value, as it is typed, composed or resolved. The names of environment variables are no secrets.
    """
    literal = _drop_variables(value)
    if key not in SECRET_VARIABLES and not holds_plain_login(literal):
        return value
    if key != "notify" or literal.isalnum() or not literal:
        shown = conceal(literal)
    elif match := _HOOK.fullmatch(literal):
        scheme, login, host, rest = match.groups()
        remember(rest, in_pieces=False)  # Its pieces are words such as "sweeps".
        shown = conceal(literal, f"{scheme}{host}/{HIDDEN}" if login or rest.strip("/") else literal)
    else:
        shown = conceal(literal, HIDDEN)
    return value if shown == literal else shown


def _drop_variables(value: str) -> str:
    """Replace ``${oc.env:NAME,default}`` by its default. An empty password, which may be left, is not secret."""
    literal = _VARIABLE.sub(r"\1", value)
    return value if literal == value else literal.replace(":@", "@")


def is_web(value: str) -> bool:
    """Return whether a value is an HTTP address."""
    return value.startswith(("http://", "https://"))


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
    literal = _drop_variables(value)
    if key in SECRET_VARIABLES and (key != "notify" or is_web(literal)):  # Another notify is refused as no address.
        return conceal_setting(key, value) != value
    return holds_plain_login(literal)


def refuse_secret(key: str, value: str) -> None:
    """Refuse a password or token in plain text, because lists of processes and a service's queue would show it.

    Args:
        key: The setting; empty for a typed word without one.
        value: Its value, or the word.

    Raises:
        ConfigError: There is one. The message shows the value without it, and the variable to use.
    """
    if holds_secret(key, value):
        variable = SECRET_VARIABLES.get(key, "NAME")
        shown = conceal_setting(key, value)
        visible = HIDDEN if shown == value else shown
        raise ConfigError(
            key or visible,
            visible if key else ABSENT,
            "holds a secret, which other users could read in the list of processes",
            "the name of an environment variable that holds the whole value",
            f"{key or 'key'}='${{oc.env:{variable}}}', after {variable} has been exported",
        )


def refuse_typed_secrets(words: Iterable[str]) -> None:
    """Refuse typed overrides that contain a password or token in plain text.

    Raises:
        ConfigError: One of them does.
    """
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:  # A flag's value, or a name without its key.
            key, value = "", word
        quote_sign = value[:1]
        if quote_sign and quote_sign in _QUOTES and value.endswith(quote_sign):
            value = value[1:-1].replace(f"\\{quote_sign}", quote_sign)
        refuse_secret(key.lstrip("+"), value)


def keep_local_direct() -> None:
    """Let no request of this process, or of those that it starts, for an address of this machine go through a proxy.

    A proxy is another machine, where the address means another server or none.
    """
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if "*" in named.split(","):
        return
    missing = [host for host in (*LOCAL_HOSTS, socket.gethostname()) if host not in named.split(",")]
    for name in ("no_proxy", "NO_PROXY"):  # Libraries read the one or the other.
        os.environ[name] = ",".join(filter(None, [named, *missing]))


def find_proxy(address: str) -> str:
    """Return the name of the environment variable whose proxy a request would go through; empty if through none."""
    from requests.utils import should_bypass_proxies

    names = (f"{address.partition(':')[0]}_proxy", "all_proxy")
    named = next((each for name in names for each in (name, name.upper()) if os.environ.get(each)), "")
    return "" if not named or should_bypass_proxies(address, no_proxy=None) else named


def resolve_uri(uri: str | None) -> str:
    """Return MLflow's tracking URI, with an SQLite file's path made absolute; None is the default of ``mlflow ui``."""
    keep_local_direct()
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    for name in ("PASSWORD", "TOKEN"):
        remember(os.environ.get(f"MLFLOW_TRACKING_{name}", ""))
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path.cwd() / uri.removeprefix('sqlite:///')}"
    return conceal(uri)
