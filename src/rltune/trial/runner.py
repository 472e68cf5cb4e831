"""The interface between a trial and the algorithm that it trains, which tests replace by a toy.

Imports nothing heavy. `rltune.trial.algorithm_runner.AlgorithmRunner` implements it with RLlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rltune.policies.result import Evaluation
from rltune.trial.metrics import Progress

if TYPE_CHECKING:
    from rltune.policies.evaluation import Copies


class Runner(Protocol):
    """The interface of what trains one seed of one configuration."""

    def train(self) -> Progress:
        """Train one iteration, and return the progress after it.

        Raises:
            SamplingEnded: `rltune.envs.step_count.STEPS` said that it was to end or pause early. The next call goes on.
        """

    def play(self, *, copies: Copies | None, **episodes: Any) -> Evaluation:
        """Play episodes with the policy as it is now; the training does not notice.

        Args:
            copies: The copies of the environment to play in.
            episodes: Other arguments of `rltune.policies.evaluation.evaluate`: ``episodes``, ``seed``, ``env`` and
                ``progress``.
        """

    @property
    def kept_steps(self) -> int:
        """The environment steps of an unfinished iteration that `save` would write."""

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        """Write the training state and the policy into an empty folder; ``info`` becomes the policy's metadata."""

    def restore(self, folder: Path) -> None:
        """Restore the training state that `save` wrote."""

    @property
    def replay_bytes(self) -> int:
        """The size in bytes of the replay memory as `save_replay` would write it; 0 without one."""

    def save_replay(self, folder: Path) -> None:
        """Write the replay memory into an empty folder."""

    def load_replay(self, folder: Path | None) -> int:
        """Load the replay memory after `restore`; if there is no file that fits, begin with an empty memory.

        Args:
            folder: What `save_replay` wrote; None without a copy.

        Returns:
            Environment steps that are sampled before learning goes on; 0 where nothing is lost.
        """

    def close_envs(self) -> None:
        """Close all environments, because no step will be trained any more; what is trained can still be saved."""

    def stop(self) -> None:
        """Close environments and free memory."""
