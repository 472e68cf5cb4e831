"""Compare the winners of several sweeps with confidence intervals: as a table, a figure and Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rltune.certification.result import Certification
from rltune.config.schema import ObjectiveConfig
from rltune.envs.changes import change_spec
from rltune.envs.objective import Objective
from rltune.envs.spec import spec_of
from rltune.errors import StudyError, clean_text
from rltune.formatting import (
    format_count,
    format_duration,
    format_interval,
    format_objective,
    format_wins,
    spell_command,
    to_plain,
)
from rltune.ledger.outcome import load_outcome
from rltune.ledger.sweep_folder import make_resume_command
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import Direction
from rltune.statistics import ERROR_RATE, count_wins_needed
from rltune.views.sweep_view import SweepView, load_view

HEADINGS = ("sweep", "winner", "{}", "its interval", "seeds won", "verdict", "env steps", "time", "how measured")

EXPLAINED = (
    "Of a certified sweep it is the median over training seeds, of another one the mean over one policy's episodes. "
    "Seeds won: the runs of the winner that did better than the first sweep's, seed by seed. Better: so many that a "
    "winner which does better at most every other time would win them in at most one comparison of 20, although each "
    "winner was chosen by these runs."
)


@dataclass(frozen=True)
class ComparisonRow:
    """The winner of one sweep, as a row of the comparison.

    Attributes:
        name: The sweep's name.
        winner: The winner's algorithm and trial.
        score: The median over seeds of a certified winner; else the mean over fresh episodes of the winner's only
            policy.
        low: The lower end of the interval of the score: of the median (`rltune.statistics.median_interval`), or the 95%
            interval of the mean; None where there are too few values for an interval.
        high: The upper end of the interval.
        scores: The score of each certified seed, failed seeds included; empty where the winner was not certified.
        num_pairs: How many runs are compared with the first sweep's, seed by seed in the order of the seeds; 0 for the
            first sweep itself, and where either is not certified.
        num_wins: How many of them did better. A run that failed does worse than one that did not.
        wins_needed: How many have to do better for the verdict; None where there are too few pairs for any.
        verdict: ``better``, or empty where it cannot be told.
        cost: The sweep's cost, as in ``summary.json``.
        measured: How the score was measured, for a person.
    """

    name: str
    winner: str
    score: float
    low: float | None
    high: float | None
    scores: tuple[float, ...]
    num_pairs: int
    num_wins: int
    wins_needed: int | None
    verdict: str
    cost: dict[str, float]
    measured: str


@dataclass(frozen=True)
class Comparison:
    """Sweeps with the same environment and objective, in the order in which the user named them.

    Attributes:
        env: The environment's id.
        objective: What the scores measure.
        rows: The winners.
        notes: What else differs between the sweeps, so that their scores measure different things.
    """

    env: str
    objective: Objective
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        plain: dict[str, Any] = to_plain(
            {
                "environment": self.env,
                "objective": self.objective.label,
                "score": self.objective.name,
                "direction": self.objective.direction,
                "sweeps": self.rows,
                "notes": self.notes,
            }
        )
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """Make the comparison from what `to_dict` has returned, such as a service on another machine."""
        rows = tuple(ComparisonRow(**{**row, "scores": tuple(row["scores"])}) for row in values["sweeps"])
        objective = Objective(values["score"], Direction(values["direction"]))
        return cls(values["environment"], objective, rows, tuple(values["notes"]))

    def cells(self) -> list[tuple[str, ...]]:
        """Return the table's cells, row by row, in the order of `HEADINGS`."""
        return [
            (
                row.name,
                row.winner,
                format_objective(row.score),
                format_interval(vars(row)),
                format_wins(row.num_wins, row.num_pairs, row.wins_needed),
                row.verdict or "-",
                format_count(row.cost.get("env_steps", 0) + row.cost.get("certify_env_steps", 0)),
                format_duration(row.cost.get("wall_s", 0.0)),
                row.measured,
            )
            for row in self.rows
        ]

    def markdown(self) -> str:
        """Return the table as Markdown text."""
        lines = [self.headings, tuple("---" for _ in self.headings), *self.cells()]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return clean_text("\n\n".join((self.env, table, EXPLAINED, *self.notes)) + "\n")

    @property
    def headings(self) -> tuple[str, ...]:
        """The table's headings."""
        return tuple(heading.format(self.objective.label) for heading in HEADINGS)

    def save(self, folder: Path) -> list[Path]:
        """Write ``comparison.md`` and the figure ``comparison.html`` into a folder, which is created if missing."""
        # Plotly is slow to import, and only needed for the figure.
        from rltune.views.plotly_figures import draw_intervals

        folder.mkdir(parents=True, exist_ok=True)
        text, page = folder / "comparison.md", folder / "comparison.html"
        text.write_text(self.markdown().replace("<", "&lt;"), encoding="utf-8")  # Names of others hold no HTML.
        rows: list[dict[str, Any]] = [
            {
                "name": f"{row.name}<br>{row.winner}",
                "median": row.score,
                "low": row.low,
                "high": row.high,
                "scores": row.scores,
            }
            for row in self.rows
        ]
        best = max(rows, key=lambda row: self.objective.direction.sign * row["median"])["name"]
        draw_intervals(rows, best, f"{self.objective.label} on {self.env}").write_html(page)
        return [text, page]


def compare_sweeps(
    sweeps: Iterable[str | os.PathLike[str]],
    output_dir: str | Path = "outputs",
    storage: str | None = None,
    ledger_url: str | None = None,
) -> Comparison:
    """Compare the winners of sweeps on one environment; each is compared with the first.

    Args:
        sweeps: The sweeps' names, the paths of their folders, or open sweeps.
        output_dir: The folder of all sweeps.
        storage: The setting ``storage`` with which the sweeps were run; a sweep outside ``output_dir`` is fetched
            from there.
        ledger_url: The address of the sweeps' ledgers with its login, where their settings name a database.

    Raises:
        StudyError: There is no such sweep, a sweep has no winner, or the environments, their arguments or wrappers, or
            the objectives differ.
    """
    named: list[Any] = []
    if isinstance(sweeps, str | os.PathLike):
        named = [sweeps]
    elif isinstance(sweeps, Iterable):  # An array or a generator has no truth value that says whether it is empty.
        named = [*sweeps]
    if not named:
        raise StudyError("names no sweep", "two or more sweeps", spell_command("list"), key="sweeps", value=sweeps)
    folders = [SweepRef.of(sweep, output_dir, storage).folder("sweeps") for sweep in named]
    return compare_views([load_view(folder, ledger_url) for folder in folders])


def compare_views(compared: Sequence[SweepView]) -> Comparison:
    """Compare the winners of sweeps that have been read; see `compare_sweeps`."""
    allowed = "sweeps on one environment: the same env.id, env.kwargs and env.wrappers, with certify.env or score.env"
    _require_equal(compared, "is on", "on ", [_describe_env(view) for view in compared], allowed)
    objectives = [_describe_objective(view) for view in compared]
    _require_equal(compared, "has objective", "", objectives, "sweeps with one objective")
    rows: list[ComparisonRow] = []
    for view in compared:
        rows.append(_make_row(view, compared[0], len(compared) - 1))
    notes = _note_differences(compared)
    return Comparison(str(compared[0].settings["env"]["id"]), compared[0].objective, tuple(rows), notes)


def _require_equal(compared: Sequence[SweepView], verb: str, link: str, values: Sequence[str], allowed: str) -> None:
    """Refuse to compare sweeps that differ in their environment, objective or another value on which scores depend.

    Args:
        verb: Links a sweep to its value, in the error.
        link: Links the first sweep to its value, in the error.
        values: The value of each sweep.
        allowed: What would be right, for the error.

    Raises:
        StudyError: The value of a sweep differs from the first sweep's.
    """
    for view, value in zip(compared, values, strict=True):
        if value != values[0]:
            problem = f"{verb} {value}, and {compared[0].name} {link}{values[0]}"
            raise StudyError(problem, allowed, spell_command("list"), key="sweeps", value=view.name)


def _describe_env(view: SweepView) -> str:
    """Describe what `EnvSpec.digest` tells apart where a sweep's results were measured: id, arguments, wrappers."""
    certify, score = ((view.settings.get(group) or {}).get("env") for group in ("certify", "score"))
    spec = change_spec(spec_of(view.settings["env"]), certify or score or {})
    wrappers = [{"entry_point": each.get("entry_point"), "kwargs": each.get("kwargs") or {}} for each in spec.wrappers]
    settings = {"env.kwargs": dict(spec.kwargs), "env.wrappers": wrappers}
    return " ".join(
        [spec.id, *(f"{key}={json.dumps(value, sort_keys=True)}" for key, value in settings.items() if value)]
    )


def _note_differences(compared: Sequence[SweepView]) -> tuple[str, ...]:
    """Name the budgets and the numbers of episodes of the sweeps, where these differ."""
    values = {
        "The budget of a training differs": [f"{format_count(view.env_steps)} environment steps" for view in compared],
        "The episodes of a certified run differ": [
            f"{view.certification.episodes} episodes" if view.certification else "not certified" for view in compared
        ],
    }
    return tuple(
        f"{problem}: {', '.join(f'{view.name} {text}' for view, text in zip(compared, texts, strict=True))}."
        for problem, texts in values.items()
        if len(set(texts)) > 1
    )


def _describe_objective(view: SweepView) -> str:
    """Describe a sweep's objective; sweeps with different objectives cannot be compared."""
    objective = {**asdict(ObjectiveConfig()), **(view.settings.get("objective") or {})}
    return ", ".join(f"{key}={objective[key]}" for key in ("kind", "key", "direction"))


def _make_row(view: SweepView, first: SweepView, num_compared: int) -> ComparisonRow:
    """Make the row of a sweep from its certified, or else evaluated, winner.

    The verdict is a sign test, as in a certification. Any of the certified configurations might have become the winner,
    by the very runs that are compared, and several sweeps are compared. So the error rate is divided by the number of
    all these tests.

    Args:
        view: The sweep.
        first: The sweep that it is compared with.
        num_compared: How many sweeps are compared with the first.
    """
    outcome = load_outcome(view.folder)  # Of the last end, as the winner is, also if the sweep was extended since.
    algo, cost = str(view.settings["algo"]["name"]), dict(outcome.cost if outcome else {})
    if certification := view.certification:
        best = certification.best()
        # The best configuration always has runs and so a median; this is for the type checker.
        assert best.median is not None
        scores, label = tuple(best.scores), f"{algo}, {best.name}"
        measured = f"{len(scores)} fresh seeds x {certification.episodes} episodes"
        num_pairs = num_wins = 0
        if view is not first and first.certification:
            pairs = list(zip(_list_runs(certification), _list_runs(first.certification), strict=False))
            num_pairs, direction = len(pairs), view.objective.direction
            num_wins = sum(
                ours is not None and (theirs is None or direction.is_better(ours, theirs)) for ours, theirs in pairs
            )
        num_chosen_from = sum(bool(each.per_seed) for each in certification.configurations)
        needed = count_wins_needed(num_pairs, ERROR_RATE / (num_chosen_from * max(1, num_compared)))
        verdict = "better" if needed is not None and num_wins >= needed else ""
        interval = best.median, best.low, best.high
        return ComparisonRow(view.name, label, *interval, scores, num_pairs, num_wins, needed, verdict, cost, measured)
    winner = view.record.winner or {}
    evaluation = winner.get("evaluation")
    if not evaluation:
        raise StudyError(
            "has no winner that was tested on fresh episodes",
            "sweeps that ended with a winner",
            make_resume_command(view.folder, view.settings),
            key="sweeps",
            value=view.name,
        )
    interval = float(evaluation["mean"]), evaluation["low"], evaluation["high"]
    measured = f"not certified: one policy, {evaluation['episodes']} episodes"
    return ComparisonRow(view.name, f"{algo}, trial {winner['trial']}", *interval, (), 0, 0, None, "", cost, measured)


def _list_runs(certification: Certification) -> list[float | None]:
    """List the scores of a certified winner in the order of the certification's seeds; None for a failed seed."""
    best = certification.best()
    scores = {result.seed: result.mean for result in best.per_seed}
    return [scores.get(seed) for seed in certification.seeds if seed in scores or seed in best.failed_seeds]
