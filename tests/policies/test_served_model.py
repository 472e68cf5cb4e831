"""The registered model where neither Ray nor rltune is installed, and behind MLflow's own HTTP server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as S
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.scoring_server import predictions_to_json
from real import PATIENCE_S, Project

import rltune
from rltune.envs.actions import split_batch
from rltune.envs.facts import describe_space
from rltune.envs.layout import make_space
from rltune.envs.observations import make_layout
from rltune.policies.bundle_reader import POLICIES, BundlePolicy
from rltune.policies.served_model import load_model
from tests.policies.bundles import BOX, DISCRETE, write_linear
from tests.policies.parts_modules import PARTS, write_parts

WRONG = [
    [np.nan] * 4,
    [[0, np.inf, 0, 0]],
    [0, 0, 30.0, 0],
    ["a"] * 4,
    [0, 0, 0],
    {"obs": [[0, 0, 0]]},
    {"x": 1},
    [[1], [1, 2]],
]
CHAMPION = "models:/cartpole-ppo@champion"
ABSENT = ("ray", "rltune", "gymnasium", "optuna", "hydra", "_rltune", "__editable__", "sweeps")
EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_and_query.py"
SCRIPT = """
import importlib.util, sys
import numpy as np, pandas as pd, mlflow
assert [name for name in ("ray", "rltune", "gymnasium") if importlib.util.find_spec(name)] == []
model = mlflow.pyfunc.load_model(sys.argv[1])
obs = np.load("observations.npy")
actions = model.predict(obs)
np.testing.assert_array_equal(model.predict({"obs": obs}), actions)
np.testing.assert_array_equal(model.predict(pd.DataFrame(obs)), actions)
np.save("actions.npy", actions)
print(sorted(model.metadata.metadata["rltune"]), model.metadata.signature, model.input_example)
"""


@pytest.mark.fast
@pytest.mark.parametrize("keys", [("obs", "action_mask"), ("obs",), ("obs", "state")])
def test_an_environment_may_have_the_models_own_keys(keys: tuple[str, ...], tmp_path: Path) -> None:
    space = S.Dict({key: S.Box(-1, 1, (2,)) for key in keys})
    model = load_model(write_linear(tmp_path, describe_space(space)))
    obs = space.sample()
    assert model(obs).shape == model({"obs": obs}).shape == (1,)


@pytest.mark.fast
def test_a_mask_of_parts_may_be_served(tmp_path: Path) -> None:
    layout, actions = make_layout(make_space(BOX), None, (), 5), S.Dict({"b": S.Discrete(3), "a": S.Discrete(2)})
    more = {"head": {"kind": "parts", "sizes": [2, 3], "log_std_bounds": None}, "layout": layout.to_dict()}
    head = {"type": "Linear", "in_features": 4, "out_features": 5}
    more |= {"layers": {"encoder": [], "head": [head]}, "action_space": describe_space(actions)}
    write_linear(tmp_path, BOX, **more)
    arrays = {"head.0.weight": np.zeros((5, 4), np.float32), "head.0.bias": np.zeros(5, np.float32)}
    np.savez(tmp_path / "weights.npz", **arrays)
    model = load_model(tmp_path)
    one = model({"obs": [0] * 4, "action_mask": {"b": [0, 0, 1], "a": [0, 1]}})
    assert {key: part.tolist() for key, part in one.items()} == {"a": [1], "b": [2]}
    two = model({"obs": [[0] * 4] * 2, "action_mask": {"b": [[0, 0, 1]] * 2, "a": [[0, 1], [1, 0]]}})
    assert {key: part.tolist() for key, part in two.items()} == {"a": [1, 0], "b": [2, 2]}


@pytest.mark.fast
@pytest.mark.parametrize("given", WRONG)
def test_what_is_no_observation_is_refused_in_three_parts(given: Any, tmp_path: Path) -> None:
    model = load_model(write_linear(tmp_path, BOX))
    assert model([[0, 0, 0, 0]]).shape == (1,)
    with pytest.raises(MlflowException, match=r"(?s).+\n  allowed: .+\n  try: ") as refused:
        model(given)
    assert refused.value.get_http_status_code() == 400


NESTED = S.Dict({"robot": S.Dict({"arm": S.Box(-1, 1, (2,))}), "tools": S.Tuple([S.Discrete(3), S.MultiBinary(2)])})


@pytest.mark.fast
def test_nested_observations_are_served_whole_or_by_leaf(tmp_path: Path) -> None:
    folder = write_linear(tmp_path, describe_space(NESTED))
    policy, model = BundlePolicy.load(folder), load_model(folder)
    NESTED.seed(0)
    observations = [NESTED.sample() for _ in range(4)]
    batch = policy.stack(observations)
    actions = policy.act(batch)
    arm, (tool, flags) = batch["robot"]["arm"], batch["tools"]
    named = {"robot.arm": arm.tolist(), "tools.0": tool.tolist(), "tools.1": flags.tolist()}
    for given in (batch, {"obs": batch}, named, {"obs": named}):
        assert model(given).tolist() == actions.tolist()
    assert [int(policy.act(obs)) for obs in observations] == actions.tolist()
    assert model(observations[2]).tolist() == [actions[2]], "one observation is a batch of one"
    for wrong in (
        {**named, "tools.0": [9] * 4},
        {**named, "robot.arm": [[30.0, 0]] * 4},
        {**named, "robot.arm": [[np.nan, 0]] * 4},
        {"robot.arm": arm},
        arm,
    ):
        with pytest.raises(MlflowException, match=r"(?s).+\n  allowed: .+\n  try: "):
            model(wrong)


@pytest.mark.fast
@pytest.mark.parametrize("name", ["a dict", "a tuple"])
def test_a_served_action_is_the_environments(name: str, tmp_path: Path) -> None:
    _, policy = write_parts(tmp_path, PARTS[name])
    seen = np.zeros((3, 4), np.float32)
    served = load_model(tmp_path)(seen)
    np.testing.assert_equal(served, policy.act(seen))
    assert all(PARTS[name].contains(action) for action in split_batch(served, 3))
    answer = StringIO()
    predictions_to_json(served, answer)
    assert len(json.loads(answer.getvalue())["predictions"]) == len(served)


@pytest.mark.fast
def test_each_of_several_agents_refuses_alike(tmp_path: Path) -> None:
    write_linear(tmp_path / POLICIES / "shared", DISCRETE)
    (tmp_path / "policy.json").write_text('{"format": 1, "owners": {"a": "shared", "b": "shared"}}')
    model = load_model(tmp_path)
    assert model({"a": 4})["a"].shape == (1,)
    for given in ({"a": 1, "b": 2.7}, {"b": -1}, {"c": 1}, [[1, 2]]):
        with pytest.raises(MlflowException, match="allowed: "):
            model(given)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with all that is installed here but Ray, rltune and what only they need."""
    root = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    for path in Path(np.__file__).parents[1].iterdir():
        if path.name.split("-")[0].split(".")[0] not in ABSENT and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    return root / "venv" / "bin" / "python"


def test_the_champion_acts_equally_without_ray_and_rltune(
    finished_sweep: Project, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observations = np.random.default_rng(3).normal(scale=0.5, size=(1000, 4)).astype(np.float32)
    home = finished_sweep.folder
    monkeypatch.chdir(bare_python.parents[2])
    np.save("observations.npy", observations)
    env = {"MLFLOW_TRACKING_URI": finished_sweep.store, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "PATH": ""}
    done = subprocess.run(
        [bare_python, "-c", SCRIPT, CHAMPION], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'certification', 'configuration', 'info', 'spaces', 'training_config'" in done.stdout
    trial = rltune.load_policy(
        home / "outputs" / finished_sweep.sweep.name / finished_sweep.summary["winner"]["checkpoint"]
    )
    np.testing.assert_array_equal(np.load("actions.npy"), trial.act(observations))


@pytest.mark.nightly
def test_the_champion_is_served_over_http(finished_sweep: Project) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    done = finished_sweep.type(str(EXAMPLE), CHAMPION, port)
    assert done.code == 0, done.out[-3000:]
    match = re.search(rf"^{CHAMPION} served on http://127.0.0.1:{port}: return (\d+)$", done.out, re.MULTILINE)
    assert match, done.out[-3000:]
    assert float(match[1]) > 50
