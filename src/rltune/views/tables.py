"""Print the tables of the commands `list`, `show` and `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table

from rltune.envs.objective import Objective
from rltune.errors import RltuneError, clean_text
from rltune.formatting import first_line, format_count, format_interval, format_objective, spell_command
from rltune.ledger.sweep_ref import SweepRef
from rltune.views.terminal import open_console, print_sections

# The overrides that `rltune list` shows, because they distinguish sweeps.
DISTINGUISHING = ("algo=", "env=", "env.id=", "experiment=")

if TYPE_CHECKING:
    from rltune.policies.result import Evaluation
    from rltune.views.sweep_view import SweepView


def read_sweeps(ref: SweepRef) -> dict[Path, SweepView | RltuneError]:
    """Read the views of all sweeps, the newest last; a sweep that cannot be read gives its error.

    Args:
        ref: Says where the sweeps are; its name is not used.
    """
    folders = ref.list_folders()
    # SQLAlchemy is slow to import, so sweeps that cannot be found are reported first.
    from rltune.views.sweep_reader import SweepReader

    views = SweepReader(ref.ledger_url).read(folders)
    return {folder: views[folder] for folder in folders}


def list_sweeps(
    sweeps: Sequence[Mapping[str, Any]], place: object, stream: TextIO | None = None, *, starter: str = "run"
) -> None:
    """Print the list of all sweeps, one line each.

    Args:
        sweeps: The sweeps as `rltune.views.description.summarize` describes them; one that cannot be read has its name
            and its ``error``.
        place: Where they are.
        stream: Where to print; None is standard output.
        starter: The command that starts a sweep there.
    """
    rows: list[tuple[str, ...]] = [("sweep", "status", "trials", "best", "certified", "env steps", "begun", "typed")]
    reasons = []
    for sweep in sweeps:
        if "error" in sweep:
            rows.append((sweep["name"], "unreadable", *[""] * 6))
            reasons.append(f"{sweep['name']}: {first_line(sweep['error'])}")
        else:
            rows.append(_describe_sweep(sweep))
    out = open_console(stream)
    if sweeps:
        out.print(_fit_columns(rows, out.width), crop=False)
        out.print("trials: complete/stopped/failed of all that the budget has")
        for reason in reasons:
            out.print(reason, soft_wrap=True)
    else:
        out.print(
            f"no sweeps in {place}; start one: {spell_command(f'{starter} algo=ppo env=cartpole')}", soft_wrap=True
        )


def _describe_sweep(sweep: Mapping[str, Any]) -> tuple[str, ...]:
    trials, certified = sweep["trials"], sweep["certified"]
    return (
        sweep["name"],
        sweep["status"],
        f"{trials['complete']}/{trials['pruned']}/{trials['failed']} of {trials['planned'] or trials['total']}",
        format_objective(sweep["best"] and sweep["best"]["score"]),
        format_objective(certified and certified["configurations"][0]["median"]),
        format_count(sweep["env_steps"]),
        (sweep["began"] or "")[:16].replace("T", " "),
        " ".join(word for word in (sweep["command"] or "").split() if word.startswith(DISTINGUISHING)),
    )


def _fit_columns(rows: Sequence[tuple[str, ...]], width: int) -> Table:
    """Make a table with as many leading columns as fit into the terminal; no column is shown in part.

    Args:
        rows: The headings, then the sweeps. The first two columns are always kept whole, because users copy them.
        width: The terminal's width in characters.
    """
    rows = [tuple(map(clean_text, row)) for row in rows]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    kept = [index for index in range(len(widths)) if index < 2 or sum(widths[: index + 1]) + index <= width]
    for index in kept:
        table.add_column(rows[0][index], no_wrap=True, min_width=widths[index])
    for row in rows[1:]:
        table.add_row(*(row[index] for index in kept))
    return table


def read_sweep(ref: SweepRef) -> SweepView:
    """Read the view of one sweep.

    Raises:
        StudyError: There is no such sweep, or its ledger cannot be read.
    """
    folder = ref.folder()
    from rltune.ledger.storage import open_ledger  # SQLAlchemy is slow to import, so a misspelt name is reported first.
    from rltune.views.sweep_view import read_folder

    with closing(open_ledger(folder, ref.ledger_url)) as ledger:
        return read_folder(folder, ledger)


def show_sweep(view: SweepView, stream: TextIO | None = None) -> None:
    """Print one sweep with all of its trials, the best first.

    Args:
        view: The sweep, as `read_sweep` returns it.
        stream: Where to print; None is standard output.
    """
    from rltune.views.page import describe_sweep

    print_sections(open_console(stream), describe_sweep(view, view.outcome))


def show_evaluation(
    uri: str, info: Mapping[str, Any], result: Evaluation, env: Mapping[str, Any], stream: TextIO | None = None
) -> None:
    """Print the result of a policy's evaluation.

    Args:
        uri: The policy's URI, as the user typed it.
        info: What the policy's files say about its origin.
        env: The specification of the environment in which it was evaluated.
        stream: Where to print; None is standard output.
    """
    table = Table.grid(padding=(0, 2))
    run = info.get("run") or f"trial {info.get('trial', '?')}"
    table.add_row("policy", f"{uri}  ({info.get('algo', '?')}, {run})")
    words = (env["id"], *(f"{key}={value}" for key, value in env["kwargs"].items()))
    table.add_row("environment", clean_text(" ".join(words)))
    table.add_row("episodes", "1, as all were equal" if result.are_equal else str(len(result.returns)))
    table.add_row("actions", "deterministic" if result.deterministic else "sampled")
    objective = Objective.from_settings(env.get("objective"))
    has_interval = result.low is not None  # None below five episodes, and of equal returns.
    interval = f"  (95% interval {format_interval(vars(result))})" if has_interval else ""
    table.add_row(f"mean {objective.label}", f"{format_objective(result.mean)}{interval}")
    table.add_row("IQM", format_objective(result.iqm))
    table.add_row("least, greatest", f"{format_objective(result.min)} and {format_objective(result.max)}")
    mean_length = sum(result.lengths) / len(result.lengths)
    table.add_row("episode length", f"{mean_length:.1f} steps ({min(result.lengths)} to {max(result.lengths)})")
    if result.unscored:
        table.add_row("no score", f"{len(result.unscored)} of {len(result.returns)} episodes, which are left out")
    for name, bounded in result.measure().items():
        has_interval = bounded["low"] is not None
        interval = f"  (95% interval {format_interval(bounded)})" if has_interval else ""
        where = f"  in {bounded['episodes']} episodes" if bounded["episodes"] != len(result.returns) else ""
        table.add_row(name, f"{format_objective(bounded['mean'])}{interval}{where}")
    if result.cut:
        table.add_row("cut", result.explain_cut())
    open_console(stream).print(table)
