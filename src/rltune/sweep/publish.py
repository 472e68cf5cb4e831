"""Tell the console and the closing page how a sweep ended."""

from __future__ import annotations

from collections.abc import Sequence

from rltune.reporting.closing_page import ClosingPage, TrialView
from rltune.study.outcome import Outcome
from rltune.study.record import TrialRecord, rank_records


def trial_view_of(entry: TrialRecord) -> TrialView:
    """One trial as the console shows it."""
    last = list(entry.reports.values())[-1] if entry.reports else None
    return TrialView(
        number=entry.number,
        state=entry.state,
        params=entry.params,
        objective=last,
        best=entry.best,
        env_steps=entry.env_steps,
        reason=entry.attributes.get("stop_reason"),
    )


def make_closing_page(
    outcome: Outcome, entries: Sequence[TrialRecord], tracking_uri: str | None, resume: str | None
) -> ClosingPage:
    """The closing page's content: the best trials, those that can still win first."""
    ranked = rank_records(entries)
    model = outcome.model or {}
    return ClosingPage(
        name=outcome.name,
        status=outcome.status,
        counts=outcome.trials,
        top=[trial_view_of(entry) for entry in ranked[:5]],
        cost=outcome.cost,
        folder=outcome.folder,
        tracking_uri=tracking_uri,
        model_uri=model.get("uri"),
        resume_command=resume,
        certified=outcome.certified,
        winner=outcome.winner,
    )
