"""Select the policy that wins: the best certified one, else the best of the finalists on fresh episodes.

A search's best score is the luckiest of many and so too high. `rltune.certification.retraining` trains the best
configurations again; here the one policy to be registered is chosen and measured. Runs in the driver.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
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
from rltune.statistics import predictive_interval

if TYPE_CHECKING:
    from rltune.policies.evaluation import Evaluation


TABLE = "certification"
LOOK_S = 0.5  # between two looks at how far those are that play


class FinalEvaluation:
    """Evaluates the finalists of a sweep that is not certified, each on the same fresh episodes.

    With processes of their own they play at the same time.

    Args:
        sweep: The sweep's folder.
        top: How many to evaluate; 0 trusts the search.
        episodes: Fresh episodes for each.
        slots: How many play at once.
        aside: Calls a function in a process of its own, with ``progress`` added; None without such processes.
        objective: What the scores measure; None is the return.
    """

    def __init__(
        self,
        sweep: Path,
        top: int,
        episodes: int,
        slots: int,
        aside: Callable[..., Any] | None,
        objective: Objective | None = None,
    ) -> None:
        self._sweep, self._top, self._episodes, self._slots = sweep, top, episodes, slots
        self._aside, self._objective = aside, objective or Objective()
        self._num_evaluations = 1  # The winner is measured once more.
        self._played: list[int] = []  # Episodes of each evaluation that was begun; the evaluations' threads write.

    def select(
        self, records: Sequence[TrialRecord], notify: Callable[[str], None], show: Show = show_nothing
    ) -> Finalist | None:
        """Select the best by the evaluation's mean, and measure it once more on episodes that did not choose it.

        The search's first wins when none can be evaluated; None without trials.

        Args:
            records: All trials.
            notify: Shows a person a line.
            show: Shows how far the evaluations are.
        """
        direction = self._objective.direction
        ranked = rank_finalists(self._sweep, records, direction)
        finalists = list(itertools.islice(ranked, max(1, self._top)))
        pool = ThreadPoolExecutor(self._slots if self._aside else 1)
        try:
            evaluated = self._evaluate(pool, finalists[: self._top], notify, show)
            if any((finalist.folder / "seed-1").is_dir() for finalist in finalists):
                notify("replicates without certification: the policy of its first seed stands for each trial")
            if evaluated:
                best = max(evaluated, key=lambda finalist: direction.sign * finalist.score)
                return self._measure(pool, best, notify, show)
            return finalists[0] if finalists else None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _evaluate(
        self, pool: Executor, finalists: Sequence[Finalist], notify: Callable[[str], None], show: Show
    ) -> list[Finalist]:
        """Evaluate all finalists on the same episodes; leave out those whose policy cannot play."""
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
            except RltuneError as error:  # A process that died or hangs does not spoil the other results.
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
        except RltuneError as error:  # The choice stands without this measurement.
            notify(f"{winner.name} cannot be measured once more: {error.what}")
            return winner
        others = winner.evaluation.returns if winner.evaluation else ()
        return replace(winner, measured=_bound(played, others, self._objective.direction))

    def _wait(self, future: Future[Evaluation], who: str, show: Show) -> Evaluation:
        """Wait for an evaluation, and show meanwhile how many episodes all evaluations have played."""
        while not wait([future], LOOK_S).done:
            show(who, sum(self._played), self._num_evaluations * self._episodes)
        return future.result()

    def _start_playing(self, pool: Executor, folder: Path, seed: int = EVALUATION_SEED) -> Future[Evaluation]:
        self._played.append(0)
        note = partial(self._note_played, len(self._played) - 1)
        return pool.submit(_play, folder, self._episodes, seed, note, self._aside)

    def _note_played(self, index: int, done: int, _: int) -> None:
        self._played[index] = done


def measure_policies(
    certification: Certification, sweep: Path, episodes: int, direction: Direction, show: Show = show_nothing
) -> tuple[Certification, Finalist]:
    """Measure the winner's policy, that of its run with the best score, on episodes that did not choose it.

    The policy plays the episodes that are the same in every sweep, by which champions are compared, and as many of the
    sweep's own, by which nothing is chosen.

    Args:
        certification: How the configurations were judged.
        sweep: The sweep's folder.
        episodes: The number of episodes of each kind.
        direction: Which scores are better.
        show: Shows how many episodes were played.

    Returns:
        The certification with its policy, and the policy. A checkpoint without a policy (its network needs RLlib) is
        not measured.
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
    played = _play(folder, episodes, derive_own_seed(sweep.name), partial(show_progress, episodes))
    measured = _bound(played, (*compared.returns, *run.returns), direction)
    assert measured.low is not None
    assert measured.high is not None
    numbers = measured.mean, measured.iqm, measured.low, measured.high
    policy = CertifiedPolicy(best.name, run.seed, run.checkpoint, episodes, *numbers)
    return replace(certification, policy=policy), replace(winner, evaluation=compared, measured=measured)


def _bound(played: Evaluation, others: Sequence[float], direction: Direction) -> Evaluation:
    """Set the interval in which the mean of as many fresh episodes will lie.

    Args:
        played: The episodes.
        others: Scores of other episodes of the same policy, which may be worse.
        direction: Which scores are better.
    """
    worst = direction.find_worst((*played.returns, *others))
    assert worst is not None
    low, high = predictive_interval(played.returns, len(played.returns), worst)
    return replace(played, low=low, high=high)


def _play(
    folder: Path,
    episodes: int,
    seed: int,
    progress: Callable[[int, int], None],
    aside: Callable[..., Any] | None = None,
) -> Evaluation:
    """Play a checkpoint's policy on the episodes from a seed on."""
    from rltune.policies.evaluation import evaluate_checkpoint  # Imports torch; the start of a sweep need not wait.

    if aside is None:
        return evaluate_checkpoint(folder, episodes, seed, progress=progress)
    evaluation: Evaluation = aside(evaluate_checkpoint, folder, episodes, seed, progress=progress)
    return evaluation


def write_table(certification: Certification, folder: Path) -> list[Path]:
    """Write the table as CSV and as the JSON that MLflow shows as a table (``mlflow.log_table``).

    Returns:
        Both files, in the sweep's folder.
    """
    rows = certification.table()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    paths = [folder / f"{TABLE}.csv", folder / f"{TABLE}.json"]
    paths[0].write_text(text.getvalue())
    paths[1].write_text(json.dumps({"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}))
    return paths
