"""Define the interface of trackers, which show a sweep in MLflow, TensorBoard or by a user's own class.

`rltune.tracking.feed` delivers to it what the ledger has. Each method is called in the feed's thread, may take its
time, and may raise: the feed then calls it again. Delivery is at least once, so each method must be idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltune.config.schema import TrackingConfig
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome
from rltune.records import CERTIFY, Report, RunKey, TrialRecord

# One request has at most this many reports, so that a slow server can process them before the client's time-out.
BATCH_SIZE = 500
CLOSE_S = 60.0


@dataclass(frozen=True)
class SweepDescription:
    """What a tracker needs to know of a sweep.

    Attributes:
        name: The sweep's name.
        key: Distinguishes the sweep from all others, also from those of the same name.
        folder: The sweep's folder.
        ledger: The sweep's ledger.
        experiment: The environment's name, which groups sweeps.
        uri: The setting ``tracking.uri``, whose login only `rltune.secrets.reveal` shows; None is the tracker's own
            default.
        params: What tells it from others in a table.
        tags: Any tags.
        texts: Files to keep with it, by name.
    """

    name: str
    key: str
    folder: Path
    ledger: Ledger
    experiment: str
    uri: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


class Tracker:
    """The base class of trackers. A subclass overrides the methods it needs; by default each does nothing.

    To ship one, list it in `rltune.config.schema.TRACKERS`.

    Args:
        sweep: The sweep that it shows.

    Attributes:
        sweep: See above.
        name: Identifies it in messages and in the ledger; by default the name of its class.
        batch_size: The largest number of reports between two marks in the ledger, and so of those that are delivered
            again after a kill.
        close_s: The longest that the end of a sweep waits for it, in seconds.
        takes_reports: Whether `write` is to get reports, and `write_sweep` to be called.
        has_registry: Whether it writes the ids of MLflow runs into the ledger, from which a model can be registered.
        notify: Shows a person a line; the feed sets it.
    """

    name: str
    batch_size = BATCH_SIZE
    close_s = CLOSE_S
    takes_reports = True
    has_registry = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.name = cls.__dict__.get("name", cls.__name__)

    def __init__(self, sweep: SweepDescription) -> None:
        self.sweep = sweep
        self.notify: Callable[[str], None] = lambda line: None

    @classmethod
    def check(cls, tracking: TrackingConfig) -> None:
        """Raise an `RltuneError` if this tracker cannot work with the sweep's settings. Must not write anything."""

    def open(self) -> None:
        """Connect and prepare to show the sweep. Called first, after each failure, and when a sweep resumes."""

    def write(self, trial: TrialRecord, reports: Sequence[Report]) -> None:
        """Add reports to a trial's curves, and show the trial's state: running, interrupted or ended.

        Args:
            trial: The trial. Its state is RUNNING until all its reports were written or come with this call.
            reports: Its new reports in the order of their steps; none if only its state has changed.
        """

    def write_sweep(self, reports: Sequence[tuple[int, str, Report]]) -> None:
        """Add reports to curves of the whole sweep, such as the best score so far.

        Args:
            reports: The same reports as `write` gets, of all trials in the order in which they came, each with its id
                in the ledger and its trial's kind.
        """

    def write_checkpoint(self, trial: TrialRecord, folder: Path) -> None:
        """Save the files of the best checkpoint of a COMPLETE trial."""

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Add metrics and tags to a run, which may have ended already.

        Args:
            key: Names the run; None is the sweep.
            metrics: Numbers without a step.
            tags: See `rltune.tracking.mlflow_tracker.NOTE_TAG`.
        """

    def keep_files(self, path: Path, folder: str | None) -> None:
        """Save a file or a folder's content with the sweep's run."""

    def end(self, status: str, outcome: Outcome | None) -> None:
        """Show that the sweep has ended; called after everything else was delivered.

        While files cannot be delivered, it is called after all reports, and once more after the files.

        Args:
            status: FINISHED, FAILED or KILLED.
            outcome: How it ended; None where an error or another driver ended this one.
        """

    def close(self) -> None:
        """Close files and connections; called after all other methods."""

    def give_up(self) -> str | None:
        """Interrupt a call that is still running, because the driver stops waiting; called from another thread.

        Returns:
            What a person loses by it, in words; None if the next driver delivers the rest.
        """
        return None

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether trying again cannot help; then the operation is tried a few times, and by the next driver.

        By default that is what Python itself raises in code that is wrong, such as a TypeError. An OSError, and a class
        of some library's, may be an outage, after which everything is delivered.
        """
        return type(error).__module__ == "builtins" and not isinstance(error, OSError | MemoryError)


def get_certified_score(trial: TrialRecord) -> dict[str, float]:
    """Return a certification run's score and own metrics on its episodes, by name; empty before they were played."""
    if trial.kind != CERTIFY or trial.score is None:
        return {}
    present = {name: [value for value in values if value is not None] for name, values in trial.metrics.items()}
    means = {f"certified_{name}": sum(values) / len(values) for name, values in present.items() if values}
    return {"certified_score": trial.score, **means}
