"""RLlib's networks from a layout: images of any size and order, beside numbers, before an LSTM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as S

from rltune.algorithms.build import build_config
from rltune.algorithms.multi_agent import configure_agents
from rltune.compat.row_catalog import derive_filters, find_catalog
from rltune.envs.facts import EnvFacts
from rltune.envs.observations import find_network_spaces, make_layout, make_view_space
from rltune.envs.spec import EnvSpec
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.bundle_writer import write_bundle
from tests.support.builds import make_build

ACTIONS = S.Discrete(2)
MIXED = S.Dict({"camera": S.Box(0, 255, (9, 10, 3), np.uint8), "goal": S.Box(-1, 1, (2,))})


def build(name: str, space: Any, **model: Any) -> tuple[Any, Any]:
    """Build a module of an algorithm, and the layout that it sees."""
    algo = {
        "name": name,
        "class": f"ray.rllib.algorithms.{name}:{name.upper()}Config",
        "env_runners": {"num_env_runners": 0},
        "rl_module": {"model_config": {"fcnet_hiddens": [16], **model}},
    }
    config = build_config(make_build(algo, EnvSpec("Room-v0"), facts=EnvFacts(space, ACTIONS)), {}, 0)
    layout = make_layout(space)
    spaces = {"default_policy": (make_view_space(layout), ACTIONS)}
    torch.manual_seed(0)
    module = config.get_multi_rl_module_spec(spaces=spaces, inference_only=False).build()["default_policy"]
    return module, layout


def infer(module: Any, rows: Any) -> Any:
    with torch.no_grad():
        return module.forward_inference({"obs": torch.from_numpy(rows)})


@pytest.mark.parametrize("name", ["ppo", "dqn", "appo", "bc"])
@pytest.mark.parametrize("side", [8, 9, 42, 64, 75, 84, 96, 150])
def test_images_of_bytes_of_any_size_have_a_network(name: str, side: int) -> None:
    space = S.Box(0, 255, (side, side, 3), np.uint8)
    module, layout = build(name, space)
    rows = np.stack([layout.encode(space.sample()) for _ in range(2)])
    views, packed = infer(module, layout.view(rows)), infer(module, rows)
    assert all(torch.equal(views[key], packed[key]) for key in views)


def test_channels_first_and_last_give_equal_outputs() -> None:
    image = np.random.default_rng(0).integers(0, 256, (12, 14, 3)).astype(np.uint8)
    outputs = []
    for shape, seen in (((12, 14, 3), image), ((3, 12, 14), np.moveaxis(image, -1, 0))):
        module, layout = build("ppo", S.Box(0, 255, shape, np.uint8))
        outputs.append(infer(module, layout.encode(seen)[None])["action_dist_inputs"])
    torch.testing.assert_close(*outputs)


def test_stacked_frames_are_channels_in_any_order(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 12, 14, 3)).astype(np.uint8)
    outputs = []
    for seen in (frames, np.moveaxis(frames, -1, 1), np.concatenate(frames, axis=-1)):
        space = S.Box(0, 255, seen.shape, np.uint8)
        module, layout = build("ppo", space)
        outputs.append(infer(module, layout.encode(seen)[None])["action_dist_inputs"])
        assert torch.equal(infer(module, layout.view(layout.encode(seen)[None]))["action_dist_inputs"], outputs[-1])
        write_bundle(module, tmp_path, info={}, observation_space=space, action_space=ACTIONS)
        policy = BundlePolicy.load(tmp_path)
        outputs.append(policy.network(torch.from_numpy(policy.prepare_inputs(seen, None)[0])))
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0])


def test_floats_and_bytes_of_one_image_give_equal_outputs() -> None:
    image = np.random.default_rng(0).integers(0, 256, (12, 12, 3)).astype(np.uint8)
    outputs = []
    for space, seen in (
        (S.Box(0, 255, image.shape, np.uint8), image),
        (S.Box(0, 1, image.shape, np.float32), np.float32(image) / np.float32(255)),
        (S.Box(0, 255, image.shape, np.float64), np.float64(image)),
    ):
        module, layout = build("ppo", space)
        outputs.append(infer(module, layout.encode(seen)[None])["action_dist_inputs"])
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])


def test_both_leaves_reach_the_network() -> None:
    module, layout = build("ppo", MIXED)
    rows = layout.encode_batch(layout.stack([MIXED.sample() for _ in range(4)]))[0]
    whole = infer(module, rows)["action_dist_inputs"]
    for blind in (layout.bytes, layout.numbers):
        part = rows.copy()
        blind(part)[:] = 0
        assert not torch.allclose(infer(module, part)["action_dist_inputs"], whole)


def test_an_lstm_sees_the_same_encoder() -> None:
    module, _ = build("ppo", MIXED, use_lstm=True, lstm_cell_size=4)
    assert type(module.encoder.encoder.tokenizer).__name__ == "RowEncoder"


def test_filters_can_be_typed_and_follow_from_the_size() -> None:
    (leaf,) = make_layout(S.Box(0, 255, (84, 84, 4), np.uint8)).leaves
    assert derive_filters(leaf) == [[16, 4, 2], [32, 4, 2], [64, 4, 2], [128, 4, 2]]
    module, _ = build("ppo", S.Box(0, 255, (24, 32, 3), np.uint8), conv_filters=[[8, 3, 2]])
    convolutions = [part for part in module.encoder.encoder.images.modules() if isinstance(part, torch.nn.Conv2d)]
    assert [part.out_channels for part in convolutions] == [8]


def test_vectors_have_the_networks_of_rllib() -> None:
    module, _ = build("ppo", S.Box(-1, 1, (4,)))
    assert type(module.encoder.encoder).__name__ == "TorchMLPEncoder"


def test_algorithms_that_see_vectors_alone_have_no_catalog() -> None:
    from ray.rllib.algorithms.sac import SACConfig

    assert find_catalog(SACConfig) is None


def test_each_policy_of_several_sees_by_its_own_layout() -> None:
    from ray.rllib.algorithms.ppo import PPOConfig

    seen = {"pilot": MIXED, "trader": S.Box(-1, 1, (3,)), "guard": S.Box(0, 255, (8, 8), np.uint8)}
    observed, chosen = (S.Dict({name: pick(space) for name, space in seen.items()}) for pick in (lambda x: x, _choose))
    facts = EnvFacts(observed, chosen, agents=tuple(seen))
    config = PPOConfig()
    configure_agents(config, EnvSpec("team", policies="separate"), facts)
    spaces = {name: find_network_spaces(*pair) for name, pair in facts.spaces_by_agent.items()}
    module: Any = config.get_multi_rl_module_spec(spaces=spaces, inference_only=False).build()
    kinds = {name: type(module[name].encoder.actor_encoder).__name__ for name in seen}
    assert kinds == {"pilot": "RowEncoder", "trader": "TorchMLPEncoder", "guard": "RowEncoder"}


def _choose(space: Any) -> S.Discrete:
    return S.Discrete(2)
