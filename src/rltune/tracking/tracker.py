"""Show a sweep in MLflow: a parent run, a child run per trial, a registered winner.

The driver never waits for MLflow nor fails because of it. Trials and reports are sent from the ledger
(`rltune.tracking.ledger_view`), by the thread of `rltune.tracking.outbox`; nothing is read from MLflow that a resume
needs. Runs in the driver.
"""

from __future__ import annotations

import atexit
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rltune.config.uris import redact, resolve_uri
from rltune.envs.objective import AS_RETURN, Shown
from rltune.errors import describe_exception
from rltune.records import RunKey
from rltune.study.ledger import Ledger
from rltune.study.sweep_folder import make_resume_command
from rltune.tracking.ledger_view import LedgerView, show_first
from rltune.tracking.mlflow_runs import MLflowRuns, is_refusal
from rltune.tracking.model_registry import Rank, RegisteredModel
from rltune.tracking.outbox import Outbox

REGISTER_TIMEOUT_S = 180.0
CHAMPION_TIMEOUT_S = 30.0
DOWN_S = 5.0  # at a sweep's end; what is not sent by then is kept
MODEL_TAG = "rltune.model"  # the version that was registered of a run, or of one below it
T = TypeVar("T")


@dataclass(frozen=True)
class TrackingSettings:
    """Where a sweep is shown.

    Attributes:
        uri: MLflow's tracking address; None is MLflow's own default in this folder.
        experiment: The environment's name.
        sweep: The parent run's name.
        folder: The sweep's, which has the checkpoints.
        shown: Shows scores.
    """

    uri: str | None
    experiment: str
    sweep: str
    folder: Path
    shown: Shown = AS_RETURN


class Tracker:
    """Where a sweep is shown: nowhere, unless a class below shows it somewhere.

    No call raises. Only those with an answer, `close` and `wait_until_sent` wait. Trials and reports are read from the
    ledger; everything else is kept nowhere, and a driver that resumes the sweep hands it over again.
    """

    @property
    def opening(self) -> bool:
        """Whether MLflow is still being imported, or a new store made: seconds of CPU."""
        return False

    def warnings(self) -> list[str]:
        """Return the messages for a person that have not been returned yet."""
        return []

    def start(self, *, params: Mapping[str, Any], tags: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Create the sweep's run, or continue it; nothing is shown before.

        Args:
            params: What describes the sweep. A value that has changed becomes the tag ``resumed.<name>``.
            tags: Any tags.
            texts: Files to keep with it, by name.
        """

    def wake(self, *, connect: bool = False) -> None:
        """Say that the ledger has something new.

        Args:
            connect: Whether to open MLflow now: its import takes seconds of CPU, which the first trials need to start.
        """

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Keep a file or a folder's content with the sweep's run; it must stay until it was sent."""

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Add to a run, the sweep's (None) or one below it, whether it has ended or not.

        Args:
            key: Which.
            metrics: Shown at step 0; those that runs are compared by stand first among the charts, too.
            tags: ``{page}`` in one is the address of the run's page, ``{trials}`` that of the charts of the runs below
                it; `NOTE_TAG` is its description, Markdown.
        """

    def register(
        self,
        *,
        name: str,
        key: RunKey,
        model: Mapping[str, Any],
        tags: Mapping[str, str],
        description: str,
        alias: str | None,
        about: str = "",
        rank: Rank = lambda version: 0,
    ) -> RegisteredModel | None:
        """Log a trial's policy as a model and register it; waits at most three minutes.

        The same content is registered once. The alias is not moved when `champion` had no answer before.

        Args:
            name: The registered model.
            key: The run that it belongs to.
            model: Keyword arguments of mlflow.pyfunc.log_model: python_model, artifacts, signature ...
            tags: The version's tags.
            description: The version's description, Markdown.
            alias: What the version is to be called from now on; None leaves all aliases.
            about: The registered model's description, Markdown; one that it has already stays.
            rank: Ranks this version and those that other sweeps register meanwhile; the highest gets the alias.

        Returns:
            The version, its ``alias`` None if that was not moved; None when MLflow did not take it, and
            `warnings` says why.
        """
        return None

    def champion(self, name: str, alias: str = "champion") -> RegisteredModel | None:
        """Return the version that an alias names; None without one or without an answer (see `register`)."""
        return None

    def fetch(self, version: RegisteredModel, folder: Path) -> Path | None:
        """Copy a registered version's files into a folder; None when MLflow does not give them."""
        return None

    def wait_until_sent(self, timeout_s: float = 10.0) -> None:
        """Wait, at most this long, until everything so far was sent: the ledger then knows the id of every run."""

    def close(self, status: str, timeout_s: float = 30.0) -> bool:
        """Send what is left, end children that are still open as KILLED and the parent, and stop.

        Args:
            status: The parent's: FINISHED, FAILED or KILLED.
            timeout_s: The longest wait; for a server that does not answer at most DOWN_S.

        Returns:
            Whether everything was sent. The rest stays in the ledger; `warnings` says what to type.
        """
        return True

    def abandon(self) -> None:
        """Stop at once and send nothing more: another driver shows the sweep now."""


class NoTracker(Tracker):
    """Show nothing: ``tracking=off``."""


class SeveralTrackers(Tracker):
    """Show a sweep in several places; the first has the models.

    Args:
        first: MLflow, or nothing.
        others: What is filled beside it.
    """

    def __init__(self, first: Tracker, *others: Tracker) -> None:
        self._first, self._all = first, (first, *others)

    @property
    def opening(self) -> bool:
        """Whether MLflow is still being imported, or a new store made."""
        return self._first.opening

    def warnings(self) -> list[str]:
        """Return the messages for a person that have not been returned yet."""
        return [message for tracker in self._all for message in tracker.warnings()]

    def start(self, *, params: Mapping[str, Any], tags: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Begin everywhere."""
        for tracker in self._all:
            tracker.start(params=params, tags=tags, texts=texts)

    def wake(self, *, connect: bool = False) -> None:
        """Say that the ledger has something new."""
        for tracker in self._all:
            tracker.wake(connect=connect)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Keep a file or a folder's content with the sweep's run."""
        self._first.artifact(path, folder)

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Add to a run."""
        for tracker in self._all:
            tracker.describe(key, metrics, tags)

    def register(self, **what: Any) -> RegisteredModel | None:
        """Log a trial's policy as a model and register it."""
        return self._first.register(**what)

    def champion(self, name: str, alias: str = "champion") -> RegisteredModel | None:
        """Return the version that an alias names."""
        return self._first.champion(name, alias)

    def fetch(self, version: RegisteredModel, folder: Path) -> Path | None:
        """Copy a registered version's files into a folder."""
        return self._first.fetch(version, folder)

    def wait_until_sent(self, timeout_s: float = 10.0) -> None:
        """Wait until everything so far was sent to the first."""
        self._first.wait_until_sent(timeout_s)

    def close(self, status: str, timeout_s: float = 30.0) -> bool:
        """Send what is left everywhere, at once, and stop."""
        with ThreadPoolExecutor(len(self._all)) as threads:  # one after the other, each would take the whole time
            return all(list(threads.map(lambda tracker: tracker.close(status, timeout_s), self._all)))

    def abandon(self) -> None:
        """Stop everywhere."""
        for tracker in self._all:
            tracker.abandon()


class MLflowTracker(Tracker):
    """Show a sweep in MLflow.

    What an earlier tracker of the same ledger could not send is sent first.

    Args:
        settings: Where to.
        ledger: The sweep's.
        is_urgent: Whether there are only seconds left, as after a signal: then no answer is waited for.
    """

    def __init__(
        self, settings: TrackingSettings, ledger: Ledger, is_urgent: Callable[[], bool] = lambda: False
    ) -> None:
        uri = resolve_uri(settings.uri)
        self._settings, self._is_urgent = settings, is_urgent
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._runs = MLflowRuns(uri, settings.experiment, settings.shown)
        self._view = LedgerView(ledger, self._runs, settings.folder, self._messages.put)
        self._outbox = Outbox(self._view, self._messages.put)
        self._closed = False
        self._champion_known = True
        self._newest = 0  # The newest version's number when the alias was asked for.
        # A driver that an exception ends must not leave its runs RUNNING.
        atexit.register(self.close, "FAILED", 5.0)

    @property
    def opening(self) -> bool:
        """Whether MLflow is still being imported, or a new store made."""
        return self._outbox.state == "opening"

    def warnings(self) -> list[str]:
        """Return the messages for a person that have not been returned yet."""
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def start(self, *, params: Mapping[str, Any], tags: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Create the sweep's run, or continue it."""
        self._view.start(params, tags)
        for file, text in texts.items():
            self._put(file, None, partial(self._runs.log_text, text=text, file=file))
        self.wake()

    def wake(self, *, connect: bool = False) -> None:
        """Say that the ledger has something new."""
        self._outbox.wake(connect=connect)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Keep a file or a folder's content with the sweep's run."""
        path = Path(path).absolute()
        self._put(f"the artifact {path.name}", None, partial(self._runs.log_files, path=path, folder=folder))

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Add to a run."""
        time_ms = time.time_ns() // 1_000_000
        name = f"what describes {key.name if key else 'the sweep'}"
        self._put(name, key, partial(self._runs.log_changed, metrics=show_first(metrics), tags=tags, time_ms=time_ms))

    def register(
        self,
        *,
        name: str,
        key: RunKey,
        model: Mapping[str, Any],
        tags: Mapping[str, str],
        description: str,
        alias: str | None,
        about: str = "",
        rank: Rank = lambda version: 0,
    ) -> RegisteredModel | None:
        """Log a trial's policy as a model and register it."""
        labels = {label: redact(str(value)) for label, value in tags.items()}
        text = redact(description)

        def register() -> RegisteredModel:
            runs = list(dict.fromkeys(self._view.find_run(one) for one in (key, key.parent, None)))
            version = self._runs.registry().register(name, runs, model, labels, text, redact(about))
            for run_id in runs:
                self._runs.log(run_id, {}, {MODEL_TAG: version.uri}, [])
            registry = self._runs.registry()
            if alias is None or not self._champion_known:
                return version
            return registry.set_alias(version, alias, self._newest, rank)

        if alias and not self._champion_known:
            self._messages.put(f"'{alias}' of {name} stays where it is: MLflow did not say which version has it")
        return self._call(f"{name} was not registered", register, REGISTER_TIMEOUT_S)

    def champion(self, name: str, alias: str = "champion") -> RegisteredModel | None:
        """Return the version that an alias names."""
        self._champion_known = False

        def champion() -> RegisteredModel | None:
            registry = self._runs.registry()
            self._newest = registry.find_newest(name)
            version = registry.champion(name, alias)
            self._champion_known = True
            return version

        return self._call(f"the {alias} of {name} is unknown", champion, CHAMPION_TIMEOUT_S)

    def fetch(self, version: RegisteredModel, folder: Path) -> Path | None:
        """Copy a registered version's files into a folder."""
        return self._call(
            f"{version.name} version {version.version} was not read",
            lambda: self._runs.registry().fetch(version, folder),
            CHAMPION_TIMEOUT_S,
        )

    def wait_until_sent(self, timeout_s: float = 10.0) -> None:
        """Wait, at most this long, until everything so far was sent."""
        self._call("not every run is known yet", lambda: None, timeout_s)

    def close(self, status: str, timeout_s: float = 30.0) -> bool:
        """Send what is left, end all runs, and stop."""
        if self._closed:
            return True
        end_ms = time.time_ns() // 1_000_000
        self._outbox.put("the end of the sweep's run", lambda: self._view.end_sweep(status, end_ms))
        self._closed = True
        atexit.unregister(self.close)
        limit_s = min(timeout_s, DOWN_S) if self._outbox.state == "down" else timeout_s
        is_limited = self._is_urgent()  # Else a signal that comes meanwhile ends the wait.
        try:
            self._outbox.call(lambda: None, limit_s, lambda: self._is_urgent() and not is_limited)
        except Exception:
            self._messages.put(
                f"what MLflow has not received is in the ledger; when it is back, "
                f"{make_resume_command(self._settings.folder)} sends it"
            )
            return False
        finally:
            self._outbox.stop()
        return True

    def abandon(self) -> None:
        """Stop at once and send nothing more."""
        self._closed = True
        atexit.unregister(self.close)
        self._outbox.stop()

    def _put(self, name: str, key: RunKey | None, log: Callable[[str], None]) -> None:
        """Hand over what is to be logged into a run."""
        if not self._closed:
            self._outbox.put(name, lambda: log(self._view.find_run(key)))

    def _call(self, failure: str, function: Callable[[], T | None], timeout_s: float) -> T | None:
        """Call a function in the sender thread, at most three times; return None and leave a message if it fails."""
        deadline = time.monotonic() + timeout_s
        reason = "the tracker is closed"
        for attempt in range(0 if self._closed else 3):
            try:
                left_s = max(0.1, deadline - time.monotonic())
                answer: T | None = self._outbox.call(function, left_s, self._is_urgent)
            except Exception as error:
                reason = redact(describe_exception(error))[:300]
                if is_refusal(error) or self._is_urgent() or time.monotonic() > deadline:
                    break
                time.sleep(attempt + 1)
            else:
                return answer
        self._messages.put(f"{failure} in MLflow ({reason})")
        return None
