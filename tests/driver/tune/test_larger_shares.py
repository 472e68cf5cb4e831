"""Trials that outgrow their share of a GPU, in a sweep on two logical GPUs."""

from __future__ import annotations

import io
import json
from collections import defaultdict

import pytest
from mlflow import MlflowClient
from toy import TOY
from toy import ledger as read_records

from rltune.driver.run import run_sweep
from rltune.records import OUT_OF_MEMORY
from tests.driver.hog import HogTrial


@pytest.fixture(scope="module")
def sweep(ray_cluster, tmp_path_factory):
    """Six trials, two on each of two logical GPUs; the second needs more than a half, the fourth more than there is."""
    from composing import compose

    from rltune.config.validation import parse_config

    folder, stream = tmp_path_factory.mktemp("hogs"), io.StringIO()
    needs = [0.0, 0.75, 0.0, 2.0, 0.0, 0.0]
    starts = ",".join(f"{{quality:{0.9 - number / 10:.1f},needs:{need}}}" for number, need in enumerate(needs))
    words = (
        *("resources.trials_per_gpu=2", "resources.cpus_per_trial=0.5", "resources.max_concurrent=null"),
        *("cluster.num_cpus=4", "cluster.num_gpus=2"),  # the tests' Ray
        *("+algo.training.learner_config_dict.needs=0.0", "+space.needs=[choice,0.0,0.75,2.0]", "+space.seconds=0.02"),
        *(f"warm_start=[{starts}]", "scheduler=none", "checkpoint.every_s=0", f"output_dir={folder / 'outputs'}"),
        *("tracking=server", f"tracking.uri=sqlite:///{folder / 'mlflow.db'}"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setattr("rltune.driver.plan.preflight", lambda *_: ())
        outcome = run_sweep(parse_config(compose("run", *TOY, *words)), stream=stream, trainable=HogTrial)
    return outcome, " ".join(stream.getvalue().split())


def read_held(outcome, number):
    return [json.loads(line) for line in (outcome.folder / f"trials/{number}/held.jsonl").read_text().splitlines()]


def test_a_trial_that_needs_twice_its_share_gets_it(sweep):
    outcome, page = sweep
    record = read_records(outcome)[1]
    assert (record.state, len(record.reports)) == ("COMPLETE", 20)
    assert list(dict.fromkeys(one["part"] for one in read_held(outcome, 1))) == [0.5, 1.0]
    assert page.count(OUT_OF_MEMORY) >= 2, "trials 1 and 3"


def test_a_trial_that_needs_more_than_there_is_is_infeasible(sweep):
    outcome, _ = sweep
    record = read_records(outcome)[3]
    assert (record.state, record.is_infeasible) == ("FAIL", True)
    assert record.stop_reason.startswith(OUT_OF_MEMORY)
    assert " 1:" in record.stop_reason, "the GPUs that it had"
    assert list(dict.fromkeys(one["part"] for one in read_held(outcome, 3))) == [0.5, 1.0]
    client = MlflowClient(f"sqlite:///{outcome.folder.parents[1] / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("cartpole").experiment_id], "tags.`rltune.trial` = '3'")
    assert run.data.tags["rltune.stop_reason"].startswith(OUT_OF_MEMORY)


def test_the_neighbours_of_a_greedy_trial_notice_nothing(sweep):
    outcome, _ = sweep
    for record in [read_records(outcome)[number] for number in (0, 2, 4, 5)]:
        quality = record.params["quality"]
        assert record.reports == {steps: quality * steps / 1000 for steps in range(100, 2001, 100)}
        assert [one["part"] for one in read_held(outcome, record.number)] == [0.5] * 20, "each step taken once"


def test_no_gpu_is_shared_beyond_what_it_has(sweep):
    outcome, _ = sweep
    cards = defaultdict(list)
    for number in range(6):
        for held in read_held(outcome, number):
            cards[held["gpu"]].append(held)
    assert len(cards) == 2
    for held in cards.values():
        at_once = [sum(one["part"] for one in held if one["began"] <= at["began"] < one["ended"]) for at in held]
        assert max(at_once) <= 1.0
