"""Print the tables of the commands `list`, `show` and `evaluate`."""

from __future__ import annotations

import re
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

# The columns that a list leaves out where the terminal is too narrow for all, in this order.
LEAST = ("env steps", "certified", "begun", "group", "trials", "best", "typed")
COMMAND = re.compile(
    r"^(?:\S*python\S* -m )?(?:sweeps|\S*rltune)[. ]run ?"
)  # What a person need not read in each line.
MIN_TYPED = 16  # So many characters of what was typed are shown at least, or none.

if TYPE_CHECKING:
    from rltune.policies.result import Evaluation
    from rltune.views.sweep_view import SweepView


def read_sweeps(ref: SweepRef, folders: Sequence[Path] | None = None) -> dict[Path, SweepView | RltuneError]:
    """Read the views of sweeps; a sweep that cannot be read gives its error.

    Args:
        ref: Says where the sweeps are; its name is not used.
        folders: Their folders; None is all, the newest last.
    """
    chosen = ref.list_folders() if folders is None else folders
    # SQLAlchemy is slow to import, so sweeps that cannot be found are reported first.
    from rltune.views.sweep_reader import SweepReader

    views = SweepReader(ref.ledger_url).read(chosen)
    return {folder: views[folder] for folder in chosen}


def list_sweeps(
    sweeps: Sequence[Mapping[str, Any]], place: object, stream: TextIO | None = None, *, starter: str = "run"
) -> None:
    """Print the list of all sweeps, one line each.

    Args:
        sweeps: The sweeps as `rltune.views.description.summarize` describes them; one that cannot be read has its name
            and its ``error``. What is known of a submission is added: ``state``, in words, ``reason``, ``group`` and
            ``typed``; one that has never begun has nothing else but its name.
        place: Where they are.
        stream: Where to print; None is standard output.
        starter: The command that starts a sweep there.
    """
    headings = ("sweep", "status", "trials", "best", "certified", "env steps", "begun", "group", "typed")
    out = open_console(stream)
    if not sweeps:
        start = spell_command(f"{starter} algo=ppo env=cartpole")
        out.print(f"no sweeps in {place}; start one: {start}", soft_wrap=True)
        return
    rows = [tuple(map(clean_text, _describe_sweep(sweep))) for sweep in sweeps]
    columns = zip(headings, zip(*rows, strict=True), strict=True)
    filled = {heading: column for heading, column in columns if any(column)}
    table = _fit_columns(filled, out.width if out.is_terminal else None)
    if not out.is_terminal:  # From a table that is too wide, rich would take the names and states.
        out.width = max(out.width, sum(1 + (column.min_width or 0) for column in table.columns))
    out.print(table, crop=False)
    out.print("trials: complete/stopped/failed of all that the budget has")
    for sweep in sweeps:
        if reason := sweep.get("error") or sweep.get("reason"):
            out.print(f"{sweep['name']}: {clean_text(first_line(reason))}", soft_wrap=True)


def _describe_sweep(sweep: Mapping[str, Any]) -> tuple[str, ...]:
    name, group = sweep["name"], sweep.get("group") or ""
    if "trials" not in sweep:
        state = sweep.get("state") or ("unreadable" if "error" in sweep else "")
        return (name, state, "", "", "", "", "", group, sweep.get("typed") or "")
    trials, certified = sweep["trials"], sweep["certified"]
    return (
        name,
        sweep.get("state") or sweep["status"],
        f"{trials['complete']}/{trials['pruned']}/{trials['failed']} of {trials['planned'] or trials['total']}",
        format_objective(sweep["best"] and sweep["best"]["score"]),
        format_objective(certified and certified["configurations"][0]["median"]),
        format_count(sweep["env_steps"]),
        (sweep["began"] or "")[:16].replace("T", " "),
        group,
        sweep.get("typed") or COMMAND.sub("", sweep["command"] or ""),
    )


def _fit_columns(columns: Mapping[str, Sequence[str]], width: int | None) -> Table:
    """Make a table that fits into the terminal; a column that does not fit is left out.

    Of what was typed, only the words in which the sweeps differ are shown if all do not fit, and then its beginning.

    Args:
        columns: The columns by their headings. The first two are always kept whole, because users copy them.
        width: The terminal's width in characters; None without a terminal.
    """
    fitted = dict(columns)

    def measure() -> dict[str, int]:
        return {heading: max(map(len, (heading, *column))) for heading, column in fitted.items()}

    def is_too_wide(widths: Mapping[str, int]) -> bool:
        return width is not None and sum(widths.values()) + len(widths) - 1 > width

    if is_too_wide(measure()):
        if "typed" in fitted:
            fitted["typed"] = _find_differences(fitted["typed"])
        for heading in LEAST:
            widths = measure()
            if is_too_wide(widths | ({"typed": min(widths["typed"], MIN_TYPED)} if "typed" in widths else {})):
                fitted.pop(heading, None)
    widths = measure()
    if width is not None and "typed" in widths:
        widths["typed"] = min(widths["typed"], width - sum(widths.values()) - len(widths) + 1 + widths["typed"])
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for heading in fitted:
        table.add_column(heading, no_wrap=True, min_width=widths[heading], max_width=widths[heading])
    for row in zip(*fitted.values(), strict=True):
        table.add_row(*row)
    return table


def _find_differences(typed: Sequence[str]) -> Sequence[str]:
    """Return the words of each command line that not all of them have; a single one is returned whole."""
    words = [text.split() for text in typed]
    shared = set.intersection(*map(set, filter(None, words))) if len({text for text in typed if text}) > 1 else set()
    return [" ".join(word for word in line if word not in shared) for line in words]


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
