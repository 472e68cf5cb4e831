"""Turn a function into a command: Hydra composes its settings, and errors are printed in three parts.

The only place that touches Hydra's runtime.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltune.cli import end_command
from rltune.cli.application.answer import (
    JSON,
    Answer,
    explain_crash,
    keep_output_clean,
    leave,
    print_answer,
    print_parts,
    take_switch,
    wants_json,
)
from rltune.cli.application.help_page import write_help
from rltune.cli.application.multirun import Job, collect_job, refuse_launchers, run_jobs
from rltune.compose.composing import (
    check_options,
    conf_dir,
    spell_words,
    store_schema,
    use_own_dir,
)
from rltune.compose.explaining import explain, refuse_flags
from rltune.config.bounds import check_bounds, read_types
from rltune.config.uris import refuse_typed_secrets, resolve_uri
from rltune.config.validation import MAX_NAME
from rltune.driver.signals import INTERRUPTED, call_at_process_end, handle_signals
from rltune.errors import ABSENT, ConfigError, RltuneError, choices
from rltune.formatting import spell_command
from rltune.secrets import filter_output, reveal

if TYPE_CHECKING:
    from rltune.ledger.sweep_ref import SweepRef
    from rltune.policies.uri import Source

CHECK = "check"  # With check=true, a command checks its request without carrying it out.
RESEND_S = 0.05  # The delay before a dropped signal is sent again, when the callback that dropped it has returned.
COMPLETION = ("-sc", "--shell-completion")  # The flags of Hydra's shell completion.


@dataclass
class StudyConfig:
    """The setting ``study.storage``: the address of a sweep's ledger with its login, if the ledger is in a database."""

    storage: str | None = None


@dataclass
class SweepsConfig:
    """The settings with which a command finds sweeps."""

    output_dir: str = MISSING
    storage: str | None = None
    study: StudyConfig = field(default_factory=StudyConfig)


@dataclass
class SweepConfig(SweepsConfig):
    """The settings with which a command finds one sweep."""

    sweep: str = MISSING


@dataclass
class ServiceConfig:
    """The setting ``service.address`` of the service that runs submitted sweeps."""

    address: str | None = None


@dataclass
class RequestConfig(SweepConfig):
    """The settings of a command that sends a request to a sweep, directly or through the service that runs it."""

    service: ServiceConfig = field(default_factory=ServiceConfig)


@dataclass
class TrackingConfig:
    """The setting ``tracking.uri``, MLflow's address with its login."""

    uri: str | None = None


@dataclass
class PolicyConfig(SweepsConfig):
    """The settings with which a command finds a policy."""

    policy: str = MISSING
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass(frozen=True)
class Command:
    """A command line program: it composes its settings with Hydra, calls a function with them and exits.

    Attributes:
        usage: Its name, which is also that of its file in conf/, and a typical first setting.
        schema: The dataclass of that file's settings, stored as ``base_<name>``.
        work: Does the work and returns the answer, or only the exit code. It takes the settings, or the list of `Job`
            if ``takes_jobs``.
        prepare: Called first, with the words of the command line. It returns the words for Hydra to compose, or the
            answer if it has done all work itself.
        takes_jobs: Whether ``work`` takes all jobs of ``-m`` at once. Otherwise each job runs by itself.
        check: What ``check=true`` does with the jobs instead of ``work``; None if the command has nothing to check.
    """

    usage: str
    schema: type
    work: Callable[[Any], int | Answer]
    prepare: Callable[[list[str]], list[str] | int | Answer] = lambda words: words
    takes_jobs: bool = False
    check: Callable[[Sequence[Job]], Answer] | None = None

    @property
    def name(self) -> str:
        """The command's name, the first word of its usage."""
        return self.usage.split()[0]

    @property
    def purpose(self) -> str:
        """The command's one-line description in ``rltune --help``: the first line of the docstring of ``work``."""
        return (self.work.__doc__ or "").splitlines()[0].rstrip(".")

    def __call__(self) -> None:
        """Run the command with the arguments in ``sys.argv``, print its answer or error, and exit."""
        if len(sys.argv) == 2 and sys.argv[1] in ("--help", "-h"):
            print(write_help(self.name, shutil.get_terminal_size().columns))
            sys.exit(0)
        # The JSON document, alone on stdout, stays as it is: its texts have no logins, and no number in it is one.
        filter_output("stderr", *([] if wants_json() else ["stdout"]))
        call_at_process_end(functools.partial(print_parts, sys.stdout))
        from hydra.errors import HydraException

        try:
            with exit_on_signals(), keep_output_clean():
                answer = self._answer(sys.argv[1:])
            code = print_answer(answer)
        except RltuneError as error:
            leave(error)
        except (HydraException, OmegaConfBaseException) as error:
            leave(explain(error, self.name, self.schema, sys.argv[1:]))
        except SystemExit as stop:
            if stop.code in INTERRUPTED:
                fix = getattr(stop.__cause__, "__notes__", ["the same command again"])[-1]
                problem = f"interrupted by {signal.Signals(stop.code - 128).name}"
                print_parts(sys.stdout, RltuneError(problem, "", fix), stop.code)
            raise
        except BrokenPipeError:
            sys.exit(0)
        except Exception as error:
            if not isinstance(error, OSError) or error.errno != errno.ENAMETOOLONG:
                leave(explain_crash(error))
            key = next((word.partition("=")[0] for word in sys.argv[1:] if len(word) > MAX_NAME), self.name)
            leave(ConfigError(key, "...", ": longer than a file name may be", "255 bytes", f"{key}=..., a shorter one"))
        end_command(code)

    def _answer(self, typed: Sequence[str]) -> Answer:
        """Compose the settings of a command line and run the command with them.

        Args:
            typed: The words after the command's name.
        """
        refuse_typed_secrets(typed)
        _, words = take_switch(JSON, typed)
        checks = False
        if self.check is not None:
            checks, words = take_switch(CHECK, words)
        prepared = words if checks else self.prepare(words)
        answer = prepared if isinstance(prepared, int | Answer) else self._work(self._compose(prepared), checks)
        return Answer({"exit_code": answer}, exit_code=answer) if isinstance(answer, int) else answer

    def _compose(self, words: Sequence[str]) -> list[Job]:
        """Let Hydra compose the settings of each job on the command line; with ``-m`` there are several.

        Hydra only composes. The work is done outside of it, where no handler of Hydra's reports or swallows its errors.
        """
        import hydra
        from hydra.core.hydra_config import HydraConfig

        # By default, Hydra prints errors itself and exits with 1; this makes it raise them.
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")
        store_schema(self.name, self.schema)
        use_own_dir()
        refuse_launchers(words)
        refuse_flags(self.name, words)
        jobs: list[Job] = []

        def take(settings: DictConfig) -> None:
            if not jobs:
                check_options(HydraConfig.get())
            jobs.append(collect_job(settings))

        # Hydra has no argument for the command line; it reads sys.argv.
        typed, sys.argv[1:] = sys.argv[1:], spell_words(words, self.schema)
        try:
            with scratch_folder():
                hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=self.name)(take)()
        except ValueError as error:
            # Hydra's parser of config groups raises ValueError instead of a Hydra error.
            raise explain(error, self.name, self.schema, words) from None
        finally:
            sys.argv[1:] = typed
        keys = read_types(self.schema)
        for job in jobs:
            # Hydra's `+key=value` adds keys that the command does not know, so they are refused here.
            if added := [str(key) for key in job.settings if key not in keys]:
                key, fix = added[0], spell_command(f"{self.name} --help")
                raise ConfigError(key, job.settings[key], ": no such key", choices(key, keys), fix)
            check_bounds(self.schema, job.settings)
        return jobs

    def _work(self, jobs: Sequence[Job], checks: bool) -> int | Answer:
        if not jobs:
            # Without jobs, Hydra has only printed what a flag such as --cfg requests.
            if wants_json():
                raise ConfigError(
                    JSON, True, ": flags such as --cfg print no JSON", "a command without such flags", f"{JSON}=false"
                )
            return Answer(None)
        if checks and self.check is not None:
            return self.check(jobs)
        if self.takes_jobs:
            return self.work(jobs)
        if jobs[0].multirun:
            return Answer(None, exit_code=run_jobs(self.name, jobs))
        return self.work(jobs[0].settings)


COMMANDS: dict[str, Command] = {}
"""The commands by their names; `rltune.cli.application.program` imports the modules that fill it."""


def command(usage: str, schema: type, **options: Any) -> Callable[[Callable[[Any], int | Answer]], Command]:
    """Register a function as a command; the first line of its docstring appears in ``rltune --help``.

    Args:
        usage: The command's name and a typical setting: ``show sweep=latest``.
        schema: The dataclass of the settings in the command's file in conf/.
        options: Other attributes of `Command`.
    """

    def register(work: Callable[[Any], int | Answer]) -> Command:
        made = Command(usage, schema, work, **options)
        COMMANDS[made.name] = made
        return made

    return register


@contextlib.contextmanager
def scratch_folder() -> Iterator[None]:
    """Give Hydra a temporary output folder, as with ``-m`` it writes logins there; see conf/hydra_settings.yaml."""
    with tempfile.TemporaryDirectory(prefix="rltune-") as folder:
        os.environ["RLTUNE_SCRATCH"] = folder
        try:
            yield
        finally:
            del os.environ["RLTUNE_SCRATCH"]


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn SIGHUP, SIGINT and SIGTERM into the exit codes 129, 130 and 143, after open context managers are closed.

    Python drops the exception of a signal that arrives in a callback, such as those that run at each fork of Ray's
    start. Then the signal is sent again a moment later.
    """

    def interrupt(number: int) -> NoReturn:
        raise KeyboardInterrupt(number)

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if number := _read_signal(dropped.exc_value):
            threading.Timer(RESEND_S, os.kill, (os.getpid(), number)).start()
        else:
            before(dropped)

    before, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        with handle_signals(interrupt, signal.SIGTERM, signal.SIGHUP):
            yield
    except (KeyboardInterrupt, SystemExit) as stop:
        if number := _read_signal(stop):
            raise SystemExit(128 + number) from stop
        raise
    finally:
        sys.unraisablehook = before


def _read_signal(error: BaseException | None) -> int | None:
    """Return the signal that an exception stands for; None if it comes from no signal."""
    if isinstance(error, KeyboardInterrupt):
        return error.args[0] if error.args else signal.SIGINT
    # Ray replaces the handler of SIGTERM by one that calls sys.exit(SIGTERM) (Ray 2.60).
    return signal.SIGTERM if isinstance(error, SystemExit) and error.code == signal.SIGTERM else None


def make_sweep_ref(settings: DictConfig) -> SweepRef:
    """Make the `SweepRef` of the sweep that a command's settings name."""
    from rltune.ledger.sweep_ref import LATEST, SweepRef

    name = settings.get("sweep", LATEST)
    return SweepRef(name, settings.output_dir, settings.storage, settings.study.storage)


def locate_sweep(settings: DictConfig) -> SweepRef:
    """Make the `SweepRef` of a command's sweep; check that the sweep exists, unless ``study.storage`` is set.

    Raises:
        StudyError: There is no such sweep, which need not wait for SQLAlchemy's import.
    """
    ref = make_sweep_ref(settings)
    if ref.ledger_url is None:
        ref.folder()
    return ref


def make_source(settings: DictConfig, root: str) -> Source:
    """Make the `Source` of the policy that a command's settings name.

    Args:
        settings: The command's settings.
        root: The command's name, for the error.

    Raises:
        ConfigError: ``policy`` has no value.
    """
    if OmegaConf.is_missing(settings, "policy"):
        raise ConfigError(
            "policy",
            ABSENT,
            "has no value",
            "models:/<name>@champion, sweep:<name>, sweep:<name>/<trial>, runs:/<id> or a checkpoint folder",
            spell_command(f"{root} policy=sweep:latest"),
        )
    from rltune.policies.uri import Source

    return Source(settings.policy, make_sweep_ref(settings), settings.get("trust", False))


def use_tracking(settings: DictConfig) -> None:
    """Point MLflow to the address in ``tracking.uri``; without a value, MLflow uses its own default."""
    if settings.tracking.uri:
        os.environ["MLFLOW_TRACKING_URI"] = reveal(resolve_uri(settings.tracking.uri))
