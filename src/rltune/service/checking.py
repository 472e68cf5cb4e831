"""Check and compose a submission in a process of its own.

The check imports the modules of users, such as an environment's. In a process of its own, a module that was corrected
since is read again, and one that hangs or ends its process harms nobody.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rltune.compose.composing import change_settings, compose_settings, read_request
from rltune.compose.overrides import spell_value
from rltune.config.names import make_sweep_name, sweep_folder_of
from rltune.config.schema import RunConfig
from rltune.config.settings_file import flatten_settings
from rltune.config.uris import redact_address, refuse_secret, refuse_typed_secrets
from rltune.errors import EXIT_TRY_AGAIN, ConfigError, RltuneError, UnavailableError
from rltune.formatting import spell_command

LIMIT_S = 50.0  # A client waits 60 s for the response.
RESERVED = {  # The settings that the service gives each sweep, and why a submission may not give them.
    "output_dir": "all its sweeps lie in one folder, that of the service",
    "resume": "it starts each with resume=auto",
}
_OVERRIDE = re.compile(r"(\+{0,2}[\w./@-]+=|~[\w./@-]+).*", re.DOTALL)


@dataclass(frozen=True)
class CheckRequest:
    """A submission, or a change of one, that is to be checked.

    Attributes:
        overrides: As they are typed after ``rltune run``.
        output_dir: The folder of the service's sweeps.
        name: The sweep's name; None is the one in the overrides, or one that is made.
        settings: The composed settings of a sweep that is submitted already, to which the overrides apply; empty for a
            new one.
    """

    overrides: Sequence[str]
    output_dir: str
    name: str | None = None
    settings: str = ""


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep that can be run.

    Attributes:
        name: The sweep's name.
        overrides: The overrides that were typed for it, without its name.
        settings: Its composed settings as YAML. Interpolations are unresolved, so that no secret is among them.
    """

    name: str
    overrides: Sequence[str] = field(default_factory=tuple)
    settings: str = ""


def check_in_child(request: CheckRequest, limit_s: float = LIMIT_S) -> CheckedSweep:
    """Check a request as `check_here` does, in a new process.

    Raises:
        RltuneError: It cannot be run, or the check does not end in time.
    """
    try_alone = spell_command("run ... with the same settings shows what it prints")
    # Files are used because a process that a user's module leaves running would keep a pipe open.
    with tempfile.TemporaryFile() as request_file, tempfile.TemporaryFile() as response_file:
        request_file.write(json.dumps(asdict(request)).encode())
        request_file.seek(0)
        command = [sys.executable, "-m", "rltune.service.checking"]
        child = subprocess.Popen(
            command, stdin=request_file, stdout=response_file, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise ConfigError(
                f"checking the settings took more than {limit_s:g} s",
                "modules that are imported, and an environment that is reset and stepped, within seconds",
                try_alone,
            ) from None
        response_file.seek(0)
        content = response_file.read()
    if not content:
        raise ConfigError(
            f"checking the settings ended its process with {code}", "modules that only define things", try_alone
        )
    response: dict[str, Any] = json.loads(content)
    if "error" in response:
        error_type = UnavailableError if response["exit_code"] == EXIT_TRY_AGAIN else ConfigError
        raise error_type(*response["error"])
    return CheckedSweep(**response)


def check_here(request: CheckRequest) -> CheckedSweep:
    """Check that a sweep can be run as far as that needs no RLlib, and compose its settings.

    Raises:
        RltuneError: It cannot be run.
    """
    overrides = [word for word in request.overrides if not _is_name(word)]
    refuse_typed_secrets(request.overrides)
    for word in request.overrides:
        _check_override(word)
    if request.settings:
        settings = change_settings(request.settings, overrides)
        settings.output_dir = request.output_dir  # The folder may have been moved since the sweep was submitted.
    else:
        names = [word.partition("=")[2].strip("'\"") for word in request.overrides if _is_name(word)]
        name = request.name or (names[-1] if names and names[-1] != "null" else None)
        reserved = {"output_dir": request.output_dir, "name": name}
        reserved_overrides = [f"{key}={spell_value(key, value)}" for key, value in reserved.items()]
        settings = compose_settings("run", RunConfig, [*overrides, *reserved_overrides])
    for key, value in flatten_settings(OmegaConf.to_container(settings, resolve=False)):
        if isinstance(value, str):
            refuse_secret(key, value)
    config = read_request(settings, overrides)
    _check_config(config)
    return CheckedSweep(make_sweep_name(config), tuple(overrides), _format_settings(settings, make_sweep_name(config)))


def _format_settings(settings: DictConfig, name: str) -> str:
    copied = OmegaConf.create(OmegaConf.to_container(settings, resolve=False))
    copied.name, copied.resume = name, "auto"
    return OmegaConf.to_yaml(copied)


def _check_config(config: RunConfig) -> None:
    from rltune.driver.plan import make_plan
    from rltune.driver.run import check_request, compare_with_begun
    from rltune.ledger.sweep_folder import is_half_made

    folder = sweep_folder_of(config, make_sweep_name(config))
    if config.resume == "auto" and folder.exists() and not is_half_made(folder):
        config, _ = compare_with_begun(folder, config)
        make_plan(config, resumed=True)
    else:
        check_request(config)


def _is_name(word: str) -> bool:
    return word.partition("=")[0].lstrip("+") == "name"


def _check_override(word: str) -> None:
    """Refuse a word that is no override, or that gives a reserved setting."""
    key = word.partition("=")[0]
    if not _OVERRIDE.fullmatch(word):
        raise ConfigError(
            f"{redact_address(word)}: no setting", "group=option, key=value, +key=value, ~key", "algo=ppo env=cartpole"
        )
    if reason := RESERVED.get(key.lstrip("+")):
        raise ConfigError(f"{word}: a service takes no {key} of a sweep", reason, f"leave {key}= out")


def main() -> None:
    """Check the request on standard input, and write the checked sweep or the error's parts to standard output."""
    output = os.dup(1)
    os.dup2(2, 1)  # What the user's modules print is no part of the response.
    signal.alarm(round(LIMIT_S) + 10)  # The service may have been killed meanwhile.
    try:
        response: dict[str, Any] = asdict(check_here(CheckRequest(**json.load(sys.stdin))))
    except RltuneError as error:
        response = {"error": [error.what, error.allowed, error.fix], "exit_code": error.exit_code}
    os.write(output, json.dumps(response).encode())
    os.killpg(0, signal.SIGKILL)  # No thread or process that a user's module has started stays behind.


if __name__ == "__main__":
    main()
