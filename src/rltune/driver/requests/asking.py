"""Request that a sweep stops, tries a configuration or retries failed trials, whoever runs the sweep and wherever.

A request is a row of the sweep's ledger, which the sweep's driver reads about once a second (`inbox`). Runs anywhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from rltune.algorithms.arguments import build_search_space
from rltune.driver.requests.asked_sweep import AskedSweep, open_asked
from rltune.errors import ConfigError, StudyError
from rltune.formatting import format_number, format_params, spell_command
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import CERTIFY, ENQUEUE, RETRY, STOP, TRIALS, TrialRecord
from rltune.search.samplers import name_sampler

if TYPE_CHECKING:
    from rltune.ledger.outcome import Outcome

POLL_S = 0.5


@dataclass(frozen=True)
class Retry:
    """Trials and runs to be retried.

    Attributes:
        sweep: The sweep's name.
        trials: The numbers of the search's trials.
        runs: The numbers of the certification's runs.
        driver: Where the driver runs that retries them; None where the sweep has to be resumed.
    """

    sweep: str
    trials: Sequence[int]
    runs: Sequence[int]
    driver: str | None

    @property
    def numbers(self) -> dict[str, Sequence[int]]:
        """The request's payload."""
        return {TRIALS: self.trials, CERTIFY: self.runs}

    def __str__(self) -> str:
        """Describe what is retried, as in ``2 trials (3, 5)``."""
        numbers = f" ({', '.join(map(str, self.trials))})" if self.trials else ""
        parts = [format_number(len(self.trials), "trial") + numbers] if self.trials else []
        parts += [format_number(len(self.runs), "run") + " of the certification"] if self.runs else []
        return " and ".join(parts)


def stop_sweep(
    ref: SweepRef,
    *,
    wait: bool = True,
    stream: TextIO | None = None,
) -> str:
    """End a running sweep cleanly, as Ctrl-C in its own terminal does: the latest training states are kept.

    Args:
        ref: The sweep; see `rltune.driver.requests.asked_sweep.open_asked`.
        wait: Whether to wait until the sweep's driver has ended. An interrupt while waiting does not withdraw the
            request.
        stream: Where to print what happens; None is standard output.

    Returns:
        ``interrupted``, or the other state in which the sweep ended meanwhile; ``running`` without waiting.

    Raises:
        StudyError: There is no such sweep, it does not run, or its driver dies before it has ended the sweep.
    """
    with open_asked(ref) as sweep:
        driver = sweep.require_driver("stop")
        request = sweep.ask(STOP, {})
        _print(stream, f"{sweep.name}: its driver, {driver}, was asked to stop")
        if not wait:
            return "running"
        if not _wait_for_end(sweep, request, stream):
            if sweep.find_driver():
                raise StudyError(
                    f"sweep={sweep.name}: it goes on, another driver has begun since and was not asked",
                    "a request to the driver that works on it",
                    spell_command(f"stop sweep={sweep.name}"),
                )
            sweep.ledger.withdraw_request(request)
            raise StudyError(
                f"sweep={sweep.name}: its driver, {driver}, is gone without an end of the sweep",
                "what was recorded is kept",
                f"{sweep.resume_command} goes on with it",
            )
        status = sweep.status()
        _print(stream, _describe_end(sweep, status))
        return status


def enqueue_configuration(
    ref: SweepRef,
    values: Mapping[str, Any],
    *,
    stream: TextIO | None = None,
) -> int:
    """Enqueue a configuration as the sweep's next trial, which counts in its budget.

    Where the sweep does not run, the configuration waits for the next resume.

    Args:
        ref: As for `stop_sweep`.
        values: The values of searched parameters by name; the sweep's searcher draws those that are left out.
        stream: As for `stop_sweep`.

    Returns:
        The request's id, see `rltune.ledger.ledger.Ledger.read_requests`.

    Raises:
        ConfigError: A parameter is not searched, a value is out of its range, or no value is given.
        StudyError: There is no such sweep, or it runs and has no trial left to start.
    """
    with open_asked(ref) as sweep:
        checked = check_configuration(sweep, values)
        num_waiting = len(sweep.ledger.read_requests(ENQUEUE))
        spent = sweep.spent()
        larger = spent.spell_larger(num_waiting + 1)
        driver = sweep.find_driver()
        reason = spent.explain(num_waiting)
        # Without the sweep's folder the settings are those of its start, and the budget may have grown since.
        if driver and reason and sweep.folder:
            raise StudyError(
                f"sweep={sweep.name}: {reason}",
                "a sweep with trials left, or one that does not run",
                f"{sweep.resume_command} {larger}, when it has ended and this command was typed again",
            )
        request = sweep.ask(ENQUEUE, checked)
        message = f"{sweep.name}: enqueued {format_params(checked)}"
        if driver:
            _print(stream, f"{message}; it is the next trial that begins")
        else:
            _print(stream, f"{message}; it is tried by {f'{sweep.resume_command} {larger}'.rstrip()}")
        return request


def check_configuration(sweep: AskedSweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check a configuration against a sweep's search space, and return its values by the names of the space.

    Args:
        sweep: The sweep.
        values: The values by name; a name with dots may be written as nested mappings.

    Raises:
        ConfigError: A parameter is not searched, a value is out of its range, or no value is given.
    """
    config = sweep.config
    if name_sampler(config.searcher.kind) == "grid":
        raise ConfigError(
            f"sweep={sweep.name} searches a grid, each of whose points it tries anyway",
            "a sweep with another searcher",
            spell_command("run searcher=rf ..."),
        )
    checked = build_search_space(config.algo, config.space).check_values(values)
    if not checked:
        raise ConfigError(
            "space has no values to be tried", "at least one", spell_command(f"enqueue sweep={sweep.name} space.lr=...")
        )
    return checked


def ask_retry(
    ref: SweepRef,
    trials: Sequence[int] | None = None,
) -> Retry:
    """Request that a sweep retries failed trials, with their numbers and values, from their last checkpoints.

    A driver that works on the sweep does so at once. Otherwise the request waits for the next resume.

    Args:
        ref: As for `stop_sweep`.
        trials: The trials' numbers; None is every failed trial and every failed run of the certification.

    Raises:
        StudyError: There is no such sweep, or no failed trial that can be retried.
    """
    with open_asked(ref) as sweep:
        retry = _choose_failed(sweep, trials)
        sweep.ask(RETRY, dict(retry.numbers))
        return retry


def _choose_failed(sweep: AskedSweep, trials: Sequence[int] | None) -> Retry:
    """Choose what is retried, see `ask_retry`.

    Raises:
        StudyError: No trial has failed that can be retried.
    """
    records = {record.number: record for record in sweep.ledger.trials.records()}
    chosen = [_find_failed(sweep, records, number) for number in trials or ()]
    runs = []
    if trials is None:
        chosen = [record for record in records.values() if _can_be_retried(record, sweep.config.budget.env_steps)]
        runs = [run.number for run in sweep.ledger.runs.records() if run.state == "FAIL"]
    if not (chosen or runs):
        raise StudyError(
            f"sweep={sweep.name}: no trial failed that could be tried again",
            "a sweep with failed trials",
            spell_command(f"show sweep={sweep.name}"),
        )
    return Retry(sweep.name, [record.number for record in chosen], runs, sweep.find_driver())


def retry_failed(
    ref: SweepRef,
    trials: Sequence[int] | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    stream: TextIO | None = None,
) -> Outcome | None:
    """Retry failed trials: by a request to the sweep's driver, or by resuming the sweep where it does not run.

    Args:
        ref: As for `stop_sweep`.
        trials: As for `ask_retry`.
        changes: As for `rltune.driver.run.resume_sweep`.
        stream: As for `stop_sweep`.

    Returns:
        The outcome of the resumed sweep; None where its own driver retries them, or was stopped meanwhile.

    Raises:
        StudyError: As for `ask_retry`, or the sweep cannot be resumed.
    """
    with open_asked(ref) as sweep:
        retry = _choose_failed(sweep, trials)
        if retry.driver:
            request = sweep.ask(RETRY, dict(retry.numbers))
            _print(stream, f"{retry.sweep}: its driver, {retry.driver}, was asked to try {retry} again")
            if _wait_until_taken(sweep, request, stream):
                _print(stream, f"{sweep.name}: tried again as soon as a slot is free")
                return None
            if sweep.status() == "interrupted":  # A user who has stopped it meanwhile does not want it resumed.
                _print(stream, f"{sweep.name}: interrupted before; they are tried again by {sweep.resume_command}")
                return None
    _print(stream, f"{retry.sweep}: going on with it, to try {retry} again")
    from rltune.driver.run import resume_sweep

    # The resumed sweep adds the request itself, because it may continue from a ledger that it fetches anew.
    return resume_sweep(replace(ref, name=retry.sweep), changes=changes, stream=stream, retry=retry.numbers)


def _wait_until_taken(sweep: AskedSweep, request: int, stream: TextIO | None) -> bool:
    """Wait until the driver has taken a request; return False if the driver ends before."""
    while any(waiting.id == request for waiting in sweep.ledger.read_requests()):
        if sweep.lease.look() is False:
            return False
        time.sleep(POLL_S)
    return True


def _find_failed(sweep: AskedSweep, records: Mapping[int, TrialRecord], number: int) -> TrialRecord:
    """Return a failed trial by its number.

    Raises:
        StudyError: There is no such trial, or it cannot be retried.
    """
    record = records.get(number)
    if record and _can_be_retried(record, sweep.config.budget.env_steps):
        return record
    failed = [trial.number for trial in records.values() if _can_be_retried(trial, sweep.config.budget.env_steps)]
    raise StudyError(
        f"trials=[{number}]: " + (f"trial {number} is {record.state}, not failed" if record else "no such trial"),
        f"trials that failed: {', '.join(map(str, failed)) or 'none did'}",
        spell_command(f"show sweep={sweep.name}"),
    )


def _can_be_retried(record: TrialRecord, env_steps: int) -> bool:
    """Return whether a trial failed before it had its whole budget; after that there is nothing left to train."""
    return record.state == "FAIL" and max(record.reports, default=0) < env_steps


def _wait_for_end(sweep: AskedSweep, request: int, stream: TextIO | None) -> bool:
    """Wait until a sweep's driver has ended; return whether it also ended the sweep before another driver started."""
    while sweep.lease.look() is not False:
        if all(waiting.id != request for waiting in sweep.ledger.read_requests(STOP, waiting=False)):
            return False
        time.sleep(POLL_S)
    return sweep.status() != "running"


def _describe_end(sweep: AskedSweep, status: str) -> str:
    description = sweep.describe_end(status)
    return f"{description}; to go on: {sweep.resume_command}" if status == "interrupted" else description


def _print(stream: TextIO | None, text: str) -> None:
    print(text, file=stream or sys.stdout, flush=True)
