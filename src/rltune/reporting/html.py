"""Write a sweep's report: one HTML page with Plotly figures that needs no network.

``sweep_data`` reads the sweep, ``plotly_figures`` draws, ``templates/report.html`` is the page with all its text. A
report can be written of a sweep in any state, also while it runs.
"""

from __future__ import annotations

import importlib.resources
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rltune.certification.result import label
from rltune.formatting import (
    format_count,
    format_duration,
    format_interval,
    format_objective,
    format_params,
    spell_command,
)
from rltune.reporting.closing_page import warn_of_few_seeds
from rltune.reporting.sweep_data import SweepData, load_sweep_data, read_sweep_data
from rltune.reporting.wording import compare_values, describe_verdict, suggest_commands
from rltune.study.ledger import Ledger
from rltune.study.outcome import count_states
from rltune.study.ranking import order_records

FOLDER, PAGE = "report", "index.html"
logger = logging.getLogger(__name__)


def write_report(
    sweep: Path, ledger: Ledger | None = None, ledger_url: str | None = None, status: str | None = None
) -> Path:
    """Write the report of a sweep into its folder, in place of an earlier one.

    Args:
        sweep: The sweep's folder.
        ledger: If it is open already.
        ledger_url: Where it is opened otherwise, as for `rltune.study.storage.open_ledger`.
        status: As for `read_sweep_data`, for a ledger that is open already.

    Returns:
        The folder ``report`` in it, with ``index.html``.

    Raises:
        StudyError: It is no sweep's folder, or its ledger cannot be read.
    """
    data = read_sweep_data(sweep, ledger, status) if ledger else load_sweep_data(sweep, ledger_url)
    folder = sweep / FOLDER
    folder.mkdir(exist_ok=True)
    draft = folder / f".{PAGE}"
    draft.write_text(render_page(data), encoding="utf-8")
    draft.replace(folder / PAGE)  # Whoever reads the earlier page meanwhile has the whole of it.
    return folder


def try_report(
    sweep: Path, ledger: Ledger | None, note: Callable[[str], None], status: str | None = None
) -> Path | None:
    """Do as `write_report`, but only note what goes wrong: a sweep must not fail for its report.

    Args:
        sweep: The sweep's folder.
        ledger: The sweep's.
        note: Takes the reason, in one line, if there is no report.
        status: As for `read_sweep_data`.
    """
    try:
        return write_report(sweep, ledger, status=status)
    except Exception as error:
        logger.exception("no report")
        how = spell_command(f"report sweep={sweep.name}")
        note(f"no report could be made ({type(error).__name__}: {error}); {how}")
        return None


def render_page(data: SweepData) -> str:
    """Render the whole page of a sweep as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # A typing error need not wait for these imports.

    from rltune.reporting.importance import MIN_TRIALS, NUM_NULL_SWEEPS, NUM_SHUFFLES, measure_importance
    from rltune.reporting.plotly_figures import draw_figures

    importance = measure_importance(data)
    drawn = draw_figures(data, importance)
    numbered = list(enumerate((name, figure) for name, figures in drawn.items() for figure in figures))
    pages = Environment(
        loader=PackageLoader("rltune.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"count": format_count, "duration": format_duration}
    values, replicates = compare_values(data), int(data.settings.get("replicates", 1))
    return pages.get_template("report.html").render(
        data=data,
        counts=count_states(data.trials),
        verdict=describe_verdict(data),
        env_steps=data.cost.get("env_steps", replicates * sum(trial.env_steps for trial in data.trials)),
        certification=_tabulate_certification(data),
        values=[(row.name, row.won, row.before, row.searched) for row in values],
        changed=[row.name for row in values if row.changed and row.won != "-"],
        trials=_tabulate_trials(data),
        commands=suggest_commands(data),
        importance=importance,
        min_trials=MIN_TRIALS,
        num_shuffles=NUM_SHUFFLES,
        num_null_sweeps=NUM_NULL_SWEEPS,
        figures={
            name: [(number, figure.layout.height) for number, (other, figure) in numbered if other == name]
            for name in drawn
        },
        # <!--<script> or </script> in a value would swallow the page or end the script. Plotly (7.1) escapes, too.
        plots_json=f"[{','.join(str(figure.to_json()) for _, (_, figure) in numbered)}]".replace("<", "\\u003c"),
        plotly=_read_plotly().replace("</script", "<\\/script"),  # Its own closing tag would end the script.
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _read_plotly() -> str:
    """Read Plotly's script."""
    return importlib.resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def _tabulate_certification(data: SweepData) -> Mapping[str, Any] | None:
    """Return the certification's table and what its caption depends on; None without certification."""
    record = data.record.certification or {}
    rows = [data.shown.turn(row) for row in record.get("configurations", ())]
    if not rows:
        return None
    few = warn_of_few_seeds(len(record["seeds"]))
    return {
        "seeds": len(record["seeds"]),
        "episodes": record["episodes"],
        "best": next(label(row["name"], row["trial"]) for row in rows if row["name"] == record["winner"]),
        "any_failed": any(row.get("failed_seeds") for row in rows),
        "warning": f"{few[0].upper()}{few[1:]}." if few else "",
        "rows": [
            (
                label(row["name"], row["trial"]),
                format_objective(row["iqm"] if row["per_seed"] else None),
                format_interval(row),
                format_objective(row["mean"] if row["per_seed"] else None),
                "-" if row.get("improvement") is None else f"{row['improvement']:.2f}",
                format_objective(row.get("search_score")),
                len(row.get("failed_seeds", ())),
            )
            for row in rows
        ],
    }


def _tabulate_trials(data: SweepData) -> Sequence[Sequence[str]]:
    """Return all trials, the best first."""
    return [
        (
            str(trial.number),
            data.state_of(trial),
            format_objective(data.shown(trial.score)),
            format_count(trial.env_steps),
            format_params(trial.params),
            data.explain_end(trial),
        )
        for trial in order_records(data.trials)
    ]
