"""A2C as the special case of PPO that it is (Huang et al. 2022, arXiv:2205.09123).

One epoch over one full-batch minibatch, no clipping, no advantage normalisation, RMSProp. ``A2CConfig`` is a
``PPOConfig``; it trains on the fast engine and on stock RLlib, ``algo.class: rltune.algorithms.a2c:A2CConfig``.
"""

from __future__ import annotations

from rltune.algorithms.a2c import A2C
from rltune.engine.on_policy.ppo import FastPPO


class FastA2C(FastPPO, A2C):
    """A2C on the array hot loop of PPO."""

    stock_class = A2C
    standardise_advantages = False
