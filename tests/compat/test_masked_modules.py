"""RLlib's modules with an action mask: what they cut off, what they mask, and which algorithms have one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as S
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig

from rltune.compat.masked_modules import MaskedActions, MaskedAPPO, MaskedDQN, MaskedPPO, find_masked_class
from rltune.envs.layout import ILLEGAL
from rltune.envs.observations import make_layout
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
    image = {"camera": S.Box(0, 255, (2, 2), np.uint8)}
    for space, encode in (
        (S.Dict({"state": S.Box(-9, 9, (2,), np.float32)}), {}),
        (S.Dict(image), {"camera": "image"}),
    ):
        module = MaskedActions()
        module.layout, module.num_flags = make_layout(space, encode, mask=(), num_flags=3), 3
        observations = module.layout.stack([space.sample()])
        rows = module.layout.encode_batch(observations, np.array([[1, 0, 1]]))[0]
        seen, flags = module.split({"obs": torch.from_numpy(rows)})
        assert seen["obs"].tolist() == module.layout.view(rows)[:, :-3].tolist()
        assert flags.tolist() == [[True, False, True]]


def test_the_outputs_for_numbers_stay_as_they_are():
    module = MaskedActions()
    module.num_flags = 2
    outputs = module.mask(torch.tensor([[False, True]]), torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
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
