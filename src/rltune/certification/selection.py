"""Select and measure the winning policy: the best certified one, else the best finalist on fresh episodes.

The best score of a search is biased, because it is the best of many. So the winner is measured on other episodes than
those that chose it. Runs in the driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.certification.finalists import (
    EVALUATION_SEED,
    Finalist,
    Show,
    derive_own_seed,
    is_playable,
    rank_finalists,
    show_nothing,
)
from rltune.certification.result import Certification, CertifiedPolicy
from rltune.checkpoints.store import find_store
from rltune.envs.objective import Objective
from rltune.errors import RltuneError
from rltune.formatting import format_number, format_objective
from rltune.records import Direction, TrialRecord

if TYPE_CHECKING:
    from rltune.policies.evaluation import Evaluation


PROGRESS_S = 0.5  # Seconds between two updates of the displayed progress.


class FinalEvaluation:
    """Evaluates the finalists of a sweep without certification, all on the same fresh episodes.

    Args:
        sweep: The sweep's folder.
        top: The number of finalists to evaluate; with 0 the best trial of the search wins.
        episodes: The number of episodes of each finalist.
        slots: The number of finalists that play at the same time, each in a process of its own.
        call_in_subprocess: Calls a function in a process of its own, and its argument ``progress`` in this one. None if
            there are no such processes; then the finalists play one after another.
        objective: The objective of the scores; None is the return.
    """

    def __init__(
        self,
        sweep: Path,
        top: int,
        episodes: int,
        slots: int,
        call_in_subprocess: Callable[..., Any] | None,
        objective: Objective | None = None,
    ) -> None:
        self._sweep, self._top, self._episodes, self._slots = sweep, top, episodes, slots
        self._call_in_subprocess, self._objective = call_in_subprocess, objective or Objective()
        self._num_evaluations = 1  # The number of evaluations; starts at one for the winner's final one.
        self._played: list[int] = []  # Number of played episodes by evaluation, written by the evaluations' threads.

    def select(
        self, records: Sequence[TrialRecord], notify: Callable[[str], None], show: Show = show_nothing
    ) -> Finalist | None:
        """Select the finalist with the best mean, and evaluate it again on other episodes for an unbiased mean.

        Args:
            records: All trials.
            notify: Shows the user a line.
            show: Shows the progress of the evaluations.

        Returns:
            The winner: the best trial of the search if no finalist can be evaluated; None without a trial.
        """
        direction = self._objective.direction
        ranked = rank_finalists(self._sweep, records, direction)
        finalists = list(itertools.islice(ranked, max(1, self._top)))
        pool = ThreadPoolExecutor(self._slots if self._call_in_subprocess else 1)
        try:
            evaluated = self._evaluate(pool, finalists[: self._top], notify, show)
            if any((finalist.folder / "seed-1").is_dir() for finalist in finalists):
                notify("replicates without certification: each trial is represented by the policy of its first seed")
            if evaluated:
                best = max(evaluated, key=lambda finalist: direction.sign * finalist.score)
                return self._measure(pool, best, notify, show)
            return finalists[0] if finalists else None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _evaluate(
        self, pool: Executor, finalists: Sequence[Finalist], notify: Callable[[str], None], show: Show
    ) -> list[Finalist]:
        """Evaluate all finalists on the same episodes; leave out those whose policy cannot be evaluated."""
        futures = [
            self._start_playing(pool, finalist.folder) if is_playable(finalist.folder) else None
            for finalist in finalists
        ]
        self._num_evaluations += len(self._played)
        evaluated = []
        for finalist, future in zip(finalists, futures, strict=True):
            if future is None:
                notify(f"{finalist.name} cannot be evaluated: its network needs RLlib")
                continue
            try:
                evaluation = self._wait(future, f"evaluating the {format_number(len(futures), 'best trial')}", show)
            except RltuneError as error:  # The other finalists still count if one evaluation's process dies or hangs.
                notify(f"{finalist.name} cannot be evaluated: {error.what}")
                continue
            score = f"mean {self._objective.name} {format_objective(evaluation.mean)}"
            notify(f"{finalist.name}: {score} on the {self._episodes} episodes that choose the winner")
            evaluated.append(replace(finalist, evaluation=evaluation))
        return evaluated

    def _measure(self, pool: Executor, winner: Finalist, notify: Callable[[str], None], show: Show) -> Finalist:
        try:
            future = self._start_playing(pool, winner.folder, derive_own_seed(self._sweep.name))
            played = self._wait(future, "measuring the winner on other episodes", show)
        except RltuneError as error:  # The winner stays the winner even if this second evaluation fails.
            notify(f"{winner.name} could not be evaluated on other episodes: {error.what}")
            return winner
        return replace(winner, measured=played)

    def _wait(self, future: Future[Evaluation], who: str, show: Show) -> Evaluation:
        """Wait for one evaluation, and meanwhile show how many episodes all evaluations have played together."""
        while not wait([future], PROGRESS_S).done:
            show(who, sum(self._played), self._num_evaluations * self._episodes)
        return future.result()

    def _start_playing(self, pool: Executor, folder: Path, seed: int = EVALUATION_SEED) -> Future[Evaluation]:
        self._played.append(0)
        note = partial(self._note_played, len(self._played) - 1)
        return pool.submit(_play, folder, self._episodes, seed, note, self._call_in_subprocess)

    def _note_played(self, index: int, num_played: int, _: int) -> None:
        self._played[index] = num_played


def measure_policies(
    certification: Certification, sweep: Path, episodes: int, direction: Direction, show: Show = show_nothing
) -> tuple[Certification, Finalist]:
    """Evaluate the policy of the winner's best run on episodes that did not choose it, which gives an unbiased mean.

    The policy plays the episodes that are the same in every sweep, to compare champions, and as many episodes that only
    this sweep plays, which decide nothing.

    Args:
        certification: The judged configurations.
        sweep: The sweep's folder.
        episodes: The number of episodes of each kind.
        direction: Which scores are better.
        show: Shows how many episodes were played.

    Returns:
        The certification with its policy, and the policy. Both are without measurements if the checkpoint holds no
        policy that can be evaluated.
    """
    best = certification.best()
    run = max(best.per_seed, key=lambda result: direction.sign * result.mean)
    folder = find_store(sweep).find(run.checkpoint) or sweep / run.checkpoint
    winner = Finalist(best.name, best.trial, best.params, best.search_score, folder, run.run)
    if not is_playable(folder):
        return certification, winner

    def show_progress(num_before: int, num_played: int, _: int) -> None:
        show("measuring the winner", num_before + num_played, 2 * episodes)

    compared = _play(folder, episodes, EVALUATION_SEED, partial(show_progress, 0))
    measured = _play(folder, episodes, derive_own_seed(sweep.name), partial(show_progress, episodes))
    policy = CertifiedPolicy(best.name, run.seed, run.checkpoint, episodes, measured.mean, measured.low, measured.high)
    return replace(certification, policy=policy), replace(winner, evaluation=compared, measured=measured)


def _play(
    folder: Path,
    episodes: int,
    seed: int,
    progress: Callable[[int, int], None],
    call_in_subprocess: Callable[..., Any] | None = None,
) -> Evaluation:
    """Evaluate a checkpoint's policy on ``episodes`` consecutive environment seeds, if possible in a subprocess."""
    from rltune.policies.evaluation import evaluate_checkpoint  # Imported here, because torch loads slowly.

    if call_in_subprocess is None:
        return evaluate_checkpoint(folder, episodes, seed, progress=progress)
    evaluation: Evaluation = call_in_subprocess(evaluate_checkpoint, folder, episodes, seed, progress=progress)
    return evaluation
