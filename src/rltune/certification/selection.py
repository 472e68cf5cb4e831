"""Select and measure the winning policy: the best certified one, else the best finalist on fresh episodes.

The best score of a search is biased, because it is the best of many. So the winner is measured on other episodes than
those that chose it. Every evaluation runs in a process of its own, because the environment may raise, exit, crash or
hang there: then the user is told why, and the sweep ends without it. Runs in the driver, whose main thread only waits,
so that a signal can end every evaluation.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from rltune.config.early_end import NEVER, EarlyEnd
from rltune.envs.child import CallGivenUpError, Child, call_again
from rltune.envs.objective import Objective
from rltune.errors import GuestError, RltuneError, describe_exception
from rltune.formatting import format_number, format_objective, spell_command
from rltune.policies import acting
from rltune.policies.result import Evaluation
from rltune.records import Direction, TrialRecord
from rltune.trial.recent_episodes import read_training_scores

PROGRESS_S = 0.5  # Seconds between two updates of the displayed progress.
EVALUATION = "rltune.policies.evaluation"
Keep = Callable[[Finalist, Mapping[str, Any]], Finalist]
"""Stores how a finalist acts, as `rltune.policies.acting.choose_acting` decided, and returns it with its new files."""


class Player:
    """Plays episodes in other processes, shows the progress meanwhile, and gives them up if the sweep has to end.

    Args:
        slots: The number of evaluations that are played at the same time.
        start_child: Starts a process for an evaluation.
        stall_s: How long a process may show no sign of life, in seconds; see `Child.call`.
        is_urgent: Whether the sweep has to end within seconds.
        show: Shows the progress of the evaluations.
        notify: Shows the user a line.
        max_retries: How often a function is called again whose process has died or hung.
    """

    def __init__(
        self,
        slots: int = 1,
        start_child: Callable[[], Child] = lambda: Child([EVALUATION]),
        stall_s: float = math.inf,
        is_urgent: Callable[[], bool] = lambda: False,
        show: Show = show_nothing,
        notify: Callable[[str], None] = lambda line: None,
        max_retries: int = 0,
    ) -> None:
        self._max_retries = max_retries
        self._lost: dict[Future[Any], list[str]] = {}  # How processes have ended whose functions were called again.
        self._slots, self._start_child, self._stall_s = slots, start_child, stall_s
        self._is_urgent, self._show, self._notify = is_urgent, show, notify
        self._played: list[int] = []  # Number of played episodes by evaluation, written by the evaluations' threads.
        self._total = 0
        self._pool: ThreadPoolExecutor | None = None
        self._closed = threading.Event()

    @contextlib.contextmanager
    def open(self, episodes: int) -> Iterator[None]:
        """Let evaluations of so many episodes in all be started in the context, and leave none running behind it."""
        self._played, self._total, self._closed = [], episodes, threading.Event()
        self._pool = ThreadPoolExecutor(self._slots)
        try:
            yield
        finally:
            self._closed.set()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def start(self, function: str, **arguments: Any) -> Future[Any]:
        """Start a function in a process of its own.

        Args:
            function: ``module:function``, with an argument ``progress``.
            arguments: Its other arguments, as JSON has them.
        """
        assert self._pool is not None
        self._played.append(0)
        lost: list[str] = []
        closed, progress = self._closed, partial(self._note_played, self._played, len(self._played) - 1)

        future = self._pool.submit(
            call_again,
            self._start_child,
            self._max_retries,
            lambda error: lost.append(error.what),
            function,
            arguments,
            limit_s=self._stall_s,
            progress=progress,
            is_given_up=lambda: closed.is_set() or self._is_urgent(),
        )
        self._lost[future] = lost
        return future

    def start_evaluation(self, folder: Path, episodes: int, seed: int = EVALUATION_SEED, **more: Any) -> Future[Any]:
        """Start to evaluate a checkpoint's policy on consecutive environment seeds.

        Args:
            folder: The checkpoint.
            episodes: The number of episodes.
            seed: The first environment seed.
            more: Further arguments of `rltune.policies.evaluation.evaluate_folder`.
        """
        return self.start(f"{EVALUATION}:evaluate_folder", folder=str(folder), episodes=episodes, seed=seed, **more)

    def finish_evaluation(
        self, future: Future[Any], task: str, who: str, folder: Path | None = None
    ) -> Evaluation | None:
        """Wait for an evaluation, and tell the user what is not as it should be.

        Args:
            future: The evaluation, from `start_evaluation`.
            task: What is done, to be shown meanwhile.
            who: The policy.
            folder: As for `finish`.

        Returns:
            The evaluation; None if the policy cannot be evaluated, whatever the reason is.

        Raises:
            CallGivenUpError: The sweep has to end.
        """
        answer = self.finish(future, task, f"{who} cannot be evaluated", folder)
        if answer is None:
            return None
        evaluation = Evaluation.from_dict(answer)
        if evaluation.cut:
            self._notify(f"{who}: {evaluation.explain_cut()}")
        return evaluation

    def finish(self, future: Future[Any], task: str, failure: str, folder: Path | None = None) -> Any | None:
        """Wait for a function, and meanwhile show how many episodes have been played in all functions.

        Args:
            future: The function, from `start`.
            task: What is done.
            failure: What the user is told if there is no answer, in front of the reason.
            folder: The policy's, if it stays there, so that a command can evaluate it later.

        Returns:
            The answer; None also if there is none.

        Raises:
            CallGivenUpError: The sweep has to end.
        """
        while not wait([future], PROGRESS_S).done:
            if self._is_urgent():
                raise CallGivenUpError
            self._show(task, sum(self._played), self._total)
        lost = self._lost.pop(future, [])
        try:
            answer = future.result()
        except CallGivenUpError:
            raise
        except Exception as error:  # Nothing that goes wrong in an evaluation may cost the sweep its end.
            why = f"{error.what}; {error.fix}" if isinstance(error, RltuneError) else describe_exception(error)
            if folder and isinstance(error, GuestError) and error.is_chance:
                why += f". It may go well another time: {spell_command(f'evaluate policy={shlex.quote(str(folder))}')}"
            tries = f" in {len(lost) + 1} attempts" if lost else ""
            self._notify(f"{failure}{tries}: {why}")
            return None
        if lost:
            self._notify(f"{task}: succeeded in attempt {len(lost) + 1}, because {lost[-1]}")
        return answer

    @staticmethod
    def _note_played(played: list[int], index: int, num_played: int, _: int) -> None:
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
        choice_env: What is changed of the environment for the episodes that choose the winner.
        reported_env: What is changed of it for those that measure the winner, and by which champions are compared.
        scores_are_played: Whether the scores of trials are of episodes that they have played, and not the training's.
        early_end: When trials have ended early: of those that have reached the target, the one with the fewest steps
            wins.
    """

    def __init__(
        self,
        store: Store,
        top: int,
        episodes: int,
        player: Player,
        objective: Objective | None = None,
        keep: Keep = lambda finalist, _: finalist,
        choice_env: Mapping[str, Any] | None = None,
        reported_env: Mapping[str, Any] | None = None,
        scores_are_played: bool = False,
        early_end: EarlyEnd = NEVER,
    ) -> None:
        self._early_end = early_end
        self._choice_env, self._reported_env = choice_env or {}, reported_env or {}
        self._acting_env = self._choice_env if scores_are_played else None
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
            CallGivenUpError: The sweep has to end.
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
        num_measured = 1 if self._choice_env == self._reported_env else 2
        with self._player.open((num_measured + len(playable)) * self._episodes):
            evaluated = self._evaluate(playable, notify)
            if evaluated:
                best = max(evaluated, key=self._rank)
                return self._measure(best)
        return finalists[0] if finalists else None

    def _rank(self, finalist: Finalist) -> tuple[float, float]:
        """Return the sort key of a finalist; the winner has the highest key."""
        # The reports at which it held the target may have been lucky, as the training ended with them.
        steps = finalist.target_steps if self._early_end.reaches(finalist.score) else None
        return -(steps or math.inf), self._objective.direction.sign * finalist.score

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
                index: self._player.start(
                    "rltune.policies.acting:choose_acting",
                    folder=str(finalist.folder),
                    training_scores=scores[index],
                    env=self._acting_env,
                )
                for index, finalist in enumerate(finalists)
                if scores[index]
            }
            for index, future in futures.items():
                failure = f"{finalists[index].name} acts deterministically, because sampling cannot be tested"
                if decision := self._player.finish(future, "testing whether sampled actions are better", failure):
                    chosen[index] = self._keep(finalists[index], decision)
                    notify(f"{finalists[index].name} {acting.describe_acting(decision)}")
        return chosen

    def _evaluate(self, finalists: Sequence[Finalist], notify: Callable[[str], None]) -> list[Finalist]:
        """Evaluate all finalists on the same episodes; leave out those whose policy cannot be evaluated."""
        play, env = self._player.start_evaluation, self._choice_env
        futures = [play(finalist.folder, self._episodes, env=env) for finalist in finalists]
        evaluated = []
        for finalist, future in zip(finalists, futures, strict=True):
            task = f"evaluating the {format_number(len(futures), 'best trial')}"
            if evaluation := self._player.finish_evaluation(future, task, finalist.name, finalist.folder):
                score = f"mean {self._objective.name} {format_objective(evaluation.mean)}"
                notify(f"{finalist.name}: {score} on the {self._episodes} episodes that choose the winner")
                evaluated.append(replace(finalist, evaluation=evaluation))
        return evaluated

    def _measure(self, winner: Finalist) -> Finalist:
        """Evaluate the winner on other episodes; it stays the winner also if this second evaluation fails.

        If the episodes that chose it were in another environment than champions are compared in, then the winner also
        plays the ones by which champions are compared.
        """
        task, who = "measuring the winner on other episodes", f"{winner.name}, on other episodes,"
        seeds = [derive_own_seed(self._store.folder.name)]
        seeds += [EVALUATION_SEED] if self._choice_env != self._reported_env else []
        play = partial(self._player.start_evaluation, winner.folder, self._episodes, env=self._reported_env)
        measured, *compared = (
            self._player.finish_evaluation(future, task, who, winner.folder) for future in list(map(play, seeds))
        )
        return replace(winner, measured=measured, evaluation=compared[0] if compared else winner.evaluation)


def measure_policies(
    certification: Certification,
    store: Store,
    episodes: int,
    direction: Direction,
    player: Player,
    env: Mapping[str, Any] | None = None,
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
        env: What is changed of the environment where results are measured that are reported.

    Returns:
        The certification with its policy, and the policy. Both are without measurements if the policy cannot be
        evaluated.

    Raises:
        CallGivenUpError: The sweep has to end.
    """
    best = certification.best()
    run = max(best.per_seed, key=lambda result: direction.sign * result.rank_score)
    folder = store.find(run.checkpoint) or store.folder / run.checkpoint
    winner = Finalist(best.name, best.trial, best.params, best.search_score, folder, run.run)
    if not is_playable(folder):
        return certification, winner
    with player.open(2 * episodes):
        seeds = (EVALUATION_SEED, derive_own_seed(store.folder.name))
        futures = [player.start_evaluation(folder, episodes, seed, env=env) for seed in seeds]
        who = f"the policy of {winner.name}"
        task = "measuring the winner"
        compared, measured = (player.finish_evaluation(future, task, who, folder) for future in futures)
    if compared is None or measured is None:  # The configuration stays the winner.
        return certification, winner
    ends, num_played = (measured.mean, measured.low, measured.high), len(measured.returns)
    policy = CertifiedPolicy(best.name, run.seed, run.checkpoint, num_played, *ends, metrics=measured.measure())
    return replace(certification, policy=policy), replace(winner, evaluation=compared, measured=measured)
