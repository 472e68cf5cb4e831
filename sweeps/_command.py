"""Turns a function into a command: Hydra composes its settings, errors come out in three parts with exit code 2.

The only place that touches Hydra's runtime.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltune.config.uris import redact, redact_address, resolve_uri
from rltune.errors import ConfigError, RltuneError, choices, nearest
from sweeps import end_command
from sweeps._logins import hide_typed_logins
from sweeps._multirun import Job, collect_job, refuse_launchers, run_jobs

EXIT_REQUEST = 2


@dataclass
class StudyConfig:
    """Where a command finds the ledger of a sweep whose settings name a database: its address, login included."""

    storage: str | None = None


@dataclass
class TrackingConfig:
    """Where a command finds MLflow: its address, login included."""

    uri: str | None = None


def conf_dir() -> Path:
    """The folder of the configs: inside the installed package, else beside it in a checkout."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "conf"


def command(
    root: str,
    schema: type,
    work: Callable[[DictConfig], int],
    early: Callable[[], None] = lambda: None,
    check: Callable[[Sequence[DictConfig]], None] = lambda _: None,
) -> None:
    """Run a command and exit.

    Args:
        root: Its file in conf/, without .yaml.
        schema: The dataclass under that file, stored as ``base_<root>``.
        work: Does it; returns the exit code.
        early: Begins what takes long while the settings are composed.
        check: Refuses, before the first job of ``-m`` starts, what one of them cannot be run with.
    """
    if len(sys.argv) == 2 and sys.argv[1] in ("--help", "-h"):
        print(help_text(root))
        sys.exit(0)
    hide_typed_logins()
    sys.excepthook = print_without_logins
    if not {"-m", "--multirun"} & set(sys.argv):
        early()
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # otherwise Hydra prints and exits with 1 before we see the error
    ConfigStore.instance().store(f"base_{root}", schema)
    jobs: list[Job] = []
    try:
        # Hydra only composes: the work runs outside, where no handler of Hydra's reports or swallows what it raises.
        with told_by_signals():
            refuse_launchers(sys.argv[1:])
            sys.argv[1:] = [write_whole_numbers(word, schema) for word in sys.argv[1:]]
            with scratch_folder():
                main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=root)
                main(lambda settings: jobs.append(collect_job(settings)))()
            if any(job.multirun for job in jobs):
                check([job.settings for job in jobs])
                code = run_jobs(root, jobs)
            else:
                code = work(jobs[0].settings) if jobs else 0
    except RltuneError as error:
        leave(error)
    except (HydraException, OmegaConfBaseException) as error:
        leave(explain(error, root, schema))
    except ValueError as error:
        if jobs:
            raise
        # Hydra's parser of groups raises nothing of its own: tuned=null
        leave(RltuneError(str(error), "group=option; ~group leaves it out", f"python -m sweeps.{root} --help"))
    except BrokenPipeError:
        sys.exit(0)
    end_command(code)


@contextlib.contextmanager
def scratch_folder() -> Iterator[None]:
    """Give Hydra a folder of its own for what it writes with ``-m``, logins included; see conf/hydra_settings.yaml."""
    with tempfile.TemporaryDirectory(prefix="rltune-") as folder:
        os.environ["RLTUNE_SCRATCH"] = folder
        try:
            yield
        finally:
            del os.environ["RLTUNE_SCRATCH"]


@contextlib.contextmanager
def told_by_signals() -> Iterator[None]:
    """Exit with 130 or 143 where a signal ends the work before it can end itself, everything on the way closed."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as Ray has it from its start on (2.60)
    try:
        yield
    except KeyboardInterrupt as stop:
        sys.exit(128 + (stop.args[0] if stop.args else signal.SIGINT))
    except SystemExit as stop:
        sys.exit(128 + signal.SIGTERM if stop.code == signal.SIGTERM else stop.code)


def write_whole_numbers(word: str, schema: type) -> str:
    """Write ``budget.env_steps=1e5`` as 100000 where the schema wants an integer, which OmegaConf makes of no float."""
    key, equals, value = word.partition("=")
    kind: Any = schema
    for part in key.lstrip("+").split("."):
        kind = get_type_hints(kind).get(part) if is_dataclass(kind) else None
    if not equals or int not in (kind, *get_args(kind)):
        return word
    return "=".join([key, ",".join(_write_whole_number(one) for one in value.split(","))])


def _write_whole_number(text: str) -> str:
    with contextlib.suppress(ValueError, OverflowError):
        if float(text) == int(float(text)) and not text.strip().lstrip("+-").isdigit():
            return str(int(float(text)))
    return text


def need_policy(settings: DictConfig, root: str) -> None:
    """Refuse a command without the policy that it is about.

    Raises:
        ConfigError: ``policy`` has no value.
    """
    if OmegaConf.is_missing(settings, "policy"):
        raise ConfigError(
            "policy has no value",
            "models:/<name>@champion, sweep:<name>, sweep:<name>/<trial>, runs:/<id> or a checkpoint folder",
            f"python -m sweeps.{root} policy=sweep:latest",
        )


def use_tracking(settings: DictConfig) -> None:
    """Let MLflow be asked where ``tracking.uri`` says; without it, where MLflow itself looks."""
    if settings.tracking.uri:
        os.environ["MLFLOW_TRACKING_URI"] = resolve_uri(settings.tracking.uri)


def help_text(root: str) -> str:
    """The command's own file, whose comments say what each key is, and the options of the groups in it.

    Hydra's own help has no comments; it takes a second, and remains the answer where overrides are typed too.
    """
    page = (conf_dir() / f"{root}.yaml").read_text().removeprefix("# ")
    groups = [
        f"  {folder.name:<11}{', '.join(sorted(path.stem for path in folder.glob('*.yaml')))}"
        for folder in sorted(conf_dir().iterdir())
        if f" {folder.name}: " in page
    ]
    chosen = ["\nGroups (group=option; group.key=value changes a value inside):", *groups] if groups else []
    flags = "\nFlags: --cfg job shows the composed settings · --config-dir DIR adds your own groups · --hydra-help"
    return "\n".join([f"Usage: {page}", *chosen, flags])


def print_without_logins(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what nobody caught, as Python does."""
    print(redact("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)


def leave(error: RltuneError) -> NoReturn:
    """Say what was wrong and end as a request that cannot be carried out does."""
    print(error.pretty(), file=sys.stderr)
    sys.exit(EXIT_REQUEST)


def explain(error: Exception, root: str, schema: type) -> RltuneError:
    """Hydra's error in three parts: which key, what is allowed, what to type."""
    from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause: Any = error.__cause__
    help_line = f"python -m sweeps.{root} --help"
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        return RltuneError(
            f"{group}={option}: no such file conf/{group}/{option}.yaml",
            choices(option, error.options),
            f"{group}={close}" if (close := nearest(option, error.options)) else help_line,
        )
    if isinstance(error, OverrideParseException):
        about = fields(schema)[0].name  # what the command is about
        meant = "=" not in error.override and about in ("sweep", "sweeps", "policy")
        fix = f"python -m sweeps.{root} {about}={error.override}" if meant else help_line
        if error.override != (shown := redact_address(error.override)):  # Hydra's words would quote what is hidden
            return RltuneError(f"{shown}: not readable", "key=value, its value quoted for Hydra too", help_line)
        return RltuneError(f"{error.override}: {lines[0]}", "key=value, quoted where the shell needs it", fix)
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _explain_key(lines[0], cause, help_line)
    if isinstance(error, ConfigCompositionException) and len(lines) > 1:
        return RltuneError(f"{lines[0]} {lines[1]}", "the keys that its schema has", help_line)
    return RltuneError(lines[0] if lines else type(error).__name__, "see the message", help_line)


def _explain_key(what: str, cause: OmegaConfBaseException, help_line: str) -> RltuneError:
    parent: Any = cause.parent_node
    known = [str(key) for key in parent] if isinstance(parent, DictConfig) else []
    typed = (arg for arg in sys.argv[1:] if arg.lstrip("+~").startswith(str(cause.full_key)))
    override = redact_address(next(typed, str(cause.full_key)))
    if str(cause.key) in known:
        return RltuneError(f"{override}: {str(cause).splitlines()[0]}", "a value of the key's type", help_line)
    close, above = nearest(str(cause.key), known), str(cause.full_key).rpartition(".")[0]
    if close:
        return RltuneError(f"{override}: no such key", choices(str(cause.key), known), _renamed(override, cause, close))
    may_add = above.split(".")[0] in ("space", "algo", "searcher", "scheduler", "env")
    fix = f"+{override} adds a key" if may_add else help_line
    return RltuneError(f"{override}: no such key", choices(str(cause.key), known), fix)


def _renamed(override: str, cause: OmegaConfBaseException, close: str) -> str:
    """The override with the key that was probably meant."""
    above = str(cause.full_key).rpartition(".")[0]
    return override.replace(str(cause.full_key), f"{above}.{close}" if above else close, 1)
