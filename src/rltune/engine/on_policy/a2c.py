"""Train A2C, which is a special case of PPO (Huang et al. 2022, arXiv:2205.09123), on PPO's hot loop.

It is PPO with one epoch over one full-batch minibatch, no clipping, no advantage normalisation, and RMSProp: what
`rltune.algorithms.a2c.A2CConfig` sets. That config trains on stock RLlib as well.
"""

from __future__ import annotations

from rltune.algorithms.a2c import A2C
from rltune.engine.on_policy.ppo import FastPPO


class FastA2C(FastPPO, A2C):
    """A2C on the array hot loop of PPO."""

    stock_class = A2C
    standardise_advantages = False
