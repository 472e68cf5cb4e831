"""Decide whether a trial is retried after a failed attempt: retries without progress are limited.

An attempt lasts from the start of a trial's process to its end, and the next one goes on from the newest checkpoint. It
has made progress if it brought a report or a checkpoint of more steps than any before. Runs in the driver.
"""

from __future__ import annotations

from collections import Counter

TrialKey = tuple[str, int]  # A trial's kind (search or certification) and number.


class Attempts:
    """Counts failed attempts without progress, of each trial and in a row over the whole sweep.

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
        self._last_death: dict[TrialKey, str] = {}
        self._deaths_in_a_row: set[str] = set()
        self._was_progress = False

    @property
    def is_one_death(self) -> bool:
        """Whether no attempt has made progress, and all have ended with the same end of their processes.

        Then the environment ends its process each time, and it would do so when the same command is typed again.
        """
        return not self._was_progress and len(self._deaths_in_a_row) == 1 and "" not in self._deaths_in_a_row

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
        self._was_progress = True
        self._deaths_in_a_row.clear()
        self._last_death.pop(trial, None)
        for counts in (self._num_exceptions, self._num_attempts):
            counts.pop(trial, None)

    def end(
        self, trial: TrialKey, *, counts_against_trial: bool, is_nodes_fault: bool = False, death: str = ""
    ) -> bool:
        """Count a failed attempt, and return whether the trial may be retried.

        Args:
            trial: Whose attempt it was.
            counts_against_trial: Whether the trial's own code ended it, rather than its process or its node.
            is_nodes_fault: Whether its node cannot run any trial. That fails no trial, and at worst ends the sweep.
            death: How its process ended, if that is all that is known. A trial that ends its process twice in the same
                way is itself to blame.
        """
        if trial in self._made_progress:
            return True
        self._num_attempts_in_a_row += 1
        self._deaths_in_a_row.add(death)
        counts_against_trial |= bool(death) and self._last_death.get(trial) == death
        self._last_death[trial] = death
        if not is_nodes_fault:
            self._num_attempts[trial] += 1
            self._num_exceptions[trial] += counts_against_trial
        if (
            self.are_exhausted and not self.is_one_death
        ):  # The whole sweep ends, so this trial stays unfinished and does not fail.
            return True
        # A trial that alone reaches the limit fails, because meanwhile other trials made progress.
        return self._num_exceptions[trial] <= self._max_retries and self._num_attempts[trial] < self._stop_after
