"""A policy as a model of MLflow, which needs neither rltune nor pickle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pytest
from checkpoints import OBSERVATIONS
from gymnasium import spaces as S

from rltune.envs.facts import describe_space
from rltune.envs.layout import make_space
from rltune.envs.observations import make_layout
from rltune.policies.bundle_reader import POLICIES
from rltune.policies.mlflow_model import make_model_arguments
from tests.policies.bundles import BOX, write_linear
from tests.policies.rllib_modules import some_observations


@pytest.mark.nightly
def test_a_registered_model_acts_alike_without_ray_and_rltune(store, actions, tmp_path):
    np.save(tmp_path / "obs.npy", OBSERVATIONS)
    code = f"""
import sys
for name in ("ray", "rltune", "gymnasium", "optuna"):
    sys.modules[name] = None
import mlflow, numpy as np
mlflow.set_tracking_uri({store["uri"]!r})
model = mlflow.pyfunc.load_model("models:/cartpole-ppo@champion")
obs = np.load({str(tmp_path / "obs.npy")!r})
import pandas as pd
forms = [obs, obs.astype(float), obs.tolist(), {{"obs": obs}}, pd.DataFrame(obs)]
answers = [model.predict(form) for form in forms]
assert all((answer == answers[0]).all() for answer in answers)
assert model.predict(obs[0]).shape == (1,)
np.save({str(tmp_path / "actions.npy")!r}, answers[0])
"""
    settings = os.environ | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=settings, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (np.load(tmp_path / "actions.npy") == actions).all()


def test_a_model_carries_signature_example_origin_and_versions(store):
    info = mlflow.models.get_model_info(store["model"].model_uri)
    assert info.signature.outputs.inputs[0].shape == (-1,)
    assert info.metadata["rltune"]["info"]["env"]["id"] == "CartPole-v1"
    folder = Path(mlflow.artifacts.download_artifacts(store["model"].model_uri))
    assert json.loads((folder / "input_example.json").read_text())
    requirements = (folder / "requirements.txt").read_text().split()
    assert sorted(line.split("==")[0] for line in requirements) == ["mlflow", "numpy", "torch"]
    assert "+" not in "".join(requirements)
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt")]


def test_a_recurrent_model_takes_its_state_and_gives_the_next(recurrent, tmp_path):
    mlflow.pyfunc.save_model(tmp_path / "model", **make_model_arguments(recurrent.folder))
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert [one.name for one in model.metadata.signature.outputs] == ["actions", "state"]
    mine, given = None, {}
    for place, obs in enumerate((some_observations(recurrent.policy.observation_space)[:60] / 4).reshape(20, 3, 4)):
        start = np.array([place == 10, False, False])
        wanted, mine = recurrent.policy.predict(obs, mine, start)
        out = model.predict({"obs": obs, "episode_start": start, **given})
        given = {"state": out["state"]}
        np.testing.assert_array_equal(out["actions"], wanted)
    np.testing.assert_allclose(out["state"], mine, atol=1e-6)


def test_a_model_acts_as_its_policy_or_as_it_is_told(tmp_path):
    acting = {"deterministic": False, "episodes": 20, "deterministic_mean": -200.0, "sampled_mean": -12.0, "cut": 0}
    rows = np.zeros((200, 4), np.float32)
    for name, more, default in (("sampled", {"acting": acting}, 2), ("old", {}, 1)):
        folder = write_linear(tmp_path / name / "policy", BOX, **more)
        mlflow.pyfunc.save_model(tmp_path / name / "model", **make_model_arguments(folder))
        model = mlflow.pyfunc.load_model(str(tmp_path / name / "model"))
        assert len(set(model.predict(rows))) == default
        assert set(model.predict(rows, params={"deterministic": True})) == {0}
        assert len(set(model.predict(rows, params={"deterministic": False}))) == 2


SPACES = {
    "number": S.Discrete(5),
    "numbers": S.MultiDiscrete([[2, 3], [4, 5]]),
    "tuple": S.Tuple([S.Box(-1, 1, (2,)), S.Discrete(3)]),
    "tuple of parts": S.Tuple([S.Tuple([S.MultiBinary(2)]), S.Dict({"a": S.Box(-1, 1, (2, 2)), "obs": S.Discrete(2)})]),
    "dict of parts": S.Dict(
        {"arm": S.Dict({"angle": S.Box(-1, 1, ())}), "tools": S.Tuple([S.Discrete(3), S.MultiBinary(2)])}
    ),
    "dict of the model's keys": S.Dict({"obs": S.Box(-1, 1, (2,)), "state": S.Discrete(2)}),
}


@pytest.mark.parametrize("flags", [0, 2], ids=["", "masked"])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_the_model_of_any_observations_has_an_example_that_it_takes(space, flags, tmp_path):
    layout = make_layout(make_space(describe_space(space)), None, *([()] if flags else []), num_flags=flags)
    write_linear(tmp_path / "policy", describe_space(space), layout=layout.to_dict())
    assert save_and_predict(tmp_path).shape == (2,)


def test_an_observations_own_mask_allows_an_action_in_the_example(tmp_path):
    space = S.Tuple([S.Dict({"m": S.MultiBinary(2), "x": S.Discrete(3)}), S.Box(-1, 1, (2,))])
    layout = make_layout(make_space(describe_space(space)), None, (0, "m"), num_flags=2)
    head = {"type": "Linear", "in_features": 5, "out_features": 2}
    more = {"layout": layout.to_dict(), "layers": {"encoder": [], "head": [head]}}
    write_linear(tmp_path / "policy", describe_space(space), **more)
    weights = {"head.0.weight": np.zeros((2, 5), np.float32), "head.0.bias": np.zeros(2, np.float32)}
    np.savez(tmp_path / "policy" / "weights.npz", **weights)
    assert save_and_predict(tmp_path).shape == (2,)


def test_the_model_of_several_agents_has_an_example_that_it_takes(tmp_path):
    owners = {}
    for number, (name, space) in enumerate(SPACES.items()):
        write_linear(tmp_path / "policy" / POLICIES / str(number), describe_space(space))
        owners[name] = str(number)
    (tmp_path / "policy" / "policy.json").write_text(json.dumps({"format": 1, "owners": owners}))
    assert {agent: actions.shape for agent, actions in save_and_predict(tmp_path).items()} == dict.fromkeys(
        owners, (2,)
    )


def save_and_predict(folder):
    """Save the model of the policy in a folder there, load it, and return its answer to its example."""
    mlflow.pyfunc.save_model(folder / "model", **make_model_arguments(folder / "policy"))
    model = mlflow.pyfunc.load_model(str(folder / "model"))
    return model.predict(model.input_example)
