"""Turn a function into a command, whose settings are its file in ``conf/`` and what is typed.

Errors are printed in three parts. `rltune.cli.application.composed` has the commands that choose options of groups.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from omegaconf import MISSING

from rltune.cli import end_command
from rltune.cli.application.answer import (
    JSON,
    Answer,
    explain_crash,
    keep_output_clean,
    leave,
    own_output,
    print_answer,
    print_parts,
    take_switch,
    wants_json,
)
from rltune.cli.application.help_page import print_page, write_help
from rltune.compose.command_settings import list_command_keys, read_command_settings
from rltune.config.bounds import read_types
from rltune.config.uris import refuse_typed_secrets, resolve_uri
from rltune.config.validation import MAX_NAME
from rltune.driver.signals import INTERRUPTED, call_at_process_end, handle_signals
from rltune.errors import ConfigError, RltuneError
from rltune.secrets import filter_output, reveal

if TYPE_CHECKING:
    from rltune.ledger.sweep_ref import SweepRef
    from rltune.policies.uri import Source

COMPLETION = ("-sc", "--shell-completion")  # The flags of Hydra's shell completion.
SUBJECTS = ("sweep", "sweeps", "policy")  # What a word without a key stands for, where a command has such a setting.
RESEND_S = 0.05  # The delay before a dropped signal is sent again, when the callback that dropped it has returned.


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
class ServedConfig(SweepsConfig):
    """The settings with which a command finds sweeps and the service that runs them."""

    service: ServiceConfig = field(default_factory=ServiceConfig)


@dataclass
class RequestConfig(ServedConfig, SweepConfig):
    """The settings of a command that sends a request to a sweep, directly or through the service that runs it."""


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
    """A command line program: it reads its settings, calls a function with them and exits.

    Attributes:
        usage: Its name, which is also that of its file in conf/, and a typical first setting.
        schema: The dataclass of that file's settings.
        work: Does the work and returns the answer, or only the exit code. It takes an instance of ``schema``.
        prepare: Called first, with the words of the command line. It returns the words that are settings, or the answer
            if it has done all work itself.
    """

    usage: str
    schema: type
    work: Callable[[Any], int | Answer]
    prepare: Callable[[list[str]], list[str] | int | Answer] = lambda words: words

    @property
    def name(self) -> str:
        """The command's name, the first word of its usage."""
        return self.usage.split()[0]

    @property
    def switches(self) -> tuple[str, ...]:
        """What the command can be asked for beside its settings, as ``json=true``."""
        return (JSON,)

    @property
    def purpose(self) -> str:
        """The command's one-line description in ``rltune --help``: the first line of the docstring of ``work``."""
        return (self.work.__doc__ or "").splitlines()[0].rstrip(".")

    def __call__(self) -> None:
        """Run the command with the arguments in ``sys.argv``, print its answer or error, and exit."""
        if self.wants_help(sys.argv[1:]):
            print_page(write_help(self.name, shutil.get_terminal_size().columns))
            sys.exit(0)
        sys.argv[1:] = spell_settings(sys.argv[1:], self.usage, self.schema, self.switches)
        own_output()
        # The JSON document, alone on stdout, stays as it is: its texts have no logins, and no number in it is one.
        filter_output("stderr", *([] if wants_json() else ["stdout"]))
        call_at_process_end(functools.partial(print_parts, sys.stdout))
        try:
            with exit_on_signals(), keep_output_clean():
                _, words = take_switch(JSON, sys.argv[1:])
                refuse_typed_secrets(words)
                answer = self.answer(words)
            code = print_answer(Answer({"exit_code": answer}, exit_code=answer) if isinstance(answer, int) else answer)
        except RltuneError as error:
            leave(error)
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

    def wants_help(self, words: Sequence[str]) -> bool:
        """Return whether a command line asks for the command's help page."""
        return bool({"--help", "-h"} & set(words))

    def answer(self, words: Sequence[str]) -> int | Answer:
        """Run the command with the settings of a command line, and return the answer or only the exit code.

        Args:
            words: The words after the command's name, without ``json=true``.
        """
        prepared = self.prepare([*words])
        if isinstance(prepared, int | Answer):
            return prepared
        return self.work(read_command_settings(self.name, self.schema, prepared))

    def complete(self, word: str) -> None:
        """Print the settings with which a shell can complete a word."""
        print(" ".join(f"{key}=" for key in list_command_keys(self.name) if key.startswith(word)))


def spell_settings(words: Sequence[str], usage: str, schema: type, others: Sequence[str] = (JSON,)) -> list[str]:
    """Spell as settings what needs no key: ``show mine`` as ``sweep=mine``, and ``logs mine -f`` with ``follow=true``.

    Args:
        words: The words after the command's name.
        usage: Of the command, whose first setting is the key of words without one if it names a sweep or a policy.
        schema: The dataclass of the command's settings, of which those that are true or false may be flags.
        others: What may be a flag, too.
    """
    key = usage.partition(" ")[2].partition("=")[0]
    switches = [*others, *(name for name, kind in read_types(schema).items() if kind is bool)]
    # A word after a flag is the flag's value, as in `--sweep mine`, which is refused with its spelling as a setting.
    values = {after for word, after in itertools.pairwise(words) if word.startswith("--") and word[2:] not in switches}
    is_bare = re.compile(r"[\w.][\w.:/@-]*").fullmatch
    bare = [word for word in words if is_bare(word) and word not in values] if key in SUBJECTS else []
    spelled = [f"{key}=[{','.join(bare)}]" if key == "sweeps" else f"{key}={bare[0]}"] if bare else []
    for word in words:
        if word == "-f" and "follow" in switches:  # As of tail and of docker; `-t` must not say to trust somebody.
            word = "--follow"
        if word.removeprefix("--") in switches and word.startswith("--"):
            spelled.append(f"{word[2:]}=true")
        elif not bare or word not in (bare if key == "sweeps" else bare[:1]):
            spelled.append(word)
    return spelled


COMMANDS: dict[str, Command] = {}
"""The commands by their names; `rltune.cli.application.program` imports the modules that fill it."""


def command(
    usage: str, schema: type, kind: type[Command] = Command, **options: Any
) -> Callable[[Callable[[Any], int | Answer]], Command]:
    """Register a function as a command; the first line of its docstring appears in ``rltune --help``.

    Args:
        usage: The command's name and a typical setting: ``show sweep=latest``.
        schema: The dataclass of the settings in the command's file in conf/.
        kind: `Command`, or `ComposedCommand` if its file in conf/ has config groups.
        options: Other attributes of ``kind``.
    """

    def register(work: Callable[[Any], int | Answer]) -> Command:
        made = kind(usage, schema, work, **options)
        COMMANDS[made.name] = made
        return made

    return register


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn SIGHUP, SIGINT and SIGTERM into the exit codes 129, 130 and 143, after open context managers are closed.

    Python drops the exception of a signal that arrives in a callback, such as those that run at each fork of Ray's
    start. Then the signal is sent again a moment later.
    """

    def interrupt(number: int) -> NoReturn:
        raise KeyboardInterrupt(number)

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        error, delay_s = dropped.exc_value, RESEND_S
        if not _read_signal(error):
            before(dropped)
        while number := _read_signal(error):
            error = None
            try:
                threading.Timer(delay_s, os.kill, (os.getpid(), number)).start()
            except (KeyboardInterrupt, SystemExit) as sooner:  # On a busy machine it comes before `start` has returned.
                error, delay_s = sooner, 2 * delay_s

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


def make_sweep_ref(settings: SweepsConfig) -> SweepRef:
    """Make the `SweepRef` of the sweep that a command's settings name; of the latest one if they name none."""
    from rltune.ledger.sweep_ref import LATEST, SweepRef

    name = settings.sweep if isinstance(settings, SweepConfig) else LATEST
    return SweepRef(name, settings.output_dir, settings.storage, settings.study.storage)


def locate_sweep(settings: SweepConfig) -> SweepRef:
    """Make the `SweepRef` of a command's sweep; check that the sweep exists, unless ``study.storage`` is set.

    Raises:
        StudyError: There is no such sweep, which need not wait for SQLAlchemy's import.
    """
    ref = make_sweep_ref(settings)
    if ref.ledger_url is None:
        ref.folder()
    return ref


def make_source(settings: PolicyConfig, *, trust: bool = False) -> Source:
    """Make the `Source` of the policy that a command's settings name, which may run code of its own with ``trust``."""
    from rltune.policies.uri import Source

    return Source(settings.policy, make_sweep_ref(settings), trust)


def use_tracking(settings: PolicyConfig) -> None:
    """Point MLflow to the address in ``tracking.uri``; without a value, MLflow uses its own default."""
    if settings.tracking.uri:
        os.environ["MLFLOW_TRACKING_URI"] = reveal(resolve_uri(settings.tracking.uri))
