"""Commands whose settings Hydra composes, because users choose options of config groups such as ``algo=`` and ``env=``.

The only place that touches Hydra's runtime.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from rltune.cli.application.answer import JSON, Answer, take_switch, wants_json
from rltune.cli.application.command import COMPLETION, Command
from rltune.cli.application.multirun import Job, collect_job, run_jobs
from rltune.compose.composing import check_options, conf_dir, spell_words, store_schema, use_own_dir
from rltune.compose.explaining import explain, refuse_flags
from rltune.config.validation import refuse_added, to_typed
from rltune.errors import ConfigError

CHECK = "check"  # With check=true, a command checks its request without carrying it out.


@dataclass(frozen=True)
class ComposedCommand(Command):
    """A command whose settings Hydra composes; with ``-m``, one command line composes several jobs.

    Attributes:
        takes_jobs: Whether ``work`` takes the list of `Job` instead of an instance of the schema. Without it, each job
            of ``-m`` runs in a process of its own.
        begin: Called first, also with ``check=true``, to start what the command needs later.
        check: What ``check=true`` does with the jobs instead of ``work``; None if the command has nothing to check.
    """

    takes_jobs: bool = False
    begin: Callable[[], None] = lambda: None
    check: Callable[[Sequence[Job]], Answer] | None = None

    @property
    def switches(self) -> tuple[str, ...]:
        """``json``, and ``check`` if the command has something to check."""
        return (*super().switches, *((CHECK,) if self.check is not None else ()))

    def wants_help(self, words: Sequence[str]) -> bool:
        """Return whether help is all that is asked for; with other words, Hydra's help shows what they compose."""
        return len(words) == 1 and super().wants_help(words)

    def answer(self, words: Sequence[str]) -> int | Answer:
        """Compose the settings of a command line and run the command with them; see `Command.answer`."""
        from hydra.errors import HydraException

        checks = False
        if not {*COMPLETION} & {*words}:
            self.begin()
        if self.check is not None:
            checks, words = take_switch(CHECK, words)
        prepared = words if checks else self.prepare([*words])
        if isinstance(prepared, int | Answer):
            return prepared
        try:
            return self._work(self._compose(prepared), checks)
        except (HydraException, OmegaConfBaseException) as error:
            raise explain(error, self.name, self.schema, sys.argv[1:]) from None

    def complete(self, word: str) -> None:
        """Let Hydra print the groups, options and settings that complete a word, which it reads itself."""
        self()

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
        refuse_flags(self.name, words)
        jobs: list[Job] = []

        def take(settings: DictConfig) -> None:
            if not jobs:
                check_options(HydraConfig.get())
            jobs.append(collect_job(settings))

        # Hydra has no argument for the command line; it reads sys.argv, and takes settings on one side of a flag alone.
        typed, sys.argv[1:] = sys.argv[1:], sorted(spell_words(words, self.schema), key=_is_setting)
        try:
            with scratch_folder():
                hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=self.name)(take)()
        except (ValueError, TypeError) as error:
            # Hydra's parser of config groups raises these instead of a Hydra error.
            raise explain(error, self.name, self.schema, words) from None
        finally:
            sys.argv[1:] = typed
        for job in jobs:
            refuse_added(self.schema, job.settings)
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
        return self.work(to_typed(self.schema, jobs[0].settings))


def _is_setting(word: str) -> bool:
    return word.startswith(("~", "+")) or ("=" in word and not word.startswith("-"))


@contextlib.contextmanager
def scratch_folder() -> Iterator[None]:
    """Give Hydra a temporary output folder, as with ``-m`` it writes logins there; see conf/hydra_settings.yaml."""
    with tempfile.TemporaryDirectory(prefix="rltune-") as folder:
        os.environ["RLTUNE_SCRATCH"] = folder
        try:
            yield
        finally:
            del os.environ["RLTUNE_SCRATCH"]
