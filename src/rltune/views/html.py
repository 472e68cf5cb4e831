"""Write a sweep's report: one HTML page with Plotly figures that needs no network connection.

`rltune.views.page` describes the sweep, ``plotly_figures`` draws, and ``templates/report.html`` puts both together. A
report can be written of a sweep in any state, also while it runs.
"""

from __future__ import annotations

import importlib.resources
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rltune.formatting import spell_command
from rltune.ledger.ledger import Ledger
from rltune.views.analysis import build_space, list_rungs
from rltune.views.next_steps import describe_reproduction
from rltune.views.page import describe_counts, describe_sweep, describe_values
from rltune.views.sweep_view import SweepView, load_view, read_folder

FOLDER, PAGE = "report", "index.html"
MAX_ROWS = 5  # The page shows so many trials, and the others after a click.
logger = logging.getLogger(__name__)


def write_report(
    sweep: Path, ledger: Ledger | None = None, ledger_url: str | None = None, status: str | None = None
) -> Path:
    """Write the HTML report of a sweep into its folder, replacing an earlier one.

    Args:
        sweep: The sweep's folder.
        ledger: If it is open already.
        ledger_url: Where it is opened otherwise, as for `rltune.ledger.storage.open_ledger`.
        status: As for `rltune.views.sweep_view.read_folder`, with a ledger that is open already.

    Returns:
        The folder ``report`` in it, with ``index.html``.

    Raises:
        StudyError: It is no sweep's folder, or its ledger cannot be read.
    """
    view = read_folder(sweep, ledger, status) if ledger else load_view(sweep, ledger_url)
    folder = sweep / FOLDER
    folder.mkdir(exist_ok=True)
    draft = folder / f".{PAGE}"
    draft.write_text(render_page(view), encoding="utf-8")
    draft.replace(folder / PAGE)  # The file is replaced atomically, so that a reader never gets a part of the page.
    return folder


def try_report(
    sweep: Path, ledger: Ledger | None, note: Callable[[str], None], status: str | None = None
) -> Path | None:
    """Write the report as `write_report` does, but turn any exception into a note, so that the sweep does not fail.

    Args:
        sweep: The sweep's folder.
        ledger: The sweep's.
        note: Takes the reason, in one line, if there is no report.
        status: As for `write_report`.
    """
    try:
        return write_report(sweep, ledger, status=status)
    except Exception as error:
        logger.exception("no report")
        how = spell_command(f"report sweep={sweep.name}")
        note(f"the report could not be written ({type(error).__name__}: {error}); {how}")
        return None


def render_page(view: SweepView) -> str:
    """Render the report of a sweep as one HTML page."""
    # Jinja2 is slow to import and only needed here.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from rltune.views.importance import MIN_TRIALS, NUM_NULL_SWEEPS, explain_silence, measure_importance
    from rltune.views.plotly_figures import DARK, draw_figures

    importance = measure_importance(build_space(view), [trial.record for trial in view.trials], view.criteria.direction)
    drawn = draw_figures(view, importance)
    numbered = list(enumerate((name, figure) for name, figures in drawn.items() for figure in figures))
    pages = Environment(
        loader=PackageLoader("rltune.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template("report.html").render(
        view=view,
        counts=describe_counts(view),
        sections={section.name: section for section in describe_sweep(view, view.outcome, is_wide=True)},
        values=describe_values(view),
        reproduction=describe_reproduction(view),
        rungs=list_rungs(view),
        importance=importance,
        min_trials=MIN_TRIALS,
        silence=explain_silence(importance.num_trials),
        max_rows=MAX_ROWS,
        dark_colours=DARK,
        num_null_sweeps=NUM_NULL_SWEEPS,
        figures={
            name: [(number, figure.layout.height) for number, (other, figure) in numbered if other == name]
            for name in drawn
        },
        # A value with the text <!--<script> or </script> would end the script or swallow the page, so "<" is escaped.
        plots_json=f"[{','.join(str(figure.to_json()) for _, (_, figure) in numbered)}]".replace("<", "\\u003c"),
        # A closing script tag inside Plotly's source would end the script element.
        plotly=_read_plotly().replace("</script", "<\\/script"),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _read_plotly() -> str:
    """Read the source of plotly.js, which is embedded in the page."""
    return importlib.resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
