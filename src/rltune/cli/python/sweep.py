"""Read a sweep from Python: its trials and learning curves as data frames, its winner and its report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pandas as pd

from rltune.cli.python.notebook import find_stream
from rltune.errors import PolicyError, RltuneError, StudyError
from rltune.formatting import format_objective, format_params
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_folder import require_path
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import TRIALS
from rltune.views.description import describe
from rltune.views.sweep_view import SweepView, TrialSnapshot, read_folder

if TYPE_CHECKING:
    from rltune.policies.policy import MultiAgentPolicy, Policy

ALL_REPORTS = 10**9  # A limit that includes all reports of any sweep.
MAX_ROWS = 10  # The number of trials in a notebook's display of a sweep.


@dataclass(frozen=True)
class Best:
    """The best configuration of a sweep: its trial, parameters and score.

    Attributes:
        name: ``trial 7``, or ``baseline`` for the algorithm file's own values where no trial has them.
        trial: The trial's number; None for such a baseline.
        params: The configuration's values by name.
        score: The score by which the search ranked the trial; None for a baseline. With ``objective.direction=min``
            less is better.
        evaluation: ``mean``, ``low``, ``high`` and ``episodes`` of the policy on fresh episodes; None without a winner.
        certified: What its runs on fresh seeds say: ``median``, ``low``, ``high``, ``worst``, ``difference`` (to the
            baseline), ``num_pairs``, ``num_wins``, ``wins_needed`` (of the seeds) and ``verdict``, as in
            ``summary.json``; None without certification.
        model: The registered model, such as ``models:/cartpole-ppo/3``; None where no model was registered.
        algorithm: The folder of RLlib's checkpoint of the policy; `checkpoint` returns it.
    """

    name: str
    trial: int | None
    params: Mapping[str, Any]
    score: float | None
    evaluation: Mapping[str, Any] | None = None
    certified: Mapping[str, Any] | None = None
    model: str | None = None
    algorithm: Path | None = field(default=None, repr=False)

    @property
    def checkpoint(self) -> Path | None:
        """The folder of RLlib's checkpoint of the policy, as ``Algorithm.from_checkpoint`` takes it in this program.

        RLlib builds an environment from the name in its config. Reading this property registers the name with Ray
        where it is no Gymnasium id, as of an environment with wrappers or whose rewards are normalised. It is None
        before there is a checkpoint, and where it lies in a bucket.
        """
        if self.algorithm is not None:
            from rltune.algorithms.restore import register_environment

            register_environment(self.algorithm)
        return self.algorithm

    def __getattr__(self, name: str) -> NoReturn:
        """Say what there is instead of an attribute that does not exist."""
        if name in vars(self).get("params", {}):
            raise AttributeError(f"a configuration has {name} among its values: .params[{name!r}]")
        raise AttributeError(f"a configuration has no {name!r}; it has {', '.join([*vars(self), 'checkpoint'])}")

    def __str__(self) -> str:
        value = f"score {format_objective(self.score)}"
        if self.certified:
            value = f"{format_objective(self.certified['median'])} on fresh seeds"
        elif self.evaluation:
            value = f"{format_objective(self.evaluation['mean'])} on fresh episodes"
        return f"{self.name}: {value}; {format_params(self.params)}"


class Sweep:
    """A sweep, whether it runs, has ended or was interrupted. Properties read the current state from the ledger.

    Args:
        folder: The sweep's folder.
        ledger_url: The address of the sweep's ledger with its login, where its settings name a database.

    Attributes:
        folder: The sweep's folder.
    """

    def __init__(self, folder: str | os.PathLike[str], ledger_url: str | None = None) -> None:
        require_path("folder", folder, "the path of a sweep's folder")
        self.folder = Path(folder)
        self.name = self.folder.name
        self._ref = SweepRef(self.name, self.folder.parent, ledger_url=ledger_url)
        with self._ledger():  # Raises an error now, rather than at the first property, if the folder has no ledger.
            pass

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        with contextlib.closing(open_ledger(self.folder, self._ref.ledger_url)) as ledger:
            yield ledger

    @property
    def view(self) -> SweepView:
        """A snapshot of the sweep's current state, from which the other properties are derived."""
        with self._ledger() as ledger:
            return read_folder(self.folder, ledger)

    def describe(self) -> dict[str, Any]:
        """Describe the sweep in the keys of ``rltune show json=true``."""
        return describe(self.view)

    @property
    def status(self) -> str:
        """The sweep's state: ``complete``, ``stopped`` (wall time over), ``interrupted``, ``failed`` or ``running``."""
        return self.view.status

    @property
    def outcome(self) -> Outcome | None:
        """The result of the sweep, as in ``summary.json``; None while it runs, and if its driver was killed."""
        return self.view.outcome

    @property
    def trials(self) -> pd.DataFrame:
        """A data frame with one row for each trial: those that can win, the best score first, then the others.

        The winner of a certification may be another trial, see `Sweep.best`.

        Columns: ``trial``, ``state`` (waiting, running, complete, stopped, failed or interrupted), ``score`` (by which
        trials are ranked), ``env_steps``, ``stopped`` (why the trial ended early), and one for each parameter. A sweep
        with constraints also has ``breaks``, empty for a trial that keeps them. A sweep with a second objective also
        has a column of that objective's name.
        """
        return _make_trial_frame(self.view)

    @property
    def front(self) -> pd.DataFrame:
        """The Pareto front: a data frame of the complete trials that no other trial beats in both objectives.

        Columns: ``trial``, ``score``, one of the second objective's name, and one for each parameter.

        Raises:
            StudyError: The sweep has no second objective.
        """
        view = self.view
        if view.criteria.second is None:
            raise StudyError(
                f"{self.name} has no second objective, which a Pareto front needs",
                "a sweep that was run with one",
                'rltune.sweep(..., "objective.second.key=train_s")',
            )
        names = _list_parameters(view.front)
        rows = [[trial.number, trial.score, trial.second, *map(trial.params.get, names)] for trial in view.front]
        return pd.DataFrame(rows, columns=["trial", "score", view.criteria.second, *names])

    @property
    def curves(self) -> pd.DataFrame:
        """A data frame with one row for each report of a trial, sorted by trial and environment steps.

        Columns: ``trial``, ``env_steps`` (the mark at which trials are compared), ``score`` (the mean return
        unless the sweep has another objective), and one for each number that is logged.
        """
        with self._ledger() as ledger:
            reports = [report for _, kind, report in ledger.read_reports_after(0, ALL_REPORTS) if kind == TRIALS]
        rows = [
            {"trial": report.number, "env_steps": report.nominal_steps, "score": report.score}
            | {name: value for name, value in report.numbers.items() if name not in ("score", "env_steps")}
            for report in reports
        ]
        frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=["trial", "env_steps", "score"])
        return frame.sort_values(["trial", "env_steps"], ignore_index=True)

    @property
    def best(self) -> Best | None:
        """The winner; before there is one, the trial with the best score, or None before the first report."""
        return _find_best(self.view, self.folder)

    def policy(self, trial: int | None = None) -> Policy | MultiAgentPolicy:
        """Load the policy of the winner or of one trial, see `rltune.load_policy`.

        Args:
            trial: The trial's number; None is the winner.

        Raises:
            PolicyError: There is no such policy.
        """
        from rltune.policies.policy import load_policy

        if trial is not None and (not isinstance(trial, Integral) or isinstance(trial, bool)):
            allowed = "a trial's number, as in .trials"
            raise PolicyError("is no number", allowed, "policy() or policy(0)", key="trial", value=trial)
        path = self.name if trial is None else f"{self.name}/{int(trial)}"
        return load_policy(f"sweep:{path}", output_dir=self.folder.parent, ledger_url=self._ref.ledger_url)

    def report(self) -> Path:
        """Write the HTML report of the sweep's current state, and return its path."""
        from rltune.views import html

        return html.write_report(self.folder, ledger_url=self._ref.ledger_url) / html.PAGE

    def resume(self, *words: object, **changes: Any) -> Sweep:
        """Resume the sweep if it was interrupted, or extend it if it has ended, see `rltune.resume_sweep`.

        Args:
            words: None: settings are given by name.
            changes: The settings to change, such as ``budget={"trials": 48}``.

        Raises:
            StudyError: A setting has no name, or the sweep cannot be resumed.
        """
        for word in words:
            allowed, fix = "settings by name, or none", '.resume(budget={"trials": 48})'
            raise StudyError("is no setting by name", allowed, fix, key="changes", value=word)
        from rltune.driver.run import resume_sweep

        resume_sweep(self._ref, changes=changes, stream=find_stream())
        return self

    def __getattr__(self, name: str) -> NoReturn:
        """Say what there is instead of an attribute that does not exist."""
        public = [attribute for attribute in ("folder", "name", *vars(Sweep)) if not attribute.startswith("_")]
        raise AttributeError(f"a sweep has no {name!r}; it has {', '.join(public)}")

    def __fspath__(self) -> str:
        """Stand for the sweep's folder, where a function takes the path of one."""
        return str(self.folder)

    def __repr__(self) -> str:
        view = self.view
        best = _find_best(view, self.folder) or "-"
        return f"<Sweep {self.name}: {view.status}, {len(view.trials)} trials; best {best}>"

    def _repr_html_(self) -> str:
        """Display the sweep in a notebook: its result and its best trials."""
        view = self.view
        trials, verdict = _make_trial_frame(view), self._verdict() or f"best {_find_best(view, self.folder)}"
        remainder = (
            f"<p>and {len(trials) - MAX_ROWS} more in <code>.trials</code></p>" if len(trials) > MAX_ROWS else ""
        )
        table = trials.head(MAX_ROWS).to_html(index=False, float_format=format_objective, na_rep="", border=0)
        head = f"<b>{escape(self.name)}</b>: {escape(view.status)}, {len(trials)} trials"
        return f"<p>{head}<br>{escape(verdict)}</p>{table}{remainder}"

    def _verdict(self) -> str:
        """Return the report's sentence on the winner; empty if the sweep's settings cannot be read on this machine."""
        from rltune.views.page import describe_verdict

        try:
            return describe_verdict(self.view)
        except RltuneError:
            return ""


def _list_parameters(trials: Iterable[TrialSnapshot]) -> list[str]:
    """List the names of all parameters that any trial has a value of."""
    return list(dict.fromkeys(name for trial in trials for name in trial.params))


def _make_trial_frame(view: SweepView) -> pd.DataFrame:
    """Make the data frame of `Sweep.trials`."""
    trials, names = view.ordered, _list_parameters(view.ordered)
    rows = [
        [
            trial.number,
            trial.state_word,
            trial.score,
            trial.env_steps,
            trial.reason,
            *map(trial.params.get, names),
        ]
        for trial in trials
    ]
    frame = pd.DataFrame(rows, columns=["trial", "state", "score", "env_steps", "stopped", *names])
    if second := view.criteria.second:
        frame.insert(3, second, [trial.second for trial in trials], allow_duplicates=True)
    if view.criteria.constraints:
        frame.insert(2, "breaks", [trial.broken for trial in trials])
    return frame


def _find_best(view: SweepView, folder: Path) -> Best | None:
    """Find the configuration for `Sweep.best`."""
    winner = view.winner
    if winner is None:
        if (best := view.best) is None:
            return None
        record = best.record
        checkpoint = _find_checkpoint(folder, record.checkpoint.path if record.checkpoint else None)
        return Best(record.name, best.number, best.params, best.score, algorithm=checkpoint)
    number = winner.get("trial")
    return Best(
        name="baseline" if number is None else f"trial {number}",
        trial=number,
        params=winner["params"],
        score=next((trial.score for trial in view.trials if trial.number == number), None),
        evaluation=winner.get("evaluation"),
        certified=view.certification.table()[0] if view.certification else None,
        model=(view.record.model or {}).get("uri"),
        algorithm=_find_checkpoint(folder, winner.get("checkpoint")),
    )


def _find_checkpoint(folder: Path, path: str | None) -> Path | None:
    """Return RLlib's part of a checkpoint in a sweep's folder; None if it is not there."""
    part = folder / path / "algorithm" if path else None
    return part if part and part.is_dir() else None


def open_sweep(
    sweep: str | Path = "latest",
    *,
    output_dir: str | Path = "outputs",
    storage: str | None = None,
    ledger_url: str | None = None,
) -> Sweep:
    """Open an existing sweep, whether it has ended or runs in another process.

    Args:
        sweep: The sweep's name, ``latest``, or the sweep's folder.
        output_dir: The folder of all sweeps.
        storage: The setting ``storage`` with which the sweep was run; a sweep outside ``output_dir`` is fetched.
        ledger_url: The address of the sweep's ledger with its login, where its settings name a database.

    Raises:
        StudyError: There is no such sweep.
    """
    return Sweep(SweepRef.of(sweep, output_dir, storage).folder(), ledger_url)
