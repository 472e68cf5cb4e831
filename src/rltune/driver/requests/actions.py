"""Stop a sweep, enqueue a configuration or retry failed trials, from any machine that can read the sweep's ledger.

A request is a row of the sweep's ledger, which the sweep's driver reads about once a second (`inbox`). Runs anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from rltune.algorithms.arguments import build_search_space, name_arguments
from rltune.checkpoints.store import find_store
from rltune.config.changes import ENDURANCE
from rltune.config.settings_file import read_identity
from rltune.driver.requests.handle import SweepHandle, open_handle
from rltune.errors import ConfigError, StudyError
from rltune.formatting import STATE_WORDS, flatten_settings, format_number, format_params, spell_command
from rltune.ledger.handover import fetch_sweep
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import CERTIFY, ENQUEUE, RETRY, STOP, TRIALS
from rltune.search.samplers import find_known_traits

if TYPE_CHECKING:
    from rltune.ledger.outcome import Outcome


def stop_sweep(ref: SweepRef, *, wait: bool = True, stream: TextIO | None = None) -> str:
    """Stop a running sweep cleanly, as Ctrl-C in its terminal does: trials save their training states.

    Args:
        ref: The sweep; see `rltune.driver.requests.handle.open_handle`.
        wait: Whether to wait until the sweep's driver has ended. An interrupt while waiting does not withdraw the
            request.
        stream: Where to print what happens; None is standard output.

    Returns:
        ``interrupted``, or the other state in which the sweep ended meanwhile; ``running`` without waiting.

    Raises:
        StudyError: There is no such sweep, it does not run, or its driver dies before it has ended the sweep.
    """
    with open_handle(ref) as sweep:
        driver = sweep.require_driver()
        request = sweep.send(STOP, {})
        _print(stream, f"{sweep.name}: its driver, {driver}, was asked to stop")
        if not wait:
            return "running"

        def is_withdrawn() -> bool:
            return all(request != other.id for other in sweep.ledger.read_requests(STOP, waiting=False))

        if sweep.wait_until(is_withdrawn) or sweep.read_status() == "running":
            raise _make_unstopped_error(sweep, request, driver)
        _print(stream, sweep.describe_end())
        return sweep.read_status()


def _make_unstopped_error(sweep: SweepHandle, request: int, driver: str) -> StudyError:
    """Make the error for a driver that died before it could stop; the unanswered stop request is withdrawn."""
    if sweep.find_driver():
        return StudyError(
            ": another driver has started since and was not asked to stop",
            "a stop request to the driver that works on it now",
            spell_command(f"stop sweep={sweep.name}"),
            key="sweep",
            value=sweep.name,
        )
    sweep.ledger.withdraw_request(request)
    return StudyError(
        f": its driver, {driver}, died before it ended the sweep",
        "what was recorded is kept",
        f"{sweep.resume_command} resumes it",
        key="sweep",
        value=sweep.name,
    )


def enqueue_configuration(ref: SweepRef, values: Mapping[str, Any], *, stream: TextIO | None = None) -> str:
    """Enqueue a configuration as the sweep's next trial, which counts towards ``budget.trials``.

    If the sweep does not run, then the configuration waits for the next resume.

    Args:
        ref: As for `stop_sweep`.
        values: The values of searched parameters by name; the sweep's searcher draws those that are left out.
        stream: As for `stop_sweep`.

    Returns:
        The larger budget that the configuration needs, such as ``budget.trials=49``; empty if the budget suffices.

    Raises:
        ConfigError: A parameter is not searched, a value is out of its range, or no value is given.
        StudyError: There is no such sweep, or it runs and has no trial left to start.
    """
    with open_handle(ref) as sweep:
        checked = check_configuration(sweep, values)
        num_waiting = len(sweep.ledger.read_requests(ENQUEUE))
        spent = sweep.compute_spent()
        larger = spent.spell_larger(num_waiting + 1)
        driver = sweep.find_driver()
        # Without the folder, only the original settings are known, and a resume may have increased the budget since.
        if driver and sweep.folder and (reason := spent.explain(num_waiting)):
            raise StudyError(
                f": {reason}",
                "a sweep with trials left, or one that does not run",
                f"{sweep.resume_command} {larger}, after the sweep has ended; then this command again",
                key="sweep",
                value=sweep.name,
            )
        sweep.send(ENQUEUE, checked)
        when = "is the next trial that begins" if driver else f"is tried by {sweep.resume_command} {larger}".rstrip()
        _print(stream, f"{sweep.name}: enqueued {format_params(checked)}; it {when}")
        return larger


def check_configuration(sweep: SweepHandle, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check a configuration against a sweep's search space, and return its values by parameter name.

    Args:
        sweep: The sweep.
        values: The values by name; a name with dots may be written as nested mappings.

    Raises:
        ConfigError: A parameter is not searched, a value is out of its range, or no value is given.
    """
    settings = sweep.settings
    # None for a user's own searcher class, because a service must not import it.
    traits = find_known_traits(settings["searcher"]["kind"])
    if traits and traits.is_grid:
        raise ConfigError(
            "sweep",
            sweep.name,
            "searches a grid and tries each of its points anyway",
            "a sweep with another searcher",
            spell_command("run searcher=rf ..."),
        )
    arguments = name_arguments(settings["algo"], settings["env"])
    checked = build_search_space(arguments, settings["space"]).check_values(values)
    if not checked:
        raise ConfigError(
            "space",
            {},
            "has no values to try",
            "at least one",
            spell_command(f"enqueue sweep={sweep.name} space.lr=..."),
        )
    return checked


def request_retry(ref: SweepRef, trials: Sequence[int] | None = None) -> dict[str, list[int]]:
    """Request that a sweep continues failed trials from their last checkpoints, with the same parameter values.

    A driver that works on the sweep does so at once. Otherwise the request waits for the next resume.

    Args:
        ref: As for `stop_sweep`.
        trials: The trials' numbers; None is every failed trial and every failed run of the certification.

    Returns:
        The numbers of what is retried, by TRIALS and CERTIFY of `rltune.records`.

    Raises:
        StudyError: There is no such sweep, or no failed trial that can be retried.
    """
    with open_handle(ref) as sweep:
        numbers = _choose_failed(sweep, trials)
        sweep.send(RETRY, numbers)
        return numbers


def retry_failed(
    ref: SweepRef,
    trials: Sequence[int] | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    trust: bool = False,
    stream: TextIO | None = None,
) -> Outcome | None:
    """Request that a sweep retries failed trials, and resume the sweep if no driver runs it.

    If the sweep cannot be resumed, then the request waits for the next resume.

    Args:
        ref: As for `stop_sweep`.
        trials: As for `request_retry`.
        changes: As for `rltune.driver.run.resume_sweep`.
        trust: As for `rltune.driver.run.resume_sweep`.
        stream: As for `stop_sweep`.

    Returns:
        The outcome of the resumed sweep; None if its own driver retries them, or was stopped meanwhile.

    Raises:
        StudyError: As for `request_retry`, the sweep cannot be resumed, or it runs and has to end before it can change.
    """
    with contextlib.ExitStack() as stack:
        sweep = stack.enter_context(open_handle(ref))
        if sweep.folder and sweep.is_outdated():
            stack.close()  # The ledger has to be closed before its file is replaced by a newer one.
            fetch_sweep(find_store(read_identity(sweep.folder)), for_driver=True)
            sweep = stack.enter_context(open_handle(ref))
        name, numbers = sweep.name, _choose_failed(sweep, trials)
        endured = [(key, value) for key, value in flatten_settings(changes or {}) if key in ENDURANCE]
        key, value = next(((key, value) for key, value in endured if value is not None), ("", None))
        if key and (driver := sweep.find_driver()):
            raise StudyError(
                f": {name} runs with its own, by {driver}",
                "changes of a sweep that does not run",
                f"{spell_command(f'stop sweep={name}')}, then the same command; without {key} it retries at once",
                key=key,
                value=value,
            )
        request = sweep.send(RETRY, numbers)
        if driver := sweep.find_driver():
            _print(stream, f"{name}: its driver, {driver}, was asked to retry {_describe(numbers)}")
            if sweep.wait_until(lambda: all(request != other.id for other in sweep.ledger.read_requests(RETRY))):
                _print(stream, f"{name}: retried as soon as a slot is free")
                return None
            if sweep.read_status() == "interrupted":
                # A sweep that a user has stopped meanwhile is not resumed.
                _print(stream, sweep.describe_end())
                return None
    _print(stream, f"{name}: resuming it to retry {_describe(numbers)}")
    from rltune.driver.run import resume_sweep

    return resume_sweep(replace(ref, name=name), changes=changes, trust=trust, stream=stream)


def _choose_failed(sweep: SweepHandle, numbers: Sequence[int] | None) -> dict[str, list[int]]:
    """Return the numbers of the failed trials and certification runs to retry; see `request_retry`.

    Raises:
        StudyError: No trial has failed that can be retried, or the number of one is not among them.
    """
    trials = sweep.ledger.trials.records()
    failed = [trial.number for trial in trials if trial.can_be_retried(sweep.budget.env_steps)]
    show = spell_command(f"show sweep={sweep.name}")
    if numbers:
        ends = {trial.number: f"is {STATE_WORDS[trial.state]}" for trial in trials}
        ends |= {trial.number: "failed at the end of its budget" for trial in trials if trial.state == "FAIL"}
        for number in numbers:
            if number not in failed:
                state = f"trial {number} {ends[number]}" if number in ends else "no such trial"
                allowed = f"trials that failed within their budget: {', '.join(map(str, failed)) or 'none did'}"
                raise StudyError(f": {state}", allowed, show, key="trials", value=[number])
        return {TRIALS: list(numbers), CERTIFY: []}
    runs = [run.number for run in sweep.ledger.runs.records() if run.state == "FAIL"]
    if numbers is None and (failed or runs):
        return {TRIALS: failed, CERTIFY: runs}
    raise StudyError(
        ": no trial failed that could be retried", "a sweep with failed trials", show, key="sweep", value=sweep.name
    )


def _describe(numbers: Mapping[str, Sequence[int]]) -> str:
    """Describe the trials to retry, as in ``2 trials (3, 5)``."""
    trials, runs = numbers[TRIALS], numbers[CERTIFY]
    parts = [f"{format_number(len(trials), 'trial')} ({', '.join(map(str, trials))})"] if trials else []
    parts += [f"{format_number(len(runs), 'run')} of the certification"] if runs else []
    return " and ".join(parts)


def _print(stream: TextIO | None, text: str | None) -> None:
    if text:
        print(text, file=stream, flush=True)
