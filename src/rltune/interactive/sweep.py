"""Hold what came of a sweep: its trials and curves as frames, its winner, its report. Runs anywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rltune.envs.objective import Shown
from rltune.errors import PolicyError, RltuneError, StudyError
from rltune.formatting import format_objective, format_params, format_state
from rltune.interactive.notebook import find_stream
from rltune.records import TRIALS
from rltune.study.ledger import Ledger
from rltune.study.outcome import Outcome, load_outcome
from rltune.study.ranking import find_front, order_records, rank_records
from rltune.study.storage import open_ledger
from rltune.study.sweep_ref import SweepRef

if TYPE_CHECKING:
    from rltune.policies.multi_agent import MultiAgentPolicy
    from rltune.policies.policy import Policy

MAX_REPORTS = 10**9  # of a sweep: all
SHOWN = 10  # trials in a notebook


@dataclass(frozen=True)
class Best:
    """The best configuration of a sweep.

    Attributes:
        name: ``trial 7``, or ``baseline`` where no trial has its values.
        trial: The trial's number; None for such a baseline.
        params: Its values.
        score: What the search ranked it by; None for a baseline. With ``objective.direction=min`` less is better.
        evaluation: ``mean``, ``low``, ``high`` and ``episodes`` of its policy on fresh episodes; None without a winner.
        certified: ``iqm``, ``low``, ``high`` and ``num_seeds`` of its runs on fresh seeds; None without certification.
        model: The registered model, such as ``models:/cartpole-ppo/3``; None where none was registered.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    score: float | None
    evaluation: Mapping[str, Any] | None = None
    certified: Mapping[str, Any] | None = None
    model: str | None = None

    def __str__(self) -> str:
        worth = f"score {format_objective(self.score)}"
        if self.certified:
            worth = f"{format_objective(self.certified['iqm'])} on fresh seeds"
        elif self.evaluation:
            worth = f"{format_objective(self.evaluation['mean'])} on fresh episodes"
        return f"{self.name}: {worth}; {format_params(self.params)}"


class Sweep:
    """A sweep, whether it runs, has ended or was interrupted. Everything is read from its ledger when it is asked for.

    Args:
        folder: Its folder.
        ledger_url: The address of its ledger with its login, where its settings name a database.

    Attributes:
        folder: Its folder.
        name: Its name.
    """

    def __init__(self, folder: Path, ledger_url: str | None = None) -> None:
        self.folder, self.name = folder, folder.name
        self._ref = SweepRef(folder.name, folder.parent, ledger_url=ledger_url)
        with self._ledger():  # a folder without one is refused here
            pass

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        with contextlib.closing(open_ledger(self.folder, self._ref.ledger_url)) as ledger:
            yield ledger

    @cached_property
    def _shown(self) -> Shown:
        """What shows its scores."""
        with self._ledger() as ledger:
            return Shown.read(ledger.sweep().config)

    @property
    def status(self) -> str:
        """``complete``, ``stopped`` (its wall time is over), ``interrupted``, ``failed`` or ``running``."""
        with self._ledger() as ledger:
            return ledger.sweep().status or "running"

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, as ``summary.json`` has it; None while it has not."""
        return load_outcome(self.folder)

    @property
    def trials(self) -> pd.DataFrame:
        """One row a trial, the best first.

        Columns: ``trial``, ``state`` (running, complete, stopped, failed or interrupted), ``score`` (what trials are
        ranked by), ``env_steps``, ``stopped`` (why it ended early), and one for each parameter. With constraints also
        ``breaks``, empty in a trial that keeps them; with a second objective one of its name.
        """
        with self._ledger() as ledger:
            records, criteria = order_records(ledger.trials.records()), ledger.criteria
            is_live = ledger.sweep().status == "running"
        names = list(dict.fromkeys(name for record in records for name in record.params))
        rows = [
            [
                *(one.number, format_state(one.state, is_live), self._shown(one.score), one.env_steps, one.stop_reason),
                *map(one.params.get, names),
            ]
            for one in records
        ]
        frame = pd.DataFrame(rows, columns=["trial", "state", "score", "env_steps", "stopped", *names])
        if criteria.second:
            frame.insert(3, criteria.second, [one.second for one in records], allow_duplicates=True)
        if criteria.constraints:
            frame.insert(2, "breaks", [one.breaks for one in records])
        return frame

    @property
    def front(self) -> pd.DataFrame:
        """The whole trials that no other one beats in both objectives, the highest score first.

        Columns: ``trial``, ``score``, one of the second objective's name, and one for each parameter.

        Raises:
            StudyError: The sweep has no second objective.
        """
        with self._ledger() as ledger:
            records, criteria = ledger.trials.records(), ledger.criteria
        if criteria.second is None:
            raise StudyError(
                f"{self.name} has no second objective, and so no front",
                "a sweep that was run with one",
                'rltune.sweep(..., "objective.second.key=train_s")',
            )
        front = find_front(records, criteria.direction)
        names = list(dict.fromkeys(name for one in front for name in one.params))
        rows = [[one.number, self._shown(one.score), one.second, *map(one.params.get, names)] for one in front]
        return pd.DataFrame(rows, columns=["trial", "score", criteria.second, *names])

    @property
    def curves(self) -> pd.DataFrame:
        """One row a report of a trial, in the order of trials and steps.

        Columns: ``trial``, ``env_steps`` (the mark at which trials are compared), ``objective`` (the mean return
        unless the sweep has another one), and one for each number that is logged.
        """
        with self._ledger() as ledger:
            reports = [report for _, kind, report in ledger.read_reports_after(0, MAX_REPORTS) if kind == TRIALS]
        rows = [
            {"trial": one.number, "env_steps": one.nominal_steps, "objective": self._shown(one.objective)}
            | {name: value for name, value in one.numbers.items() if name not in ("objective", "env_steps")}
            for one in reports
        ]
        frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=["trial", "env_steps", "objective"])
        return frame.sort_values(["trial", "env_steps"], ignore_index=True)

    @property
    def best(self) -> Best | None:
        """The winner; while the sweep has none, the trial with the best score; None before the first report."""
        with self._ledger() as ledger:
            record, records = ledger.sweep(), ledger.trials.records()
        scores: dict[int | None, float | None] = {one.number: self._shown(one.score) for one in records}
        if record.winner:
            trial = record.winner.get("trial")
            certified = _read_certified(record.certification)
            certified = self._shown.turn(certified) if certified else None
            name = "baseline" if trial is None else f"trial {trial}"
            model = (record.model or {}).get("uri")
            played = self._shown.turn(record.winner["evaluation"]) if record.winner.get("evaluation") else None
            return Best(name, trial, record.winner["params"], scores.get(trial), played, certified, model)
        first = next(iter(rank_records(records)), None)
        return Best(first.name, first.number, first.params, scores[first.number]) if first else None

    def policy(self, trial: int | None = None) -> Policy | MultiAgentPolicy:
        """Load the winner's policy, or a trial's: see `rltune.load_policy`.

        Args:
            trial: Its number; None is the winner.

        Raises:
            PolicyError: There is none.
        """
        from rltune.policies.policy import load_policy

        if trial is not None and (not isinstance(trial, int) or isinstance(trial, bool)):
            raise PolicyError(f"trial={trial!r}", "a trial's number, as in .trials", "policy() or policy(0)")
        which = self.name if trial is None else f"{self.name}/{trial}"
        return load_policy(f"sweep:{which}", output_dir=self.folder.parent, ledger_url=self._ref.ledger_url)

    def report(self) -> Path:
        """Write the report as it is now; return the page's path."""
        from rltune.reporting import html

        return html.write_report(self.folder, ledger_url=self._ref.ledger_url) / html.PAGE

    def resume(self, **changes: Any) -> Sweep:
        """Go on with it where it was interrupted, or extend it: see `rltune.resume_sweep`.

        Args:
            changes: What may change: ``budget={"trials": 48}``.
        """
        from rltune.pipeline.run import resume_sweep

        with find_stream() as stream:
            resume_sweep(self._ref, changes=changes, stream=stream)
        return self

    def __repr__(self) -> str:
        best = self.best
        return f"<Sweep {self.name}: {self.status}, {len(self.trials)} trials; best {best or '-'}>"

    def _repr_html_(self) -> str:
        """Show it in a notebook: what came of it, and the best trials."""
        trials, best = self.trials, self.best
        more = f"<p>and {len(trials) - SHOWN} more in <code>.trials</code></p>" if len(trials) > SHOWN else ""
        table = trials.head(SHOWN).to_html(index=False, float_format=format_objective, na_rep="", border=0)
        head = f"<b>{escape(self.name)}</b>: {escape(self.status)}, {len(trials)} trials"
        return f"<p>{head}<br>{escape(self._verdict() or f'best {best}')}</p>{table}{more}"

    def _verdict(self) -> str:
        """Return the report's sentence on who won; empty where its settings cannot be read here."""
        from rltune.reporting.sweep_data import load_sweep_data
        from rltune.reporting.wording import describe_verdict

        try:
            return describe_verdict(load_sweep_data(self.folder, self._ref.ledger_url))
        except RltuneError:
            return ""


def _read_certified(certification: Mapping[str, Any] | None) -> dict[str, Any] | None:
    for one in (certification or {}).get("configurations", ()):
        if certification and one["name"] == certification["winner"]:
            num_seeds = len(one["per_seed"]) + len(one.get("failed_seeds", ()))
            return {key: one.get(key) for key in ("iqm", "low", "high")} | {"num_seeds": num_seeds}
    return None


def open_sweep(
    sweep: str | Path = "latest",
    *,
    output_dir: str | Path = "outputs",
    storage: str | None = None,
    ledger_url: str | None = None,
) -> Sweep:
    """Open a sweep that is there, whether it has ended or runs in another process.

    Args:
        sweep: Its name, ``latest``, or its folder.
        output_dir: The folder of all sweeps.
        storage: The setting ``storage`` with which it was run: a sweep that is not in ``output_dir`` is fetched.
        ledger_url: The address of its ledger with its login, where its settings name a database.

    Raises:
        StudyError: There is no such sweep.
    """
    if not isinstance(sweep, str | Path):
        raise StudyError(f"sweep={sweep!r}", "a sweep's name, latest, or its folder", 'rltune.open_sweep("latest")')
    return Sweep(SweepRef.of(sweep, output_dir, storage).folder(), ledger_url)
