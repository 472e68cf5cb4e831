"""``torch_compile_learner=true`` changes the speed of an update, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import dqn_learner as dqn
import ppo_learner as ppo
import pytest
import sac_learner as sac
import torch
from torch._dynamo.utils import counters

from rltune.engine.off_policy.dqn import DQNUpdate
from rltune.engine.off_policy.sac import SACUpdate
from rltune.engine.off_policy.transitions import RowLayout
from rltune.engine.on_policy.ppo import PPOUpdate

pytestmark = pytest.mark.slow  # torch traces every update


def ppo_updated(config: Any, learner_config: Any) -> Any:
    learner = ppo.rllib_learner(learner_config)
    PPOUpdate(learner, config, 0).update(ppo.our_batch("continuous", ppo.random_batch("continuous")), 500)
    return learner


def dqn_updated(config: Any, learner_config: Any) -> Any:
    learner, columns = dqn.make_learner(learner_config), dqn.random_columns(1, 0)
    DQNUpdate(learner, config, dqn.LAYOUT).step(dqn.our_rows(columns, 1), columns["weights"])
    return learner


def sac_updated(config: Any, learner_config: Any) -> Any:
    learner, columns = sac.make_learner(learner_config), sac.random_columns("continuous", 1, 0)
    update = SACUpdate(learner, config, RowLayout((sac.INPUTS,), 2))
    update.step(sac.our_rows(columns, 1), columns["weights"])
    return learner


CASES = {
    "ppo": (ppo_updated, lambda: ppo.make_config("continuous", {}, grad_clip=0.3)),
    "dqn": (dqn_updated, lambda: dqn.make_config({})),
    "sac": (sac_updated, lambda: sac.make_config("continuous", {})),
}


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_update_gives_the_same_weights(name: str) -> None:
    updated, make = CASES[name]
    plain = make()
    compiled = copy.deepcopy(plain)
    # The graph is traced and split as always; generating code for it is the backend's own affair and takes a minute.
    compiled.framework(torch_compile_learner=True, torch_compile_learner_dynamo_backend="aot_eager")
    counters.clear()
    with torch.no_grad():
        expected, found = updated(plain, plain), updated(compiled, plain)
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    names = dict(expected.module["default_policy"].named_parameters())
    for key, value in found.module["default_policy"].named_parameters():
        torch.testing.assert_close(value, names[key], atol=1e-6, rtol=0, msg=lambda m, n=key: f"{n}: {m}")
