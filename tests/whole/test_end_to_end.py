"""The main job as a person does it: real commands in an empty folder, looked at from outside."""

from __future__ import annotations

import ast
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient
from omegaconf import OmegaConf
from real import Project, finish
from server import put_store

import rltune
from rltune.certification.finalists import derive_own_seed
from rltune.compose.composing import conf_dir
from rltune.config.schema import RunConfig
from rltune.driver.run import run_sweep
from rltune.formatting import STATE_WORDS
from rltune.ledger.storage import open_ledger
from rltune.records import TrialRecord

STATUSES = {"COMPLETE": "FINISHED", "PRUNED": "FINISHED", "FAIL": "FAILED"}
CHAMPION = "models:/cartpole-ppo@champion"
# Fast, whatever is drawn for the rest: these tests are about signals, not about learning.
LIGHT = ("space.num_epochs=4", "space.minibatch_size=256", "space.train_batch_size_per_learner=1024")


def entries(sweep: Path) -> list[TrialRecord]:
    ledger = open_ledger(sweep)
    try:
        return ledger.trials.records()
    finally:
        ledger.close()


def runs_of(project: Project, experiment: str = "cartpole") -> tuple[list[Any], dict[int, Any]]:
    """All parents, and the children by their trial's number, in MLflow's own client."""
    client = MlflowClient(project.store)
    there = client.get_experiment_by_name(experiment)
    runs = client.search_runs([there.experiment_id], max_results=1000) if there else []
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} <= {run.info.run_id for run in parents}
    assert len({run.data.tags["rltune.trial"] for run in children}) == len(children)
    return parents, {int(run.data.tags["rltune.trial"]): run for run in children}


@pytest.fixture(scope="module")
def replies(finished_sweep: Project) -> dict[str, Any]:
    """What the commands that look at a finished sweep say."""
    return {
        "evaluate": finished_sweep.type("-m", "sweeps.evaluate", f"policy={CHAMPION}", "episodes=20"),
        "list": finished_sweep.call("list"),
        "show": finished_sweep.call("show", "sweep=latest"),
    }


@pytest.fixture
def store(finished_sweep: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowClient]:
    """MLflow as a script in the project's folder has it."""
    before = mlflow.get_tracking_uri()
    monkeypatch.chdir(finished_sweep.folder)
    mlflow.set_tracking_uri(finished_sweep.store)
    yield MlflowClient(finished_sweep.store)
    mlflow.set_tracking_uri(before)


# -- one sweep ----------------------------------------------------------------------------------------------------


def test_the_sweep_exits_with_0_and_its_summary_names_the_winner(finished_sweep: Project) -> None:
    assert finished_sweep.ran is not None
    assert finished_sweep.ran.code == 0, finished_sweep.ran.out
    assert "Traceback" not in finished_sweep.ran.out
    summary = finished_sweep.summary
    assert summary["status"] == "complete"
    assert summary["trials"]["total"] == 4 == summary["trials"]["complete"] + summary["trials"]["pruned"]
    winner = next(e for e in entries(finished_sweep.sweep) if e.number == summary["winner"]["trial"])
    assert summary["winner"]["params"] == winner.params
    assert (finished_sweep.sweep / summary["winner"]["checkpoint"] / "policy").is_dir()
    assert summary["winner"]["evaluation"]["mean"] > 100  # a policy that does not learn gets 9 to 25
    assert summary["model"]["uri"] == "models:/cartpole-ppo/1", "its own version: the alias may move"
    reached = [entry.env_steps for entry in entries(finished_sweep.sweep)]
    assert summary["cost"]["env_steps"] == sum(reached)
    assert summary["cost"]["slots"] == 2
    assert 0 < summary["cost"]["efficiency"] < 1


def test_nothing_but_the_sweep_and_mlflows_store_is_left_in_the_folder(finished_sweep: Project) -> None:
    names = {path.name for path in finished_sweep.folder.iterdir()}
    assert names <= {"outputs", "mlflow.db", "mlruns", "mlartifacts", "continued"}  # the last is an example's
    assert ".tune" not in {path.name for path in finished_sweep.sweep.iterdir()}


def test_mlflow_has_one_parent_and_one_child_for_each_trial_with_matching_statuses(finished_sweep: Project) -> None:
    parents, children = runs_of(finished_sweep)
    assert [parent.info.status for parent in parents] == ["FINISHED"]
    assert parents[0].info.run_name == finished_sweep.summary["name"]
    trials = entries(finished_sweep.sweep)
    assert len(trials) == 4
    assert {e.number: STATUSES[e.state] for e in trials} == {n: run.info.status for n, run in children.items()}
    assert {e.number: e.mlflow_run_id for e in trials} == {n: run.info.run_id for n, run in children.items()}


def test_mlflows_metrics_are_the_ledgers_reports_stepped_by_environment_steps(finished_sweep: Project) -> None:
    client = MlflowClient(finished_sweep.store)
    _, children = runs_of(finished_sweep)
    for entry in entries(finished_sweep.sweep):
        history = client.get_metric_history(children[entry.number].info.run_id, "score")
        shown = {point.step: point.value for point in history}
        assert len(history) == len(shown)
        assert shown == pytest.approx({s: v for s, v in entry.reports.items() if np.isfinite(v)})
        assert max(shown) >= 20000 or entry.state == "PRUNED"


def test_mlflows_params_are_the_sampled_values_and_nothing_else(finished_sweep: Project) -> None:
    searched = set(OmegaConf.load(conf_dir() / "space" / "ppo.yaml"))
    _, children = runs_of(finished_sweep)
    for entry in entries(finished_sweep.sweep):
        shown = children[entry.number].data.params
        assert set(shown) == searched
        assert ast.literal_eval(shown.pop("normalise")) == entry.params["normalise"]
        numbers = {name: value for name, value in entry.params.items() if name != "normalise"}
        assert {name: float(value) for name, value in shown.items()} == pytest.approx(numbers)


def test_two_trials_overlap_in_time(finished_sweep: Project) -> None:
    client = MlflowClient(finished_sweep.store)
    _, children = runs_of(finished_sweep)
    spans = []
    for run in children.values():
        moments = [point.timestamp for point in client.get_metric_history(run.info.run_id, "env_steps_per_s")]
        spans.append((min(moments), max(moments)))
    overlaps = [min(a[1], b[1]) - max(a[0], b[0]) for a, b in itertools.combinations(spans, 2)]
    assert max(overlaps) > 0, f"milliseconds of the first and last report of each trial: {spans}"


def test_the_whole_process_tree_stays_below_4_gib(finished_sweep: Project) -> None:
    assert finished_sweep.ran is not None
    peak_gb = finished_sweep.ran.peak_bytes / 2**30
    print(f"peak memory of the process tree: {peak_gb:.2f} GiB")
    assert 0.5 < peak_gb < 4


@pytest.mark.usefixtures("store")
def test_the_champion_acts_alike_through_mlflow_and_through_rltune(finished_sweep: Project) -> None:
    observations = np.random.default_rng(0).normal(scale=0.5, size=(1000, 4)).astype(np.float32)
    policy = rltune.load_policy(CHAMPION)
    actions = policy.act(observations)
    np.testing.assert_array_equal(mlflow.pyfunc.load_model(CHAMPION).predict(observations), actions)
    assert set(np.unique(actions)) == {0, 1}
    assert policy.info["trial"] == finished_sweep.summary["winner"]["trial"]
    np.testing.assert_array_equal([policy.act(one) for one in observations[:20]], actions[:20])


@pytest.mark.usefixtures("store")
def test_every_uri_of_the_winner_leads_to_the_same_policy(finished_sweep: Project) -> None:
    observations = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)
    summary = finished_sweep.summary
    number = summary["winner"]["trial"]
    uris = (
        "sweep:latest",
        f"sweep:{summary['name']}",
        f"sweep:{summary['name']}/{number}",
        f"models:/cartpole-ppo/{summary['model']['version']}",
        str(finished_sweep.sweep / summary["winner"]["checkpoint"]),
    )
    expected = rltune.load_policy(CHAMPION).act(observations)
    for uri in uris:
        np.testing.assert_array_equal(rltune.load_policy(uri).act(observations), expected, err_msg=uri)


def test_no_pickle_is_in_the_registered_model(store: MlflowClient) -> None:
    version = store.get_model_version_by_alias("cartpole-ppo", "champion")
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=f"models:/cartpole-ppo/{version.version}"))
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    assert "MLmodel" in names
    assert [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".pth"))] == []


def test_evaluate_prints_the_champions_mean_return(finished_sweep: Project, replies: dict[str, Any]) -> None:
    done = replies["evaluate"]
    assert done.code == 0, done.out
    assert "CartPole-v1" in done.out
    line = next(line for line in done.out.splitlines() if line.startswith("mean return"))
    assert float(line.split()[2]) == pytest.approx(finished_sweep.summary["winner"]["evaluation"]["mean"], abs=150)
    assert next(line for line in done.out.splitlines() if line.startswith("episodes")).split() == ["episodes", "20"]


def test_list_and_show_name_the_sweep_and_its_trials(finished_sweep: Project, replies: dict[str, Any]) -> None:
    name = finished_sweep.summary["name"]
    assert replies["list"].code == 0, replies["list"].out
    assert any(name in line and "complete" in line for line in replies["list"].out.splitlines())
    assert replies["show"].code == 0, replies["show"].out
    assert replies["show"].out.startswith(f"{name}: complete")
    for entry in entries(finished_sweep.sweep):
        assert any(
            line.replace(",", " ").split()[:2] == [str(entry.number), STATE_WORDS[entry.state]]
            for line in replies["show"].out.splitlines()
        )


def test_list_and_the_report_have_the_command_that_was_typed(finished_sweep: Project, replies: dict[str, Any]) -> None:
    (row,) = [line for line in replies["list"].out.splitlines() if finished_sweep.sweep.name in line]
    assert "algo=ppo env=cartpole cluster.num_cpus=2" in row
    page = (finished_sweep.sweep / "report" / "index.html").read_text()
    assert "python -m sweeps.run algo=ppo env=cartpole cluster.num_cpus=2" in page


# -- interrupted and resumed --------------------------------------------------------------------------------------


LONG = 40_000  # environment steps of a trial that is to be interrupted


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A sweep that gets SIGTERM in the middle of its first trials, and is resumed."""
    project = Project(tmp_path_factory.mktemp("interrupted")).prepare_store()
    process = project.start(
        *("-m", "sweeps.run", "name=broken-off", "scheduler=none", "budget.trials=3", f"budget.env_steps={LONG}"),
        *(
            "budget.reports=30",
            "certify=off",
            "certify.top=1",
            "certify.champion_episodes=10",
            "resources.max_concurrent=2",
            *LIGHT,
        ),
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if list(project.folder.glob("outputs/broken-off/trials/*/*/best-*")):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    seen: dict[str, Any] = {"project": project, "first": finish(process)}
    seen["before"] = (entries(project.sweep), *runs_of(project), project.summary)
    seen["second"] = project.type("-m", "sweeps.resume", "sweep=broken-off")
    seen["after"] = (entries(project.sweep), *runs_of(project), project.summary)
    return seen


@pytest.mark.nightly
def test_sigterm_ends_a_sweep_with_143_and_the_resume_command(interrupted: dict[str, Any]) -> None:
    first = interrupted["first"]
    assert first.code == 143, first.out
    assert "resume sweep=broken-off" in first.out
    assert "Traceback" not in first.out
    trials, parents, children, summary = interrupted["before"]
    assert summary["status"] == "interrupted"
    assert summary["trials"]["interrupted"] >= 1
    assert "RUNNING" not in {run.info.status for run in (*parents, *children.values())}, first.out
    begun = [entry for entry in trials if entry.state == "RUNNING" and entry.reports]
    assert begun, "one trial had a checkpoint when the signal came; others may still have been starting"
    for entry in begun:
        assert entry.latest.env_steps >= max(entry.reports) > 0, "the state at the signal is kept"


@pytest.mark.nightly
def test_resume_finishes_the_same_trials_in_the_same_runs(interrupted: dict[str, Any]) -> None:
    second = interrupted["second"]
    assert second.code == 0, second.out
    before, _, runs_before, _ = interrupted["before"]
    after, parents, children, summary = interrupted["after"]
    assert summary["status"] == "complete"
    assert [entry.state for entry in after] == ["COMPLETE"] * 3
    for old, new in zip(before, after, strict=False):
        assert new.params == old.params
        assert new.seeds == old.seeds
        if old.mlflow_run_id:  # one that was still starting has none yet, nor has any while MLflow makes its store
            assert new.mlflow_run_id == old.mlflow_run_id
        assert dict(old.reports).items() <= dict(new.reports).items()
    assert len(parents) == 1
    assert set(runs_before) <= set(children) == {0, 1, 2}
    assert {run.info.status for run in (*parents, *children.values())} == {"FINISHED"}
    assert all(runs_before[n].info.run_id == children[n].info.run_id for n in runs_before)


@pytest.mark.nightly
def test_a_resumed_trials_curve_goes_on_where_it_broke_off(interrupted: dict[str, Any]) -> None:
    client = MlflowClient(interrupted["project"].store)
    before, _, _, _ = interrupted["before"]
    after, _, children, _ = interrupted["after"]
    broken = [entry.number for entry in before if entry.state == "RUNNING" and entry.reports]
    assert broken
    for number in broken:
        history = client.get_metric_history(children[number].info.run_id, "train_s")
        points = [(point.step, point.value) for point in sorted(history, key=lambda one: (one.timestamp, one.step))]
        assert points == sorted(points), "environment steps and training seconds never go back"
        assert len({step for step, _ in points}) == len(points)
        assert points[-1][0] == LONG <= after[number].env_steps
        gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(points)]
        assert max(gaps) <= LONG / 30 + 1, f"trial {number} has a hole in its curve: {points}"


# -- every shipped environment and algorithm ----------------------------------------------------------------------


SMOKE = {"dqn": "cartpole", "ppo": "pendulum"}


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Project]:
    """Two smoke sweeps side by side, each with one trial at a time."""
    projects = {algo: Project(tmp_path_factory.mktemp(algo)).prepare_store() for algo in SMOKE}

    def smoke(algo: str) -> None:
        words = (f"algo={algo}", f"env={SMOKE[algo]}", "experiment=smoke", "resources.max_concurrent=1")
        projects[algo].ran = projects[algo].type("-m", "sweeps.run", *words)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(smoke, projects))
    return projects


@pytest.mark.nightly
@pytest.mark.parametrize("algo", SMOKE)
def test_a_smoke_sweep_finds_a_winner_that_acts(algo: str, smoked: dict[str, Project]) -> None:
    project, env = smoked[algo], SMOKE[algo]
    assert project.ran is not None
    assert project.ran.code == 0, project.ran.out
    summary = project.summary
    assert summary["model"]["uri"] == f"models:/{env}-{algo}/1"
    policy = rltune.load_policy(f"sweep:{summary['name']}", output_dir=project.folder / "outputs")
    evaluation = rltune.evaluate(policy, episodes=10, seed=derive_own_seed(summary["name"]))
    assert evaluation.mean == pytest.approx(summary["winner"]["evaluation"]["mean"])
    _, children = runs_of(project, env)
    assert len(children) == 2


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("env", "replicates"), [pytest.param("acrobot", 1, marks=pytest.mark.nightly), ("mountaincar", 2)]
)
def test_a_smoke_sweep_runs_through_also_with_two_seeds_a_trial_and_its_winner_loads(
    env: str, replicates: int, request_of: Callable[..., RunConfig], tmp_path: Path, stream: Any
) -> None:
    words = ("algo=ppo", f"env={env}", "experiment=smoke", f"replicates={replicates}", "resources.max_concurrent=1")
    put_store(tmp_path)
    outcome = run_sweep(request_of(*words), stream=stream)
    assert outcome.exit_code == 0, stream.getvalue()
    assert outcome.winner is not None
    assert outcome.model is not None
    seeds = next(e for e in entries(outcome.folder) if e.number == outcome.winner["trial"]).seeds
    assert len(set(seeds)) == replicates
    best = outcome.folder / outcome.winner["checkpoint"]
    policies = [rltune.load_policy("sweep:latest", output_dir=outcome.folder.parent)]
    policies += [rltune.load_policy(best / f"seed-{place}") for place in range(1, replicates)]
    assert tuple(policy.info["seed"] for policy in policies) == seeds
    for policy in policies:
        assert policy.info["env_name"] == env
        assert policy.action_space.contains(policy.act(policy.observation_space.sample()))
