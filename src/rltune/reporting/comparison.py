"""Compare sweeps by their winners, with intervals: as a table, a figure and Markdown to paste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rltune.config.schema import ObjectiveConfig
from rltune.envs.objective import AS_RETURN, Shown
from rltune.errors import StudyError
from rltune.formatting import format_count, format_duration, format_interval, format_objective, spell_command
from rltune.reporting.sweep_data import SweepData, load_sweep_data
from rltune.statistics import probability_of_improvement
from rltune.study.sweep_ref import SweepRef

HEADS = ("sweep", "winner", "{}", "95% interval", "better than the first", "env steps", "time", "how measured")


@dataclass(frozen=True)
class ComparisonRow:
    """One sweep's winner.

    Attributes:
        name: The sweep.
        winner: Algorithm and trial.
        score: Certified: the IQM over seeds. Else the mean over fresh episodes of the one policy.
        low: Lower end of its 95% interval; None without one.
        high: Upper end.
        scores: One a certified seed, failed ones too; empty where it was not certified.
        better: Probability that a run of it beats one of the first sweep's winner; None where it is not known.
        cost: As ``summary.json`` has it.
        measured: How the score came about.
        shown: Shows scores.
    """

    name: str
    winner: str
    score: float
    low: float | None
    high: float | None
    scores: tuple[float, ...]
    better: float | None
    cost: dict[str, float]
    measured: str
    shown: Shown = AS_RETURN


@dataclass(frozen=True)
class Comparison:
    """Sweeps on one environment, in the order in which they were named."""

    env: str
    rows: tuple[ComparisonRow, ...]

    def cells(self) -> list[tuple[str, ...]]:
        """Return the table's cells, a tuple a row, in the order of `HEADS`."""
        return [
            (
                row.name,
                row.winner,
                format_objective(row.shown(row.score)),
                format_interval(row.shown.turn(vars(row))),
                "-" if row.better is None else f"{row.better:.2f}",
                format_count(row.cost.get("env_steps", 0)),
                format_duration(row.cost.get("wall_s", 0.0)),
                row.measured,
            )
            for row in self.rows
        ]

    def markdown(self) -> str:
        """Return the table as Markdown to paste."""
        heads = tuple(head.format(self.rows[0].shown.label) for head in HEADS)
        lines = [heads, tuple("---" for _ in heads), *self.cells()]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        note = "Intervals of a certified sweep are over training seeds, of another one over one policy's episodes."
        return f"{self.env}\n\n{table}\n\n{note}\n"

    def save(self, folder: Path) -> list[Path]:
        """Write ``comparison.md`` and ``comparison.html``, the figure, into a folder, made if missing."""
        from rltune.reporting.plotly_figures import draw_intervals  # A typing error need not wait for Plotly.

        folder.mkdir(parents=True, exist_ok=True)
        text, page = folder / "comparison.md", folder / "comparison.html"
        text.write_text(self.markdown(), encoding="utf-8")
        rows: list[dict[str, Any]] = [
            {"name": f"{row.name}<br>{row.winner}", "iqm": row.shown(row.score), **row.shown.turn(vars(row))}
            | {"per_seed": [{"mean": row.shown(score)} for score in row.scores]}
            for row in self.rows
        ]
        best = max(zip(self.rows, rows, strict=True), key=lambda pair: pair[0].score)[1]["name"]
        draw_intervals(rows, best, f"{self.rows[0].shown.label} on {self.env}").write_html(page)
        return [text, page]


def compare_sweeps(
    sweeps: Sequence[str | Path],
    output_dir: str | Path = "outputs",
    storage: str | None = None,
    ledger_url: str | None = None,
) -> Comparison:
    """Compare sweeps on one environment, each to the first.

    Args:
        sweeps: Their names, or paths of their folders.
        output_dir: The folder of all sweeps.
        storage: The setting ``storage`` with which they were run: those that are not in ``output_dir`` are fetched.
        ledger_url: The address of their ledgers with its login, where their settings name a database.

    Raises:
        StudyError: There is no such sweep, it has no winner, or they are on different environments or
            of different objectives.
    """
    if not sweeps:
        raise StudyError("sweeps=[] names none", "two or more sweeps", spell_command("list"))
    folders = [SweepRef.of(sweep, output_dir, storage).folder("sweeps") for sweep in sweeps]
    every = [load_sweep_data(folder, ledger_url) for folder in folders]
    environments = [str(data.settings["env"]["id"]) for data in every]
    _require_one(every, "is on", "on ", environments, "sweeps on one environment")
    objectives = [_describe_objective(data) for data in every]
    _require_one(every, "has objective", "", objectives, "sweeps with one objective")
    rows: list[ComparisonRow] = []
    for data in every:
        rows.append(_make_row(data, rows[0].scores if rows else ()))
    return Comparison(environments[0], tuple(rows))


def _require_one(every: Sequence[SweepData], verb: str, link: str, found: Sequence[str], allowed: str) -> None:
    """Refuse sweeps of which one has something else than the first."""
    for data, one in zip(every, found, strict=True):
        if one != found[0]:
            what = f"sweeps={data.name} {verb} {one}, and {every[0].name} {link}{found[0]}"
            raise StudyError(what, allowed, spell_command("list"))


def _describe_objective(data: SweepData) -> str:
    """Describe by what a sweep's scores are made: scores of two kinds cannot be compared."""
    found = {**asdict(ObjectiveConfig()), **(data.settings.get("objective") or {})}
    return ", ".join(f"{key}={found[key]}" for key in ("kind", "key", "direction", "over"))


def _make_row(data: SweepData, first: Sequence[float]) -> ComparisonRow:
    algo, cost = str(data.settings["algo"]["name"]), dict(data.cost)
    record = data.record.certification or {}
    best = next((one for one in record.get("configurations", ()) if one["name"] == record.get("winner")), None)
    if best:
        failed = [best["failed_score"]] * len(best["failed_seeds"]) if best.get("failed_score") is not None else []
        scores = (*(float(one["mean"]) for one in best["per_seed"]), *failed)
        better = probability_of_improvement(scores, list(first)) if first else None
        each = "all reports" if data.criteria.scored is None else f"{record['episodes']} episodes"
        measured = f"{len(scores)} fresh seeds x {each}"
        ends = float(best["iqm"]), best["low"], best["high"]
        return ComparisonRow(data.name, f"{algo}, {best['name']}", *ends, scores, better, cost, measured, data.shown)
    winner = data.record.winner or {}
    evaluation = winner.get("evaluation")
    if not evaluation:
        raise StudyError(
            f"sweeps={data.name} has no winner that was tested on fresh episodes",
            "sweeps that ended with a winner",
            data.resume_command,
        )
    ends = float(evaluation["mean"]), float(evaluation["low"]), float(evaluation["high"])
    measured = f"not certified: one policy, {evaluation['episodes']} episodes"
    return ComparisonRow(data.name, f"{algo}, trial {winner['trial']}", *ends, (), None, cost, measured, data.shown)
