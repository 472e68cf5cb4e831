"""Print what `sweeps.list`, `sweeps.show` and `sweeps.evaluate` answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Table

from rltune.certification.result import Certification
from rltune.envs.objective import Shown
from rltune.errors import RltuneError
from rltune.formatting import (
    first_line,
    format_count,
    format_objective,
    format_params,
    format_state,
    spell_command,
)
from rltune.reporting.closing_page import describe_certification, describe_winner, explain_scores
from rltune.study.outcome import explain_no_winner
from rltune.study.ranking import find_front, find_nearest, order_records, rank_records
from rltune.study.sweep_ref import SweepRef

TOLD_BY = ("algo=", "env=", "env.id=", "experiment=")  # what tells one sweep from another, of what was typed

if TYPE_CHECKING:
    from rltune.policies.evaluation import Evaluation
    from rltune.records import TrialRecord


def list_sweeps(ref: SweepRef, stream: TextIO | None = None) -> None:
    """Print one line a sweep, the newest last; a ledger that cannot be read is named, not hidden.

    Args:
        ref: Where the sweeps are, whatever sweep is meant.
        stream: Where to; None is standard output.
    """
    from rltune.study.outcome import count_states
    from rltune.study.storage import open_ledger  # brings SQLAlchemy with it

    folders = ref.list_folders()
    headings = ("sweep", "status", "trials", "best", "certified", "env steps", "begun", "typed")
    rows: list[tuple[str, ...]] = [headings]
    reasons = []
    for folder in folders:
        try:
            ledger = open_ledger(folder, ref.ledger_url)
        except RltuneError as error:
            rows.append((folder.name, "unreadable", *[""] * 6))
            reasons.append(f"{folder.name}: {first_line(error.what)}")
            continue
        with closing(ledger):
            records, found = ledger.trials.records(), ledger.sweep()
        number, shown = count_states(records), Shown.read(found.config)
        certified = (found.certification or {}).get("configurations") or [{}]
        rows.append(
            (
                folder.name,
                found.status or "?",
                f"{number['complete']}/{number['pruned']}/{number['failed']} of {len(records)}",
                format_objective(shown(next((one.score for one in rank_records(records)), None))),
                format_objective(shown(certified[0].get("iqm"))),
                format_count(sum(record.env_steps for record in records)),
                (found.began or "")[:16].replace("T", " "),
                " ".join(word for word in (found.command or "").split() if word.startswith(TOLD_BY)),
            )
        )
    out = _open_console(stream)
    if folders:
        out.print(_fit_columns(rows, out.width), crop=False)
        out.print("trials: complete/stopped/failed of those begun")
        for reason in reasons:
            out.print(reason, soft_wrap=True)
    else:
        out.print(f"no sweeps in {ref.root}; start one: {spell_command('run algo=ppo env=cartpole')}", soft_wrap=True)


def _fit_columns(rows: Sequence[tuple[str, ...]], width: int) -> Table:
    """Make a table of the columns that fit, from the first on: the others are cut whole, never upright.

    Args:
        rows: The headings first. The first two columns are always there, whole: they are there to be copied.
        width: Of the terminal.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [index for index in range(len(widths)) if index < 2 or sum(widths[: index + 1]) + index <= width]
    for index in shown:
        table.add_column(rows[0][index], no_wrap=True, min_width=widths[index])
    for row in rows[1:]:
        table.add_row(*(row[index] for index in shown))
    return table


def show_sweep(ref: SweepRef, stream: TextIO | None = None) -> None:
    """Print a sweep's trials, the best first.

    Args:
        ref: The sweep.
        stream: Where to; None is standard output.

    Raises:
        StudyError: There is no such sweep, or its ledger cannot be read.
    """
    folder = ref.folder()
    from rltune.study.storage import open_ledger  # brings SQLAlchemy with it, which a wrong name need not wait for

    with closing(open_ledger(folder, ref.ledger_url)) as ledger:
        records, found, criteria = order_records(ledger.trials.records()), ledger.sweep(), ledger.criteria
    shown = Shown.read(found.config)
    out = _open_console(stream)
    out.print(f"{folder.name}: {found.status or '?'}, {folder}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    second = [criteria.second] if criteria.second else []
    score = shown.label if shown.is_cost else "score"
    for heading in ("trial", "state", score, *second, "env steps", "values", "why it ended, or where it runs"):
        table.add_column(heading, overflow="fold")
    front = {record.number for record in find_front(records, criteria.direction)}
    for record in records:
        number, state, score, *rest = _make_row(record, found.status == "running", shown)
        also = [format_objective(record.second) + " *" * (record.number in front)] if second else []
        table.add_row(number, state, score, *also, *rest)
    out.print(table)
    if second:
        out.print(f"* on the front: no other complete trial beats it in both score and {criteria.second}")
    if find_nearest(records):
        out.print(explain_no_winner(records), soft_wrap=True)
    if found.certification:
        for part in describe_certification(Certification.from_dict(found.certification).summary(), shown):
            out.print(part)
    elif found.winner:
        for part in describe_winner(found.winner, shown, found.status in ("interrupted", "running")):
            out.print(part)
    if records and (found.certification or (found.winner or {}).get("evaluation")):
        out.print(explain_scores(records[0].scored, bool(found.certification)), soft_wrap=True)


def show_evaluation(
    uri: str, info: Mapping[str, Any], result: Evaluation, env: str | None = None, stream: TextIO | None = None
) -> None:
    """Print what an evaluation found.

    Args:
        uri: The policy as it was named.
        info: The policy's own account of where it came from.
        result: The evaluation.
        env: The environment where it was not the policy's own.
        stream: Where to; None is standard output.
    """
    table = Table.grid(padding=(0, 2))
    table.add_row("policy", f"{uri}  ({info.get('algo', '?')}, trial {info.get('trial', '?')})")
    table.add_row("environment", str(env or (info.get("env") or {}).get("id", "?")))
    table.add_row("episodes", str(len(result.returns)))
    shown = Shown.of((info.get("env") or {}).get("objective"))
    found = shown.turn(vars(result))
    has_interval = found["low"] is not None  # not below five episodes
    interval = f"  (95% interval {found['low']:.2f} to {found['high']:.2f})" if has_interval else ""
    table.add_row(f"mean {shown.label}", f"{found['mean']:.2f}{interval}")
    table.add_row("IQM", f"{found['iqm']:.2f}")
    table.add_row("least, greatest", "{:.2f}, {:.2f}".format(*sorted((found["min"], found["max"]))))
    mean_length = sum(result.lengths) / len(result.lengths)
    table.add_row("episode length", f"{mean_length:.1f} steps ({min(result.lengths)} to {max(result.lengths)})")
    _open_console(stream).print(table)


def _open_console(stream: TextIO | None) -> Console:
    """Open a console as wide as the terminal; a wide one where there is none, so that a pipe gets whole lines."""
    watched = (stream or sys.stdout).isatty()
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=None if watched else 200)


def _make_row(record: TrialRecord, going_on: bool, shown: Shown) -> tuple[str, ...]:
    unfinished = record.state == "RUNNING"
    reason = "" if unfinished else first_line(record.stop_reason)
    if record.broken:
        reason = "; ".join(["cannot win: " + ", ".join(map(str, record.broken)), *filter(None, [reason])])
    if unfinished and going_on and record.node:
        reason = f"on {record.node}"
    if record.enqueued_by:
        reason = "; ".join(filter(None, [reason, f"enqueued by {record.enqueued_by}"]))
    return (
        str(record.number),
        format_state(record.state, going_on),
        format_objective(shown(record.score)),
        format_count(record.env_steps),
        format_params(record.params),
        reason,
    )
