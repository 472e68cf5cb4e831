"""DQN's kernels where test_dqn.py of off_policy, which compares updates with RLlib's learner, does not look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rltune.engine.kernels.dqn import choose_actions, explore, find_best
from rltune.engine.networks.q_network import CompiledValues, make_action_values
from rltune.engine.off_policy.dqn import DQNUpdate
from tests.engine.dqn_learner import (
    ACTIONS,
    INPUTS,
    ROWS,
    add_flags,
    make_config,
    make_learner,
    make_update,
    our_rows,
    random_columns,
)
from tests.engine.finite import is_finite
from tests.engine.masked import draw_flags

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "double, dueling, huber": ({}, {}),
    "plain": ({"head_fcnet_hiddens": []}, {"double_q": False, "dueling": False}),
    "double only, mse": ({"fcnet_activation": "relu"}, {"dueling": False, "td_error_loss_fn": "mse"}),
}


def make_case(case: str, masked: bool = False) -> tuple[DQNUpdate, Any]:
    model, settings = CASES[case]
    config = make_config(model, masked, grad_clip=None, **settings)
    learner = make_learner(config)
    return make_update(learner, config), learner.module["default_policy"]


def differentiate(case: str, columns: dict[str, Any], dtype: torch.dtype, masked: bool) -> dict[str, np.ndarray]:
    """Return the gradient of each parameter by autograd, computed in a precision."""
    update, module = make_case(case, masked)
    module.to(dtype)
    rows, importance = (torch.from_numpy(x).to(dtype) for x in (our_rows(columns, 1), columns["weights"]))
    obs, after, action, rewards, discounts = update.layout.views(rows)
    with torch.no_grad():
        values = module.forward_target({"obs": after})["qf_preds"]
        judge = module.compute_q_values({"obs": after})["qf_preds"] if update._loss.double else values
        wanted = rewards + discounts * values.gather(1, judge.argmax(1, keepdim=True)).squeeze(1)
    chosen = module.compute_q_values({"obs": obs})["qf_preds"].gather(1, action.long()).squeeze(1)
    params = {name: p for name, p in module.named_parameters() if p.requires_grad and id(p) in update.flat.grad_of}
    grads = torch.autograd.grad(update._compute_loss(chosen - wanted, importance), list(params.values()))
    return dict(zip(params, (grad.numpy() for grad in grads), strict=True))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_as_exact_as_torchs(case: str, masked: bool, seed: int) -> None:
    columns = random_columns(1, seed)
    columns = add_flags(columns, seed) if masked else columns
    exact, single = (differentiate(case, columns, dtype, masked) for dtype in (torch.float64, torch.float32))
    update, module = make_case(case, masked)
    assert type(update.online) is CompiledValues
    params = {name: p for name, p in module.named_parameters() if id(p) in update.flat.grad_of}
    update.step(our_rows(columns, 1), columns["weights"])
    gradients = {name: update.flat.grad_of[id(param)].numpy() for name, param in params.items()}
    assert gradients.keys() == exact.keys()
    ours, theirs, size = (
        np.linalg.norm(np.concatenate([part.ravel() for part in parts]))
        for parts in (
            [gradients[name] - exact[name] for name in exact],
            [single[name] - exact[name] for name in exact],
            list(exact.values()),
        )
    )
    assert ours <= 2.0 * theirs + 1e-7 * size


@pytest.mark.parametrize("column", ["obs", "new_obs", "rewards", "weights"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("case", CASES)
def test_what_is_not_finite_is_seen(case: str, bad: float, column: str) -> None:
    """In the weights or in the statistics, of which either ends a trial as diverged."""
    update, _ = make_case(case)
    columns = random_columns(1, 0)
    columns["terminateds"][3] = False
    columns[column][3] = bad
    with torch.no_grad():
        update.step(our_rows(columns, 1), columns["weights"])
        stats = update.statistics()
    seen = not is_finite(update, stats)
    # The tanh of infinity is one: torch does not see it either.
    is_relu = CASES[case][0].get("fcnet_activation") == "relu"
    assert seen or (bad == np.inf and column in ("obs", "new_obs") and not is_relu)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("of", ["online", "target"])
@pytest.mark.parametrize("case", CASES)
def test_a_weight_that_is_not_finite_is_seen(case: str, of: str, bad: float) -> None:
    update, _ = make_case(case)
    network = getattr(update, of)
    network.data[network.network.advantage[-1, 1]] = bad  # A bias of the last layer.
    columns = random_columns(1, 0)
    columns["terminateds"][:] = False
    with torch.no_grad():
        update.step(our_rows(columns, 1), columns["weights"])
        stats = update.statistics()
    assert not is_finite(update, stats)


def test_a_value_that_is_nan_is_the_best_as_for_torch() -> None:
    for values in (
        [1.0, np.nan, 3.0],
        [np.nan, 2.0, 3.0],
        [1.0, 2.0, np.nan],
        [-np.inf, -np.inf, -1.0],
        [2.0, 5.0, 1.0],
    ):
        assert find_best(np.array(values, np.float32)) == torch.tensor(values).argmax().item()


def test_actions_are_valid_ones_whatever_the_weights() -> None:
    table, data = np.array([[0, 6, 2, 3, 0]], np.int64), np.full(9, np.nan, np.float32)
    obs, draws = np.array([[1.0, np.inf], [np.nan, 0.0]], np.float32), np.ones(2)
    assert set(choose_actions(obs, table, data, draws, 0.0)) <= {0, 1, 2}
    actions = np.zeros(3, np.int64)
    explore(actions, np.array([0.0, np.nextafter(0.3, 0.0), np.nan]), 0.3, 7, np.empty((3, 0), np.float32))
    assert actions.tolist() == [0, 6, 0]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_mask_of_ones_updates_bit_for_bit_as_none(compiled: bool) -> None:
    columns, weights = random_columns(1, 3), []
    for masked in (False, True):
        update, module = make_case("double, dueling, huber", masked)
        if not compiled:
            update.online, update.target = (make_action_values(module, target=t, compiled=False) for t in (False, True))
        with torch.no_grad():
            update.step(our_rows(add_flags(columns, 0, ones=True) if masked else columns, 1), columns["weights"])
        weights.append(update.flat.data.clone())
    assert torch.equal(*weights)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("epsilon", "value"), [(0.0, 0.0), (0.3, 0.0), (1.0, 0.0), (0.0, -1e12)])
def test_only_legal_actions_are_chosen(epsilon: float, value: float, compiled: bool) -> None:
    _, module = make_case("double, dueling, huber", masked=True)
    with torch.no_grad():
        for head in (module.af, module.vf):  # The values of legal actions, which may be lower than any in use.
            list(head.parameters())[-1].add_(value)
    network = make_action_values(module, compiled=compiled)
    rng = np.random.default_rng(0)
    for _ in range(50):
        flags = draw_flags(rng, ROWS, ACTIONS)
        obs = np.hstack([rng.normal(0, 5, (ROWS, INPUTS)), flags]).astype(np.float32)
        with torch.no_grad():
            actions = network.choose(obs, rng.random(ROWS), epsilon)
        assert flags[np.arange(ROWS), actions].all()


def test_explored_actions_are_uniform_over_the_legal_ones() -> None:
    flags = np.tile(np.array([0, 1, 0, 1, 1, 0], np.float32), (3000, 1))
    actions = np.zeros(3000, np.int64)
    explore(actions, np.random.default_rng(0).random(3000) * 0.2, 0.2, 6, flags)
    counts = np.bincount(actions, minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert (np.abs(counts[[1, 3, 4]] - 1000) < 100).all()


def test_with_all_actions_legal_exploration_is_as_without_flags() -> None:
    draws = np.random.default_rng(0).random(500)
    chosen = [np.zeros(500, np.int64) for _ in range(2)]
    explore(chosen[0], draws, 0.7, 9, np.empty((500, 0), np.float32))
    explore(chosen[1], draws, 0.7, 9, np.ones((500, 9), np.float32))
    assert (chosen[0] == chosen[1]).all()
