"""Decide whether a trial goes on after a failed attempt, by one question: has the attempt made progress?

An attempt lasts from the start of a trial's process to its end, and the next one goes on from the newest checkpoint. It
has made progress if it brought a report or a checkpoint of more steps than any before. Runs in the driver.
"""

from __future__ import annotations

from collections import Counter

TrialKey = tuple[str, int]  # The kind and the number of a trial.


class Attempts:
    """Counts attempts without progress, those of each trial and those of the whole sweep.

    Args:
        max_retries: How often a trial is tried again after an exception of its own code without progress in between.
        stop_after: The number of attempts in a row without progress after which the sweep ends, across all trials. A
            single trial ends after so many of its own, if other trials made progress meanwhile.
    """

    def __init__(self, max_retries: int, stop_after: int) -> None:
        self._max_retries, self._stop_after = max_retries, stop_after
        self._made_progress: set[TrialKey] = set()
        self._num_exceptions: Counter[TrialKey] = Counter()
        self._num_attempts: Counter[TrialKey] = Counter()
        self._num_attempts_in_a_row = 0

    @property
    def are_exhausted(self) -> bool:
        """Whether so many attempts in a row made no progress that it makes no sense to go on."""
        return self._num_attempts_in_a_row >= self._stop_after

    def begin(self, trial: TrialKey) -> None:
        """Record the start of a trial's attempt."""
        self._made_progress.discard(trial)

    def note_progress(self, trial: TrialKey) -> None:
        """Note that a trial came further than ever before: what was counted starts anew."""
        self._made_progress.add(trial)
        self._num_attempts_in_a_row = 0
        for counts in (self._num_exceptions, self._num_attempts):
            counts.pop(trial, None)

    def end(self, trial: TrialKey, *, counts_against_trial: bool, is_nodes_fault: bool = False) -> bool:
        """Count an attempt that ended before its trial; return whether the trial may go on.

        Args:
            trial: Whose attempt it was.
            counts_against_trial: Whether the trial's own code ended it, rather than its process or its node.
            is_nodes_fault: Whether its node cannot run any trial. That fails no trial, and at worst ends the sweep.
        """
        if trial in self._made_progress:
            return True
        self._num_attempts_in_a_row += 1
        if not is_nodes_fault:
            self._num_attempts[trial] += 1
            self._num_exceptions[trial] += counts_against_trial
        if self.are_exhausted:  # When the whole sweep ends for lack of progress, no trial is to blame.
            return True
        # If this trial reaches the limit and the sweep does not, then other trials made progress meanwhile.
        return self._num_exceptions[trial] <= self._max_retries and self._num_attempts[trial] < self._stop_after
