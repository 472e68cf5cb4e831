"""Compute everything that displays show of a sweep from one snapshot of its ledger.

The console, `watch`, `list`, `show`, the service, reports and data frames are functions of a `SweepView`. They compute
no progress, pace or ranks of their own. Reading a view again costs only what has changed since. Runs anywhere.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.certification.result import Certification, Configuration, list_choices
from rltune.config.criteria import Criteria, read_criteria
from rltune.config.settings_file import load_settings
from rltune.envs.objective import Objective
from rltune.envs.spec import EPISODE, name_metric, parse_metrics
from rltune.errors import StudyUnavailableError
from rltune.formatting import STATE_WORDS, first_line
from rltune.ledger.outcome import Outcome, count_states, load_outcome
from rltune.ledger.ranking import find_front, rank_records
from rltune.ledger.snapshot import LedgerSnapshot, read_snapshots
from rltune.ledger.storage import open_ledger
from rltune.records import (
    BASELINE,
    CERTIFY,
    ENQUEUED,
    PORTFOLIO,
    SEARCHER,
    TRIALS,
    TUNED,
    WARM_START,
    Report,
    SweepRecord,
    TrialRecord,
    trial_dir_of,
)
from rltune.tracking.mlflow_address import make_charts_address

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from rltune.ledger.ledger import Ledger

INTERRUPTED = "INTERRUPTED"  # A trial that has not ended, but whose worker does not run any more.
WAITING = "WAITING"  # A trial of a running sweep that has been proposed, and that no worker has started yet.
ORIGINS = {
    WARM_START: "warm_start",
    TUNED: "the tuned settings",
    BASELINE: "the algorithm's file",
    PORTFOLIO: "the portfolio",
    SEARCHER: "the searcher",
    ENQUEUED: "an enqueued configuration",
}
PACE_WINDOW_S = 30.0  # The current pace is the average over this time.
FIRST_STEPS_S = 2.0  # When the first steps are seen, they are assumed to have begun at most this long before.
MIN_ELAPSED_S = 10.0  # The remaining time is not estimated before this much time has passed.


@dataclass(frozen=True)
class Episodes:
    """The progress of an evaluation at the end of a sweep.

    Attributes:
        name: Who plays.
        done: Episodes so far.
        total: Episodes in all.
    """

    name: str
    done: int
    total: int


@dataclass(frozen=True)
class DriverState:
    """Facts that only the driver's process knows, so that views in other processes lack them.

    Attributes:
        env_steps: Environment steps of each seed that running trials have taken in all, as their workers say between
            two reports, by the trial's folder (`rltune.records.trial_dir_of`).
        slots: How many trials run at once; None if unknown.
        wait: What trials wait for that could run, as a sentence; empty if none waits.
        episodes: The policies that play at the sweep's end; None before that.
    """

    env_steps: Mapping[str, int] = field(default_factory=dict)
    slots: int | None = None
    wait: str = ""
    episodes: Episodes | None = None


UNKNOWN_DRIVER = DriverState()


@dataclass(frozen=True)
class TrialSnapshot:
    """One trial of the search or one run of the certification, at the moment of the view.

    Attributes:
        record: The trial as the ledger has it.
        state: A state of the ledger, `INTERRUPTED` or `WAITING`.
        env_steps: Environment steps of each seed, also those since the last report if they are known.
        heard_steps: The newest number of steps that the worker or the ledger has reported. It falls if the trial
            repeats steps after an interruption.
    """

    record: TrialRecord
    state: str
    env_steps: int
    heard_steps: int

    @property
    def number(self) -> int:
        """The number of the trial, or of the run among the certification's runs."""
        return self.record.number

    @property
    def params(self) -> Mapping[str, Any]:
        """The trial's parameters by name."""
        return self.record.params

    @property
    def reason(self) -> str | None:
        """The reason why the trial ended or was interrupted; None while it runs."""
        return self.record.stop_reason

    @property
    def broken(self) -> str:
        """The constraints that the trial breaks, as text; empty if it keeps all."""
        return self.record.breaks

    @property
    def has_ended(self) -> bool:
        """Whether the trial has ended; an interrupted trial has not."""
        return self.record.state != "RUNNING"

    @property
    def went_wrong(self) -> bool:
        """Whether the trial has failed or diverged; then its stop reason is an error."""
        return self.state == "FAIL" or self.record.diverged

    @property
    def state_word(self) -> str:
        """The trial's state in one word: waiting, running, complete, stopped, failed or interrupted."""
        return STATE_WORDS[self.state]

    @property
    def explanation(self) -> str:
        """Why the trial cannot win, why it ended or on which node it runs, and where its parameters come from."""
        record, parts = self.record, [f"cannot win: {self.broken}"] if self.broken else []
        if self.state == "RUNNING" and record.node:
            parts.append(f"on {record.node}")
        elif self.has_ended and record.stop_reason:
            when = f", at {record.target_steps:,} environment steps" if record.target_steps else ""
            parts.append(first_line(record.stop_reason) + when)
        if record.enqueued_by:
            parts.append(f"enqueued by {record.enqueued_by}")
        elif record.origin in ORIGINS and record.origin != SEARCHER:
            parts.append(f"from {ORIGINS[record.origin]}")
        return "; ".join(parts)

    @property
    def second(self) -> float | None:
        """The trial's value of the sweep's second objective; None without one."""
        return self.record.second

    @cached_property
    def score(self) -> float | None:
        """The score by which the trial is ranked; None before its first finite report."""
        return self.record.score

    @property
    def curve(self) -> Mapping[int, float]:
        """The learning curve: scores by environment steps; NaN before the first episode has ended."""
        return self.record.reports


@dataclass(frozen=True)
class Pace:
    """The sampling speed of a sweep, measured between readings of its progress.

    Attributes:
        samples: Pairs of a time and of all environment steps that were sampled by then, since the first reading.
    """

    samples: tuple[tuple[float, int], ...]

    @property
    def env_steps(self) -> int:
        """The environment steps that were sampled since the first reading."""
        return self.samples[-1][1]

    def add(self, now_s: float, env_steps: int, num_reporting: int) -> Pace:
        """Add a reading: the environment steps that were sampled since the last one.

        Args:
            now_s: The time of this reading.
            env_steps: Environment steps since the last one.
            num_reporting: The number of trials whose steps are known by their reports alone. The samples always hold
                two reports of each, however slow the trials are.
        """
        if not env_steps:
            return self
        total, samples = self.env_steps + env_steps, self.samples
        if not self.env_steps:
            # Time to start processes and build networks does not count; steps told by a report may have begun earlier.
            pause_s = math.inf if num_reporting else FIRST_STEPS_S
            samples = ((max(samples[-1][0], now_s - pause_s), 0),)
        samples, start = (*samples, (now_s, total)), 0
        while len(samples) - start > 2 * num_reporting + 1 and samples[start + 1][0] <= now_s - PACE_WINDOW_S:
            start += 1
        return Pace(samples[start:])

    def measure(self, now_s: float) -> float:
        """Return the environment steps per second over about the last 30 s."""
        then_s, env_steps = self.samples[0]
        return (self.env_steps - env_steps) / max(1.0, now_s - then_s)


@dataclass(frozen=True)
class SweepView:
    """Everything about a sweep that displays show, at one moment.

    Attributes:
        record: What the ledger knows of the sweep as a whole.
        settings: The sweep's composed settings; empty before its driver has begun.
        criteria: What trials are judged by.
        objective: What the scores measure.
        trials: The search's trials, in order.
        runs: The certification's runs, in order.
        driver: What only the driver knows.
        pace: How quickly the sweep samples.
        read_s: When the view was read, on this process's monotonic clock.
        snapshot: The rows from which the view was made.
        first: The first view of the sweep that this process has read; None if it is this one.
        stale_since_s: Since when the ledger has not answered, in seconds of the epoch; the view is older then. None if
            the view is as new as it was read.
    """

    record: SweepRecord
    settings: Mapping[str, Any]
    criteria: Criteria
    objective: Objective
    trials: tuple[TrialSnapshot, ...]
    runs: tuple[TrialSnapshot, ...]
    driver: DriverState
    pace: Pace
    read_s: float
    snapshot: LedgerSnapshot = field(repr=False)
    first: SweepView | None = field(default=None, repr=False)
    stale_since_s: float | None = None

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        since: SweepView | None = None,
        driver: DriverState = UNKNOWN_DRIVER,
        *,
        now_s: float | None = None,
    ) -> SweepView:
        """Read the view of a sweep from its ledger.

        Args:
            ledger: The sweep's.
            since: The view that was read before, so that only changes are read and the pace is known.
            driver: What the sweep's driver knows, if this process is the driver.
            now_s: The monotonic time; None is the present.
        """
        earlier = {ledger.sweep_id: since} if since else {}
        return read_views(ledger.fence.engine, [ledger.sweep_id], earlier, driver, now_s=now_s)[ledger.sweep_id]

    def in_folder(self, folder: Path) -> SweepView:
        """Return a copy of the view for a folder that was moved or renamed after the driver ran."""
        return replace(self, record=replace(self.record, name=folder.name, folder=str(folder)))

    def require_settings(self) -> None:
        """Refuse the view of a sweep that no driver has begun yet.

        Raises:
            StudyUnavailableError: The sweep has no settings.
        """
        if not self.settings:
            raise StudyUnavailableError(
                "has not begun yet", "a sweep that runs or has ended", key="sweep", value=self.name
            )

    def end_as(self, status: str) -> SweepView:
        """Return a copy of the view of a sweep that is about to end, with the status that its ledger will have."""

        def interrupt(trial: TrialSnapshot) -> TrialSnapshot:
            return replace(trial, state=INTERRUPTED) if trial.state in (WAITING, "RUNNING") else trial

        trials, runs = tuple(map(interrupt, self.trials)), tuple(map(interrupt, self.runs))
        return replace(self, record=replace(self.record, status=status), trials=trials, runs=runs)

    # -- Methods that describe the sweep ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the sweep."""
        return self.record.name

    @property
    def status(self) -> str:
        """The sweep's state: running, complete, stopped, failed, or interrupted, also if its driver has died."""
        return "interrupted" if self.snapshot.is_abandoned else self.record.status or "running"

    @property
    def outcome(self) -> Outcome | None:
        """The content of ``summary.json``; None if the last driver has not ended the sweep."""
        return None if self.status == "running" or self.snapshot.is_abandoned else load_outcome(self.folder)

    @property
    def folder(self) -> Path:
        """The path of the sweep's folder on the machine of the last driver."""
        return Path(self.record.folder or "")

    @property
    def elapsed_s(self) -> float:
        """The seconds since this process read the sweep for the first time."""
        return self.read_s - (self.first or self).read_s

    @property
    def driver_id(self) -> str | None:
        """The id of the last driver that held the lease; None before the first driver."""
        return self.snapshot.lease.driver_id

    @property
    def reports(self) -> tuple[Report, ...]:
        """The reports of the search's trials, in the order in which they arrived."""
        return self.snapshot.reports

    @property
    def budget(self) -> Mapping[str, Any]:
        """The settings ``budget.*`` of the sweep."""
        return self.settings.get("budget") or {}

    @property
    def num_trials(self) -> int:
        """The number of trials in the budget, or of started trials if there are more."""
        return max(int(self.budget.get("trials") or 0), len(self.trials))

    @property
    def env_steps(self) -> int:
        """The budget of a trial, in environment steps of each seed."""
        return int(self.budget.get("env_steps") or 0)

    @property
    def replicates(self) -> int:
        """The number of seeds with which each trial trains."""
        return int(self.settings.get("replicates") or 1)

    @property
    def metrics(self) -> list[str]:
        """The names of the user's own metrics: those that the settings declare, then those that callbacks log."""
        logged = (name for trial in self.trials for name in trial.record.numbers if name.startswith(EPISODE))
        return list(dict.fromkeys([*map(name_metric, parse_metrics(self.settings.get("metrics"))), *logged]))

    @cached_property
    def metric_curves(self) -> dict[str, dict[int, dict[int, float]]]:
        """The curves of the user's own metrics: by name and trial number, the values by environment steps.

        A report of which no episode had the number is left out, and so is a metric that no report has.
        """
        curves: dict[str, dict[int, dict[int, float]]] = {}
        for report in self.reports:
            for name in report.numbers:
                of_trial = curves.setdefault(name, {}).setdefault(report.number, {})
                of_trial[report.nominal_steps] = report.numbers[name]
        return {name: curves[name] for name in dict.fromkeys([*self.metrics, *curves]) if name in curves}

    @property
    def label(self) -> str:
        """The name of the objective, with its direction if it is minimized."""
        return self.objective.label

    # -- Methods that describe the progress ---------------------------------------------------------------------------

    @cached_property
    def counts(self) -> dict[str, int]:
        """The numbers of trials: total, complete, pruned, failed, interrupted, running (also those that wait)."""
        num_running = sum(trial.state in (WAITING, "RUNNING") for trial in self.trials)
        counts = count_states([trial.record for trial in self.trials])
        return {**counts, "interrupted": counts["interrupted"] - num_running, "running": num_running}

    @property
    def num_ended(self) -> int:
        """The number of trials that have ended."""
        return sum(trial.has_ended for trial in self.trials)

    @cached_property
    def sampled_env_steps(self) -> int:
        """The environment steps of all trials and seeds, without the certification."""
        return self.replicates * sum(trial.env_steps for trial in self.trials)

    @cached_property
    def percent(self) -> int:
        """The progress of the search in percent, counting running trials by their steps; 100 only if complete."""
        return 100 if self.status == "complete" else min(99, math.floor(100 * self.search_share))

    @cached_property
    def search_share(self) -> float:
        """The finished fraction of the search, from 0 to 1."""
        total = self.budget.get("total_env_steps")
        share = sum(map(self._measure_share, self.trials)) / max(1, self.num_trials)
        return min(1.0, max(share, self.sampled_env_steps / total if total else 0.0))

    def _measure_share(self, trial: TrialSnapshot) -> float:
        """Return the finished fraction of a trial's budget; 1 for a trial that has ended, even early."""
        return 1.0 if trial.has_ended else min(1.0, trial.env_steps / (self.env_steps or math.inf))

    @property
    def search_left_s(self) -> float | None:
        """The estimated seconds until the search ends, at its mean pace since the first reading.

        None in the first seconds, and while nothing is left.
        """
        gain = self.search_share - self.first.search_share if self.first else 0.0
        if self.elapsed_s < MIN_ELAPSED_S or gain <= 0:
            return None
        return (1 - self.search_share) * self.elapsed_s / gain or None

    @property
    def certification_left_s(self) -> float | None:
        """The estimated seconds for which the certification still trains; None like `search_left_s`.

        Its runs are not stopped early, so that the environment steps per second count, not the trials.
        """
        if self.elapsed_s < MIN_ELAPSED_S or not self.pace.env_steps:
            return None
        runs_left = self.num_runs - sum(map(self._measure_share, self.runs))
        return runs_left * self.env_steps * self.elapsed_s / self.pace.env_steps or None

    @cached_property
    def is_searched(self) -> bool:
        """Whether the search has ended, so that only certification and evaluation are left."""
        total = self.budget.get("total_env_steps")
        is_spent = self.num_ended >= self.num_trials or self.sampled_env_steps >= (total or math.inf)
        return bool(self.trials) and is_spent and self.num_ended == len(self.trials)

    @property
    def env_steps_per_s(self) -> float:
        """The environment steps per second of all trials, runs and seeds together, over about the last 30 s."""
        return self.pace.measure(self.read_s)

    @cached_property
    def is_certifying(self) -> bool:
        """Whether the search has ended and only the certification still runs."""
        is_searching = any(trial.state == "RUNNING" for trial in self.trials)
        is_retraining = any(run.state == "RUNNING" for run in self.runs)
        return bool(self.num_runs) and not is_searching and (is_retraining or self.is_searched)

    # -- Methods that describe the certification ----------------------------------------------------------------------

    @property
    def certify(self) -> Mapping[str, Any]:
        """The settings ``certify.*`` of the sweep."""
        return self.settings.get("certify") or {}

    @property
    def num_final_episodes(self) -> int:
        """The number of episodes that are played at the end to choose and evaluate the winner."""
        top = int(self.certify.get("top") or 0)
        num_evaluations = 2 if self.certify.get("seeds") else top and top + 1
        return num_evaluations * int(self.certify.get("champion_episodes") or 0)

    @cached_property
    def num_runs(self) -> int:
        """The number of certification runs; during the search, the largest number that is possible."""
        seeds, top = int(self.certify.get("seeds") or 0), int(self.certify.get("top") or 0)
        if not seeds or (self.is_searched and not self.ranked):
            return len(self.runs)
        baseline: Mapping[str, Any] = next((run.params for run in self.runs if run.record.of_trial is None), {})
        params = [trial.params for trial in self.ranked] if self.is_searched else [{"": place} for place in range(top)]
        begun = Counter(json.dumps(run.params) for run in self.runs if run.record.of_trial is not None)
        earlier = self._last_certification
        choices = list_choices(
            Configuration(BASELINE, None, baseline, None, ()),
            (Configuration("", None, values, None, ()) for values in params),
            [(Configuration("", None, json.loads(values), None, ()), number) for values, number in begun.items()],
            earlier if earlier and earlier.env_steps == self.env_steps else None,
            top,
            seeds,
        )
        return max(sum(num_seeds for _, num_seeds in choices), len(self.runs))

    @property
    def num_runs_ended(self) -> int:
        """The number of certification runs that have ended."""
        return sum(run.has_ended for run in self.runs)

    @property
    def num_runs_left(self) -> int:
        """The number of certification runs that have not ended."""
        return self.num_runs - self.num_runs_ended

    @cached_property
    def certification(self) -> Certification | None:
        """The result of the certification; None without one, or if the last end has chosen the winner without it."""
        winner = str((self.record.winner or {}).get("checkpoint"))
        return None if winner.startswith(f"{TRIALS}/") else self._last_certification

    @cached_property
    def _last_certification(self) -> Certification | None:
        stored = self.record.certification
        return Certification.from_dict(stored) if stored else None

    # -- Methods that rank trials -------------------------------------------------------------------------------------

    @cached_property
    def ranked(self) -> list[TrialSnapshot]:
        """The trials that are allowed to win, best score first; see `rltune.ledger.ranking.rank_records`."""
        return self._select(rank_records((trial.record for trial in self.trials), self.criteria.direction))

    @cached_property
    def ordered(self) -> list[TrialSnapshot]:
        """All trials: those that are allowed to win, best score first, and then the others by number."""
        ranked = {trial.number for trial in self.ranked}
        return self.ranked + [trial for trial in self.trials if trial.number not in ranked]

    @cached_property
    def front(self) -> list[TrialSnapshot]:
        """The complete trials that no other trial beats in both objectives (the Pareto front), best score first."""
        records = (trial.record for trial in self.trials)
        return self._select(find_front(records, self.criteria.direction, self.criteria.second_direction))

    def _select(self, records: Iterable[TrialRecord]) -> list[TrialSnapshot]:
        """Return the trials of this view to which the records belong."""
        trials = {trial.number: trial for trial in self.trials}
        return [trials[record.number] for record in records]

    @property
    def winner(self) -> Mapping[str, Any] | None:
        """The winner, see `rltune.records.SweepRecord.current_winner`; None if there is only a `best` so far."""
        return self.record.current_winner

    @property
    def winner_trial(self) -> int | None:
        """The trial number of the winner; None without a winner, or if the winner is the untried baseline."""
        return self.winner.get("trial") if self.winner else None

    @property
    def winner_word(self) -> str:
        """The word for the winner in displays: "winner", or "best so far" if the sweep may continue."""
        return "best so far" if self.status in ("interrupted", "running") else "winner"

    @property
    def best(self) -> TrialSnapshot | None:
        """The trial with the best score of the search; None if no trial is allowed to win yet."""
        return next(iter(self.ranked), None)

    @property
    def charts(self) -> str | None:
        """The address that opens the trials as charts in MLflow, the best first; None while MLflow has none."""
        return make_charts_address(self.record.mlflow, self.record.key, self.criteria.direction)

    @property
    def best_params(self) -> Mapping[str, Any]:
        """The parameters of the winner, or else of the best trial so far; empty without either."""
        if self.winner:
            params: Mapping[str, Any] = self.winner["params"]
            return params
        return self.best.params if self.best else {}


def read_views(
    engine: Engine,
    sweep_ids: Sequence[int],
    since: Mapping[int, SweepView] | None = None,
    driver: DriverState = UNKNOWN_DRIVER,
    *,
    now_s: float | None = None,
) -> dict[int, SweepView]:
    """Read the views of several sweeps in one database with as many queries as a single sweep needs.

    Args:
        engine: The ledger's.
        sweep_ids: The sweeps' rows.
        since: The views that were read before, by the same ids.
        driver: What the driver of the sweep knows, if this process is the driver of the only one.
        now_s: The monotonic time; None is the present.

    Returns:
        The views by the sweeps' ids; a sweep that does not exist is left out.
    """
    earlier = since or {}
    now_s = time.monotonic() if now_s is None else now_s
    snapshots = read_snapshots(engine, sweep_ids, {sweep_id: view.snapshot for sweep_id, view in earlier.items()})
    return {
        sweep_id: _make_view(snapshot, earlier.get(sweep_id), driver, now_s) for sweep_id, snapshot in snapshots.items()
    }


def read_folder(folder: Path, ledger: Ledger, status: str | None = None) -> SweepView:
    """Read the view of the sweep in a folder, which may have been moved or renamed after the driver ran.

    Args:
        folder: The sweep's folder.
        ledger: The sweep's ledger.
        status: How the sweep ends, if it is about to: the ledger says so only after everything is published.
    """
    view = SweepView.read(ledger).in_folder(folder)
    return view.end_as(status) if status else view


def load_view(folder: Path, ledger_url: str | None = None) -> SweepView:
    """Open the ledger of the sweep in a folder, and read the view.

    Args:
        folder: The sweep's folder.
        ledger_url: As for `rltune.ledger.storage.open_ledger`.

    Raises:
        StudyError: It is no sweep's folder, its ledger cannot be read, or no driver has begun the sweep yet.
    """
    with closing(open_ledger(folder, ledger_url)) as ledger:
        view = read_folder(folder, ledger)
    view.require_settings()
    return view


def _make_view(snapshot: LedgerSnapshot, since: SweepView | None, driver: DriverState, now_s: float) -> SweepView:
    settings, criteria, objective = _read_settings(snapshot.record, since)
    earlier = {(trial.record.kind, trial.number): trial for trial in (*since.trials, *since.runs)} if since else {}
    is_running = snapshot.record.status in (None, "running") and not snapshot.is_abandoned
    replicates = int(settings.get("replicates") or 1)
    trials: dict[str, list[TrialSnapshot]] = {TRIALS: [], CERTIFY: []}
    sampled = 0
    for row_id, record in snapshot.trials.items():
        before = earlier.get((record.kind, record.number))
        # The snapshot reuses the record object of a trial that has not changed.
        is_unchanged = since and since.snapshot.trials.get(row_id) is record and settings is since.settings
        if before and before.has_ended and is_unchanged:
            trials[record.kind].append(before)
            continue
        state = record.state
        if state == "RUNNING" and (record.stop_reason or not is_running):
            state = INTERRUPTED
        elif state == "RUNNING" and snapshot.revisions[row_id] == 1 and not record.reports:
            # The first revision of a trial is written when it is proposed, and the second when a worker starts it.
            state = WAITING
        record = criteria.judge(record)
        heard = record.env_steps
        if state == "RUNNING":
            heard = driver.env_steps.get(trial_dir_of(record.kind, record.number), heard)
        trial = TrialSnapshot(
            record=record,
            state=state,
            env_steps=max(record.env_steps, heard),
            heard_steps=heard,
        )
        trials[record.kind].append(trial)
        new_steps = max(0, heard - (before.heard_steps if before else 0))
        sampled += new_steps * (replicates if record.kind == TRIALS else 1)
    num_running = sum(trial.state == "RUNNING" for kind in trials.values() for trial in kind)
    num_reporting = num_running - len(driver.env_steps)
    return SweepView(
        record=snapshot.record,
        settings=settings,
        criteria=criteria,
        objective=objective,
        trials=tuple(trials[TRIALS]),
        runs=tuple(trials[CERTIFY]),
        driver=driver,
        pace=since.pace.add(now_s, sampled, max(0, num_reporting)) if since else Pace(((now_s, 0),)),
        read_s=now_s,
        snapshot=snapshot,
        first=(since.first or since) if since else None,
    )


def _read_settings(record: SweepRecord, since: SweepView | None) -> tuple[Mapping[str, Any], Criteria, Objective]:
    """Read a sweep's settings, and from them its criteria (constraints, second objective) and its objective."""
    if since and since.record.config == record.config:
        return since.settings, since.criteria, since.objective
    settings = load_settings(record.config or "")
    return settings, read_criteria(settings), Objective.from_settings(settings.get("objective"))
