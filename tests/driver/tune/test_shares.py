"""A trial that outgrows its share of a GPU."""

from __future__ import annotations

import io
import json
from collections import defaultdict

import pytest
from ledger import make_ledger
from mlflow import MlflowClient
from toy import TOY
from toy import ledger as read_records

from rltune.cluster.resources import Share
from rltune.driver.run import resume_sweep, run_sweep
from rltune.driver.tune.shares import Shares
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import CERTIFY, OUT_OF_MEMORY, TRIALS, TrialRecord
from tests.driver.hog import HogTrial


@pytest.fixture
def ledger(tmp_path):
    return make_ledger(tmp_path)


def test_a_trial_gets_a_larger_share_once(ledger):
    shares = Shares(Share(1.0, 0.25, 0), ledger)
    greedy, other = TrialRecord(1, "RUNNING", {"width": 512}), TrialRecord(2, "RUNNING", {"width": 64})
    assert shares.of(greedy) == Share(1.0, 0.25, 0)
    assert shares.enlarge(greedy) == shares.of(greedy) == Share(1.0, 0.5, 0)
    assert shares.of(other) == Share(1.0, 0.25, 0)
    assert shares.enlarge(greedy) is None
    assert shares.of(greedy) == Share(1.0, 0.5, 0)


def test_all_runs_of_greedy_values_share_what_was_learnt(ledger):
    shares, values = Shares(Share(1.0, 0.25, 0), ledger), {"width": [512, 512], "lr": 0.1}
    trial, together = TrialRecord(1, "RUNNING", values), TrialRecord(2, "RUNNING", values)
    later = TrialRecord(1, "RUNNING", dict(reversed(values.items())), kind=CERTIFY)
    for record in (trial, together):
        shares.of(record)
    shares.enlarge(trial)
    assert shares.of(later) == Share(1.0, 0.5, 0), "it does not run out of memory first"
    assert shares.enlarge(later) is None
    assert shares.enlarge(together) == Share(1.0, 0.5, 0), "it has had the common one until now"


@pytest.mark.parametrize(
    ("gpus", "given", "next_one"), [(0.25, 0.5, None), (0.1, 0.5, None), (0.75, 0.75, 1.0), (0.0, 0.0, None)]
)
def test_the_next_driver_knows_the_larger_share(ledger, gpus, given, next_one):
    greedy = ledger.trials.add({"width": [512, 512], "clip": float("inf"), "lr": 0.1}, [1])
    Shares(Share(1.0, 0.25, 0), ledger).enlarge(greedy)
    shares = Shares(Share(1.0, gpus, 0), ledger)
    assert shares.of(ledger.trials.records()[0]) == Share(1.0, given, 0)
    larger = shares.enlarge(greedy)
    assert (larger and larger.gpus) == next_one
    assert ledger.read_requests() == [], "nothing is left to be done"


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_who_has_a_whole_gpu_or_none_gets_no_more(gpus, ledger):
    shares = Shares(Share(1.0, gpus, 0), ledger)
    assert shares.enlarge(TrialRecord(0, "RUNNING", {})) is None
    assert shares.of(TrialRecord(0, "RUNNING", {})) == Share(1.0, gpus, 0)


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
        *("+algo.training.needs=0.0", "+space.needs=[choice,0.0,0.75,2.0]", "+space.seconds=0.02"),
        *(f"warm_start=[{starts}]", "scheduler=none", "checkpoint.every_s=0", f"output_dir={folder / 'outputs'}"),
        *("tracking=server", f"tracking.uri=sqlite:///{folder / 'mlflow.db'}"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setattr("rltune.driver.plan.preflight", lambda plan: None)
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
    most = []
    for held in cards.values():
        at_once = [sum(one["part"] for one in held if one["began"] <= at["began"] < one["ended"]) for at in held]
        assert max(at_once) <= 1.0
        most.append(max(at_once))
    assert most == [1.0, 1.0]


def test_a_resumed_sweep_knows_which_trials_outgrew_theirs(sweep):
    """Last, because it goes on with the sweep: the fourth trial has a whole GPU at once, and fails of that."""
    outcome, _ = sweep
    num_held = len(read_held(outcome, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rltune.driver.plan.preflight", lambda plan: None)
        resume_sweep(
            SweepRef.of(outcome.folder),
            stream=io.StringIO(),
            trainable=HogTrial,
            retry={TRIALS: [3]},
        )
    record = read_records(outcome)[3]
    assert record.stop_reason.startswith(OUT_OF_MEMORY)
    assert " 1:" in record.stop_reason
    assert {held["part"] for held in read_held(outcome, 3)[num_held:]} == {1.0}
