"""Check a submission and compose its settings in a child process, because this runs a user's code.

The check imports the modules of users, such as an environment's. In a process of its own, a module that was corrected
since is read again, and one that hangs or ends its process harms nobody.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, cast

from omegaconf import DictConfig, OmegaConf

from rltune.compose.composing import change_settings, compose_settings, read_request
from rltune.compose.explaining import split_word
from rltune.compose.overrides import spell_value
from rltune.config.schema import RunConfig
from rltune.config.settings_file import dump_settings
from rltune.config.uris import SECRET_VARIABLES, refuse_secret, refuse_typed_secrets
from rltune.config.validation import WITH_VARIABLES
from rltune.envs.child import CallGivenUpError, Child, begin_child
from rltune.errors import ConfigError, RltuneError, UnavailableError
from rltune.formatting import flatten_settings, format_number, spell_command, to_plain
from rltune.secrets import remember

RETRY_S = 5  # A request that was not carried out should be sent again after this time.
LIMIT_S = 50.0  # The time limit of a check, less than the 60 s that clients wait for a response.
RESERVED = {  # Settings that the service sets for each sweep, and the reasons why a submission may not contain them.
    "output_dir": "all its sweeps lie in one folder, that of the service",
    "resume": "it starts each with resume=auto",
}
_OVERRIDE = re.compile(r"(\+{0,2}[\w./@-]+=|~[\w./@-]+).*", re.DOTALL)
# An interpolation that calls a function, such as ${oc.env:NAME}, also one whose name is interpolated itself.
_CALL = re.compile(r"\$\{(?:[^{}:]|\$?\{[^{}]*\})*:")
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)[^{}]*\}")  # The only one that a client may type.


class BusyError(UnavailableError):
    """A request was not carried out, because too many others are being checked or its client has given it up."""

    headers: ClassVar[Mapping[str, str]] = {"Retry-After": str(RETRY_S)}


@dataclass(frozen=True)
class CheckedSweep:
    """A submission that was accepted: its name, overrides and composed settings.

    Attributes:
        name: The sweep's name.
        overrides: The overrides that were typed for it, without its name.
        settings: Its composed settings as YAML. Interpolations are unresolved, so that no secret is among them.
        plan: What ``rltune run check=true`` has of it: the name that was typed, and what it costs at most.
    """

    name: str
    overrides: tuple[str, ...]
    settings: str
    plan: Mapping[str, Any] = field(default_factory=dict)


def run_in_child(
    check: Callable[..., CheckedSweep],
    *arguments: object,
    limit_s: float = LIMIT_S,
    is_wanted: Callable[[], bool] = lambda: True,
) -> CheckedSweep:
    """Run a check in a child process, which has ended with its descendants afterwards.

    Args:
        check: `check_submission` or `check_change`.
        arguments: The arguments of the check.
        limit_s: The longest time that the check may take.
        is_wanted: Whether somebody still waits for the result.

    Raises:
        RltuneError: The sweep cannot be run, or the check does not end in time.
        BusyError: Nobody waits for the result any more.
    """
    request = {"check": f"{check.__module__}:{check.__qualname__}", "arguments": arguments}
    began = time.monotonic()
    child = Child((check.__module__,), print_output=lambda printed: None)
    try:
        answer = child.call(
            f"{__name__}:call_check",
            request,
            limit_s=limit_s,
            is_given_up=lambda: time.monotonic() - began > limit_s or not is_wanted(),
        )
    except CallGivenUpError:
        require_wanted(lambda: time.monotonic() - began > limit_s)  # Else the client has given up, or waited before.
        raise RltuneError(
            f"checking the settings took more than {time.monotonic() - began:.0f} s",
            "modules that are imported, and an environment that is reset and stepped, within seconds",
            spell_command("run ... with the same settings shows what it prints"),
        ) from None
    return CheckedSweep(**{**answer, "overrides": tuple(answer["overrides"])})


def require_wanted(is_wanted: Callable[[], bool]) -> None:
    """Refuse a request for whose response nobody waits any more, because the client is going to send it again.

    Raises:
        BusyError: Nobody waits for the response.
    """
    if not is_wanted():
        raise BusyError("the request was given up", "a client that waits for a minute", "the same again")


def call_check(check: str, arguments: Sequence[object]) -> dict[str, Any]:
    """Run a check in the child process, and return its result as JSON has it.

    Args:
        check: ``module:function``.
        arguments: The arguments of the check.
    """
    begin_child()
    module, _, name = check.partition(":")
    checked: CheckedSweep = getattr(importlib.import_module(module), name)(*arguments)
    return asdict(checked)


def check_submission(overrides: Sequence[str], output_dir: str, name: str | None = None) -> CheckedSweep:
    """Check a submission as far as possible without RLlib, and compose its settings.

    Args:
        overrides: As they are typed after ``rltune run``.
        output_dir: The folder of the service's sweeps.
        name: The sweep's name; None is the one in the overrides, or one that is made.

    Raises:
        RltuneError: It cannot be run.
    """
    names = [word.partition("=")[2].strip("'\"") for word in overrides if _is_name(word)]
    chosen = {"output_dir": output_dir, "name": name or (names[-1] if names and names[-1] != "null" else None)}
    _check_variables("name", f"name={name}")
    words = [*_check_overrides(overrides), *(f"{key}={spell_value(key, value)}" for key, value in chosen.items())]
    return _check(compose_settings("run", RunConfig, words), overrides)


def describe_cost(overrides: Sequence[str]) -> str:
    """Describe what a submission costs at most, from its settings alone, which runs no code of the user's.

    Raises:
        RltuneError: The settings cannot be composed.
    """
    config = read_request(compose_settings("run", RunConfig, _check_overrides(overrides)), overrides)
    budget, certify = config.budget, config.certify
    cost = f"{format_number(budget.trials, 'trial')} x {budget.env_steps:,} environment steps"
    cost += f" x {config.replicates} seeds" if config.replicates > 1 else ""
    cost += f", {budget.total_env_steps:,} in all" if budget.total_env_steps else ""
    num_runs = ((certify.top or 0) + 1) * (certify.seeds or 0)
    return cost + (f", then {format_number(num_runs, 'training')} to certify" if num_runs else "")


def check_change(overrides: Sequence[str], output_dir: str, settings: str) -> CheckedSweep:
    """Check that a submitted sweep can be resumed with changed settings, and compose these.

    Args:
        overrides: The settings that change, as they are typed.
        output_dir: The folder of the service's sweeps, which may have been moved since the sweep was submitted.
        settings: The composed settings of the sweep.

    Raises:
        RltuneError: It cannot be run.
    """
    words = _check_overrides(overrides)
    changed = change_settings(settings, words)
    changed.output_dir = output_dir
    return _check(changed, overrides)


def _check_overrides(overrides: Sequence[str]) -> list[str]:
    """Refuse invalid, secret and reserved overrides, and return the others without the sweep's name.

    Raises:
        ConfigError: One of them is no override, has a secret, or gives a reserved setting.
    """
    refuse_typed_secrets(overrides)
    for word in overrides:
        if not _OVERRIDE.fullmatch(word):
            raise ConfigError(
                *split_word(word),
                ": no setting",
                "group=option, key=value, +key=value, ~key",
                "algo=ppo env=cartpole",
            )
        key = word.partition("=")[0]
        if reason := RESERVED.get(key.lstrip("+")):
            raise ConfigError(*split_word(word), f": a service takes no {key} of a sweep", reason, f"leave {key}= out")
        _check_variables(key.lstrip("+"), word)
    return [word for word in overrides if not _is_name(word)]


def _check_variables(key: str, word: str) -> None:
    """Refuse interpolations that would read more of the service's environment than settings for secrets need.

    Errors show what a setting resolves to, except for the values that are remembered here.

    Raises:
        ConfigError: There is one.
    """
    takes_variables = key in (*SECRET_VARIABLES, "storage") or key.startswith(WITH_VARIABLES)
    rest = _VARIABLE.sub("", word) if takes_variables else word
    if _CALL.search(rest):
        raise ConfigError(
            *split_word(word),
            ": a service resolves no such interpolation of a client's",
            f"${{key}}, and ${{oc.env:NAME}} in {', '.join((*SECRET_VARIABLES, 'storage', *WITH_VARIABLES))}",
            f"{key}=<its value>",
        )
    for name in _VARIABLE.findall(word):
        remember(os.environ.get(name, ""), in_pieces=False)


def _check(settings: DictConfig, typed: Sequence[str]) -> CheckedSweep:
    kept = cast(dict[str, Any], OmegaConf.to_container(settings, resolve=False))
    for key, value in flatten_settings(kept):
        if isinstance(value, str):
            refuse_secret(key, value)
    overrides = tuple(word for word in typed if not _is_name(word))
    config = read_request(settings, overrides)
    from rltune.driver.plan import describe_plan
    from rltune.driver.starting import check_new_or_begun

    plan = check_new_or_begun(config)
    settings_text = dump_settings(kept | {"name": plan.name, "resume": "auto"})
    return CheckedSweep(plan.name, overrides, settings_text, to_plain({"name": config.name, **describe_plan(plan)}))


def _is_name(word: str) -> bool:
    return word.partition("=")[0].lstrip("+") == "name"
