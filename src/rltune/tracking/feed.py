"""Deliver a sweep from its ledger to its trackers, at least once, with one thread per tracker.

The ledger has a mark for each tracker, which moves after the tracker has taken what lies before it. A driver that is
killed in between delivers it again, which changes nothing because trackers are idempotent. A tracker that fails is
tried again with a growing pause; nobody waits for it, except for a limited time at the end. Runs in the driver.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store
from rltune.errors import describe_exception
from rltune.ledger.lease import LeaseLostError
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome
from rltune.ledger.sweep_folder import make_resume_command
from rltune.records import Report, RunKey, TrialRecord
from rltune.tracking.tracker import Tracker

# After a change, the feed waits this long to send several reports in one request, which costs the driver as much CPU
# time as ten reports. The first wait also leaves the CPU to the first trials: importing MLflow takes 2 s.
LINGER_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0  # The back-off after a failure doubles from the first value to the second.
POLL_S = 0.05  # A caller that waits for deliveries checks for signals at this interval.
MAX_ATTEMPTS = 3  # An operation that the tracker refuses this often in a row is given up.
AWAY_S = 5.0  # At the end of a sweep, a tracker that keeps failing gets this many more seconds.
Operation = tuple[str, Callable[[Tracker], None]]  # What is published at the end, with its name for messages.


class _AbandonedError(Exception):
    """Raised in the feed's thread to end it without any further delivery."""


class _RefusedError(Exception):
    """The tracker has refused an operation, which will be tried again."""


class Feed:
    """Delivers a sweep from its ledger to one tracker, in a thread of its own.

    Args:
        tracker: The tracker.
        ledger: The sweep's.
        store: The sweep's, which has the checkpoints.

    Attributes:
        tracker: See above.
        messages: What a person should know, one line each.
    """

    def __init__(self, tracker: Tracker, ledger: Ledger, store: Store) -> None:
        self.tracker, self.messages = tracker, SimpleQueue[str]()
        tracker.notify = self.messages.put
        self._ledger, self._store = ledger, store
        # A tracker that only acts at the end, such as a notification, does not read the ledger. So it still works if an
        # error of the ledger has ended the sweep.
        self._takes_checkpoints = _overrides(tracker, Tracker.write_checkpoint)
        self._reads_ledger = (
            _overrides(tracker, Tracker.write) or _overrides(tracker, Tracker.write_sweep) or self._takes_checkpoints
        )
        self._woken, self._urgent = threading.Event(), threading.Event()
        self._woken.set()  # When a sweep resumes, an earlier driver may have left something undelivered.
        self._closing, self._abandoned = threading.Event(), threading.Event()
        self._ending: tuple[str, Outcome | None] = ("KILLED", None)
        self._operations: list[Operation] = []
        self._is_idle = False
        self._is_open = self._is_delivered = self._has_warned = False
        self._failures = 0  # Consecutive failures.
        self._failing_since = 0.0  # The time of the first of these failures.
        self._refusals: Counter[str] = Counter()  # Consecutive refusals of each operation.
        # What the tracker has refused stays unmarked in the ledger. The next driver sends it again, and not this one.
        self._skipped: set[str] = set()  # The paths of refused checkpoints.
        self._refused_revisions: dict[tuple[str, int], int] = {}  # The last refused revision of trials.
        # Where the mark of reports in the ledger stays, and the last report that this driver has nevertheless sent.
        self._kept_mark, self._position = -1, 0
        self._thread = threading.Thread(target=self._run, name=f"feed-{tracker.name}", daemon=True)
        self._thread.start()

    @property
    def is_opening(self) -> bool:
        """Whether the tracker is still being opened for the first time."""
        return not (self._is_open or self._failures or self._closing.is_set())

    @property
    def _has_everything(self) -> bool:
        is_refused = self._kept_mark >= 0 or self._refused_revisions or self._skipped
        return self._is_delivered and not is_refused

    def wake(self, *, connect: bool = False) -> None:
        """Wake the thread, because the ledger has new rows.

        Args:
            connect: Open the tracker now, without waiting for more to deliver.
        """
        if connect and self.is_opening:
            self._urgent.set()
        self._woken.set()

    def wait_until_sent(self, timeout_s: float, is_urgent: Callable[[], bool] = lambda: False) -> bool:
        """Wait until everything that the ledger has now was delivered, and return whether it was.

        Args:
            timeout_s: The longest wait.
            is_urgent: Whether to stop waiting, such as after a signal.
        """
        deadline = time.monotonic() + timeout_s
        self._urgent.set()
        self._woken.set()
        while self._thread.is_alive() and not is_urgent() and time.monotonic() < deadline:
            # The thread lowers both before it reads the ledger, so that a delivery that began earlier does not count.
            if not self._woken.is_set() and self._is_idle:
                return True
            time.sleep(POLL_S)
        return False

    def begin_close(self, status: str, outcome: Outcome | None = None, operations: Iterable[Operation] = ()) -> None:
        """Tell the thread to deliver the rest, end the sweep's run and stop; does not wait.

        Args:
            status: As for `Tracker.end`.
            outcome: As for `Tracker.end`.
            operations: What is published after the ledger was delivered, in this order.
        """
        if not self._closing.is_set():
            self._ending, self._operations = (status, outcome), list(operations)
            self._closing.set()
        self._urgent.set()
        self._woken.set()

    def wait_closed(self, timeout_s: float, is_urgent: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the thread has ended; after the time-out, give up and leave it running.

        Args:
            timeout_s: The longest wait; the tracker's own limit may be shorter.
            is_urgent: Whether to stop waiting, such as after a signal that comes meanwhile.

        Returns:
            Whether everything was delivered.
        """
        if self._abandoned.is_set():
            return self._has_everything
        began, was_urgent = time.monotonic(), is_urgent()
        limit_s = min(timeout_s, self.tracker.close_s)
        # If the first failure occurs only now, it may be temporary, so some more attempts are allowed.
        too_often = 1 if self._failures else MAX_ATTEMPTS
        while self._thread.is_alive() and (was_urgent or not is_urgent()):
            end = began + limit_s
            if self._failures >= too_often:
                end = min(end, max(began, self._failing_since) + AWAY_S)
            if time.monotonic() >= end:
                break
            self._thread.join(min(POLL_S, max(0.0, end - time.monotonic())))
        self._abandon()
        if not self._has_everything:
            rest = f"has not received everything; the rest is delivered by {make_resume_command(self._store.folder)}"
            self.messages.put(f"{self.tracker.name} {self.tracker.give_up() or rest}")
        return self._has_everything

    def abandon(self) -> None:
        """Stop delivering at once, because another driver has taken the sweep over and delivers now."""
        self._abandon()
        self.tracker.give_up()
        self._thread.join(1.0)

    def _abandon(self) -> None:
        self._abandoned.set()
        self._closing.set()
        self._urgent.set()
        self._woken.set()

    # -- Methods that run in the feed's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_delivered:
            self._woken.wait()
            self._urgent.wait(self._find_pause_s())
            self._is_idle = False  # Before the flag is cleared, for `wait_until_sent`.
            self._woken.clear()
            self._urgent.clear()
            try:
                self._deliver()
            except (_AbandonedError, LeaseLostError):
                return
            except BaseException as error:  # A user's tracker may even raise SystemExit, which would end this thread.
                self._handle_failure(error)
            else:
                if self._has_warned:
                    self.messages.put(f"{self.tracker.name} has now received everything that was missing")
                self._failures, self._has_warned, self._is_idle = 0, False, True

    def _find_pause_s(self) -> float:
        if not self._failures:
            return LINGER_S
        return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 8)))

    def _handle_failure(self, error: BaseException) -> None:
        if not self._failures:
            self._failing_since = time.monotonic()
        self._failures += 1
        self._is_open = False
        if not (self._has_warned or isinstance(error, _RefusedError)):
            reason = _describe(error)
            self.messages.put(f"{self.tracker.name} does not accept everything ({reason}); the rest is delivered later")
            self._has_warned = True
        self._woken.set()

    def _deliver(self) -> None:
        """Deliver to the tracker what the ledger has and the tracker lacks; at the end, also publish the outcome."""
        is_last = self._closing.is_set()
        self._check_right()
        if self._reads_ledger:
            self._ledger.check_lease()
        if not self._is_open:
            self.tracker.open()
            self._is_open = True
        unsent = self._deliver_ledger()
        try:
            for record in unsent:
                self._deliver_checkpoint(record)
            if is_last:
                self._publish()
        except (_AbandonedError, _RefusedError, LeaseLostError, SQLAlchemyError):
            raise
        except BaseException:
            # Files may be kept by another server than runs, and no run is to stay open because that one is away.
            if is_last:
                self._attempt("the end of the sweep", partial(self.tracker.end, *self._ending))
            raise
        if is_last:
            self._attempt("the end of the sweep", partial(self.tracker.end, *self._ending))
            self._attempt("its closing", self.tracker.close)
        self._is_delivered = is_last

    def _publish(self) -> None:
        """Deliver what is published at the end."""
        while self._operations:
            name, operation = self._operations[0]
            self._attempt(name, partial(operation, self.tracker))
            self._operations.pop(0)
        # If an operation found that a run was deleted in MLflow, then the run's rows must be delivered again.
        for record in self._deliver_ledger():
            self._deliver_checkpoint(record)

    def _deliver_ledger(self) -> list[TrialRecord]:
        """Deliver new reports page by page, then the state of trials without new reports.

        Returns:
            The trials whose checkpoints the tracker takes and lacks.
        """
        if not self._reads_ledger:
            return []
        tracker, ledger = self.tracker, self._ledger
        # Changed trials are read before reports. So if a trial has ended by this read, the reports read afterwards are
        # complete.
        pending = ledger.read_pending_trials(tracker.name, with_checkpoints=self._takes_checkpoints)
        records = self._read_records((trial.kind, trial.number) for trial in pending)
        changed = {
            (trial.kind, trial.number): trial.revision
            for trial in pending
            if trial.revision > max(trial.delivered, self._refused_revisions.get((trial.kind, trial.number), 0))
        }
        # After failures the pages are small first: a slow server, or a proxy that limits the size of requests, may take
        # fewer reports at a time than the tracker would send.
        size, is_last = max(1, tracker.batch_size >> self._failures), False
        while not is_last:
            page = ledger.read_reports_after(self._find_position(), size) if tracker.takes_reports else []
            is_last = len(page) < size
            size = min(2 * size, tracker.batch_size)
            if page:
                for key in self._deliver_page(page, records, changed):
                    ledger.mark_trial(tracker.name, *key, revision=changed.pop(key))
        for key, revision in changed.items():
            if self._attempt(records[key].run_key.name, partial(tracker.write, records[key], [])):
                ledger.mark_trial(tracker.name, *key, revision=revision)
            else:
                self._refused_revisions[key] = revision
        unsent = [records[trial.kind, trial.number] for trial in pending if trial.checkpoint is None]
        return [record for record in unsent if self._takes_checkpoints and record.state == "COMPLETE"]

    def _deliver_page(
        self,
        page: Sequence[tuple[int, str, Report]],
        records: Mapping[tuple[str, int], TrialRecord],
        changed: Collection[tuple[str, int]],
    ) -> list[tuple[str, int]]:
        """Deliver one page of reports, with the state of trials whose reports are complete, and record the delivery.

        A trial's change is delivered together with its last report, because a request costs more than its content.

        Args:
            page: The reports.
            records: Trials by kind and number.
            changed: Those of these trials of which the tracker lacks more than reports.

        Returns:
            The changed trials of which the tracker has everything now.
        """
        curves: dict[tuple[str, int], list[Report]] = defaultdict(list)
        for _, kind, report in page:
            curves[kind, report.number].append(report)
        records = {**self._read_records(curves.keys() - records.keys()), **records}
        delivered, is_page_accepted = [], True
        for key, curve in curves.items():
            record = records[key]
            has_all_reports = curve[-1].nominal_steps >= max(record.reports, default=0)
            if not has_all_reports:  # The trial's last reports come with a later page, so its end is not shown yet.
                record = replace(record, state="RUNNING", stop_reason=None, diverged=False)
            is_accepted = self._attempt(record.run_key.name, partial(self.tracker.write, record, curve))
            is_page_accepted &= is_accepted
            if is_accepted and has_all_reports and key in changed:
                delivered.append(key)
        is_page_accepted &= self._attempt("the sweep's curves", partial(self.tracker.write_sweep, page))
        self._move_mark(page[-1][0], is_page_accepted)
        return delivered

    def _find_position(self) -> int:
        """Return the id of the last report that needs no delivery by this driver."""
        mark = self._ledger.read_delivered_report(self.tracker.name)
        if mark != self._kept_mark:  # A tracker that has to show everything in another MLflow has reset the mark.
            self._kept_mark, self._position = -1, mark
        return self._position

    def _move_mark(self, report_id: int, is_page_accepted: bool) -> None:
        """Record that a page was delivered; the mark stays before the first page of which something was refused."""
        if not is_page_accepted and self._kept_mark < 0:
            self._kept_mark = self._ledger.read_delivered_report(self.tracker.name)
        if self._kept_mark < 0:
            self._ledger.mark_reports(self.tracker.name, report_id)
        self._position = report_id

    def _deliver_checkpoint(self, record: TrialRecord) -> None:
        path = record.checkpoint.path if record.checkpoint else ""
        if path in self._skipped:
            return
        name = f"the checkpoint of {record.run_key.name}"
        try:
            with self._store.lend(path) as files:
                if not path or files is None:
                    path = ""
                elif not self._attempt(name, partial(self.tracker.write_checkpoint, record, files)):
                    self._skipped.add(path)
                    return
        except StoreError:
            self._skipped.add(path)
            return
        self._ledger.mark_trial(self.tracker.name, record.kind, record.number, checkpoint=path)

    def _attempt(self, name: str, operation: Callable[[], Any]) -> bool:
        """Run an operation; return False if it was given up because the tracker has refused it repeatedly."""
        self._check_right()
        try:
            operation()
        # An error of the ledger is no failure of the tracker, so it must not count as a refusal.
        except (SQLAlchemyError, LeaseLostError):
            raise
        except BaseException as error:
            # The first refusal may be an after-effect of an outage, so the operation is given up only after several.
            self._refusals[name] = self._refusals[name] + 1 if self.tracker.is_refusal(error) else 0
            if not self._refusals[name]:
                raise
            if self._refusals[name] < MAX_ATTEMPTS:
                raise _RefusedError from error
            self.messages.put(f"{self.tracker.name} refused {name} ({_describe(error)})")
            del self._refusals[name]
            self._failures = 0
            return False
        del self._refusals[name]
        self._failing_since = time.monotonic()
        return True

    def _check_right(self) -> None:
        if self._abandoned.is_set():
            raise _AbandonedError

    def _read_records(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], TrialRecord]:
        numbers = defaultdict(list)
        for kind, number in keys:
            numbers[kind].append(number)
        records = [record for kind, some in numbers.items() for record in self._ledger.table(kind).records(some)]
        return {(record.kind, record.number): record for record in records}


class Feeds:
    """All trackers of a sweep, for its driver; without trackers, each method does nothing.

    No call raises, and only those with a result wait, for a limited time.

    Args:
        ledger: The sweep's.
        store: The sweep's, which has the checkpoints.
        trackers: Where the sweep is shown.
        is_urgent: Whether only seconds are left, as after a signal: then no result is waited for.
    """

    def __init__(
        self,
        ledger: Ledger | None = None,
        store: Store | None = None,
        trackers: Sequence[Tracker] = (),
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._feeds = [Feed(tracker, ledger, store) for tracker in trackers] if ledger and store else []
        self._is_urgent = is_urgent
        self._operations: list[Operation] = []

    @property
    def has_registry(self) -> bool:
        """Whether the ledger gets the ids of MLflow runs, from which a model can be registered."""
        return any(feed.tracker.has_registry for feed in self._feeds)

    @property
    def opening(self) -> bool:
        """Whether a tracker is still being opened, which takes seconds of CPU time for imports."""
        return any(feed.is_opening for feed in self._feeds)

    def warnings(self) -> list[str]:
        """Return the new messages for the user, such as about failed deliveries."""
        return [feed.messages.get() for feed in self._feeds for _ in range(feed.messages.qsize())]

    def wake(self, *, connect: bool = False) -> None:
        """Wake all feeds, because the ledger has new rows; see `Feed.wake`."""
        for feed in self._feeds:
            feed.wake(connect=connect)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Have the end upload a file or a folder's content to the sweep's run; it must exist until then."""
        path = Path(path).absolute()
        self._operations.append((f"the artifact {path.name}", lambda tracker: tracker.keep_files(path, folder)))

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Have the end log metrics and tags to a run; see `Tracker.describe`."""
        name = f"the description of {key.name if key else 'the sweep'}"
        self._operations.append((name, lambda tracker: tracker.describe(key, metrics, tags)))

    def wait_until_sent(self, timeout_s: float = 10.0) -> bool:
        """Wait until the ledger has the id of every MLflow run so far, and return whether it has."""
        deadline = time.monotonic() + timeout_s
        return all(
            feed.wait_until_sent(deadline - time.monotonic(), self._is_urgent)
            for feed in self._feeds
            if feed.tracker.has_registry
        )

    def close(self, status: str, timeout_s: float = 30.0, outcome: Outcome | None = None) -> bool:
        """Deliver what is left, end all runs and stop; the time-out is for all trackers together.

        Args:
            status: FINISHED, FAILED or KILLED.
            timeout_s: The longest wait.
            outcome: How the sweep ended; None where an error has ended the driver.

        Returns:
            Whether everything was delivered. The rest stays in the ledger; `warnings` says what to type.
        """
        deadline = time.monotonic() + timeout_s
        for feed in self._feeds:
            feed.begin_close(status, outcome, self._operations)
        ends = [feed.wait_closed(deadline - time.monotonic(), self._is_urgent) for feed in self._feeds]
        return all(ends)

    def abandon(self) -> None:
        """Stop all deliveries at once, because another driver has taken the sweep over."""
        for feed in self._feeds:
            feed.abandon()


def _overrides(tracker: Tracker, method: Callable[..., None]) -> bool:
    return getattr(type(tracker), method.__name__) is not method


def _describe(error: BaseException) -> str:
    return describe_exception(error)[:200]
