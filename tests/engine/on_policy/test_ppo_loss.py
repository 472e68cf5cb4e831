"""Parts of a batch. test_ppo.py compares the loss with RLlib's, tests/engine/kernels its gradient with the kernels'."""

from __future__ import annotations

import torch

from rltune.engine.on_policy.ppo_loss import PPOBatch
from tests.engine.ppo_learner import our_batch, random_batch


def test_parts_of_a_batch_make_the_batch_again() -> None:
    batch = our_batch("continuous", random_batch("continuous"))
    parts = batch.split([40, 40, 16])
    assert [part.num_rows for part in parts] == [40, 40, 16]
    for ours, wanted in zip(PPOBatch.concat(parts), batch, strict=True):
        torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(batch.take(torch.tensor([3, 1])).obs, batch.obs[[3, 1]])
