"""Compare the winners of several sweeps with confidence intervals: as a table, a figure and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rltune.config.schema import ObjectiveConfig
from rltune.envs.objective import Objective
from rltune.errors import StudyError
from rltune.formatting import (
    format_count,
    format_difference,
    format_duration,
    format_interval,
    format_objective,
    spell_command,
)
from rltune.ledger.outcome import load_outcome
from rltune.ledger.sweep_folder import make_resume_command
from rltune.ledger.sweep_ref import SweepRef
from rltune.statistics import Difference, bound_difference, find_level
from rltune.views.sweep_view import SweepView, load_view

HEADINGS = ("sweep", "winner", "{}", "95% interval", "difference to the first", "env steps", "time", "how measured")


@dataclass(frozen=True)
class ComparisonRow:
    """The winner of one sweep, as a row of the comparison.

    Attributes:
        name: The sweep's name.
        winner: The winner's algorithm and trial.
        score: The median over seeds of a certified winner; else the mean over fresh episodes of the winner's only
            policy.
        low: The lower end of the score's 95% interval; None where there are too few values for an interval.
        high: The upper end of the interval.
        scores: The score of each certified seed, failed seeds included; empty where the winner was not certified.
        difference: How far the mean over its seeds is from that of the first sweep's winner; None where it is unknown.
        cost: The sweep's cost, as in ``summary.json``.
        measured: How the score was measured, for a person.
    """

    name: str
    winner: str
    score: float
    low: float | None
    high: float | None
    scores: tuple[float, ...]
    difference: Difference | None
    cost: dict[str, float]
    measured: str


@dataclass(frozen=True)
class Comparison:
    """Sweeps with the same environment and objective, in the order in which the user named them."""

    env: str
    objective: Objective
    rows: tuple[ComparisonRow, ...]

    def cells(self) -> list[tuple[str, ...]]:
        """Return the table's cells, row by row, in the order of `HEADINGS`."""
        return [
            (
                row.name,
                row.winner,
                format_objective(row.score),
                format_interval(vars(row)),
                format_difference(row.difference and row.difference._asdict()),
                format_count(row.cost.get("env_steps", 0) + row.cost.get("certify_env_steps", 0)),
                format_duration(row.cost.get("wall_s", 0.0)),
                row.measured,
            )
            for row in self.rows
        ]

    def markdown(self) -> str:
        """Return the table as Markdown text."""
        headings = tuple(heading.format(self.objective.label) for heading in HEADINGS)
        lines = [headings, tuple("---" for _ in headings), *self.cells()]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        note = (
            "Of a certified sweep it is the median over training seeds, of another one the mean over one policy's "
            "episodes. The difference is that of the means over training seeds, with its "
            f"{find_level(len(self.rows) - 1):.3g}% interval: a sweep is better than the first if this excludes 0."
        )
        return f"{self.env}\n\n{table}\n\n{note}\n"

    def save(self, folder: Path) -> list[Path]:
        """Write ``comparison.md`` and the figure ``comparison.html`` into a folder, which is created if missing."""
        # Plotly is slow to import, and only needed for the figure.
        from rltune.views.plotly_figures import draw_intervals

        folder.mkdir(parents=True, exist_ok=True)
        text, page = folder / "comparison.md", folder / "comparison.html"
        text.write_text(self.markdown(), encoding="utf-8")
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
    sweeps: Sequence[str | Path],
    output_dir: str | Path = "outputs",
    storage: str | None = None,
    ledger_url: str | None = None,
) -> Comparison:
    """Compare the winners of sweeps on one environment; each is compared with the first.

    Args:
        sweeps: The sweeps' names, or the paths of their folders.
        output_dir: The folder of all sweeps.
        storage: The setting ``storage`` with which the sweeps were run; a sweep outside ``output_dir`` is fetched
            from there.
        ledger_url: The address of the sweeps' ledgers with its login, where their settings name a database.

    Raises:
        StudyError: There is no such sweep, a sweep has no winner, or the environments or objectives differ.
    """
    if not sweeps:
        raise StudyError("sweeps=[] names no sweep", "two or more sweeps", spell_command("list"))
    folders = [SweepRef.of(sweep, output_dir, storage).folder("sweeps") for sweep in sweeps]
    compared = [load_view(folder, ledger_url) for folder in folders]
    environments = [str(view.settings["env"]["id"]) for view in compared]
    _require_equal(compared, "is on", "on ", environments, "sweeps on one environment")
    objectives = [_describe_objective(view) for view in compared]
    _require_equal(compared, "has objective", "", objectives, "sweeps with one objective")
    rows: list[ComparisonRow] = []
    for view in compared:
        rows.append(_make_row(view, rows[0].scores if rows else (), len(compared) - 1))
    return Comparison(environments[0], compared[0].objective, tuple(rows))


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
            what = f"sweeps={view.name} {verb} {value}, and {compared[0].name} {link}{values[0]}"
            raise StudyError(what, allowed, spell_command("list"))


def _describe_objective(view: SweepView) -> str:
    """Describe a sweep's objective; sweeps with different objectives cannot be compared."""
    objective = {**asdict(ObjectiveConfig()), **(view.settings.get("objective") or {})}
    return ", ".join(f"{key}={objective[key]}" for key in ("kind", "key", "direction"))


def _make_row(view: SweepView, first_scores: Sequence[float], num_compared: int) -> ComparisonRow:
    """Make the row of a sweep from its certified, or else evaluated, winner.

    Args:
        first_scores: The scores of the first sweep's certified seeds; empty for the first sweep itself.
        num_compared: How many sweeps are compared with the first.
    """
    outcome = load_outcome(view.folder)  # Of the last end, as the winner is, also if the sweep was extended since.
    algo, cost = str(view.settings["algo"]["name"]), dict(outcome.cost if outcome else {})
    if certification := view.certification:
        best = certification.best()
        # The best configuration always has runs and so a median; this is for the type checker.
        assert best.median is not None
        scores, label = tuple(best.scores), f"{algo}, {best.name}"
        difference = bound_difference(scores, first_scores, num_compared) if first_scores else None
        measured = f"{len(scores)} fresh seeds x {certification.episodes} episodes"
        return ComparisonRow(view.name, label, best.median, best.low, best.high, scores, difference, cost, measured)
    winner = view.record.winner or {}
    evaluation = winner.get("evaluation")
    if not evaluation:
        raise StudyError(
            f"sweeps={view.name} has no winner that was tested on fresh episodes",
            "sweeps that ended with a winner",
            make_resume_command(view.folder, view.settings),
        )
    interval = float(evaluation["mean"]), evaluation["low"], evaluation["high"]
    measured = f"not certified: one policy, {evaluation['episodes']} episodes"
    return ComparisonRow(view.name, f"{algo}, trial {winner['trial']}", *interval, (), None, cost, measured)
