"""RLlib's modules with an action mask: what they cut off, what they mask, and which algorithms have one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig

from rltune.compat.masked_modules import MaskedActions, MaskedAPPO, MaskedDQN, MaskedPPO, find_masked_class
from rltune.envs.layout import ILLEGAL
from tests.engine.dqn_learner import ACTIONS, INPUTS, make_config, make_learner
from tests.engine.masked import draw_flags

pytestmark = pytest.mark.fast

CLASSES: dict[type, type | None] = {
    PPOConfig: MaskedPPO,
    IMPALAConfig: MaskedPPO,
    APPOConfig: MaskedAPPO,
    DQNConfig: MaskedDQN,
    SACConfig: None,
    BCConfig: None,
    MARWILConfig: None,
}


@pytest.mark.parametrize("config", CLASSES)
def test_algorithms_that_choose_have_a_module_with_masks(config: Any):
    assert find_masked_class(config()) is CLASSES[config]


def test_the_flags_are_cut_off_rows_of_floats_and_of_bytes():
    module = MaskedActions()
    module.num_flags = 3
    flags = torch.tensor([[1.0, 0.0, 1.0]])
    floats = {"obs": torch.cat([torch.full((1, 2), 7.0), flags], 1)}
    rows = torch.cat([torch.full((1, 4), 9, dtype=torch.uint8), floats["obs"].view(torch.uint8)], 1)
    assert module.cut(floats)["obs"].tolist() == [[7.0, 7.0]]
    assert torch.equal(module.cut({"obs": rows})["obs"], rows[:, :12])
    for batch in (floats, {"obs": rows}):
        assert module.read_flags(batch).tolist() == [[True, False, True]]


def test_the_outputs_for_numbers_stay_as_they_are():
    module = MaskedActions()
    module.num_flags = 2
    outputs = module.mask({"obs": torch.tensor([[5.0, 0.0, 1.0]])}, torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert outputs.tolist() == [[ILLEGAL, 2.0, 3.0, 4.0]]


@pytest.mark.parametrize("num_atoms", [1, 51])
def test_rllibs_dqn_explores_legal_actions_alone(num_atoms: int):
    config = make_config({}, masked=True, epsilon=[[0, 1.0], [10, 0.5]], num_atoms=num_atoms)
    module = make_learner(config).module["default_policy"]
    flags, rng = draw_flags(np.random.default_rng(0), 500, ACTIONS), np.random.default_rng(1)
    rows = torch.from_numpy(np.hstack([rng.normal(0, 5, (500, INPUTS)), flags]).astype(np.float32))
    for step in (0, 5, 20):
        actions = module.forward_exploration({"obs": rows}, t=step)["actions"].numpy()
        assert flags[np.arange(500), actions].all()
    assert {0, 1, 2} == set(actions.tolist())
