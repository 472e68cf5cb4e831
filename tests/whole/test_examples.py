"""The examples: short, documented, and they run in a folder with a finished sweep."""

from __future__ import annotations

import ast
import json
import pickle
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real import Command, Project

import rltune
from rltune.checkpoints.store import read_state

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
WITHOUT_RLTUNE = ("onnx_only", "own_sampler_and_learner")  # the second one runs the command
MODULE = Path("algorithm/learner_group/learner/rl_module/default_policy/module_state.pkl")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_short_documented_and_uses_only_the_public_names(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) <= 52
    tree = ast.parse(text)
    assert f"python examples/{script.name}" in (ast.get_docstring(tree) or "")
    assert all(ast.get_docstring(node) for node in tree.body if isinstance(node, ast.FunctionDef))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_rltune(node.value)}
    assert used or script.stem in WITHOUT_RLTUNE
    assert used <= set(rltune.__all__)


def _is_rltune(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "rltune"


def test_the_examples_are_there() -> None:
    wanted = {"reuse_best", "continue_training", "evaluate_sb3_style", "onnx_only", "compare_algorithms"}
    wanted.add("own_sampler_and_learner")
    assert {script.stem for script in SCRIPTS} >= wanted


@pytest.mark.nightly
def test_code_for_stable_baselines3_evaluates_the_champion(finished_sweep: Project) -> None:
    done = finished_sweep.type(str(EXAMPLES / "evaluate_sb3_style.py"))
    assert done.code == 0, done.out[-2000:]
    match = re.search(r"mean return ([\d.]+) over 8 episodes", done.out)
    assert match, done.out[-2000:]
    assert 50 < float(match[1]) <= 520


@pytest.mark.nightly
def test_an_exported_winner_plays_where_neither_torch_nor_ray_nor_rltune_is_imported(finished_sweep: Project) -> None:
    done = finished_sweep.type("-m", "sweeps.export", "policy=sweep:latest", "out=policy.onnx")
    assert done.code == 0, done.out[-2000:]
    done = finished_sweep.type("-X", "importtime", str(EXAMPLES / "onnx_only.py"))
    assert done.code == 0, done.out[-2000:]
    match = re.search(r"^policy.onnx: return ([\d.]+) in \d+ steps of CartPole-v1$", done.out, re.M)
    assert match, done.out[-2000:]
    assert float(match[1]) > 50
    assert not re.search(r"\|\s+(torch|ray|rltune)$", done.out, re.MULTILINE)


@pytest.mark.nightly
def test_an_own_env_runner_and_learner_are_swept(tmp_path: Path) -> None:
    """Each in every trial; the weight of the loss's new term is searched; the returns are the environment's own."""
    short = ("budget.trials=2", "budget.env_steps=8000", "certify=off", "certify.top=0", "report=false", "~tuned")
    project = Project(tmp_path)
    done = project.type(str(EXAMPLES / "own_sampler_and_learner.py"), *short, "tracking=off", "name=own")
    assert done.code == 0, done.out[-2000:]
    assert "env_runner_cls=CuriousSampler" in done.out
    assert project.summary["trials"]["complete"] + project.summary["trials"]["pruned"] == 2
    ledger = rltune.open_ledger(project.sweep)
    records, reports = ledger.trials.records(), [report for _, _, report in ledger.read_reports_after(0, 1000)]
    ledger.close()
    assert all(1e-4 <= record.params["modesty"] <= 1e-2 for record in records)
    saved = [path.read_bytes() for path in project.sweep.glob("trials/*/*/*/algorithm/class_and_ctor_args.pkl")]
    assert saved
    assert all(b"CuriousSampler" in one and b"ModestLearner" in one for one in saved)
    best = [report.numbers["return_max"] for report in reports[1:]]
    assert all(value == int(value) for value in best), "CartPole's own returns, without the bonus"


@pytest.mark.nightly
def test_two_sweeps_are_compared_as_markdown_with_a_figure(finished_sweep: Project) -> None:
    name = finished_sweep.summary["name"]
    done = finished_sweep.type(str(EXAMPLES / "compare_algorithms.py"), name, name)
    assert done.code == 0, done.out[-2000:]
    assert len(re.findall(rf"^\| {name} \| ppo, ", done.out, re.MULTILINE)) == 2
    assert (finished_sweep.folder / "comparison" / "comparison.html").stat().st_size > 1_000_000


@pytest.mark.nightly
def test_the_notebook_opens_the_finished_sweep(finished_sweep: Project) -> None:
    cells = json.loads((EXAMPLES / "open_sweep.ipynb").read_text())["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = finished_sweep.type("-W", "ignore", "-c", f"import matplotlib\nmatplotlib.use('agg')\n{code}")
    assert done.code == 0, done.out[-2000:]
    assert f"{finished_sweep.summary['name']} complete" in done.out
    assert re.search(r"mean [\d.]+, 95% interval", done.out)


@pytest.mark.nightly
def test_the_notebook_runs_a_sweep_and_shows_its_progress(tmp_path: Path) -> None:
    nbformat, nbclient = (pytest.importorskip(name) for name in ("nbformat", "nbclient"))
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "sweep_from_python.ipynb", 4)
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    progress = [one.data["text/plain"] for one in outputs[0] if one.output_type == "display_data"]
    assert len(progress) == 1, "one place in the cell that changes"
    assert re.match(r"\[\d+:\d\d\] .*\d complete.* of 3 ", progress[0])
    assert "3 trials" in outputs[1][0].data["text/html"]
    assert outputs[2][0].data["text/html"].count("<tr") == 4
    assert outputs[3][-1].data["image/png"]
    assert re.search(r"\bCartPole-v1, trial \d ", outputs[4][0].text)
    assert len(list(tmp_path.glob("outputs/*/report/index.html"))) == 1


def test_the_sweep_has_left_its_report_in_its_folder_and_in_mlflow(finished_sweep: Project) -> None:
    assert "<title>" + finished_sweep.summary["name"] in (finished_sweep.sweep / "report" / "index.html").read_text()
    logged = [path.name for path in finished_sweep.folder.glob("mlruns/**/artifacts/report/*")]
    assert logged == ["index.html"]


def test_reuse_best_plays_the_champion_without_ray(finished_sweep: Project) -> None:
    done = finished_sweep.type("-X", "importtime", str(EXAMPLES / "reuse_best.py"))
    assert done.code == 0, done.out[-2000:]
    match = re.search(r"^models:/cartpole-ppo@champion: return ([\d.]+) in (\d+) steps of CartPole-v1$", done.out, re.M)
    assert match, done.out[-2000:]
    assert float(match[1]) == float(match[2]) > 50  # CartPole pays 1 a step
    assert not re.search(r"\|\s+ray$", done.out, re.MULTILINE)


def test_reuse_best_answers_a_wrong_name_without_a_traceback(
    finished_sweep: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished_sweep.folder)
    monkeypatch.setattr("sys.argv", ["reuse_best.py", "sweep:nope"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / "reuse_best.py"), run_name="__main__")
    assert str(left.value.code).startswith("error: policy=sweep:nope"), "which Python prints, and exits with 1"
    assert finished_sweep.summary["name"] in str(left.value.code)


@pytest.fixture(scope="module")
def continued(finished_sweep: Project) -> Command:
    """The winner, trained on for some 600 environment steps."""
    return finished_sweep.type(str(EXAMPLES / "continue_training.py"), "sweep:latest", "600")


def winner(project: Project) -> Path:
    return project.sweep / str(project.summary["winner"]["checkpoint"])


@pytest.mark.nightly
def test_continue_training_goes_on_from_the_checkpoints_step_count(finished_sweep: Project, continued: Command) -> None:
    assert continued.code == 0, continued.out[-2000:]
    counted = [int(steps) for steps in re.findall(r"^(\d+) environment steps: mean return", continued.out, re.M)]
    begun = read_state(winner(finished_sweep))["env_steps"]
    assert counted == sorted(set(counted))
    assert begun < counted[0] <= begun + 4096  # one iteration of any size in the space
    assert counted[-1] >= begun + 600


@pytest.mark.nightly
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
