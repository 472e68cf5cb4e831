"""What the comparisons with RLlib's learners share."""

from __future__ import annotations

from typing import Any

import torch


@torch.no_grad()
def follow(ours: Any, theirs: Any) -> None:
    """Give our learner RLlib's weights, targets and moments in place: both make the next update from the same state.

    Without it their rounding errors would add up, and after some updates tell more of the loss's curvature than of an
    update.
    """
    modules = (learner.module["default_policy"].parameters() for learner in (ours, theirs))
    for own, other in zip(*modules, strict=True):
        own.copy_(other)
    for name, optimizer in theirs._named_optimizers.items():
        mine = ours._named_optimizers[name]
        groups = (one.param_groups[0]["params"] for one in (mine, optimizer))
        for own, other in zip(*groups, strict=True):
            own.copy_(other)  # the temperature is in no module
            for key in ("exp_avg", "exp_avg_sq"):
                mine.state[own][key].copy_(optimizer.state[other][key])
