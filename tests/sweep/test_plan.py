"""All that is checked before the first trial, and that checking leaves nothing behind."""

from __future__ import annotations

import json

import pytest

from rltune.cluster.resources import Machine
from rltune.errors import ConfigError, ResourceError, RltuneError
from rltune.sweep.plan import make_plan

SAFE = ("tracking=off",)


def test_a_plain_request_becomes_a_plan_that_fits_the_machine(make):
    made = make()
    assert made.space.names[0] == "lr"
    assert made.build.env.id == "CartPole-v1"
    assert made.share_of(Machine(2, 0)).slots == 2
    assert made.share_of(Machine(64, 0)).slots == 24, "no more at once than there are trials"
    assert made.notes == ()


def test_few_trials_of_a_wide_network_get_the_cpus_that_would_idle(make):
    few = {"budget__trials": 2}
    assert make(**few).share_of(Machine(4, 0)).threads == 1
    wide = make(**few, algo__rl_module__model_config__fcnet_hiddens=[512, 64])
    assert wide.share_of(Machine(4, 0)).threads == 2


def test_each_trial_has_seeds_of_its_own_one_per_replicate(make):
    made, other = make(replicates=3), make(replicates=3, seed=1)
    assert made.seeds(5) == made.seeds(5), "a trial that is continued has the same seeds"
    every, others = ([seed for number in range(50) for seed in one.seeds(number)] for one in (made, other))
    assert len(every) == len(set(every)) == 150
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in every)
    assert not set(every) & set(others), "another sweep's seed gives other seeds"


def test_more_replicates_keep_the_seeds_of_fewer(make):
    assert make(replicates=3).seeds(4)[:1] == make(replicates=1).seeds(4)


def test_what_a_worker_builds_from_travels_as_plain_values(make):
    sent = make().assignment_build()
    assert json.loads(json.dumps(sent)) == sent
    plain = {"id": "CartPole-v1", "kwargs": {}, "wrappers": [], "normalise_observations": False, "rewards": {}}
    assert sent["env"] == plain
    assert sent["algo"]["name"] == "ppo"


def test_remote_env_runners_count_as_cpus(make):
    with pytest.raises(ResourceError, match="num_env_runners=64"):
        make(algo__env_runners__num_env_runners=64)


REFUSED = {
    "a space of what the algorithm has not": ({"space__lrr": ["uniform", 0, 1]}, "space.lrr"),
    "a range that makes no sense": ({"space__lr": ["uniform", 1, 0]}, "space.lr"),
    "more CPUs than there are": ({"resources__cpus_per_trial": 4096}, "resources.cpus_per_trial=4096"),
    "an environment that is not there": ({"env__id": "NoSuchEnv-v0"}, "env.id=NoSuchEnv-v0"),
    "a folder that is a file": ({"output_dir": "/etc/passwd"}, "output_dir=/etc/passwd"),
    "a scheduler that is not there": ({"scheduler__kind": "ahsa"}, "scheduler.kind=ahsa"),
    "a scheduler's argument out of range": ({"scheduler__args__grace_fraction": 5}, "scheduler.args.grace_fraction=5"),
    "a scheduler's unknown argument": ({"scheduler__args__grace": 1}, "scheduler.args.grace=1"),
    "a searcher that is not there": ({"searcher__kind": "tpee"}, "searcher.kind=tpee"),
    "a searcher's unknown argument": ({"searcher__args__n_startup": 1}, "searcher.args.n_startup=1"),
    "an MLflow server that does not answer": (
        {"tracking": {"kind": "server", "uri": "http://me:s3cret@127.0.0.1:9", "register": True}},
        "tracking.uri=http://***@127.0.0.1:9",
    ),
    "a folder as MLflow's store": ({"tracking": {"kind": "server", "uri": "./mlruns"}}, "tracking.uri=./mlruns"),
}


@pytest.mark.parametrize(("changes", "what"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_work_is_refused_in_three_parts_before_anything_is_written(make, changes, what):
    with pytest.raises(RltuneError) as refused:
        make(**changes)
    error = refused.value
    assert error.what.startswith(what)
    assert error.allowed
    assert error.fix
    assert "s3cret" not in error.pretty()


def test_a_gpu_is_asked_for_only_where_there_is_one(make, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ResourceError, match="no GPU here"):
        make(resources__gpus_per_trial=0.25)


def test_a_running_ray_is_asked_for_its_resources_only_once_connected(make):
    made = make(cluster__address="auto", resources__cpus_per_trial=4096)
    with pytest.raises(ResourceError, match="4096"):
        made.share_of(Machine(64, 0))


def test_a_folder_of_someone_else_is_refused(make, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_, **__: False)  # root may write everywhere
    with pytest.raises(ConfigError, match="cannot be written"):
        make()


@pytest.mark.parametrize("elsewhere", ["algo.env_runners.num_env_runners=1", "env.vectorize=async"])
def test_shaped_rewards_are_refused_where_true_returns_would_not_come_back(elsewhere, request_of):
    with pytest.raises(ConfigError, match="the true returns would stay in other processes") as refused:
        make_plan(request_of("env=pendulum", "env.rewards.scale=0.1", elsewhere))
    assert elsewhere.split("=")[0] in refused.value.fix
    make_plan(request_of("env=pendulum", elsewhere))
