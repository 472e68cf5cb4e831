"""The command that lists sweeps: those of a folder and the submissions of its service, or those of a named service."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltune.cli.application.answer import Answer
from rltune.cli.application.command import ServedConfig, command, make_sweep_ref
from rltune.cli.submitted import is_remote, list_submissions
from rltune.compose.groups import list_conf_dirs
from rltune.config.bounds import Checked, bounded
from rltune.errors import RltuneError, choices
from rltune.formatting import spell_command

UNREADABLE = "unreadable"
STATES = ("running", "queued", "complete", "stopped", "failed", "interrupted", "refused", UNREADABLE)
SORTS = ("newest", "oldest", "name", "duration")
FIRST = {"running": 0, "queued": 1}  # With sort=newest, these come before all that have ended.


def list_options(words: Sequence[str]) -> list[str] | Answer:
    """List the options of a config group if the command line is ``list envs``, ``list spaces`` or the like.

    Raises:
        ConfigError: There is no such group to list.
    """
    if not words or "=" in words[0] or words[0].startswith("-"):
        return [*words]
    from rltune.views.available import KINDS, list_available, show_available

    if words[0] not in KINDS:
        raise RltuneError(f"{words[0]}: nothing to list", choices(words[0], KINDS), spell_command("list envs"))
    folders = [Path(words[index + 1]) for index, word in enumerate(words[:-1]) if word == "--config-dir"]
    headings, rows = list_available(words[0], [*list_conf_dirs(), *folders])
    data = {words[0]: [dict(zip(headings, row, strict=True)) for row in rows]}
    return Answer(data, lambda: show_available(words[0], headings, rows))


@dataclass
class ListConfig(ServedConfig, Checked):
    """The settings of conf/list.yaml."""

    state: str | None = bounded(choices=STATES)
    group: str | None = None
    sort: str = bounded(choices=SORTS)
    limit: int | None = bounded(minimum=1)


@command("list", ListConfig, prepare=list_options)
def list_sweeps(settings: ListConfig) -> Answer:
    """List the sweeps, or the files of a group such as envs or spaces."""
    ref = make_sweep_ref(settings)
    # One more than the limit shows that there are more. The newest are known without reading all ledgers.
    is_cut = settings.limit is not None and settings.state is None and settings.sort == "newest"
    most = settings.limit + 1 if is_cut and settings.limit is not None else None
    client, submissions = list_submissions(settings, settings.group, most)
    from rltune.views import tables
    from rltune.views.description import summarize_all

    sweeps = {submission["name"]: submission["sweep"] for submission in submissions if submission["sweep"]}
    if not is_remote(client, settings):
        folders = ref.list_folders()[::-1]
        if settings.group is not None:  # A sweep that was not submitted has no group.
            names = {submission["name"] for submission in submissions}
            folders = [folder for folder in folders if folder.name in names]
        unread = [folder for folder in folders[:most] if folder.name not in sweeps]
        sweeps |= {sweep["name"]: sweep for sweep in summarize_all(tables.read_sweeps(ref, unread))}
    rows = merge(sweeps, {submission["name"]: submission for submission in submissions})
    rows = sort_rows([row for row in rows if settings.state in (None, row["status"])], settings.sort)
    shown = rows[: settings.limit]
    names = {row["name"] for row in shown}
    data = {
        "sweeps": [sweep for row in shown if (sweep := sweeps.get(row["name"]))],
        "submissions": [
            submission
            for submission in submissions
            if submission["name"] in names
            and (submission["state"] in ("running", "queued", "refused") or not submission["sweep"])
        ],
        "service": client is not None,
        "more": len(rows) > len(shown),
    }

    def show() -> None:
        starter = "submit" if client else "run"
        tables.list_sweeps(shown, client.address if client else ref.root, starter=starter)
        if data["more"]:
            print(f"more: {spell_command('list limit=null')}")
        if client is None and any(row["status"] == "queued" or row.get("is_starting") for row in shown):
            print(f"no service runs here; {spell_command('serve')} continues the queue")

    return Answer(data, show)


def merge(
    sweeps: Mapping[str, Mapping[str, Any]], submissions: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Merge what ledgers and queue have of sweeps: one row each, with one state.

    Args:
        sweeps: The sweeps that have begun by name, as their ledgers describe them.
        submissions: The submissions by name.

    Returns:
        What `rltune.views.tables.list_sweeps` prints. ``status`` is the state as a word of `STATES`.
    """
    rows = []
    for name in dict.fromkeys([*submissions, *sweeps]):
        sweep, submission = sweeps.get(name, {"name": name}), submissions.get(name)
        row = {**sweep, "status": UNREADABLE if "error" in sweep else sweep.get("status")}
        if row["status"] == "running":
            row["state"] = f"running, {row['percent']}%"
        if submission:
            state = submission["state"]
            # The ledger knows the end first. It does not know that a driver was started, has died for good, or waits.
            is_ahead = state == "queued" or submission["starting"] or submission["stopping"]
            is_lost = row["status"] == "interrupted" and state in ("failed", "refused")
            if row["status"] is None or is_ahead or is_lost:
                row |= {"status": state, "state": submission["in_words"], "reason": submission["reason"]}
            row |= {"group": submission["group"], "typed": shlex.join(submission["overrides"])}
            row |= {"submitted": submission["submitted"], "queue": submission["queue"]}
            row["is_starting"] = submission["starting"]
        rows.append(row)
    return rows


def sort_rows(rows: Sequence[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    """Sort the rows of the list; see ``sort`` in conf/list.yaml."""

    def read_time(row: Mapping[str, Any]) -> str:
        return row.get("began") or row.get("submitted") or ""

    if sort == "name":
        return sorted(rows, key=lambda row: str(row["name"]))
    if sort == "duration":
        return sorted(rows, key=lambda row: row.get("wall_s") or 0.0, reverse=True)
    if sort == "oldest":
        return sorted(rows, key=read_time)
    newest = sorted(rows, key=read_time, reverse=True)
    return sorted(newest, key=lambda row: (FIRST.get(row["status"], len(FIRST)), row.get("queue") or 0))
