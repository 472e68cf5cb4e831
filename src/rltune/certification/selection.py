"""Select and measure the winning policy: the best certified one, else the best finalist on fresh episodes.

The best score of a search is biased, because it is the best of many. So the winner is measured on other episodes than
those that chose it. Runs in the driver, whose main thread only waits, so that a signal can end every evaluation.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
from rltune.checkpoints.store import Store
from rltune.envs.objective import Objective
from rltune.errors import PolicyError, RltuneError, describe_exception
from rltune.formatting import format_number, format_objective
from rltune.policies import acting
from rltune.records import Direction, TrialRecord
from rltune.trial.recent_episodes import read_training_scores

if TYPE_CHECKING:
    from rltune.policies.evaluation import Evaluation


PROGRESS_S = 0.5  # Seconds between two updates of the displayed progress.
Answer = TypeVar("Answer")
Keep = Callable[[Finalist, Mapping[str, Any]], Finalist]
"""Stores how a finalist acts, as `rltune.policies.acting.choose_acting` decided, and returns it with its new files."""


class EvaluationStoppedError(Exception):
    """An evaluation was given up, because the sweep has to end within seconds."""


class Player:
    """Plays episodes beside the main thread, which shows the progress and gives them up if the sweep has to end.

    Args:
        slots: The number of evaluations that are played at the same time.
        call_in_subprocess: Calls a function in a process of its own, and its argument ``progress`` in this one. None if
            there are no such processes; then threads play, one after another, and are given up between two steps.
        is_urgent: Whether the sweep has to end within seconds.
        show: Shows the progress of the evaluations.
    """

    def __init__(
        self,
        slots: int = 1,
        call_in_subprocess: Callable[..., Any] | None = None,
        is_urgent: Callable[[], bool] = lambda: False,
        show: Show = show_nothing,
    ) -> None:
        self._slots, self._call_in_subprocess = slots, call_in_subprocess
        self._is_urgent, self._show = is_urgent, show
        self._played: list[int] = []  # Number of played episodes by evaluation, written by the evaluations' threads.
        self._total = 0
        self._pool: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def open(self, episodes: int) -> Iterator[None]:
        """Let evaluations of so many episodes in all be started in the context, and leave none waiting behind it."""
        self._played, self._total = [], episodes
        self._pool = ThreadPoolExecutor(self._slots if self._call_in_subprocess else 1)
        try:
            yield
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def start(self, function: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        """Start an evaluation.

        Args:
            function: A function at the top level of a module, with an argument ``progress``.
            arguments: Its other arguments.
        """
        assert self._pool is not None
        self._played.append(0)
        call = function if self._call_in_subprocess is None else partial(self._call_in_subprocess, function)
        return self._pool.submit(
            call, *arguments, progress=partial(self._note_played, self._played, len(self._played) - 1)
        )

    def wait(self, future: Future[Answer], who: str) -> Answer:
        """Wait for an evaluation, and meanwhile show how many episodes all of them have played together.

        Raises:
            EvaluationStoppedError: The sweep has to end.
            RltuneError: The policy cannot be evaluated; also for any exception of the environment.
        """
        while not wait([future], PROGRESS_S).done:
            if self._is_urgent():
                raise EvaluationStoppedError
            self._show(who, sum(self._played), self._total)
        try:
            return future.result()
        except (RltuneError, EvaluationStoppedError):
            raise
        except Exception as error:  # The environment is a user's code, which may raise any exception.
            allowed, fix = "an environment that plays its episodes to the end", "correct its reset and step"
            raise PolicyError(describe_exception(error), allowed, fix) from error

    def _note_played(self, played: list[int], index: int, num_played: int, _: int) -> None:
        if self._is_urgent():  # Ends the evaluation itself: its thread, and its process by a broken connection.
            raise EvaluationStoppedError
        played[index] = num_played


class FinalEvaluation:
    """Evaluates the finalists of a sweep without certification, all on the same fresh episodes.

    Args:
        store: The sweep's store.
        top: The number of finalists to evaluate; with 0 the best trial of the search wins.
        episodes: The number of episodes of each finalist.
        player: Plays the episodes.
        objective: The objective of the scores; None is the return.
        keep: Stores that a finalist acts by sampling.
    """

    def __init__(
        self,
        store: Store,
        top: int,
        episodes: int,
        player: Player,
        objective: Objective | None = None,
        keep: Keep = lambda finalist, _: finalist,
    ) -> None:
        self._store, self._top, self._episodes, self._player = store, top, episodes, player
        self._objective, self._keep = objective or Objective(), keep

    def select(self, records: Sequence[TrialRecord], notify: Callable[[str], None]) -> Finalist | None:
        """Select the finalist with the best mean, and evaluate it again on other episodes for an unbiased mean.

        Args:
            records: All trials.
            notify: Shows the user a line.

        Returns:
            The winner: the best trial of the search if no finalist can be evaluated; None without a trial.

        Raises:
            EvaluationStoppedError: The sweep has to end.
        """
        direction = self._objective.direction
        ranked = rank_finalists(self._store, records, direction)
        finalists = list(itertools.islice(ranked, max(1, self._top)))
        if any((finalist.folder / "seed-1").is_dir() for finalist in finalists):
            notify("replicates without certification: each trial is represented by the policy of its first seed")
        playable = []
        for finalist in finalists[: self._top]:
            if is_playable(finalist.folder):
                playable.append(finalist)
            else:
                notify(f"{finalist.name} cannot be evaluated: its network needs RLlib")
        playable = self._choose_acting(playable, notify)
        with self._player.open((1 + len(playable)) * self._episodes):
            evaluated = self._evaluate(playable, notify)
            if evaluated:
                best = max(evaluated, key=lambda finalist: direction.sign * finalist.score)
                return self._measure(best, notify)
        return finalists[0] if finalists else None

    def _choose_acting(self, finalists: Sequence[Finalist], notify: Callable[[str], None]) -> list[Finalist]:
        """Let each finalist act deterministically or by sampling, by episodes that count for nothing else."""
        # What an earlier driver has decided stays.
        scores = [
            [] if acting.read_acting(finalist.folder) else read_training_scores(finalist.folder)
            for finalist in finalists
        ]
        chosen = list(finalists)
        with self._player.open(acting.NUM_EPISODES * sum(map(bool, scores))):
            futures = {
                index: self._player.start(acting.choose_acting, finalist.folder, scores[index])
                for index, finalist in enumerate(finalists)
                if scores[index]
            }
            for index, future in futures.items():
                try:
                    decision = self._player.wait(future, "testing whether sampled actions are better")
                except RltuneError:  # The policy cannot be played, and its evaluation will say why.
                    continue
                if decision:
                    chosen[index] = self._keep(finalists[index], decision)
                    notify(f"{finalists[index].name} {acting.describe_acting(decision)}")
        return chosen

    def _evaluate(self, finalists: Sequence[Finalist], notify: Callable[[str], None]) -> list[Finalist]:
        """Evaluate all finalists on the same episodes; leave out those whose policy cannot be evaluated."""
        futures = [_start_evaluation(self._player, finalist.folder, self._episodes) for finalist in finalists]
        evaluated = []
        for finalist, future in zip(finalists, futures, strict=True):
            try:
                evaluation = self._player.wait(future, f"evaluating the {format_number(len(futures), 'best trial')}")
            except RltuneError as error:  # The other finalists still count if one evaluation's process dies or hangs.
                notify(f"{finalist.name} cannot be evaluated: {error.what}")
                continue
            score = f"mean {self._objective.name} {format_objective(evaluation.mean)}"
            notify(f"{finalist.name}: {score} on the {self._episodes} episodes that choose the winner")
            if evaluation.cut:
                notify(f"{finalist.name}: {evaluation.explain_cut()}")
            evaluated.append(replace(finalist, evaluation=evaluation))
        return evaluated

    def _measure(self, winner: Finalist, notify: Callable[[str], None]) -> Finalist:
        try:
            seed = derive_own_seed(self._store.folder.name)
            future = _start_evaluation(self._player, winner.folder, self._episodes, seed)
            measured = self._player.wait(future, "measuring the winner on other episodes")
        except RltuneError as error:  # The winner stays the winner even if this second evaluation fails.
            notify(f"{winner.name} could not be evaluated on other episodes: {error.what}")
            return winner
        if measured.cut:
            notify(f"{winner.name}: {measured.explain_cut()}")
        return replace(winner, measured=measured)


def measure_policies(
    certification: Certification,
    store: Store,
    episodes: int,
    direction: Direction,
    player: Player,
    notify: Callable[[str], None] = lambda line: None,
) -> tuple[Certification, Finalist]:
    """Evaluate the policy of the winner's best run on episodes that did not choose it, which gives an unbiased mean.

    The policy plays the episodes that are the same in every sweep, to compare champions, and as many episodes that only
    this sweep plays, which decide nothing.

    Args:
        certification: The judged configurations.
        store: The sweep's store.
        episodes: The number of episodes of each kind.
        direction: Which scores are better.
        player: Plays the episodes.
        notify: Shows the user a line.

    Returns:
        The certification with its policy, and the policy. Both are without measurements if the policy cannot be
        evaluated.

    Raises:
        EvaluationStoppedError: The sweep has to end.
    """
    best = certification.best()
    run = max(best.per_seed, key=lambda result: direction.sign * result.mean)
    folder = store.find(run.checkpoint) or store.folder / run.checkpoint
    winner = Finalist(best.name, best.trial, best.params, best.search_score, folder, run.run)
    if not is_playable(folder):
        return certification, winner
    with player.open(2 * episodes):
        seeds = (EVALUATION_SEED, derive_own_seed(store.folder.name))
        futures = [_start_evaluation(player, folder, episodes, seed) for seed in seeds]
        try:
            compared, measured = (player.wait(future, "measuring the winner") for future in futures)
        except RltuneError as error:  # The configuration stays the winner even if its policy's process dies or hangs.
            notify(f"the policy of {winner.name} could not be evaluated: {error.what}")
            return certification, winner
    if measured.cut:
        notify(f"the winner: {measured.explain_cut()}")
    policy = CertifiedPolicy(best.name, run.seed, run.checkpoint, episodes, measured.mean, measured.low, measured.high)
    return replace(certification, policy=policy), replace(winner, evaluation=compared, measured=measured)


def _start_evaluation(player: Player, folder: Path, episodes: int, seed: int = EVALUATION_SEED) -> Future[Evaluation]:
    """Start to evaluate a checkpoint's policy on consecutive environment seeds."""
    from rltune.policies.evaluation import evaluate_checkpoint  # Imported here, because torch loads slowly.

    return player.start(evaluate_checkpoint, folder, episodes, seed)
