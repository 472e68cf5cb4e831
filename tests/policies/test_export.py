"""Exported policies: files that act as the policy does, where neither torch's file nor ONNX's knows rltune."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces as S
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from rltune.compat.row_catalog import LAYOUT, RowPPOCatalog
from rltune.envs.actions import split_batch
from rltune.envs.facts import describe_space
from rltune.envs.observations import make_layout, make_view_space
from rltune.errors import PolicyError
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.bundle_writer import write_bundle
from rltune.policies.export import Graph, default_export_name, export_policy
from tests.policies.bundles import BOX, write_linear
from tests.policies.parts_modules import PARTS, write_parts
from tests.policies.rllib_modules import runner_of

FILTER = {"mean": np.array([0.3, -0.2, 1.5]), "var": np.array([0.5, 0.4, 9.0]), "clip": 10.0}
CASES: dict[str, tuple[Any, str, Any]] = {
    "ppo, discrete": (PPOConfig, "CartPole-v1", None),
    "dqn, dueling": (DQNConfig, "CartPole-v1", None),
    "ppo, continuous, normalised observations": (PPOConfig, "Pendulum-v1", FILTER),
    "sac, squashed": (SACConfig, "Pendulum-v1", FILTER),
}

pytestmark = pytest.mark.slow  # torch traces every network


def policy_of(name: str, folder: Path) -> Any:
    kind, env, stats = CASES[name]
    info = {"algo": name.split(",")[0], "env": {"id": env}}
    write_bundle(runner_of(kind(), env).module, folder, info=info, observation_stats=stats)
    return BundlePolicy.load(folder)


def test_a_recurrent_graph_takes_its_state_and_gives_the_next(tmp_path: Path) -> None:
    runner = runner_of(PPOConfig(), "Pendulum-v1", use_lstm=True, lstm_cell_size=8)
    write_bundle(runner.module, tmp_path, info={})
    policy, path = BundlePolicy.load(tmp_path), tmp_path / "policy.onnx"
    assert export_policy(policy, path).num_checked == 1000
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    mine, state = None, np.zeros((3, policy.memory_size), np.float32)
    for seen in np.random.default_rng(5).normal(size=(50, 3, 3)).astype(np.float32):
        wanted, mine = policy.predict(seen, mine)
        feed = {"observations": seen, "state": state}
        actions, state, parameters = session.run(["actions", "next_state", "distribution"], feed)
        np.testing.assert_allclose(actions, wanted, atol=1e-5)
    np.testing.assert_allclose(state, mine, atol=1e-5)
    assert np.abs(state).max() > 1e-2
    np.testing.assert_allclose(2 * np.clip(parameters[:, :1], -1, 1), wanted, atol=1e-5)


LEAVES = {
    "camera": gymnasium.spaces.Box(0, 255, (10, 10, 3), np.uint8),
    "state": gymnasium.spaces.Box(-2, 2, (2, 2), np.float64),
    "robot": gymnasium.spaces.Dict({"tool": gymnasium.spaces.Discrete(3, start=-1)}),
    "flags": gymnasium.spaces.Tuple([gymnasium.spaces.MultiBinary(2), gymnasium.spaces.MultiDiscrete([2, 3])]),
}
INPUTS = ["camera", "observations.state", "robot.tool", "flags.0", "flags.1"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_leaves_of_observations_are_inputs_by_name(is_whole: bool, tmp_path: Path) -> None:
    """Of a module that is built alone: RLlib's env runner would want a whole environment."""
    space: Any = LEAVES["camera"] if is_whole else gymnasium.spaces.Dict(OrderedDict(LEAVES))
    layout, actions = make_layout(space), gymnasium.spaces.Discrete(4)
    torch.manual_seed(0)
    model = {"conv_filters": [[8, 3, 2], [16, 3, 2]], "fcnet_hiddens": [16], "vf_share_layers": False}
    settings = {**asdict(DefaultModelConfig(**model)), LAYOUT: layout.to_dict()}
    module = DefaultPPOTorchRLModule(
        observation_space=make_view_space(layout),
        action_space=actions,
        catalog_class=RowPPOCatalog,
        model_config=settings,
    )
    write_bundle(module, tmp_path, info={}, observation_space=space, action_space=actions)
    policy = BundlePolicy.load(tmp_path)
    done = export_policy(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
    names = ["observations"] if is_whole else INPUTS
    assert [each.name for each in session.get_inputs()] == names
    space.seed(5)
    seen = [space.sample() for _ in range(50)]
    batch = policy.stack(seen)
    leaves = [functools.reduce(lambda part, key: part[key], leaf.path, batch) for leaf in layout.leaves]
    actions, parameters = session.run(None, dict(zip(names, leaves, strict=True)))
    np.testing.assert_array_equal(actions, policy.act(batch))
    with torch.no_grad():
        views = torch.from_numpy(layout.view(np.stack([layout.encode(each) for each in seen])))
        logits = module.forward_inference({"obs": views})["action_dist_inputs"]
    np.testing.assert_array_equal(actions, logits.argmax(-1).numpy())
    np.testing.assert_allclose(parameters, logits, atol=1e-4)
    assert is_whole or len(set(actions.tolist())) > 1


@pytest.mark.parametrize("name", CASES)
def test_onnx_acts_as_the_policy_with_filter_and_scaling_inside(name: str, tmp_path: Path) -> None:
    policy = policy_of(name, tmp_path)
    done = export_policy(policy, tmp_path / "policy.onnx")
    assert done.num_checked == 1000
    session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
    seen = np.random.default_rng(5).normal(scale=1.5, size=(1000, *policy.observation_space.shape)).astype(np.float32)
    actions, *_ = session.run(None, {"observations": seen})
    if "Pendulum" in CASES[name][1]:
        np.testing.assert_allclose(actions, policy.act(seen), atol=1e-5)
        assert np.ptp(actions) > 1e-3
    else:
        np.testing.assert_array_equal(actions, policy.act(seen))
        assert set(actions.tolist()) == {0, 1}
    assert session.run(None, {"observations": seen[:1]})[0].shape == actions[:1].shape
    about = json.loads(session.get_modelmeta().custom_metadata_map["rltune"])
    assert about["info"]["env"]["id"] == CASES[name][1]


@pytest.mark.parametrize("name", [name for name in CASES if "dqn" not in name])
def test_onnx_gives_what_sampled_actions_are_drawn_from(name: str, tmp_path: Path) -> None:
    """By the recipe of docs/policies.md, in NumPy alone. The file acts deterministically, however the policy acts."""
    policy_of(name, tmp_path)
    acting = {"deterministic": False, "episodes": 20, "deterministic_mean": 0.0, "sampled_mean": 1.0, "cut": 0}
    (tmp_path / "policy.json").write_text(
        json.dumps(json.loads((tmp_path / "policy.json").read_text()) | {"acting": acting})
    )
    policy = BundlePolicy.load(tmp_path)
    export_policy(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["rltune"])
    assert about["acting"] == acting
    seen = np.random.default_rng(5).normal(size=(500, *policy.observation_space.shape)).astype(np.float32)
    actions, parameters = session.run(["actions", "distribution"], {"observations": seen})
    np.testing.assert_allclose(actions, policy.act(seen, deterministic=True), atol=1e-5)
    rng = np.random.default_rng(3)
    if about["head"] == "categorical":
        drawn = (parameters + rng.gumbel(size=parameters.shape)).argmax(-1)
    else:
        mean, log_std = np.split(parameters, 2, axis=-1)
        drawn = mean + np.exp(log_std) * rng.standard_normal(mean.shape, dtype=np.float32)
        drawn = np.tanh(drawn) if about["head"] == "squashed_gaussian" else np.clip(drawn, -1, 1)
        low, high = (np.array(about["spaces"]["action"][bound]) for bound in ("low", "high"))
        drawn = low + (drawn + 1) / 2 * (high - low)
    np.testing.assert_allclose(drawn, policy.act(seen, rng=3), atol=1e-4)
    assert (drawn != actions).any()


def test_values_are_no_distribution(tmp_path: Path) -> None:
    export_policy(policy_of("dqn, dueling", tmp_path), tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["actions"]


def test_a_torch_program_acts_as_the_policy(tmp_path: Path) -> None:
    policy = policy_of("ppo, continuous, normalised observations", tmp_path)
    export_policy(policy, tmp_path / "policy.pt2", "torch")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    seen = np.random.default_rng(5).normal(size=(7, 3)).astype(np.float32)
    np.testing.assert_allclose(program(torch.from_numpy(seen)).numpy(), policy.act(seen), atol=1e-5)


def test_a_file_that_would_act_differently_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("ppo, continuous, normalised observations", tmp_path)
    (tmp_path / "policy.pt2").write_text("earlier")
    rows = Graph._make_rows
    monkeypatch.setattr(Graph, "_make_rows", lambda self, seen: rows(self, seen) + 0.01)
    with pytest.raises(PolicyError):
        export_policy(policy, tmp_path / "policy.pt2", "torch")
    assert (tmp_path / "policy.pt2").read_text() == "earlier"
    assert not list(tmp_path.glob(".policy*"))


def test_an_exporter_that_fails_without_a_word_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("ppo, discrete", tmp_path)
    monkeypatch.setattr(Graph, "_make_rows", lambda self, seen: next(iter([])))
    with pytest.raises(PolicyError, match=r"policy=ppo .*StopIteration"):
        export_policy(policy, tmp_path / "policy.pt2", "torch")


def test_leaves_are_normalised_in_the_precision_of_rows(tmp_path: Path) -> None:
    space = describe_space(S.Dict({"far": S.Box(-np.inf, np.inf, (1,), np.float64), "near": S.Box(-1, 1, (1,))}))
    stats = {"observation.mean": np.array([1e5, 0.0]), "observation.var": np.array([1e-12, 1.0])}
    policy = BundlePolicy.load(write_linear(tmp_path, space, observation_filter={"clip": 10.0, "eps": 1e-6}, **stats))
    assert export_policy(policy, tmp_path / "policy.onnx").num_checked == 1000


def test_a_file_is_named_by_the_environment_and_the_algorithm(tmp_path: Path) -> None:
    policy = BundlePolicy.load(write_linear(tmp_path, BOX, {"id": "my_envs.cards:Duel-v0"}))
    assert default_export_name(policy, "onnx") == "duel-v0-ppo.onnx"


def test_missing_packages_and_wrong_formats_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolicyError, match="'onnx'"):
        export_policy("sweep:any", tmp_path / "x", "onx")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"rltune\[export\]"):
        export_policy("sweep:any", tmp_path / "x.onnx")


@pytest.mark.parametrize(
    "space",
    [
        S.Box(np.array([-1e300, -0.1]), np.array([1e300, 0.1]), dtype=np.float64),
        S.Box(-(2**62), 2**62, (2,), np.int64),
        S.Dict({"none": S.Box(-1, 1, (0,)), "go": S.Discrete(2)}),
    ],
)
def test_actions_are_compared_in_the_unit_of_their_range(space: Any, tmp_path: Path) -> None:
    _, policy = write_parts(tmp_path, space)
    assert export_policy(policy, tmp_path / "policy.onnx").num_checked == 1000


@pytest.mark.parametrize("name", PARTS)
def test_each_part_of_an_action_is_an_output(name: str, tmp_path: Path) -> None:
    _, policy = write_parts(tmp_path, PARTS[name])
    names = [f"actions.{part.name}" if part.path else "actions" for part in policy.actions.parts]
    export_policy(policy, tmp_path / "policy.onnx")
    export_policy(policy, tmp_path / "policy.pt2", "torch")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == [*names, "distribution"]
    seen = np.random.default_rng(5).normal(size=(50, 4)).astype(np.float32)
    leaves = session.run(names, {session.get_inputs()[0].name: seen})
    for action in split_batch(policy.actions.fold(leaves), 50):
        assert PARTS[name].contains(action)
    for ours, theirs in zip(policy.actions.unfold(policy.act(seen)), leaves, strict=True):
        assert theirs.dtype == ours.dtype
        np.testing.assert_allclose(theirs, ours, atol=1e-4)
