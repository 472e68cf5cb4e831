"""A sweep whose trials have an encoder of the user's, or none, from the search to a model that needs no class."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from real import Project, make_environment

pytestmark = pytest.mark.nightly

ATTENTION = "tests.support.own_nets:Attention"
ACT = """
import sys
sys.modules["tests"] = None
import mlflow, rltune
policy = rltune.load_policy("models:/cartpole-ppo@champion")
observation = policy.env().reset(seed=0)[0]
served = mlflow.pyfunc.load_model("models:/cartpole-ppo@champion").predict(observation[None])
print("answers", type(policy.network).__name__, served[0] in (0, 1), rltune.evaluate(policy, 3).mean > 0)
"""


def test_a_searched_encoder_is_registered_and_acts_without_its_class(tmp_path: Path) -> None:
    project = Project(tmp_path).prepare_store()
    searched = [
        f"+space.encoder=[choice,{ATTENTION},tests.support.own_nets:Linear]",
        f'+space.encoder_kwargs.heads=[when,{{encoder: "{ATTENTION}"}},[choice,2,4]]',
        f"algo.rl_module.encoder={ATTENTION}",
        "algo.rl_module.encoder_kwargs={heads: 2}",
        "space.normalise=[]",
    ]
    ran = project.type("-m", "sweeps.run", "experiment=smoke", "env=cartpole", "budget.trials=2", *searched)
    assert ran.code == 0, ran.out
    assert project.summary["model"]["champion"]
    (graph,) = tmp_path.rglob("network.onnx")
    assert b"stack_trace" not in graph.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", ACT], cwd=tmp_path, env=make_environment(), capture_output=True, text=True, check=False
    )
    assert "answers GraphNetwork True True" in done.stdout, done.stderr
