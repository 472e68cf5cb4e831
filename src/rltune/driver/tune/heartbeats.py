"""Read the progress of the running trials between two of their reports. Runs in the driver."""

from __future__ import annotations

from collections.abc import Mapping

from rltune.trial.supervisor import read_steps


class Heartbeats:
    """Keeps the environment steps that the heartbeats of the trials have last reported.

    Args:
        sweep: The sweep's folder, as in the trials' assignments.
        live: The folders of the trials whose workers run. The set changes meanwhile.
    """

    def __init__(self, sweep: str, live: set[str]) -> None:
        self._sweep, self._live = sweep, live
        self._steps: dict[str, int] = {}

    def update(self) -> None:
        """Read the heartbeats from Ray's head. While the head is away, this waits for a minute or raises an error."""
        self._steps = read_steps(self._sweep, list(self._live))

    def read(self) -> Mapping[str, int]:
        """Return the environment steps of each seed, by the folder of each running trial that has begun to step."""
        steps = self._steps
        return {folder: steps[folder] for folder in list(self._live) if folder in steps}
