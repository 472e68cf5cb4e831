"""Train SAC with the critics of the paper: their input is observation and action together, their loss a setting."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rltune.compat.sac_catalog import ConcatSACCatalog
from rltune.compat.sac_learner import SquaredErrorSACLearner

LOSSES = ("huber", "mse")


def use_plain_critics(config: Any) -> Any:
    """Give a SACConfig Q-networks that concatenate observation and action, and return the config."""
    return config.rl_module(rl_module_spec=RLModuleSpec(catalog_class=ConcatSACCatalog))


class PlainSACConfig(SACConfig):
    """SAC's config with Q-networks as in the paper and most libraries, see `ConcatSACCatalog`, and a choice of loss.

    Attributes:
        td_error_loss_fn: The loss of the critics' errors, ``huber`` as in RLlib or ``mse``; DQN's has the same name.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.td_error_loss_fn = "huber"
        use_plain_critics(self)

    def get_default_learner_class(self) -> type:
        """Return the learner class with the config's loss: RLlib's own for ``huber``."""
        stock: type = super().get_default_learner_class()
        return SquaredErrorSACLearner if self.td_error_loss_fn == "mse" else stock

    def training(self, *, td_error_loss_fn: str | None = None, **kwargs: Any) -> PlainSACConfig:
        """Set the arguments of SAC's ``training()`` and the loss of the critics.

        Args:
            td_error_loss_fn: ``huber`` or ``mse``; None leaves it.
            kwargs: SAC's settings.
        """
        super().training(**kwargs)
        if td_error_loss_fn is not None:
            self.td_error_loss_fn = td_error_loss_fn
        return self

    def validate(self) -> None:
        """Validate SAC's settings and the loss.

        Raises:
            ValueError: A value is not allowed.
        """
        super().validate()
        if self.td_error_loss_fn not in LOSSES:
            raise ValueError(f"td_error_loss_fn={self.td_error_loss_fn}: {' or '.join(LOSSES)}")
