"""The examples: short, documented, and they run in a folder with a finished sweep."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real import Command, Project

import rltune
from rltune import checkpoint

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
MODULE = Path("algorithm/learner_group/learner/rl_module/default_policy/module_state.pkl")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_short_documented_and_uses_only_the_public_names(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) < 40
    tree = ast.parse(text)
    assert f"python examples/{script.name}" in (ast.get_docstring(tree) or "")
    assert all(ast.get_docstring(node) for node in tree.body if isinstance(node, ast.FunctionDef))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_rltune(node.value)}
    assert used
    assert used <= set(rltune.__all__)


def _is_rltune(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "rltune"


def test_both_examples_are_there() -> None:
    assert {script.stem for script in SCRIPTS} >= {"reuse_best", "continue_training"}


def test_reuse_best_plays_the_champion_without_ray(finished_sweep: Project) -> None:
    done = finished_sweep.type("-X", "importtime", str(EXAMPLES / "reuse_best.py"))
    assert done.code == 0, done.out[-2000:]
    found = re.search(r"^models:/cartpole-ppo@champion: return ([\d.]+) in (\d+) steps of CartPole-v1$", done.out, re.M)
    assert found, done.out[-2000:]
    assert float(found[1]) == float(found[2]) > 50  # CartPole pays 1 a step
    assert not re.search(r"\|\s+ray$", done.out, re.MULTILINE)


def test_reuse_best_answers_a_wrong_name_without_a_traceback(finished_sweep: Project) -> None:
    done = finished_sweep.type(str(EXAMPLES / "reuse_best.py"), "sweep:nope")
    assert done.code == 1
    assert done.out.startswith("error: policy=sweep:nope: no such sweep")
    assert finished_sweep.summary["name"] in done.out


@pytest.fixture(scope="module")
def continued(finished_sweep: Project) -> Command:
    """The winner, trained on for some 600 environment steps."""
    return finished_sweep.type(str(EXAMPLES / "continue_training.py"), "sweep:latest", "600")


def winner(project: Project) -> Path:
    return project.sweep / str(project.summary["winner"]["checkpoint"])


def test_continue_training_goes_on_from_the_checkpoints_step_count(finished_sweep: Project, continued: Command) -> None:
    assert continued.code == 0, continued.out[-2000:]
    counted = [int(steps) for steps in re.findall(r"^(\d+) environment steps: mean return", continued.out, re.M)]
    begun = checkpoint.read_state(winner(finished_sweep))["env_steps"]
    assert counted == sorted(set(counted))
    assert begun < counted[0] <= begun + 4096  # one iteration of any size in the space
    assert counted[-1] >= begun + 600


def test_continue_training_starts_from_the_winners_weights_and_changes_them(
    finished_sweep: Project, continued: Command
) -> None:
    assert continued.code == 0, continued.out[-2000:]
    before = _weights(winner(finished_sweep) / MODULE)
    after = _weights(finished_sweep.folder / "continued" / MODULE)
    assert before.shape == after.shape
    moved = float(np.linalg.norm(after - before) / np.linalg.norm(before))
    assert 0 < moved < 0.5  # from scratch it would be about 1.4


def _weights(path: Path) -> Any:
    """All of a module's weights in one row; our own checkpoint, so that its pickle may be read."""
    state = pickle.loads(path.read_bytes())
    return np.concatenate([np.ravel(state[name]) for name in sorted(state)])
