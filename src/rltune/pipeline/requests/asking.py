"""Ask something of a sweep, whoever runs it and wherever: to stop, to try a configuration, to try again what failed.

A request is a row of the sweep's ledger, at which its driver looks about once a second (`inbox`). Runs anywhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from rltune.algorithms.arguments import build_search_space
from rltune.errors import ConfigError, StudyError
from rltune.formatting import format_number, format_params, spell_command
from rltune.pipeline.requests.asked_sweep import AskedSweep, open_asked
from rltune.records import CERTIFY, ENQUEUE, RETRY, STOP, TRIALS, TrialRecord
from rltune.search.samplers import name_sampler
from rltune.study.sweep_ref import SweepRef

if TYPE_CHECKING:
    from rltune.study.outcome import Outcome

POLL_S = 0.5


@dataclass(frozen=True)
class Retry:
    """What is tried again.

    Attributes:
        sweep: Its name.
        trials: Numbers of the search's trials.
        runs: Numbers of the certification's runs.
        driver: Where the sweep's driver is, which does it; None where the sweep has to be resumed for it.
    """

    sweep: str
    trials: Sequence[int]
    runs: Sequence[int]
    driver: str | None

    @property
    def numbers(self) -> dict[str, Sequence[int]]:
        """What a request has of it."""
        return {TRIALS: self.trials, CERTIFY: self.runs}

    def __str__(self) -> str:
        """What it is, for a person: ``2 trials (3, 5)``."""
        named = f" ({', '.join(map(str, self.trials))})" if self.trials else ""
        parts = [format_number(len(self.trials), "trial") + named] if self.trials else []
        parts += [format_number(len(self.runs), "run") + " of the certification"] if self.runs else []
        return " and ".join(parts)


def stop_sweep(
    ref: SweepRef,
    *,
    wait: bool = True,
    stream: TextIO | None = None,
) -> str:
    """End a running sweep cleanly, as Ctrl-C where it runs: the latest states are kept, and it can be resumed.

    Args:
        ref: The sweep; see `rltune.pipeline.requests.asked_sweep.open_asked`.
        wait: Whether to wait until its driver has ended; an interrupt leaves the request where it is.
        stream: Where to say what happens; None is standard output.

    Returns:
        ``interrupted``, or how else it ended meanwhile; ``running`` where it was not waited for.

    Raises:
        StudyError: There is no such sweep, it does not run, or its driver dies before it has ended the sweep.
    """
    with open_asked(ref) as asked:
        where = asked.require_driver("stop")
        request = asked.ask(STOP, {})
        _say(stream, f"{asked.name}: its driver, {where}, was asked to stop")
        if not wait:
            return "running"
        if not _wait_for_end(asked, request, stream):
            if asked.find_driver():
                raise StudyError(
                    f"sweep={asked.name}: it goes on, another driver has begun since and was not asked",
                    "a request to the driver that works on it",
                    spell_command(f"stop sweep={asked.name}"),
                )
            asked.ledger.withdraw_request(request)
            raise StudyError(
                f"sweep={asked.name}: its driver, {where}, is gone without an end of the sweep",
                "what was recorded is kept",
                f"{asked.resume_command} goes on with it",
            )
        status = asked.status()
        _say(stream, _describe_end(asked, status))
        return status


def enqueue_configuration(
    ref: SweepRef,
    values: Mapping[str, Any],
    *,
    stream: TextIO | None = None,
) -> int:
    """Have a sweep try a configuration: it is the next trial that begins, and counts in the budget.

    Where the sweep does not run, the configuration waits for the next resume.

    Args:
        ref: As for `stop_sweep`.
        values: Of parameters that the sweep searches, by name; its searcher draws those that are left out.
        stream: As for `stop_sweep`.

    Returns:
        The request's id, see `rltune.study.ledger.Ledger.read_requests`.

    Raises:
        ConfigError: A value is not searched or out of its range, or there is none.
        StudyError: There is no such sweep, or it runs and has no trial left to begin.
    """
    with open_asked(ref) as asked:
        checked = check_configuration(asked, values)
        num_waiting = len(asked.ledger.read_requests(ENQUEUE))
        spent = asked.spent()
        larger = spent.spell_larger(num_waiting + 1)
        where = asked.find_driver()
        why = spent.explain(num_waiting)
        if where and why and asked.folder:  # else the budget may have grown since, which no file here says
            raise StudyError(
                f"sweep={asked.name}: {why}",
                "a sweep with trials left, or one that does not run",
                f"{asked.resume_command} {larger}, when it has ended and this command was typed again",
            )
        request = asked.ask(ENQUEUE, checked)
        what = f"{asked.name}: enqueued {format_params(checked)}"
        if where:
            _say(stream, f"{what}; it is the next trial that begins")
        else:
            _say(stream, f"{what}; it is tried by {f'{asked.resume_command} {larger}'.rstrip()}")
        return request


def check_configuration(asked: AskedSweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check a configuration against what a sweep searches, and return its values by the names of the space.

    Args:
        asked: The sweep.
        values: By name; names with dots may be nested.

    Raises:
        ConfigError: A value is not searched or out of its range, or there is none.
    """
    config = asked.config
    if name_sampler(config.searcher.kind) == "grid":
        raise ConfigError(
            f"sweep={asked.name} searches a grid, each of whose points it tries anyway",
            "a sweep with another searcher",
            spell_command("run searcher=rf ..."),
        )
    checked = build_search_space(config.algo, config.space).check_values(values)
    if not checked:
        raise ConfigError(
            "space has no values to be tried", "at least one", spell_command(f"enqueue sweep={asked.name} space.lr=...")
        )
    return checked


def ask_retry(
    ref: SweepRef,
    trials: Sequence[int] | None = None,
) -> Retry:
    """Have a sweep try its failed trials again, with their numbers and values, from their last checkpoints.

    A driver that works on it does so at once. Else the request waits for the next resume.

    Args:
        ref: As for `stop_sweep`.
        trials: Their numbers; None is all that failed, those of the certification with them.

    Raises:
        StudyError: There is no such sweep, or nothing in it that has failed and can be tried again.
    """
    with open_asked(ref) as asked:
        retry = _choose_failed(asked, trials)
        asked.ask(RETRY, dict(retry.numbers))
        return retry


def _choose_failed(asked: AskedSweep, trials: Sequence[int] | None) -> Retry:
    """Choose what is tried again, see `ask_retry`.

    Raises:
        StudyError: Nothing has failed that can be.
    """
    records = {record.number: record for record in asked.ledger.trials.records()}
    chosen = [_find_failed(asked, records, number) for number in trials or ()]
    runs = []
    if trials is None:
        chosen = [record for record in records.values() if _may_go_on(record, asked.config.budget.env_steps)]
        runs = [run.number for run in asked.ledger.runs.records() if run.state == "FAIL"]
    if not (chosen or runs):
        raise StudyError(
            f"sweep={asked.name}: no trial failed that could be tried again",
            "a sweep with failed trials",
            spell_command(f"show sweep={asked.name}"),
        )
    return Retry(asked.name, [record.number for record in chosen], runs, asked.find_driver())


def retry_failed(
    ref: SweepRef,
    trials: Sequence[int] | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    stream: TextIO | None = None,
) -> Outcome | None:
    """Try failed trials again: in the sweep that runs, else by going on with it.

    Args:
        ref: As for `stop_sweep`.
        trials: As for `ask_retry`.
        changes: As for `rltune.pipeline.run.resume_sweep`.
        stream: As for `stop_sweep`.

    Returns:
        How the sweep ended that was gone on with; None where its own driver tries them, or was stopped meanwhile.

    Raises:
        StudyError: As for `ask_retry`, or the sweep cannot be gone on with.
    """
    with open_asked(ref) as asked:
        retry = _choose_failed(asked, trials)
        if retry.driver:
            request = asked.ask(RETRY, dict(retry.numbers))
            _say(stream, f"{retry.sweep}: its driver, {retry.driver}, was asked to try {retry} again")
            if _wait_until_taken(asked, request, stream):
                _say(stream, f"{asked.name}: tried again as soon as a slot is free")
                return None
            if asked.status() == "interrupted":  # somebody has stopped it meanwhile, who did not mean it to go on
                _say(stream, f"{asked.name}: interrupted before; they are tried again by {asked.resume_command}")
                return None
    _say(stream, f"{retry.sweep}: going on with it, to try {retry} again")
    from rltune.pipeline.run import resume_sweep

    # It asks itself, of the ledger that it goes on with: that may be fetched anew from a bucket.
    return resume_sweep(replace(ref, name=retry.sweep), changes=changes, stream=stream, retry=retry.numbers)


def _wait_until_taken(asked: AskedSweep, request: int, stream: TextIO | None) -> bool:
    """Wait until a request was seen to; return False where the driver ends before."""
    while any(waiting.id == request for waiting in asked.ledger.read_requests()):
        if asked.lease.look() is False:
            return False
        time.sleep(POLL_S)
    return True


def _find_failed(asked: AskedSweep, records: Mapping[int, TrialRecord], number: int) -> TrialRecord:
    """Return the trial of a number.

    Raises:
        StudyError: There is none, or it cannot be tried again.
    """
    record = records.get(number)
    if record and _may_go_on(record, asked.config.budget.env_steps):
        return record
    failed = [one.number for one in records.values() if _may_go_on(one, asked.config.budget.env_steps)]
    raise StudyError(
        f"trials=[{number}]: " + (f"trial {number} is {record.state}, not failed" if record else "no such trial"),
        f"trials that failed: {', '.join(map(str, failed)) or 'none did'}",
        spell_command(f"show sweep={asked.name}"),
    )


def _may_go_on(record: TrialRecord, env_steps: int) -> bool:
    """Whether a trial failed, and did so before it had its whole budget: there is nothing left to train."""
    return record.state == "FAIL" and max(record.reports, default=0) < env_steps


def _wait_for_end(asked: AskedSweep, request: int, stream: TextIO | None) -> bool:
    """Wait until a sweep's driver has ended; return whether it ended the sweep, too, before another one began."""
    while asked.lease.look() is not False:
        if all(waiting.id != request for waiting in asked.ledger.read_requests(STOP, waiting=False)):
            return False
        time.sleep(POLL_S)
    return asked.status() != "running"


def _describe_end(asked: AskedSweep, status: str) -> str:
    said = asked.describe_end(status)
    return f"{said}; to go on: {asked.resume_command}" if status == "interrupted" else said


def _say(stream: TextIO | None, text: str) -> None:
    print(text, file=stream or sys.stdout, flush=True)
