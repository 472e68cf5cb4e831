"""What can go wrong inside a hot loop; raised in a worker, printed by the commands in three parts."""

from __future__ import annotations

from rltune.errors import RltuneError


class NonFiniteError(RltuneError):
    """A loss or weight became NaN or infinite: the trial cannot recover from it."""


class UnsupportedError(Exception):
    """A feature that only stock RLlib serves, found while building; ``build`` turns it into a fallback.

    Args:
        feature: The feature in words, as the fallback's log line names it.
    """

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature
