"""Publish a sweep's start and outcome: on the console, in its trackers, and by the user's notification."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rltune.certification.description import TABLE_NAME, write_table
from rltune.certification.result import ENDS, Certification
from rltune.cluster.resources import Share, count_on_gpu
from rltune.config.budget import SpentBudget
from rltune.config.uris import resolve_uri
from rltune.driver.display import Display
from rltune.driver.plan import Plan
from rltune.driver.sweep import Sweep
from rltune.errors import EXIT_TRY_AGAIN, RltuneError, describe_exception
from rltune.formatting import format_number
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import EXIT_NONE, Outcome, count_states
from rltune.ledger.sweep_folder import make_resume_command
from rltune.records import BASELINE, ENQUEUE, Direction, RunKey, TrialRecord
from rltune.tracking.feed import Feeds
from rltune.tracking.mlflow_tracker import NOTE_TAG
from rltune.views import html
from rltune.views.console import Console
from rltune.views.next_steps import describe_end
from rltune.views.page import describe_verdict
from rltune.views.sweep_view import read_folder

# The tag that MLflow's log_table would set, with which MLflow's page shows the file as a table.
SHOWN_AS_TABLE = {"mlflow.loggedArtifacts": json.dumps([{"path": f"{TABLE_NAME}.json", "type": "table"}])}
CRASH_CLOSE_S = 12.0  # How long the trackers may delay the exit after an error, including the user's notification.
# The status of the sweep's MLflow run by the sweep's own status; FINISHED otherwise.
RUN_STATUS = {"interrupted": "KILLED", "failed": "FAILED"}


def start_console(plan: Plan, share: Share, display: Display, console: Console) -> None:
    """Draw the trials of earlier drivers on the console, and print the notes of the sweep's plan."""
    display.draw()
    objective = plan.objective
    if plan.build.env.objective:
        better = "lower" if objective.direction is Direction.MIN else "higher"
        console.note(f"objective: {objective.name}, the mean over episodes; the {better}, the better")
    for constraint in plan.criteria.constraints:
        console.note(f"constraint: {constraint.name} {constraint.bound}; a trial that breaks it cannot win")
    if 0 < share.gpus < 1:
        console.note(f"up to {format_number(count_on_gpu(share.gpus), 'trial')} on each GPU")
    for note in plan.notes:
        console.note(note)


def publish_outcome(
    sweep: Sweep, records: Sequence[TrialRecord], outcome: Outcome, certification: Certification | None
) -> None:
    """Publish the sweep's outcome: report and summary in MLflow, and a closing description on the console.

    Args:
        sweep: The sweep. Its trackers and its console are closed.
        records: All trials of the sweep.
        outcome: The outcome of the sweep.
        certification: The certification; None if it is not complete.
    """
    plan, ledger, tracker, console, folder = sweep.plan, sweep.ledger, sweep.tracker, sweep.console, sweep.plan.folder
    interrupted, is_urgent = outcome.status == "interrupted", sweep.stopper.is_urgent()
    if certification:
        _publish_certification(tracker, folder, certification)
    tracker.artifact(folder / "summary.json")
    pages = None
    if plan.report and not is_urgent:  # A report takes seconds, too long after a signal.
        pages = html.try_report(folder, ledger, console.note, outcome.status)
    if pages:
        tracker.artifact(pages, html.FOLDER)
    _describe_sweep(tracker, ledger, console, outcome, has_report=bool(pages))
    # Read before the trackers are closed, so that trackers can still report an error of the ledger.
    view, waiting = read_folder(folder, ledger, outcome.status), len(ledger.read_requests(ENQUEUE))
    is_certified = sweep.is_certified()
    timeout_s = sweep.stopper.left_s() if is_urgent else 60.0
    tracker.close(RUN_STATUS.get(outcome.status, "FINISHED"), timeout_s, outcome)
    show_warnings(tracker, console)
    sweep.display.close()
    if waiting:
        spent = SpentBudget(plan.budget, plan.build.replicates, len(records), sweep.stopper.env_steps)
        larger = spent.spell_larger(waiting)
        command = f"{make_resume_command(folder)} {larger}".rstrip()
        console.note(f"{format_number(waiting, 'enqueued configuration')} not begun: {command}")
    unfinished = outcome.trials["interrupted"] or interrupted or not is_certified
    resume = make_resume_command(folder) if unfinished else None
    # The address that is printed has no login.
    address = resolve_uri(plan.tracking.uri) if tracker.has_registry else None
    console.close(describe_end(view, outcome, address, resume))


def show_warnings(tracker: Feeds, console: Console) -> None:
    """Print new warnings of the trackers on the console."""
    for warning in tracker.warnings():
        console.note(warning)


def notify_users_of_crash(folder: Path, ledger: Ledger, tracker: Feeds, console: Console, error: Exception) -> None:
    """Tell trackers and the user's ``notify`` address that an error has ended the sweep, with the error as reason."""
    counts = dict[str, int]()
    with contextlib.suppress(Exception):  # The error may have come from the ledger itself.
        counts = count_states(ledger.trials.records())
    reason = describe_exception(error)
    exit_code = error.exit_code if isinstance(error, RltuneError) else EXIT_NONE
    status = "interrupted" if exit_code == EXIT_TRY_AGAIN else "failed"
    outcome = Outcome(folder.name, status, counts, None, None, {}, reason=reason, exit_code=exit_code, folder=folder)
    tracker.close(RUN_STATUS[status], CRASH_CLOSE_S, outcome)
    show_warnings(tracker, console)


def _publish_certification(tracker: Feeds, folder: Path, certification: Certification) -> None:
    """Log the certification to MLflow: a table in the sweep's run, metrics and tags in the configurations' runs."""
    for path in write_table(certification, folder):
        tracker.artifact(path)
    for configuration in certification.configurations:
        numbers = {"score": configuration.median, "low": configuration.low, "high": configuration.high}
        for name, bounded in configuration.metrics.items():
            numbers |= {f"{name}{end}": bounded[key] for end, key in ENDS.items()}
        metrics = {f"certified_{name}": value for name, value in numbers.items() if value is not None}
        metrics["certified_failed_seeds"] = float(len(configuration.failed_seeds))
        tags = {"rltune.certified": certification.verdict(configuration) or "yes"}
        if configuration.name == BASELINE:
            tracker.describe(RunKey(None), metrics, tags)
            tags = tags | {"rltune.configuration": BASELINE}  # Marks the run of a trial that has the baseline's values.
        if configuration.trial is not None:
            tracker.describe(RunKey(configuration.trial), metrics, tags)
    best = certification.best()
    assert best.median is not None  # A configuration without a successful run cannot win.
    tracker.describe(None, {"certified_score": best.median}, {"rltune.winner": best.name} | SHOWN_AS_TABLE)


def _describe_sweep(tracker: Feeds, ledger: Ledger, console: Console, outcome: Outcome, *, has_report: bool) -> None:
    """Write the description of the sweep's MLflow run: who won, how certain that is, and links."""
    folder, model = outcome.folder, outcome.model
    try:
        lines = [describe_verdict(read_folder(folder, ledger, outcome.status)), ""]
    except Exception as error:
        # A failure to write MLflow's description must not fail the sweep.
        console.note(f"the sweep's description in MLflow lacks its verdict ({describe_exception(error)})")
        lines = []
    lines.append("- trials: [their charts]({trials}), the best first")
    if has_report:
        lines.append(f"- report: [{html.FOLDER}/index.html]({{page}}/artifacts/{html.FOLDER}/index.html)")
    if model:
        page = f"#/models/{quote(model['name'])}/versions/{model['version']}"
        lines.append(f"- model: [{model['name']} version {model['version']}]({page}), `{model['uri']}`")
    lines.append(f"- folder: `{folder}`")
    tracker.describe(None, {}, {NOTE_TAG: "\n".join(lines)})
