"""Train the critics of RLlib's SAC by squared errors, as Haarnoja et al. (2018) and most libraries do."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.dqn.dqn_learner import QF_LOSS_KEY, QF_PREDS
from ray.rllib.algorithms.sac.sac_learner import QF_TWIN_LOSS_KEY, QF_TWIN_PREDS
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner
from ray.rllib.core.columns import Columns
from torch import Tensor


class SquaredErrorSACLearner(SACTorchLearner):
    """RLlib's SAC learner for continuous actions, with half the squared error as the critics' loss.

    That is equation 5 of the paper. RLlib's critics have Huber losses (ray 2.60), whose slope is at most 1: where
    returns are large, the critics learn their scale slowly.
    """

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Tensor:
        """Compute RLlib's losses, then replace those of the critics."""
        total: Tensor = super().compute_loss_for_module(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )
        alpha = self.curr_log_alpha[module_id].exp().detach()
        after = fwd_out["q_target_next"] - alpha * fwd_out["logp_next_resampled"]
        discounts = config.gamma ** batch["n_step"] * (1.0 - batch[Columns.TERMINATEDS].float())
        wanted = (batch[Columns.REWARDS] + discounts * after).detach()
        twin = ((QF_TWIN_LOSS_KEY, QF_TWIN_PREDS),) if config.twin_q else ()
        for key, values in ((QF_LOSS_KEY, QF_PREDS), *twin):
            loss = torch.mean(batch["weights"] * 0.5 * (fwd_out[values] - wanted).square())
            # RLlib's compute_gradients takes each optimizer's loss from this private dictionary (ray 2.60).
            total = total - self._temp_losses[module_id, key] + loss
            self._temp_losses[module_id, key] = loss
            self.metrics.log_value((module_id, key), loss, window=1)
        return total
