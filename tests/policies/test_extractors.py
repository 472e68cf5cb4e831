"""Extractors of the user's: what they are made with and given, what is refused, and what ONNX can express."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltune.envs.observations import make_layout
from rltune.errors import ConfigError, GuestError
from rltune.policies.extractors import (
    ExtractorSpec,
    FeatureExtractor,
    check_extractor,
    examine_extractors,
    present_space,
    split_rows,
)

NETS = "tests.support.own_nets"
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
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
    with pytest.raises(GuestError) as refused:
        examine_extractors(specs, VECTOR, 60)
    assert (refused.value.key, refused.value.value) == ("algo.rl_module.encoder", "no_such_nets:Linear")
    assert NETS not in sys.modules
