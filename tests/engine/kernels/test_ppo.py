"""PPO's kernel where test_ppo.py of on_policy, which compares whole updates with RLlib's learner, does not look."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rltune.engine.kernels import ppo
from rltune.engine.networks.actor_critic import CompiledActorCritic, make_actor_critic
from rltune.engine.on_policy.ppo import PPOUpdate
from rltune.engine.on_policy.ppo_loss import ActionDistribution, PPOBatch, PPOCoefficients, loss_statistics
from rltune.engine.sampling.action_distributions import count_parts
from rltune.envs.layout import ILLEGAL
from tests.engine.finite import is_finite
from tests.engine.ppo_learner import INPUTS, SPACES, add_flags, make_config, random_batch, rllib_learner, train_batch

MASKED = ", legal"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete": ("discrete", {}),
    "discrete, shared": ("discrete", {"vf_share_layers": True, "fcnet_activation": "relu"}),
    "continuous": ("continuous", {"log_std_clip_param": 1.0}),
    "continuous, free": ("continuous", {"free_log_std": True}),
    "choices": ("choices", {}),
    "choices, shared": ("choices", {"vf_share_layers": True}),
    "buttons": ("buttons", {}),
    **{f"{name}{MASKED}": (name, {}) for name in ("discrete", "choices", "buttons")},
    f"choices, shared{MASKED}": ("choices", {"vf_share_layers": True}),
}


def make_update(name: str) -> tuple[PPOUpdate, Any, Any]:
    """Return an update of one minibatch, its module, and the batch."""
    space, model = MODELS[name]
    masked, training = name.endswith(MASKED), {"minibatch_size": None, "num_epochs": 1, "entropy_coeff": 0.01}
    config = make_config(space, model, masked=masked, kl_coeff=0.3, **training)
    learner, columns = rllib_learner(config), random_batch(space)
    batch = train_batch(space, add_flags(space, columns) if masked else columns)
    return PPOUpdate(learner, config, 0), learner.module["default_policy"], batch


def differentiate(update: PPOUpdate, module: Any, rows: Any, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Return the gradient of each parameter by autograd, computed in a precision."""
    module.to(dtype)
    rows = type(rows)(*(column.to(dtype) for column in rows))
    dist, values = make_actor_critic(module, compiled=False).forward(rows.obs)  # type: ignore[union-attr]
    loss = loss_statistics(update.distribution.statistics(dist, rows), values, rows, update.coefficients())[
        "total_loss"
    ]
    names = [name for name, _ in module.named_parameters()]
    return dict(zip(names, (g.numpy() for g in torch.autograd.grad(loss, list(module.parameters()))), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_as_exact_as_torchs(name: str) -> None:
    exact, single = (
        differentiate(update, module, batch.rows, dtype)
        for dtype in (torch.float64, torch.float32)
        for update, module, batch in [make_update(name)]
    )
    update, module, batch = make_update(name)
    assert type(update.network) is CompiledActorCritic
    with torch.no_grad():
        update.update(batch, 0)
    gradients = {name: update.flat.grad_of[id(param)].numpy() for name, param in module.named_parameters()}
    ours, theirs = (
        np.linalg.norm(np.concatenate([(gradient[name] - exact[name]).ravel() for name in exact]))
        for gradient in (gradients, single)
    )
    assert ours <= 2.0 * theirs


@pytest.mark.parametrize("column", ["obs", "actions", "logp", "advantages", "targets"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_not_finite_is_seen(name: str, bad: float, column: str) -> None:
    """In the weights or in the statistics, of which either ends a trial as diverged."""
    update, _, batch = make_update(name)
    getattr(batch.rows, column)[3] = bad
    with torch.no_grad():
        stats = update.update(batch, 0)
    seen = not is_finite(update, stats)
    assert seen or (column, bad) == ("logp", np.inf)  # a ratio of zero


def test_a_weight_that_is_infinite_makes_the_update_not_finite() -> None:
    update, _, batch = make_update("discrete")
    update.flat.data[0] = np.inf
    with torch.no_grad():
        update.update(batch, 0)
    assert not torch.isfinite(update.flat.data).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [[4], [3, 2, 5], [2] * 9, [1, 7]])
def test_the_formulas_for_choices_are_exact_in_float64(
    sizes: list[int], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels' functions run in Python, where float32 stands for float64."""
    monkeypatch.setattr(ppo, "np", SimpleNamespace(float32=np.float64, empty=np.empty))
    one, several, weigh = (
        getattr(function, "py_func", function)
        for function in (ppo._differentiate_choice, ppo._differentiate_choices, ppo._weigh)
    )
    monkeypatch.setattr(ppo, "_weigh", weigh)
    distribution, rows = ActionDistribution(sizes, 0), 40
    generator = torch.Generator().manual_seed(0)
    logits, old = (torch.randn(rows, sum(sizes), generator=generator, dtype=torch.float64) for _ in range(2))
    actions = torch.stack([torch.randint(0, size, (rows,), generator=generator) for size in sizes], 1)
    legal = torch.rand(logits.shape, generator=generator) < (0.5 if masked else 1.0)
    legal.scatter_(1, actions + torch.tensor([0, *sizes[:-1]]).cumsum(0), torch.ones_like(actions, dtype=torch.bool))
    logits, old = (torch.where(legal, each, ILLEGAL) for each in (logits, old))
    one_hot, log_p, logp = distribution.sampled(old, actions)
    advantages = torch.randn(rows, generator=generator, dtype=torch.float64)
    batch = PPOBatch(logits, one_hot, log_p, logp, advantages, advantages)
    c = PPOCoefficients(0.2, math.inf, 0.0, 0.03, 0.4, True, True)
    logits.requires_grad_()
    loss = loss_statistics(distribution.statistics(logits, batch), torch.zeros(rows), batch, c)["total_loss"]
    (expected,) = torch.autograd.grad(loss, logits)
    arrays = PPOBatch(*(column.detach().numpy() for column in batch))
    grad = np.empty(logits.shape)
    several(arrays.obs, np.array(sizes), arrays, np.arange(rows), c, grad)
    np.testing.assert_allclose(grad, expected.numpy(), atol=1e-9, rtol=0)
    assert not grad[~legal.numpy()].any()
    if len(sizes) == 1:
        one(arrays.obs, arrays, np.arange(rows), c, grad)
        np.testing.assert_allclose(grad, expected.numpy(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("space", ["discrete", "choices"])
def test_a_mask_of_ones_updates_bit_for_bit_as_none(space: str, compiled: bool) -> None:
    weights = []
    for masked in (False, True):
        config = make_config(space, {}, masked=masked, entropy_coeff=0.01, kl_coeff=0.3)
        update, columns = PPOUpdate(rllib_learner(config), config, 0), random_batch(space)
        if not compiled:
            module = update.learner.module["default_policy"]
            update.network = make_actor_critic(module, update.flat.data, compiled=False)
        batch = train_batch(space, add_flags(space, columns, ones=True) if masked else columns)
        with torch.no_grad():
            update.update(batch, 0)
        weights.append(update.flat.data.clone())
    assert torch.equal(*weights)


@pytest.mark.parametrize("space", ["discrete", "choices", "mixed"])
@pytest.mark.parametrize("compiled", [True, False])
def test_outputs_for_illegal_actions_have_no_gradient_and_no_chance(space: str, compiled: bool) -> None:
    config = make_config(space, {}, masked=True, entropy_coeff=0.01, kl_coeff=0.3)
    update = PPOUpdate(rllib_learner(config), config, 0)
    module, columns = update.learner.module["default_policy"], add_flags(space, random_batch(space))
    network = make_actor_critic(module, update.flat.data, compiled=compiled)
    count = sum(count_parts(SPACES[space])[0])
    illegal = columns["obs"][:, INPUTS:] == 0
    with torch.no_grad():
        dist = torch.from_numpy(network.dist_inputs(columns["obs"].numpy()))[:, :count]
    assert illegal.any()
    assert (dist[illegal] == ILLEGAL).all()
    assert (dist[~illegal].abs() < 100).all()
    # In all rows the same is illegal: its weights in the policy's last layer stay as they are.
    layer, columns = module.pi.net.mlp[-1], add_flags(space, random_batch(space), ones=True)
    columns["obs"][:, INPUTS + 1] = 0.0
    columns["action_dist_inputs"][:, 1] = ILLEGAL
    columns["actions"].reshape(len(illegal), -1)[:, 0] = 0
    before = layer.weight.detach().clone()
    with torch.no_grad():
        update.update(train_batch(space, columns), 0)
    assert torch.equal(layer.weight[1], before[1])
    assert not torch.equal(layer.weight[0], before[0])
