"""A bundle's policy acts and samples, alone, and refuses what does not fit."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces as S
from gymnasium.spaces import Discrete
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.algorithms.tqc import TQCConfig

from rltune.config.capabilities import TABLE, find_capabilities
from rltune.envs.layout import make_space
from rltune.envs.observations import make_layout
from rltune.policies.bundle_reader import HEADS, BundlePolicy, Head, PartsHead, Segments, read_owners
from rltune.policies.bundle_writer import describe_space, write_bundle
from rltune.policies.export import Graph
from rltune.policies.mlflow_model import make_model_arguments
from rltune.policies.policy import load_policy
from tests.policies.bundles import BOX, DISCRETE, IMAGE, write_linear
from tests.policies.rllib_modules import runner_of, some_observations


def test_sampled_actions_follow_the_policys_distribution(cartpole, pendulum):
    obs = np.zeros(4, np.float32)
    logits = cartpole.policy.network(torch.zeros(1, 4))
    share = cartpole.policy.act(np.tile(obs, (20_000, 1)), deterministic=False, rng=0).mean()
    assert share == pytest.approx(float(torch.softmax(logits, -1)[0, 1]), abs=0.02)
    rows = np.tile(np.zeros(3, np.float32), (20_000, 1))
    mean, log_std = pendulum.policy.network(torch.zeros(1, 3))[0].numpy()
    sampled = np.arctanh(np.clip(pendulum.policy.act(rows, deterministic=False, rng=0) / 2, -0.999999, 0.999999))
    assert np.median(sampled) == pytest.approx(mean, abs=0.05 * float(np.exp(log_std)))


@pytest.mark.parametrize("shift", [-8.0, 0.0, 3.0])
@pytest.mark.parametrize("kind", [SACConfig, TQCConfig])
def test_sampled_squashed_actions_are_spread_as_rllibs_are(kind, shift, tmp_path):
    """RLlib bounds log standard deviations to [-5, 2] in the distribution, not in the network."""
    torch.manual_seed(0)
    runner = runner_of(kind(), "Pendulum-v1")
    with torch.no_grad():
        runner.module.pi.net.mlp[-1].bias[1] += shift
    write_bundle(runner.module, tmp_path, info={})
    rows = np.zeros((20_000, 3), np.float32)
    actions = BundlePolicy.load(tmp_path).act(rows, deterministic=False, rng=0)
    ours = actions[:, 0] / 2  # the torque's bounds are -2 and 2
    with torch.no_grad():
        inputs = runner.module.forward_exploration({"obs": torch.from_numpy(rows)})["action_dist_inputs"]
        theirs = runner.module.get_exploration_action_dist_cls().from_logits(inputs).sample()[:, 0].numpy()
    assert greatest_gap(ours, theirs) < 0.02


def greatest_gap(some: np.ndarray, others: np.ndarray) -> float:
    """Kolmogorov-Smirnov's statistic: the greatest difference of the two distribution functions."""
    some, others = (values.round(5) for values in (some, others))  # near the bounds float32 rounds differently
    points = np.sort(np.concatenate([some, others]))
    shares = [np.searchsorted(np.sort(values), points, side="right") / len(values) for values in (some, others)]
    return float(np.abs(shares[0] - shares[1]).max())


def test_a_q_policy_explores_with_its_schedules_last_epsilon(tmp_path):
    runner = runner_of(DQNConfig().training(epsilon=[(0, 1.0), (1000, 0.5)]), "CartPole-v1")
    write_bundle(runner.module, tmp_path, info={})
    policy, rows = BundlePolicy.load(tmp_path), np.zeros((20_000, 4), np.float32)
    other = policy.act(rows, deterministic=False, rng=1) != policy.act(rows[0])
    assert other.mean() == pytest.approx(0.25, abs=0.02)  # half of the explored ones


def test_every_algorithms_head_is_in_the_list():
    assert {row.network.kind for row in TABLE.values() if row.network} <= HEADS.keys()


SAC = find_capabilities({"name": "sac", "class": "ray.rllib.algorithms.sac:SACConfig"}).network


class DeterministicHead(Head):
    """A head as TD3 has it: the action itself, with noise where it explores."""

    kind = "deterministic"

    def compute_output(self, network, hidden):
        return super().compute_output(network, hidden)[:, :1]  # SAC's layers give a deviation besides.

    def choose_best(self, out):
        return out.clip(-1, 1)

    def draw(self, out, noise):
        return self.choose_best(out + np.float32(0.1) * noise)


def test_a_new_kind_of_head_is_one_class(tmp_path, monkeypatch):
    """It is written, acts, samples, and stands in the exported graph."""
    monkeypatch.setitem(HEADS, "deterministic", DeterministicHead)
    monkeypatch.setattr("rltune.policies.bundle_writer.network_of", lambda module: replace(SAC, kind="deterministic"))
    write_bundle(runner_of(SACConfig(), "Pendulum-v1").module, tmp_path, info={})
    policy, rows = BundlePolicy.load(tmp_path), np.zeros((3, 3), np.float32)
    assert policy.head == "deterministic"
    actions = policy.act(rows)
    np.testing.assert_allclose(actions, 2 * policy.network(torch.from_numpy(rows)).numpy().clip(-1, 1), rtol=1e-6)
    np.testing.assert_allclose(Graph(policy)(torch.from_numpy(rows)).numpy(), actions, rtol=1e-6)
    assert (policy.act(rows, deterministic=False, rng=0) != actions).any()


def test_a_head_of_a_later_version_is_refused(cartpole, monkeypatch):
    monkeypatch.delitem(HEADS, "categorical")
    with pytest.raises(ValueError, match="categorical"):
        BundlePolicy.load(cartpole.folder)


def test_sampling_repeats_with_its_seed(cartpole):
    rows = np.zeros((64, 4), np.float32)
    act = cartpole.policy.act
    assert (act(rows, False, rng=5) == act(rows, False, rng=5)).all()
    assert (act(rows, False, rng=5) != act(rows, False, rng=6)).any()
    assert (act(rows, False) != act(rows, False)).any()


def test_one_observation_gives_one_action_a_batch_a_batch(cartpole, pendulum):
    assert cartpole.policy.act(np.zeros(4)) in (0, 1)
    assert cartpole.policy.act([0.0, 0.0, 0.0, 0.0]).shape == ()
    assert cartpole.policy.act(np.zeros((7, 4))).shape == (7,)
    assert cartpole.policy.act(np.zeros((1, 4))).shape == (1,)
    assert pendulum.policy.act(np.zeros(3)).shape == (1,)
    assert pendulum.policy.act(np.zeros((7, 3))).shape == (7, 1)
    assert pendulum.policy.action_space.contains(pendulum.policy.act(np.ones(3)))


@pytest.mark.parametrize("shape", [(3,), (7, 3), (2, 2, 4), ()])
def test_an_observation_of_another_shape_is_refused(cartpole, shape):
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        cartpole.policy.act(np.zeros(shape))


def test_predict_has_stable_baselines3s_signature(cartpole):
    action, state = cartpole.policy.predict(np.zeros(4), state=None, episode_start=np.array([True]), deterministic=True)
    assert isinstance(action, np.ndarray)
    assert action.shape == ()
    assert state is None
    actions, _ = cartpole.policy.predict(np.zeros((3, 4)))
    assert actions.shape == (3,)


def test_predict_leaves_a_recurrent_policys_memory_to_the_caller(recurrent):
    policy = recurrent.policy
    steps, state, started = some_observations(policy.observation_space)[:60].reshape(20, 3, 4), None, None
    together = []
    for place, obs in enumerate(steps):
        if place == 10:
            started = [False, True, False]  # another episode begins in the middle place
        actions, state = policy.predict(obs, state, started)
        assert state.shape == (3, policy.memory_size)
        together.append(actions)
        started = None
    for place in range(3):
        policy.reset()
        alone = []
        for number, obs in enumerate(steps[:, place]):
            if number == 10 and place == 1:
                policy.reset()
            alone.append(policy.act(obs))
        assert alone == [actions[place] for actions in together]


def test_a_recurrent_policy_refuses_the_memory_of_other_episodes(recurrent):
    policy = recurrent.policy
    policy.reset()
    policy.act(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="2 observations"):
        policy.act(np.zeros((2, 4)))
    policy.reset()
    assert policy.act(np.zeros((2, 4))).shape == (2,)
    with pytest.raises(ValueError, match=r"\(1, 16\)"):
        policy.predict(np.zeros(4), np.zeros((1, 3)))


def test_a_damaged_bundle_is_refused(cartpole, tmp_path):
    text = (cartpole.folder / "policy.json").read_text()
    np.savez(tmp_path / "weights.npz", nothing=np.zeros(1))
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(ValueError, match="damaged"):
        BundlePolicy.load(tmp_path)
    (tmp_path / "policy.json").write_text(text.replace('"format": 1', '"format": 99'))
    with pytest.raises(ValueError, match="format 99"):
        BundlePolicy.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        BundlePolicy.load(tmp_path / "nowhere")


def test_a_pickle_among_the_weights_is_not_loaded(cartpole, tmp_path):
    (tmp_path / "policy.json").write_text((cartpole.folder / "policy.json").read_text())
    np.savez(tmp_path / "weights.npz", evil=np.array([SimpleNamespace()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        BundlePolicy.load(tmp_path)


HEAD = "{'descr': '<f4', 'fortran_order': False, 'shape': %r, }"


def write_head(shape: tuple[int, ...]) -> bytes:
    """Write the head of an array that announces a shape, without the numbers."""
    text = HEAD % (shape,)
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def pack_zeros(file: Path) -> None:
    np.savez_compressed(file, **{"head.0.weight": np.zeros((2, 10**7), np.float32)})


def announce_much(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("head.0.weight.npy", write_head((10**13,)))


def repeat_one(file: Path) -> None:
    """Name the same bytes by many entries of the archive."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("0.npy", write_head((10**5,)) + bytes(4 * 10**5))
        for _ in range(50):
            entry = copy.copy(archive.filelist[0])
            entry.filename = entry.orig_filename = "0.npy"
            archive.filelist.append(entry)


@pytest.mark.parametrize("write", [pack_zeros, announce_much, repeat_one])
def test_arrays_larger_than_their_file_are_not_unpacked(write, tmp_path, monkeypatch):
    folder = write_linear(tmp_path, BOX)
    write(folder / "weights.npz")
    monkeypatch.setattr(np, "load", lambda *args, **kwargs: pytest.fail("unpacked"))
    with pytest.raises(ValueError, match="damaged"):
        BundlePolicy.load(folder)


DAMAGED = [
    "[" * 100_000,
    '{"format": 1, "info": ' + "[" * 60 + "]" * 60 + "}",
    "[]",
    '"text"',
    '{"format": [1]}',
    '{"format": 1, "info": []}',
    '{"format": 1, "info": {"env": "chosen:CartPole-v1"}}',
    '{"format": 1, "info": {}, "observation_space": {"type": "Box", "shape": [1000000, 1000000]}}',
    '{"format": 1, "info": {}, "observation_space": {"type": "Box", "shape": [-1, 2]}}',
    '{"format": 1, "info": {}, "observation_space": {"type": "Discrete", "n": 10000000000000}}',
    "1" * 5_000,
    "\x00",
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_description_that_is_none_is_the_bundles_fault(text, tmp_path):
    folder = write_linear(tmp_path, BOX)
    (folder / "policy.json").write_text(text)
    with pytest.raises(ValueError, match=r"damaged|format"):
        BundlePolicy.load(folder)


def test_no_text_of_a_bundle_changes_a_terminal(tmp_path):
    info = {"algo": "\x1b]0;owned\x07", "sweep": "\x1b[31m\u202ered\nline", "trial": 3, "\x9bkey": ["\ud800\x7f"]}
    info["env"] = {"id": "A\x1b-v0", "kwargs": {"map": "SF\nFG\x1b"}}
    policy = BundlePolicy.load(write_linear(tmp_path, BOX, info=info))
    texts = repr(policy) + json.dumps(policy.info, ensure_ascii=False).replace("\\n", "")
    assert texts.isprintable()
    assert policy.info["env"]["kwargs"]["map"] == "SF\nFG\\x1b"
    assert "owned" in repr(policy)


@pytest.mark.parametrize("owner", ["../elsewhere", "", "..", "a/b", 3])
def test_an_agents_policy_lies_in_its_bundle(owner, tmp_path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "policy.json").write_text(json.dumps({"format": 1, "owners": {"agent": owner}}))
    with pytest.raises(ValueError, match="which policy"):
        read_owners(tmp_path)


@pytest.mark.slow  # a process that imports torch
def test_a_policy_acts_without_ray_gymnasium_and_rltune(pendulum, tmp_path):
    for path in make_model_arguments(pendulum.folder)["code_paths"]:
        shutil.copy(path, tmp_path)
    code = f"""
import sys
for name in ("ray", "gymnasium", "rltune", "mlflow"):
    sys.modules[name] = None
sys.path.insert(0, {str(tmp_path)!r})
import bundle_reader
print(bundle_reader.BundlePolicy.load({str(pendulum.folder)!r}).act([0.1, 0.2, 0.3])[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(float(pendulum.policy.act([0.1, 0.2, 0.3])[0]), abs=1e-6)


FILTERED = {
    "observation_filter": {"eps": 1e-8, "clip": 10.0},
    "observation.mean": np.zeros(4, np.float32),
    "observation.var": np.ones(4, np.float32),
}
NO_BOX = [
    [np.nan, 0, 0, 0],
    [0, np.inf, 0, 0],
    [[0, 0, 0, 0], [0, 0, -np.inf, 0]],
    ["0", "0", "0", "0"],
    [None] * 4,
    "a",
]


@pytest.mark.parametrize("more", [{}, FILTERED])
@pytest.mark.parametrize("obs", NO_BOX)
def test_what_is_no_number_of_a_box_is_refused(obs, more, tmp_path):
    policy = BundlePolicy.load(write_linear(tmp_path, BOX, **more))
    for act in (policy.act, policy.predict):
        with pytest.raises(ValueError, match="number"):
            act(obs)


def test_a_number_that_float32_does_not_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match="finite"), np.errstate(over="ignore"):
        BundlePolicy.load(write_linear(tmp_path, BOX)).act([1e300, 0, 0, 0])
    assert BundlePolicy.load(tmp_path).act([1e38, 1e38, 1e38, 1e38]) in (0, 1)
    assert BundlePolicy.load(tmp_path).act(np.full((40, 4), 1e38)).shape == (40,)


def test_a_mask_of_parts_is_read_by_its_keys(tmp_path):
    space = S.Dict({"at": S.Box(-1, 1, (2,)), "action_mask": S.Dict({"b": S.MultiBinary(3), "a": S.MultiBinary(2)})})
    actions = S.Dict({"b": S.Discrete(3), "a": S.Discrete(2)})
    layout = make_layout(space, None, ("action_mask",), 5)
    more = {"action_space": describe_space(actions), "head": {"kind": "parts", "sizes": [2, 3], "log_std_bounds": None}}
    head = {"type": "Linear", "in_features": 2, "out_features": 5}
    more |= {"layout": layout.to_dict(), "layers": {"encoder": [], "head": [head]}}
    write_linear(tmp_path, describe_space(space), **more)
    weights = {"head.0.weight": np.zeros((5, 2), np.float32), "head.0.bias": np.zeros(5, np.float32)}
    np.savez(tmp_path / "weights.npz", **weights)
    policy = BundlePolicy.load(tmp_path)
    obs = {"at": [0, 0], "action_mask": {"b": [0, 0, 1], "a": [0, 1]}}
    other = {"at": [0, 0], "action_mask": {"a": [1, 0], "b": [0, 1, 0]}}
    assert policy.act(obs) == {"a": 1, "b": 2}
    batch = policy.act(policy.stack([obs, other]))
    assert [part.tolist() for part in batch.values()] == [[1, 0], [2, 1]]
    with pytest.raises(ValueError, match="flags of 0 and 1"):
        policy.act({"at": [0, 0], "action_mask": {"b": [0, np.nan, 1], "a": [0, 1]}})
    with pytest.raises(ValueError, match="there is no a"):
        policy.act({"at": [0, 0], "action_mask": {"b": [0, 0, 1]}})


@pytest.mark.parametrize("mask", [[0, 1], (0, 1), np.array([0, 1])])
def test_masks_of_a_vector_environment_are_read(mask, tmp_path):
    space = make_space(BOX)
    layout = make_layout(space, None, (), 2)
    policy = BundlePolicy.load(write_linear(tmp_path, BOX, layout=layout.to_dict()))
    objects = np.empty(3, object)
    objects[:] = [mask] * 3
    assert policy.act(np.zeros((3, 4)), action_mask=objects).tolist() == [1, 1, 1]
    assert policy.act(np.zeros((1, 4)), action_mask=objects[:1]).tolist() == [1]


@pytest.mark.parametrize("obs", [-1, 5, 2.7, np.nan, np.inf, [0, 1, -1], "2", None])
def test_what_a_discrete_space_does_not_have_is_refused(obs, tmp_path):
    policy = BundlePolicy.load(write_linear(tmp_path, DISCRETE))
    with pytest.raises(ValueError, match="number"):
        policy.act(obs)
    assert policy.act(4.0) == policy.act(4)
    assert policy.act([0, 4]).shape == (2,)


def test_a_range_is_checked_where_it_is_asked_for(tmp_path):
    policy = BundlePolicy.load(write_linear(tmp_path / "box", BOX))
    far = [0.0, 1e6, 30.0, 0.0]  # degrees for radians, beside a number without bounds
    assert policy.act(far) in (0, 1), "environments leave their bounds, LunarLander-v3 by twice its range"
    policy.check_range([4.9, 1e6, 0.5, 0.0])
    for obs in (far, [[0.0] * 4, far]):
        with pytest.raises(ValueError, match=r"30\.0.*-0\.42 to 0\.42"):
            policy.check_range(obs)
    image = BundlePolicy.load(write_linear(tmp_path / "image", IMAGE))
    image.check_range([0, 255, 3, 4])
    for value in (-1, 256):
        with pytest.raises(ValueError, match="0 to 255"):
            image.check_range([0, 0, 0, value])


@pytest.mark.parametrize("space", [Discrete(2, dtype=np.int32), Discrete(2, start=10, dtype=np.int16), Discrete(2)])
def test_a_choice_has_the_type_of_its_space(tmp_path: Path, space: Discrete) -> None:
    policy = load_policy(write_linear(tmp_path, BOX, action_space=describe_space(space)))
    actions, _ = policy.predict(np.zeros((3, 4), np.float32))
    assert all(space.contains(action) for action in actions)
    assert policy.action_space == space


SIZES = ([3, 2, 5], [2] * 7, [4], [1, 3])


@pytest.mark.parametrize("sizes", SIZES)
def test_segments_are_split_and_joined(sizes):
    logits = torch.randn(6, sum(sizes), requires_grad=True)
    segments = Segments(sizes)
    parts = segments.split(logits)
    assert parts.shape == (6, len(sizes), max(sizes))
    assert torch.equal(segments.join(parts), logits)
    np.testing.assert_array_equal(segments.split(logits.detach().numpy()), parts.detach().numpy())
    expected = torch.stack([part.argmax(1) for part in logits.split(sizes, 1)], 1)
    assert torch.equal(segments.find_best(logits), expected)
    segments.join(torch.log_softmax(parts, 2)).square().sum().backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("numbers", [0, 2])
def test_the_head_draws_each_part_from_its_distribution(sizes, numbers):
    head = HEADS["parts"](PartsHead.describe(sizes=sizes))
    assert head.count_outputs(len(sizes) + numbers) == sum(sizes) + 2 * numbers
    rng, rows = np.random.default_rng(0), 20_000
    out = np.tile(rng.standard_normal(sum(sizes) + 2 * numbers).astype(np.float32), (rows, 1))
    drawn = head.sample(out, rng)
    assert drawn.shape == (rows, len(sizes) + numbers)
    assert drawn.dtype == (np.float32 if numbers else np.int64)
    begin = 0
    for place, size in enumerate(sizes):
        logits = out[0, begin : begin + size]
        begin += size
        shares = np.bincount(drawn[:, place].astype(int), minlength=size) / rows
        np.testing.assert_allclose(shares, np.exp(logits) / np.exp(logits).sum(), atol=0.02)
        assert (head.choose_best(out)[:, place] == logits.argmax()).all()
    means, deviations = np.split(out[0, begin:], 2)
    np.testing.assert_allclose(drawn[:, len(sizes) :].mean(0), means, atol=0.1)
    np.testing.assert_allclose(drawn[:, len(sizes) :].std(0), np.exp(deviations), rtol=0.1)
    best = head.choose_best(torch.from_numpy(out))
    np.testing.assert_allclose(best.numpy(), head.choose_best(out))
