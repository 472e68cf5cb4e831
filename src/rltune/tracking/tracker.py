"""Show a sweep in MLflow: a parent run, a child run per trial, a registered winner.

The driver never waits for MLflow nor fails because of it: a call is one queue put, `outbox` keeps and sends it,
`mlflow_runs` knows the server. A resume does not read from MLflow; the ledger is the truth. Runs in the driver.
"""

from __future__ import annotations

import atexit
import queue
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rltune.config.uris import redact, resolve_uri, secrets_of
from rltune.tracking.mlflow_runs import CHECKPOINT, STATUS, MLflowRuns
from rltune.tracking.model_registry import RegisteredModel
from rltune.tracking.outbox import Outbox
from rltune.tracking.run_names import Key

REGISTER_TIMEOUT_S = 180.0
CHAMPION_TIMEOUT_S = 30.0
DOWN_S = 5.0  # at a sweep's end; what is not sent by then is kept
T = TypeVar("T")


@dataclass(frozen=True)
class TrackingSettings:
    """Where a sweep is shown.

    Attributes:
        uri: MLflow's tracking address; None is MLflow's own default in this folder.
        experiment: The environment's name.
        sweep: The parent run's name.
        spool_dir: Where reports wait for the server, inside the sweep's folder.
    """

    uri: str | None
    experiment: str
    sweep: str
    spool_dir: Path


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended.

    Attributes:
        state: COMPLETE, PRUNED, FAIL, or INTERRUPTED: KILLED until a resume continues it.
        metrics: Final values, put at the trial's last step; a curve that has that step keeps its value.
        tags: Any tags.
        artifacts: A folder to keep under ``checkpoint``; it must stay until it was sent.
        params: Its sampled values, for a server that has no run of it.
        reports: Its objective by environment step, for a server that may not have them all.
    """

    state: str
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    artifacts: Path | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    reports: Mapping[int, float] = field(default_factory=dict)


def _sweep_key(folder: Path) -> str:
    """Return the mark of this sweep's parent run, kept beside the journal for runs whose id was lost."""
    path = folder / "sweep.key"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and (known := path.read_text().strip()):
            return known
        path.write_text(key := uuid.uuid4().hex)
        return key
    except OSError:
        return uuid.uuid4().hex


class Tracker(Protocol):
    """Where a sweep is shown. No call raises; only those with an answer, `close` and `wait_until_sent` wait."""

    @property
    def num_pending(self) -> int:
        """Return the number of operations that have not reached the server yet."""

    @property
    def opening(self) -> bool:
        """Return whether MLflow is still being imported, or a new store made: seconds of CPU."""

    def warnings(self) -> list[str]:
        """Return the messages for a person that have not been returned yet."""

    def start(
        self,
        *,
        run_id: str | None,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        config_text: str,
        packages: str,
    ) -> None:
        """Create the parent run, or continue it.

        Args:
            run_id: The parent of an earlier driver, None if unknown: then one with this sweep's mark is used.
            params: What describes the sweep. A value that has changed becomes the tag ``resumed.<name>``.
            tags: Any tags.
            config_text: The composed config, kept as config.yaml.
            packages: The package list, kept as packages.txt.
        """

    def trial_started(
        self, number: Key, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None
    ) -> None:
        """Create a trial's run, or continue it.

        Args:
            number: The trial; a certification's run has a name, see `rltune.tracking.run_names`.
            params: The sampled values, nothing else.
            tags: Any tags.
            run_id: Its run of an earlier driver, None if unknown: then it is looked for.
        """

    def settle(self, ended: Mapping[Key, TrialEnd]) -> None:
        """Let MLflow agree with the ledger about trials whose end a killed driver may not have sent.

        Args:
            ended: The trials and certification's runs that have ended.
        """

    def report(self, number: Key, metrics: Mapping[str, float], env_steps: int) -> None:
        """Add a point to each curve. Non-finite values are left out, a step that a curve has is ignored."""

    def progress(self, best: float, total_env_steps: int) -> None:
        """Add a point to the parent's ``best_objective``, over the steps of all trials."""

    def trial_ended(
        self,
        number: Key,
        state: str,
        *,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        artifacts: Path | None,
    ) -> None:
        """End a trial's run.

        Args:
            number: The trial.
            state: COMPLETE, PRUNED, FAIL, or INTERRUPTED: KILLED until a resume continues it.
            metrics: Final values, put at the trial's last step; a curve that has that step keeps its value.
            tags: Any tags.
            artifacts: A folder to keep under ``checkpoint``; it must stay until it was sent.
        """

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Keep a file or a folder's content with the parent run; it must stay until it was sent."""

    def register(
        self,
        *,
        name: str,
        number: Key,
        model: Mapping[str, Any],
        tags: Mapping[str, str],
        description: str,
        alias: str | None,
    ) -> RegisteredModel | None:
        """Log a trial's policy as a model and register it; waits at most three minutes.

        The same content is registered once. The alias is not moved when `champion` had no answer before.

        Args:
            name: The registered model.
            number: The trial.
            model: Keyword arguments of mlflow.pyfunc.log_model: python_model, artifacts, signature ...
            tags: The version's tags.
            description: The version's description, Markdown.
            alias: What the version is to be called from now on; None leaves all aliases.

        Returns:
            The version, its ``alias`` None if that was not moved; None when MLflow did not take it, and
            `warnings` says why.
        """

    def champion(self, name: str, alias: str = "champion") -> RegisteredModel | None:
        """Return the version that an alias names; None without one or without an answer (see `register`)."""

    def fetch(self, version: RegisteredModel, folder: Path) -> Path | None:
        """Copy a registered version's files into a folder; None when MLflow does not give them."""

    def describe(self, number: Key | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Add to a run, the sweep's or a trial's, whether it has ended or not."""

    def wait_until_sent(self, timeout_s: float = 10.0) -> None:
        """Wait, at most this long, until everything handed over was sent: the ledger then knows the id of every run."""

    def close(self, status: str, timeout_s: float = 30.0) -> bool:
        """Send what is left, end children that are still open as KILLED and the parent, and stop.

        Args:
            status: The parent's: FINISHED, FAILED or KILLED.
            timeout_s: The longest wait; for a server that does not answer at most DOWN_S.

        Returns:
            Whether everything reached the server. The rest stays in the journal; `warnings` says what to type.
        """


class MLflowTracker:
    """Show one sweep in MLflow.

    What an earlier tracker of the same folder could not deliver is sent first.

    Args:
        settings: Where to.
        on_run: Called in the sender thread with the trial's number (None: the parent) and the id of its run, as soon as
            the run exists.
    """

    def __init__(self, settings: TrackingSettings, on_run: Callable[[Key | None, str], None]) -> None:
        uri = resolve_uri(settings.uri)
        self._settings = settings
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._on_run = on_run
        key = _sweep_key(settings.spool_dir)
        self._runs = MLflowRuns(uri, settings.experiment, settings.sweep, key, self._pass_run)
        self._outbox = Outbox(settings.spool_dir, self._runs, self._messages.put, secrets_of(uri))
        self._closed = False
        self._champion_known = True
        # A driver that an exception ends must not leave its runs RUNNING.
        atexit.register(self.close, "FAILED", 5.0)

    @property
    def num_pending(self) -> int:
        """Return the number of operations that have not reached the server yet."""
        return self._outbox.num_pending

    @property
    def opening(self) -> bool:
        """Return whether MLflow is still being imported, or a new store made: seconds of CPU."""
        return self._outbox.state == "opening"

    def warnings(self) -> list[str]:
        """Return the messages for a person that have not been returned yet."""
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def start(
        self,
        *,
        run_id: str | None,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        config_text: str,
        packages: str,
    ) -> None:
        """Create the parent run, or continue it."""
        self._put("start", None, run_id=run_id, params=dict(params), tags=dict(tags))
        self._put("text", None, file="config.yaml", text=config_text)
        self._put("text", None, file="packages.txt", text=packages)

    def trial_started(
        self, number: Key, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None
    ) -> None:
        """Create a trial's run, or continue it."""
        self._put("trial", number, run_id=run_id, params=dict(params), tags=dict(tags))

    def settle(self, ended: Mapping[Key, TrialEnd]) -> None:
        """Let MLflow agree with the ledger about trials whose end a killed driver may not have sent."""
        self._put("settle", None, ended={key: vars(ending) for key, ending in ended.items()})

    def report(self, number: Key, metrics: Mapping[str, float], env_steps: int) -> None:
        """Add a point to each curve. Non-finite values are left out, a step that a curve has is ignored."""
        self._put("report", number, metrics=dict(metrics), step=int(env_steps))

    def progress(self, best: float, total_env_steps: int) -> None:
        """Add a point to the parent's ``best_objective``, over the steps of all trials."""
        self._put("progress", None, metrics={"best_objective": best}, step=int(total_env_steps))

    def trial_ended(
        self,
        number: Key,
        state: str,
        *,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        artifacts: Path | None,
    ) -> None:
        """End a trial's run."""
        if state not in STATUS:
            self._messages.put(f"trial {number} ended in the unknown state {state}: shown as FAILED")
            state = "FAIL"
        self._put("end", number, state=state, metrics=dict(metrics), tags=dict(tags))
        if artifacts is not None:
            self._put("artifact", number, path=str(Path(artifacts).absolute()), folder=CHECKPOINT)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Keep a file or a folder's content with the parent run; it must stay until it was sent."""
        self._put("artifact", None, path=str(Path(path).absolute()), folder=folder)

    def register(
        self,
        *,
        name: str,
        number: Key,
        model: Mapping[str, Any],
        tags: Mapping[str, str],
        description: str,
        alias: str | None,
    ) -> RegisteredModel | None:
        """Log a trial's policy as a model and register it; waits at most three minutes."""
        labels = {key: redact(str(value)) for key, value in tags.items()}

        def register() -> RegisteredModel:
            registry, run_id = self._runs.registry(), self._runs.run_id_of(number)
            version = registry.register(name, run_id, model, labels, redact(description))
            return registry.set_alias(version, alias) if alias and self._champion_known else version

        if alias and not self._champion_known:
            self._messages.put(f"'{alias}' of {name} stays where it is: MLflow did not say which version has it")
        return self._call(f"{name} was not registered", register, REGISTER_TIMEOUT_S)

    def champion(self, name: str, alias: str = "champion") -> RegisteredModel | None:
        """Return the version that an alias names; None without one or without an answer (see `register`)."""
        self._champion_known = False

        def champion() -> RegisteredModel | None:
            version = self._runs.registry().champion(name, alias)
            self._champion_known = True
            return version

        return self._call(f"the {alias} of {name} is unknown", champion, CHAMPION_TIMEOUT_S)

    def fetch(self, version: RegisteredModel, folder: Path) -> Path | None:
        """Copy a registered version's files into a folder; None when MLflow does not give them."""
        return self._call(
            f"{version.name} version {version.version} was not read",
            lambda: self._runs.registry().fetch(version, folder),
            CHAMPION_TIMEOUT_S,
        )

    def describe(self, number: Key | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Add to a run, the sweep's or a trial's, whether it has ended or not."""
        self._put("describe", number, metrics=dict(metrics), tags=dict(tags))

    def wait_until_sent(self, timeout_s: float = 10.0) -> None:
        """Wait, at most this long, until everything handed over was sent: the ledger then knows the id of every run."""
        self._call("not every run is known yet", lambda: None, timeout_s)

    def close(self, status: str, timeout_s: float = 30.0) -> bool:
        """Send what is left, end children that are still open as KILLED and the parent, and stop."""
        if self._closed:
            return True
        self._put("close", None, status=status)
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._outbox.call(lambda: None, min(timeout_s, DOWN_S) if self._outbox.state == "down" else timeout_s)
        except Exception:
            num_left, settings = self._outbox.stop(), self._settings
            self._messages.put(
                f"{num_left} operations for MLflow are kept in {settings.spool_dir}; when it is back, "
                f"python -m sweeps.resume sweep={settings.sweep} sends them"
            )
            return False
        return self._outbox.stop() == 0

    def _put(self, kind: str, number: Key | None, **content: Any) -> None:
        if not self._closed:
            self._outbox.put({"op": kind, "trial": number, "t": time.time_ns() // 1_000_000, **content})

    def _call(self, failure: str, function: Callable[[], T | None], timeout_s: float) -> T | None:
        """Call a function in the sender thread, at most three times; return None and leave a message if it fails."""
        deadline = time.monotonic() + timeout_s
        reason = "the tracker is closed"
        for attempt in range(0 if self._closed else 3):
            try:
                answer: T | None = self._outbox.call(function, max(0.1, deadline - time.monotonic()))
            except Exception as error:
                reason = redact(f"{type(error).__name__}: {error}".splitlines()[0])[:300]
                if self._runs.is_hopeless(error) or time.monotonic() > deadline:
                    break
                time.sleep(attempt + 1)
            else:
                return answer
        self._messages.put(f"{failure} in MLflow ({reason})")
        return None

    def _pass_run(self, number: Key | None, run_id: str) -> None:
        try:
            self._on_run(number, run_id)
        except Exception as error:  # a ledger that fails must not stop the reports
            self._messages.put(f"the run of trial {number} could not be noted ({type(error).__name__}: {error})")


class NoTracker:
    """Take every call of a tracker and do nothing: ``tracking=off``."""

    num_pending = 0
    opening = False

    def warnings(self) -> list[str]:
        """Return no message."""
        return []

    def close(self, status: str, timeout_s: float = 30.0) -> bool:
        """Return that nothing is left to send."""
        return True

    def champion(self, *args: Any, **kwargs: Any) -> RegisteredModel | None:
        """Return that there is no champion."""
        return None

    def register(self, *args: Any, **kwargs: Any) -> RegisteredModel | None:
        """Register nothing."""
        return None

    def fetch(self, *args: Any, **kwargs: Any) -> Path | None:
        """Fetch nothing."""
        return None

    def _ignore(self, *args: Any, **kwargs: Any) -> None:
        """Show nothing."""

    start = trial_started = trial_ended = settle = report = progress = artifact = describe = wait_until_sent = _ignore
