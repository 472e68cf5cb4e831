"""Compute everything that a display shows of a sweep from one snapshot of its ledger.

The console, `watch`, `list`, `show`, the service, reports and data frames are functions of a `SweepView`. They compute
no progress, pace or ranks of their own. Reading a view again costs only what has changed since. Runs anywhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.certification.result import Certification, spell_params
from rltune.config.criteria import Criteria, read_criteria
from rltune.config.settings_file import load_settings
from rltune.envs.objective import Objective
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

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from rltune.ledger.ledger import Ledger

INTERRUPTED = "INTERRUPTED"  # The state of an unfinished trial whose worker is gone.
WAITING = "WAITING"  # The state of a trial of a running sweep that no worker has started yet.
ORIGINS = {
    WARM_START: "warm_start",
    TUNED: "the tuned settings",
    BASELINE: "the algorithm's file",
    PORTFOLIO: "the portfolio",
    SEARCHER: "the searcher",
    ENQUEUED: "an enqueued configuration",
}
PACE_WINDOW_S = 30.0  # The time over which the present pace is averaged.
FIRST_STEPS_S = 2.0  # The first steps are assumed to have begun at most this long before they were first read.
MIN_ELAPSED_S = 10.0  # The remaining time is estimated only this long after the first reading.


@dataclass(frozen=True)
class Episodes:
    """The progress of policies that play episodes after all training.

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
    """Facts that only the sweep's driver knows. A view that another process reads goes without it.

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
    """One trial of the search, or one of the certification's runs.

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
        """The number among the trials of its kind."""
        return self.record.number

    @property
    def params(self) -> Mapping[str, Any]:
        """The sampled values by name."""
        return self.record.params

    @property
    def reason(self) -> str | None:
        """Why the trial ended or was interrupted; None while it runs."""
        return self.record.stop_reason

    @property
    def broken(self) -> str:
        """The constraints that the trial breaks, in words; empty if it keeps them all."""
        return self.record.breaks

    @property
    def has_ended(self) -> bool:
        """Whether the trial has ended and is not only interrupted."""
        return self.record.state != "RUNNING"

    @property
    def went_wrong(self) -> bool:
        """Whether the trial has failed or diverged, so that its reason tells what is wrong."""
        return self.state == "FAIL" or self.record.diverged

    @property
    def state_word(self) -> str:
        """The state in one word: waiting, running, complete, stopped, failed or interrupted."""
        return STATE_WORDS[self.state]

    @property
    def explanation(self) -> str:
        """Why the trial cannot win, why it ended or where it runs, and who proposed its values if not the searcher."""
        record, parts = self.record, [f"cannot win: {self.broken}"] if self.broken else []
        if self.state == "RUNNING" and record.node:
            parts.append(f"on {record.node}")
        elif self.has_ended and record.stop_reason:
            parts.append(first_line(record.stop_reason))
        if record.enqueued_by:
            parts.append(f"enqueued by {record.enqueued_by}")
        elif record.origin in ORIGINS and record.origin != SEARCHER:
            parts.append(f"from {ORIGINS[record.origin]}")
        return "; ".join(parts)

    @property
    def second(self) -> float | None:
        """The value in the sweep's second objective; None without one."""
        return self.record.second

    @cached_property
    def score(self) -> float | None:
        """The score by which trials are ranked; None before the first finite report."""
        return self.record.score

    @property
    def curve(self) -> Mapping[int, float]:
        """The score by nominal steps; NaN while no episode has ended."""
        return self.record.reports


@dataclass(frozen=True)
class Pace:
    """How quickly a sweep samples, measured from one reading to the next.

    Attributes:
        samples: Pairs of a time and of all environment steps that were sampled by then, since the first reading.
    """

    samples: tuple[tuple[float, int], ...]

    @property
    def env_steps(self) -> int:
        """Environment steps since the first reading."""
        return self.samples[-1][1]

    def add(self, now_s: float, env_steps: int, num_reporting: int) -> Pace:
        """Add what was sampled since the last reading.

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
            # The time before the first steps, in which processes start and networks are built, says nothing about the
            # pace.
            pause_s = math.inf if num_reporting else FIRST_STEPS_S
            samples = ((max(samples[-1][0], now_s - pause_s), 0),)
        samples, start = (*samples, (now_s, total)), 0
        while len(samples) - start > 2 * num_reporting + 1 and samples[start + 1][0] <= now_s - PACE_WINDOW_S:
            start += 1
        return Pace(samples[start:])

    def measure(self, now_s: float) -> float:
        """Measure the environment steps per second over about the last 30 s."""
        then_s, env_steps = self.samples[0]
        return (self.env_steps - env_steps) / max(1.0, now_s - then_s)


@dataclass(frozen=True)
class SweepView:
    """A sweep at one moment.

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

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        since: SweepView | None = None,
        driver: DriverState = UNKNOWN_DRIVER,
        *,
        now_s: float | None = None,
    ) -> SweepView:
        """Read a sweep.

        Args:
            ledger: The sweep's.
            since: The view that was read before, so that only changes are read and the pace is known.
            driver: What the sweep's driver knows, if this process is the driver.
            now_s: The monotonic time; None is the present.
        """
        earlier = {ledger.sweep_id: since} if since else {}
        return read_views(ledger.fence.engine, [ledger.sweep_id], earlier, driver, now_s=now_s)[ledger.sweep_id]

    def in_folder(self, folder: Path) -> SweepView:
        """Return the view of a sweep whose folder was moved or renamed since its driver ran."""
        return replace(self, record=replace(self.record, name=folder.name, folder=str(folder)))

    def end_as(self, status: str) -> SweepView:
        """Return the view of a sweep that ends, before its ledger says so."""

        def interrupt(trial: TrialSnapshot) -> TrialSnapshot:
            return replace(trial, state=INTERRUPTED) if trial.state in (WAITING, "RUNNING") else trial

        trials, runs = tuple(map(interrupt, self.trials)), tuple(map(interrupt, self.runs))
        return replace(self, record=replace(self.record, status=status), trials=trials, runs=runs)

    # -- Methods that describe the sweep ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.record.name

    @property
    def status(self) -> str:
        """The state: running, complete, stopped, interrupted (as is a sweep whose driver has died) or failed."""
        return "interrupted" if self.snapshot.is_abandoned else self.record.status or "running"

    @property
    def outcome(self) -> Outcome | None:
        """How the sweep has ended, as its ``summary.json`` says; None if its last driver has not ended it."""
        return None if self.status == "running" or self.snapshot.is_abandoned else load_outcome(self.folder)

    @property
    def folder(self) -> Path:
        """The sweep's folder on the machine of its last driver."""
        return Path(self.record.folder or "")

    @property
    def elapsed_s(self) -> float:
        """The seconds since this process has first read the sweep."""
        return self.read_s - (self.first or self).read_s

    @property
    def driver_id(self) -> str | None:
        """The id of the last driver in the sweep's lease; None before the first."""
        return self.snapshot.lease.driver_id

    @property
    def reports(self) -> tuple[Report, ...]:
        """The search's reports in the order in which they came, as the ledger has them: higher is better."""
        return self.snapshot.reports

    @property
    def budget(self) -> Mapping[str, Any]:
        """The settings of the sweep's budget."""
        return self.settings.get("budget") or {}

    @property
    def num_trials(self) -> int:
        """The number of trials that the budget has, or of those that were begun if these are more."""
        return max(int(self.budget.get("trials") or 0), len(self.trials))

    @property
    def env_steps(self) -> int:
        """A trial's whole budget, in environment steps of each seed."""
        return int(self.budget.get("env_steps") or 0)

    @property
    def replicates(self) -> int:
        """The number of seeds of a trial."""
        return int(self.settings.get("replicates") or 1)

    @property
    def baseline_source(self) -> str:
        """The file that the baseline's values come from, and whether the sweep's command changes some of them."""
        algo, words = self.settings["algo"]["name"], (self.record.command or "").split()
        tuned = next((word.partition("=")[2] for word in words if word.startswith("tuned=")), None)
        if tuned is None and (self.settings.get("published") or {}).get("env_steps"):
            tuned = f"{algo}_{self.settings['env']['name']}"
        file = f"conf/tuned/{tuned}.yaml" if tuned else f"conf/algo/{algo}.yaml"
        is_changed = any(word.strip("'\"").lstrip("+~").startswith("algo.") for word in words)
        return f"the values of {file}" + (", with the command's algo.* settings" if is_changed else "")

    @property
    def label(self) -> str:
        """The name of what the score measures, with its direction if less is better."""
        return self.objective.label

    # -- Methods that describe the progress ---------------------------------------------------------------------------

    @cached_property
    def counts(self) -> dict[str, int]:
        """The numbers of trials: total, complete, pruned, failed, interrupted (among them those that run)."""
        return count_states([trial.record for trial in self.trials])

    @property
    def num_ended(self) -> int:
        """The number of trials that have ended."""
        return self.counts["total"] - self.counts["interrupted"]

    @cached_property
    def sampled_env_steps(self) -> int:
        """The environment steps of all trials and seeds together, without those of the certification."""
        return self.replicates * sum(trial.env_steps for trial in self.trials)

    @cached_property
    def percent(self) -> int:
        """The progress of the search: a running trial counts by its steps. 100 only if the sweep is complete."""
        return 100 if self.status == "complete" else min(99, math.floor(100 * self.search_share))

    @cached_property
    def search_share(self) -> float:
        """The part of the search that is done, from 0 to 1."""
        total = self.budget.get("total_env_steps")
        share = sum(map(self._measure_share, self.trials)) / max(1, self.num_trials)
        return min(1.0, max(share, self.sampled_env_steps / total if total else 0.0))

    def _measure_share(self, trial: TrialSnapshot) -> float:
        """Return the part of a trial's budget that is done; a trial that has ended needs no more of it."""
        return 1.0 if trial.has_ended else min(1.0, trial.env_steps / (self.env_steps or math.inf))

    @property
    def search_left_s(self) -> float | None:
        """An estimate of the seconds until the search is over, at its mean pace since the first reading.

        None in the first seconds, and while nothing is left.
        """
        gain = self.search_share - self.first.search_share if self.first else 0.0
        if self.elapsed_s < MIN_ELAPSED_S or gain <= 0:
            return None
        return (1 - self.search_share) * self.elapsed_s / gain or None

    @property
    def certification_left_s(self) -> float | None:
        """An estimate of the seconds that the certification still trains; None like `search_left_s`.

        Its runs are not stopped early, so that the environment steps per second count, not the trials.
        """
        if self.elapsed_s < MIN_ELAPSED_S or not self.pace.env_steps:
            return None
        runs_left = self.num_runs - sum(map(self._measure_share, self.runs))
        return runs_left * self.env_steps * self.elapsed_s / self.pace.env_steps or None

    @cached_property
    def is_searched(self) -> bool:
        """Whether all trials of the budget have ended, so that only certification or evaluation is left."""
        total = self.budget.get("total_env_steps")
        is_spent = self.num_ended >= self.num_trials or self.sampled_env_steps >= (total or math.inf)
        return bool(self.trials) and is_spent and self.num_ended == len(self.trials)

    @property
    def env_steps_per_s(self) -> float:
        """The environment steps per second over about the last 30 s, of all trials, runs and seeds together."""
        return self.pace.measure(self.read_s)

    @cached_property
    def is_certifying(self) -> bool:
        """Whether nothing but the certification is left to run."""
        is_searching = any(trial.state == "RUNNING" for trial in self.trials)
        is_retraining = any(run.state == "RUNNING" for run in self.runs)
        return bool(self.num_runs) and not is_searching and (is_retraining or self.is_searched)

    # -- Methods that describe the certification ----------------------------------------------------------------------

    @property
    def certify(self) -> Mapping[str, Any]:
        """The settings of the sweep's certification."""
        return self.settings.get("certify") or {}

    @property
    def num_final_episodes(self) -> int:
        """The number of episodes that are played at last to choose and to measure the winner."""
        top = int(self.certify.get("top") or 0)
        num_evaluations = 2 if self.certify.get("seeds") else top and top + 1
        return num_evaluations * int(self.certify.get("champion_episodes") or 0)

    @cached_property
    def num_runs(self) -> int:
        """The number of the certification's runs; while trials still run, the most that it can become."""
        seeds, top = int(self.certify.get("seeds") or 0), int(self.certify.get("top") or 0)
        if not (self.is_searched and seeds):
            return max(seeds * (top + 1), len(self.runs))
        if not self.ranked:
            return 0
        baseline = [spell_params(run.params) for run in self.runs if run.record.of_trial is None][:1]
        finalists = {spell_params(trial.params) for trial in self.ranked[:top]}
        return max(seeds * len(finalists | set(baseline or [""])), len(self.runs))

    @property
    def num_runs_ended(self) -> int:
        """The number of the certification's runs that have ended."""
        return sum(run.has_ended for run in self.runs)

    @property
    def num_runs_left(self) -> int:
        """The number of the certification's runs that have not ended."""
        return self.num_runs - self.num_runs_ended

    @cached_property
    def certification(self) -> Certification | None:
        """The certification; None without one."""
        return Certification.from_dict(self.record.certification) if self.record.certification else None

    # -- Methods that rank trials -------------------------------------------------------------------------------------

    @cached_property
    def ranked(self) -> list[TrialSnapshot]:
        """The trials that can win, the best first; see `rltune.ledger.ranking.rank_records`."""
        return self._select(rank_records((trial.record for trial in self.trials), self.criteria.direction))

    @cached_property
    def ordered(self) -> list[TrialSnapshot]:
        """All trials: those that can win, the best first, and then the others by their numbers."""
        ranked = {trial.number for trial in self.ranked}
        return self.ranked + [trial for trial in self.trials if trial.number not in ranked]

    @cached_property
    def front(self) -> list[TrialSnapshot]:
        """The complete trials that no other one beats in both objectives, the best score first."""
        records = (trial.record for trial in self.trials)
        return self._select(find_front(records, self.criteria.direction, self.criteria.second_direction))

    def _select(self, records: Iterable[TrialRecord]) -> list[TrialSnapshot]:
        """Return the trials of some of their records."""
        trials = {trial.number: trial for trial in self.trials}
        return [trials[record.number] for record in records]

    @property
    def winner_trial(self) -> int | None:
        """The winner's number; None without a winner, and if the winner is a baseline that the search did not try."""
        return self.record.winner.get("trial") if self.record.winner else None

    @property
    def winner_word(self) -> str:
        """What the winner is called: as long as the sweep may go on, it is only the best so far."""
        return "best so far" if self.status in ("interrupted", "running") else "winner"

    @property
    def best(self) -> TrialSnapshot | None:
        """The best trial by the search's own score; None before one can win."""
        return next(iter(self.ranked), None)

    @property
    def best_params(self) -> Mapping[str, Any]:
        """The values of the winner, or of the best trial so far; empty without either."""
        if self.record.winner:
            params: Mapping[str, Any] = self.record.winner["params"]
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
    """Read several sweeps of one database with as many queries as one of them takes.

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
    """Read the sweep of a folder, which may have been moved or renamed since its driver ran.

    Args:
        folder: The sweep's folder.
        ledger: The sweep's ledger.
        status: How the sweep ends, if it is about to: the ledger says so only after everything is published.
    """
    view = SweepView.read(ledger).in_folder(folder)
    return view.end_as(status) if status else view


def load_view(folder: Path, ledger_url: str | None = None) -> SweepView:
    """Open the ledger of a sweep's folder, and read the sweep.

    Args:
        folder: The sweep's folder.
        ledger_url: As for `rltune.ledger.storage.open_ledger`.

    Raises:
        StudyError: It is no sweep's folder, its ledger cannot be read, or no driver has begun the sweep yet.
    """
    with closing(open_ledger(folder, ledger_url)) as ledger:
        view = read_folder(folder, ledger)
    if not view.settings:
        raise StudyUnavailableError(f"sweep={folder.name} has not begun yet", "a sweep that runs or has ended")
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
        # If a trial has not changed, a snapshot keeps the same record object.
        is_unchanged = since and since.snapshot.trials.get(row_id) is record and settings is since.settings
        if before and before.has_ended and is_unchanged:
            trials[record.kind].append(before)
            continue
        state = record.state
        if state == "RUNNING" and (record.stop_reason or not is_running):
            state = INTERRUPTED
        elif state == "RUNNING" and snapshot.revisions[row_id] == 1 and not record.reports:
            # A trial's first revision is its proposal, and the second revision records that a worker has started it.
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
    """Read a sweep's settings, what they ask of trials, and what their scores measure."""
    if since and since.record.config == record.config:
        return since.settings, since.criteria, since.objective
    settings = load_settings(record.config or "")
    return settings, read_criteria(settings), Objective.from_settings(settings.get("objective"))
