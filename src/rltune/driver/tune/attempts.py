"""Decide whether a trial is retried after a failed attempt: retries without progress are limited.

An attempt lasts from the start of a trial's process to its end, and the next one goes on from the newest checkpoint. It
has made progress if it brought a report or a checkpoint of more steps than any before. With an environment that fails
in every episode each attempt gets further and none gets anywhere, so that these are limited, too. Runs in the driver.
"""

from __future__ import annotations

from collections import Counter

from rltune.errors import Cause

OWN_CAUSES = frozenset(
    {Cause.ENVIRONMENT, Cause.REPEATED, Cause.REWARD, Cause.OBSERVATION, Cause.OBJECTIVE, Cause.LOST_PROCESS}
)
"""What the code of a sweep's trials does to itself, so that it would happen again when the same command is typed."""
ENDS_EPISODE = OWN_CAUSES - {Cause.LOST_PROCESS}
"""What an environment has done so that its episode could not go on."""
TrialKey = tuple[str, int]  # A trial's kind (search or certification) and number.


class Attempts:
    """Counts failed attempts without progress, of each trial and in a row over the whole sweep.

    Args:
        max_retries: How often a trial is tried again after an exception of its own code without progress in between.
        stop_after: The number of attempts in a row without progress after which the sweep ends, across all trials. A
            single trial ends after so many of its own, if other trials made progress meanwhile, or if its environment
            has ended so many before any of its episodes was over.
        may_lose_nodes: Whether other machines run trials. A process that ends there without saying why may have been
            ended by its machine; on this machine's own Ray the trial has ended it.
    """

    def __init__(self, max_retries: int, stop_after: int, *, may_lose_nodes: bool = False) -> None:
        self._max_retries, self._stop_after = max_retries, stop_after
        self._own_causes = OWN_CAUSES - {Cause.LOST_PROCESS} if may_lose_nodes else OWN_CAUSES
        self._made_progress: set[TrialKey] = set()
        self._num_exceptions: Counter[TrialKey] = Counter()
        self._num_without_episode: Counter[TrialKey] = Counter()
        self._num_attempts: Counter[TrialKey] = Counter()
        self._num_attempts_in_a_row = 0
        self._causes_in_a_row: set[Cause] = set()
        self._last_cause: dict[TrialKey, Cause] = {}

    @property
    def are_own_fault(self) -> bool:
        """Whether the trials' own code has ended every attempt since the last progress."""
        return self._causes_in_a_row <= self._own_causes

    @property
    def are_exhausted(self) -> bool:
        """Whether the sweep has to end, because too many attempts in a row made no progress."""
        return self._num_attempts_in_a_row >= self._stop_after

    def begin(self, trial: TrialKey) -> None:
        """Record that a new attempt at a trial starts."""
        self._made_progress.discard(trial)

    def note_progress(self, trial: TrialKey) -> None:
        """Reset the counts, because a trial has got further than in any earlier attempt."""
        self._made_progress.add(trial)
        self._num_attempts_in_a_row = 0
        self._causes_in_a_row.clear()
        self._last_cause.pop(trial, None)
        for counts in (self._num_exceptions, self._num_attempts):
            counts.pop(trial, None)

    def end(
        self,
        trial: TrialKey,
        cause: Cause,
        *,
        counts_against_trial: bool = False,
        is_nodes_fault: bool = False,
        has_episode: bool = True,
    ) -> bool:
        """Count a failed attempt, and return whether the trial may be retried.

        Args:
            trial: Whose attempt it was.
            cause: What ended it.
            counts_against_trial: Whether it certainly was the trial's own code. So it also is if the trial's process
                ends a second time in a row without saying why, unless the node may have ended it.
            is_nodes_fault: Whether its node cannot run any trial. That fails no trial, and at worst ends the sweep.
            has_episode: Whether an episode has ended in it, other than by a failure.
        """
        if cause in ENDS_EPISODE and not has_episode:
            self._num_without_episode[trial] += 1
        else:
            self._num_without_episode.pop(trial, None)
        if trial in self._made_progress:
            return self._num_without_episode[trial] < self._stop_after
        self._num_attempts_in_a_row += 1
        self._causes_in_a_row.add(cause)
        counts_against_trial |= cause in self._own_causes and self._last_cause.get(trial) is cause
        self._last_cause[trial] = cause
        if not is_nodes_fault:
            self._num_attempts[trial] += 1
            self._num_exceptions[trial] += counts_against_trial
        if self.are_exhausted and not self.are_own_fault:
            return True  # The whole sweep is interrupted, so this trial stays unfinished and does not fail.
        # A trial that alone reaches the limit fails, because meanwhile other trials made progress.
        return self._num_exceptions[trial] <= self._max_retries and self._num_attempts[trial] < self._stop_after
