"""Extractors of the user's: what they are made with and given, what is refused, and what ONNX can express."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltune.envs.observations import make_layout
from rltune.errors import ConfigError, GuestError, PolicyError
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.export import export_policy
from rltune.policies.extractors import (
    ExtractorSpec,
    FeatureExtractor,
    check_extractor,
    examine_extractors,
    present_space,
    split_rows,
    write_graph,
)
from rltune.policies.mlflow_model import make_model_arguments
from rltune.policies.policy import load_policy
from tests.support.own_encoders import NETS, VECTOR, write_untrained

CAMERA = spaces.Box(0, 255, (40, 36, 3), np.uint8)
NESTED = spaces.Dict(
    {
        "goal": spaces.Box(-1, 1, (2,), np.float32),
        "camera": CAMERA,
        "grey": spaces.Box(0, 255, (12, 12), np.uint8),
        "mode": spaces.Discrete(3, start=-1),
        "flags": spaces.MultiBinary(2),
        "arms": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2, 2), np.float32)]),
    }
)


def check(name, space=VECTOR, export=False, **kwargs):
    return check_extractor(ExtractorSpec(f"{NETS}:{name}", kwargs), space, make_layout(space), export=export)


def see(space, observation):
    layout = make_layout(space)
    return split_rows(layout, torch.from_numpy(layout.view(layout.encode(observation)[None])))


def test_observations_keep_the_environments_own_structure():
    NESTED.seed(0)
    observation = NESTED.sample() | {"mode": np.int64(1)}
    seen = see(NESTED, observation)
    assert seen["goal"].numpy() == pytest.approx(observation["goal"][None])
    assert seen["camera"].numpy() == pytest.approx(np.moveaxis(observation["camera"], -1, 0)[None] / 255)
    assert seen["grey"].shape == (1, 1, 12, 12)
    assert seen["mode"].tolist() == [[0, 0, 1]]
    assert seen["flags"].tolist() == [observation["flags"].tolist()]
    assert seen["arms"][0].shape == (1, 5)
    assert seen["arms"][1].numpy() == pytest.approx(observation["arms"][1][None])


def test_rows_of_bytes_and_their_views_look_alike():
    NESTED.seed(1)
    layout, observation = make_layout(NESTED), NESTED.sample()
    row = layout.encode(observation)[None]
    packed, view = split_rows(layout, torch.from_numpy(row)), split_rows(layout, torch.from_numpy(layout.view(row)))
    assert row.dtype == np.uint8
    for key in ("goal", "camera", "grey", "mode", "flags"):
        assert torch.equal(packed[key], view[key])


def test_spaces_are_shown_as_stable_baselines3_shows_them():
    shown = present_space(NESTED, make_layout(NESTED))
    assert shown["camera"] == spaces.Box(0, 255, (3, 40, 36), np.uint8)
    assert shown["grey"] == spaces.Box(0, 255, (1, 12, 12), np.uint8)
    assert shown["mode"] == NESTED["mode"]
    assert shown["arms"] == NESTED["arms"]
    assert list(shown.spaces) == list(NESTED.spaces)


def test_stacked_frames_are_shown_as_channels():
    frames = np.arange(2 * 9 * 8 * 3, dtype=np.uint8).reshape(2, 9, 8, 3)
    expected = np.concatenate(np.moveaxis(frames, -1, 1))
    for seen in (frames, np.moveaxis(frames, -1, 1)):
        space = spaces.Box(0, 255, seen.shape, np.uint8)
        layout = make_layout(space)
        assert present_space(space, layout) == spaces.Box(0, 255, (6, 9, 8), np.uint8)
        image = split_rows(layout, torch.from_numpy(layout.encode(seen)[None]))
        assert np.array_equal((255 * image[0]).round().numpy(), expected)


def test_a_mask_is_no_part_of_what_extractors_see():
    space = spaces.Dict({"board": VECTOR, "action_mask": spaces.Box(0, 1, (5,), np.int8)})
    layout = make_layout(space, mask=("action_mask",), num_flags=5)
    assert list(present_space(space, layout).spaces) == ["board"]
    assert list(split_rows(layout, torch.zeros(2, layout.num_columns))) == ["board"]


@pytest.mark.parametrize(
    ("name", "space", "kwargs"),
    [
        ("Attention", VECTOR, {"heads": 4, "dropout": 0.5}),
        ("Linear", VECTOR, {}),
        ("Lazy", VECTOR, {}),
        ("NatureCNN", CAMERA, {}),
        ("Combined", NESTED, {}),
    ],
)
def test_an_extractor_of_stable_baselines3_is_taken_as_it_is(name, space, kwargs):
    space = spaces.Dict({k: v for k, v in space.spaces.items() if k != "arms"}) if name == "Combined" else space
    assert check(name, space, **kwargs) == []
    assert FeatureExtractor(ExtractorSpec(f"{NETS}:{name}", kwargs), space, make_layout(space)).num_features >= 4


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Tall", "(3, 4)"),
        ("Normalised", "BatchNorm1d"),
        ("Spectral", "_SpectralNorm"),
        ("Centred", "batch"),
        ("Counting", "equal observations"),
        ("Overwriting", "changes the observations"),
        ("Secret", "state dict"),
        ("Double", "float64"),
        ("Nameless", "features_dim"),
        ("Missing", "no Missing"),
        ("np", "torch.nn.Module"),
    ],
)
def test_what_cannot_be_trained_or_saved_is_refused_by_name(name, part):
    with pytest.raises(ConfigError, match=r"algo\.rl_module\.encoder=") as refused:
        check(name)
    assert part in refused.value.what
    assert refused.value.allowed
    assert refused.value.fix


def test_an_unknown_argument_is_answered_with_the_nearest():
    with pytest.raises(ConfigError) as refused:
        check("Attention", head=3)
    assert refused.value.key == "algo.rl_module.encoder_kwargs.head"
    assert "encoder_kwargs.heads=3" in refused.value.fix


def test_an_extractor_that_raises_names_the_call():
    with pytest.raises(GuestError) as refused:
        check("Raising")
    assert refused.value.call == f"forward of {NETS}:Raising"


@pytest.mark.slow  # torch's exporter alone is imported in seconds.
def test_what_onnx_cannot_express_is_a_note_and_no_error():
    assert check("Attention", export=True, dropout=0.5) == []
    assert check("Combined", spaces.Dict({"camera": CAMERA, "goal": VECTOR}), export=True) == []
    (note,) = check("Branching", export=True)
    assert note.startswith("ONNX cannot express")


@pytest.mark.slow
def test_the_check_runs_in_a_process_of_its_own(monkeypatch):
    specs = [ExtractorSpec(f"{NETS}:Linear", {}), ExtractorSpec("no_such_nets:Linear", {})]
    monkeypatch.delitem(sys.modules, NETS, raising=False)
    monkeypatch.setattr("rltune.envs.child._early", [])  # Another test may have started one in a folder of its own.
    with pytest.raises(GuestError) as refused:
        examine_extractors(specs, VECTOR, make_layout(VECTOR), 300)
    assert (refused.value.key, refused.value.value) == ("algo.rl_module.encoder", "no_such_nets:Linear")
    assert NETS not in sys.modules


# -- The graph of a registered policy ------------------------------------------------------------------


def forget_class(folder):
    """Let the bundle name a class that does not exist here."""
    file = folder / "policy.json"
    file.write_text(file.read_text().replace(NETS, "no_such_nets"))


@pytest.mark.slow  # Each exports a graph.
@pytest.mark.parametrize(
    ("algo", "model"), [("ppo", {}), ("ppo", {"use_lstm": True, "lstm_cell_size": 4}), ("dqn", {})]
)
def test_a_policy_acts_alike_where_its_class_does_not_exist(tmp_path, algo, model):
    write_untrained(tmp_path, algo, **model)
    own = load_policy(tmp_path, trust=True)
    assert write_graph(str(tmp_path))
    forget_class(tmp_path)
    policy, plain = load_policy(tmp_path), BundlePolicy.load(tmp_path)
    assert repr(policy) == repr(own)
    memory = np.random.default_rng(1).normal(size=(50, policy.memory_size)).astype(np.float32)
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    for deterministic in (True, False):
        expected, after = own.predict(rows, memory, deterministic=deterministic, rng=3)
        for each in (policy, plain):
            actions, state = each.predict(rows, memory, deterministic=deterministic, rng=3)
            assert (actions == expected).all()
            assert np.allclose(state, after, atol=1e-5)
    assert policy.act(rows[0]) in policy.action_space
    with pytest.raises(PolicyError, match=r"no_such_nets") as refused:
        load_policy(tmp_path, trust=True).act(rows)
    assert "without trust=true" in refused.value.fix
    with pytest.raises(PolicyError, match=r"no_such_nets"):
        export_policy(policy, tmp_path / "policy.onnx")


def test_a_strangers_class_is_not_imported_without_trust(tmp_path, monkeypatch):
    module = write_untrained(tmp_path)
    monkeypatch.delitem(sys.modules, NETS)
    policy = load_policy(tmp_path)
    assert policy.info == {"algo": "ppo"}
    with pytest.raises(PolicyError, match=f"'{NETS}', which its author has chosen") as refused:
        policy.act(np.zeros(4, np.float32))
    assert "trust=True" in refused.value.fix
    assert NETS not in sys.modules
    rows = torch.zeros(1, 4)
    with torch.no_grad():
        expected = module.forward_inference({"obs": rows})["action_dist_inputs"]
    assert torch.allclose(load_policy(tmp_path, trust=True).network(rows), expected)


@pytest.mark.parametrize("target", ["subprocess:Popen", "os:getcwd", "json:JSONDecoder"])
def test_nothing_but_a_network_is_called_of_an_imported_module(tmp_path, target):
    write_untrained(tmp_path)
    file = tmp_path / "policy.json"
    file.write_text(file.read_text().replace(f"{NETS}:Attention", target))
    with pytest.raises(PolicyError, match=r"torch\.nn\.Module"):
        load_policy(tmp_path).act(np.zeros(4, np.float32))


@pytest.mark.slow
def test_a_network_without_a_graph_leaves_none(tmp_path):
    write_untrained(tmp_path, name="Branching")
    with pytest.raises(PolicyError, match="ONNX cannot express"):
        write_graph(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "weights.npz"]
    arguments = make_model_arguments(tmp_path)
    assert arguments["signature"].outputs.inputs[0].shape == (-1,)
    with pytest.raises(ValueError, match="no ONNX graph"):
        BundlePolicy.load(tmp_path).act(np.zeros(4, np.float32))
