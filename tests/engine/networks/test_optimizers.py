"""Steps on flat tensors against torch's own optimizers and clipping; compiled steps against plain ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.optimizers import FlatOptimizer, clip_gradients, make_flat_optimizer
from rltune.engine.off_policy.sac import SACUpdate
from rltune.engine.off_policy.transitions import RowLayout
from rltune.engine.on_policy.ppo import PPOUpdate
from tests.engine import dqn_learner as dqn
from tests.engine import ppo_learner as ppo
from tests.engine import sac_learner as sac


def ppo_updated(config: Any, learner_config: Any) -> Any:
    learner = ppo.rllib_learner(learner_config)
    PPOUpdate(learner, config, 0).update(ppo.train_batch("continuous", ppo.random_batch("continuous")), 500)
    return learner


def dqn_updated(config: Any, learner_config: Any) -> Any:
    learner, columns = dqn.make_learner(learner_config), dqn.random_columns(1, 0)
    dqn.make_update(learner, config).step(dqn.our_rows(columns, 1), columns["weights"])
    return learner


def sac_updated(config: Any, learner_config: Any) -> Any:
    learner, columns = sac.make_learner(learner_config), sac.random_columns(1, 0)
    update = SACUpdate(learner, config, RowLayout((sac.INPUTS,), 2))
    update.step(sac.our_rows(columns, 1), columns["weights"])
    return learner


CASES = {
    "ppo": (ppo_updated, lambda: ppo.make_config("continuous", {}, grad_clip=0.3)),
    "dqn": (dqn_updated, lambda: dqn.make_config({})),
    "sac": (sac_updated, lambda: sac.make_config({})),
}


@pytest.mark.slow  # torch traces every update
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_update_gives_the_same_weights(name: str) -> None:
    from torch._dynamo.utils import counters  # two seconds, which no other test needs

    updated, make = CASES[name]
    plain = make()
    compiled = copy.deepcopy(plain)
    # The graph is traced and split as always; generating code for it is the backend's own affair and takes a minute.
    compiled.framework(torch_compile_learner=True, torch_compile_learner_dynamo_backend="aot_eager")
    counters.clear()
    with torch.no_grad():
        expected, learner = updated(plain, plain), updated(compiled, plain)
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    names = dict(expected.module["default_policy"].named_parameters())
    for key, value in learner.module["default_policy"].named_parameters():
        torch.testing.assert_close(value, names[key], atol=1e-6, rtol=0, msg=lambda m, n=key: f"{n}: {m}")


OPTIMIZERS: dict[str, Any] = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.1, betas=(0.8, 0.95), eps=1e-3),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.1, alpha=0.9, eps=1e-3),
}


def make_pair(name: str) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module, FlatParameters, FlatOptimizer]:
    """A module with torch's optimizer, and its copy with ours."""
    plain = nn.Linear(3, 5)
    ours = copy.deepcopy(plain)
    flat = FlatParameters(list(ours.parameters()))
    flat_optimizer = make_flat_optimizer(flat, OPTIMIZERS[name](flat.params))
    return plain, OPTIMIZERS[name](plain.parameters()), ours, flat, flat_optimizer


def set_gradients(plain: nn.Module, flat: FlatParameters) -> None:
    for param, view in zip(plain.parameters(), flat.grads, strict=True):
        param.grad = torch.randn_like(param)
        view.copy_(param.grad)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_and_state_equal_torchs_also_after_a_restore(name: str) -> None:
    plain, torchs, ours, flat, flat_optimizer = make_pair(name)
    for step in range(4):
        if step == 2:  # what a checkpoint does: the state goes out and comes back into new tensors
            inner = flat_optimizer.optimizer
            inner.load_state_dict(copy.deepcopy(inner.state_dict()))
            flat_optimizer = make_flat_optimizer(flat, inner)
        set_gradients(plain, flat)
        torchs.step()
        with torch.no_grad():
            flat_optimizer.step(0.1)
    for param, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(param, wanted, atol=1e-6, rtol=1e-5)
        moments, expected = flat_optimizer.optimizer.state[param], torchs.state[wanted]
        assert moments.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(moments[key], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("limit", [None, 0.01, 1e6])
def test_clipping_by_global_norm_equals_torchs(limit: float | None) -> None:
    plain, _, _, flat, _ = make_pair("adam")
    set_gradients(plain, flat)
    norm = clip_gradients(flat, limit, "global_norm")
    if limit is None:
        assert norm is None
    else:
        wanted = torch.nn.utils.clip_grad_norm_(plain.parameters(), limit)
        torch.testing.assert_close(norm, wanted)
    for param, view in zip(plain.parameters(), flat.grads, strict=True):
        torch.testing.assert_close(view, param.grad)
