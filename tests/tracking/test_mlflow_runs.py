"""MLflow's calls, on a real store: what may be repeated, what is refused, what is made fit."""

from __future__ import annotations

import math

import pytest

from rltune.config.uris import resolve_uri
from rltune.tracking.mlflow_runs import MLflowRuns

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


@pytest.fixture
def runs(folder):
    made = MLflowRuns(resolve_uri(None), "cartpole")
    made.connect()
    made.open_experiment()
    return made


def steps(runs, run_id, metric):
    return sorted(point.step for point in runs._client.get_metric_history(run_id, metric))


def test_the_same_point_is_kept_once(runs):
    run_id = runs.create("trial-000", {}, 1)
    points = [("objective", 1.0, 100, 5000), ("objective", 2.0, 200, 6000)]
    for _ in range(2):
        runs.log(run_id, {}, {}, points)
    assert steps(runs, run_id, "objective") == [100, 200]


def test_what_is_not_finite_is_left_out(runs):
    run_id = runs.create("trial-000", {}, 1)
    runs.log(run_id, {}, {}, [("loss", math.nan, 1, 1), ("loss", math.inf, 2, 1), ("loss", 3.0, 3, 1)])
    assert steps(runs, run_id, "loss") == [3]


def test_names_that_mlflow_refuses_are_made_fit(runs):
    run_id = runs.create("trial-000", {}, 1)
    runs.log(run_id, {"a=b": "x" * 9000}, {"c?": "d"}, [("learner/loss+1", 1.0, 1, 1), ("../a//b", 2.0, 1, 1)])
    run = runs.read(run_id)
    assert (list(run.data.params), sorted(run.data.metrics)) == (["a_b"], ["a/b", "learner/loss_1"])
    assert len(run.data.params["a_b"]) == 6000


def test_a_param_that_has_changed_becomes_a_tag(runs):
    run_id = runs.create("trial-000", {}, 1)
    runs.log(run_id, {"lr": "0.1"}, {}, [])
    assert runs.compare(runs.read(run_id), {"lr": 0.2, "clip": 1}, {}) == ({"clip": "1"}, {"resumed.lr": "0.2"})


def test_a_run_that_was_deleted_is_there_again(runs):
    run_id = runs.create("trial-000", {}, 1)
    runs._client.delete_run(run_id)
    assert runs.read(run_id) is not None
    assert runs.read(run_id).info.lifecycle_stage == "active"
    assert runs.read("0" * 32) is None


def test_an_experiment_that_was_deleted_is_used_again(runs):
    experiment = runs._client.get_experiment_by_name("cartpole")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    runs._client.delete_experiment(experiment.experiment_id)
    runs.open_experiment()
    assert runs.create("trial-000", {}, 1)


def test_runs_are_found_by_a_tag_the_oldest_first(runs):
    late, early = (runs.create(name, {"rltune.entry": "k/1"}, start) for name, start in (("b", 2000), ("a", 1000)))
    assert [run.info.run_id for run in runs.search("rltune.entry", "k/1")] == [early, late]
    assert len(runs.search("rltune.entry", "k/%", like=True)) == 2


def test_a_password_is_in_no_text(folder):
    runs = MLflowRuns(resolve_uri("http://me:s3cret@127.0.0.1:1"), "cartpole")
    assert runs._clean({"rltune.command": "tracking.uri=http://me:s3cret@127.0.0.1:1"}) != {}
    assert "s3cret" not in str(runs._clean({"rltune.command": "tracking.uri=http://me:s3cret@127.0.0.1:1"}))
