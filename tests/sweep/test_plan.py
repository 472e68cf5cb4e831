"""All that is checked before the first trial, and that checking leaves nothing behind."""

from __future__ import annotations

import json

import pytest
from composing import compose

from rltune.cluster.resources import Machine
from rltune.config.validation import parse_config
from rltune.errors import ConfigError, ResourceError, RltuneError
from rltune.sweep.plan import make_plan

SAFE = ("tracking=off",)


@pytest.fixture(scope="module")
def composed():
    """A plain run's settings, and those of a space of one's own."""
    return compose("run", *SAFE)


@pytest.fixture
def make(composed, tmp_path, monkeypatch):
    """A plan from a plain run with some settings changed, in a folder of its own that stays empty."""
    from omegaconf import OmegaConf

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def build(**changes):
        settings = OmegaConf.create(OmegaConf.to_container(composed, resolve=True))
        for key, value in changes.items():
            OmegaConf.update(settings, key.replace("__", "."), value, merge=not isinstance(value, dict))
        return make_plan(parse_config(settings))

    yield build
    assert list(tmp_path.iterdir()) == [], "checks write nothing"


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


def test_a_persons_warm_starts_come_first_and_the_tuned_settings_after_them(make):
    (tuned,) = make().warm_starts
    assert (tuned["lr"], tuned["num_epochs"], tuned["train_batch_size_per_learner"]) == (1e-3, 20, 256)
    assert set(tuned) == {dimension.name for dimension in make().space.dimensions}
    given, after = make(warm_start=[{"lr": 2e-3}]).warm_starts
    assert given == {"lr": 2e-3}
    assert after == tuned


def test_without_anything_to_search_there_is_nothing_to_warm_start(make):
    assert make(space={"lr": 3e-4}, warm_start=[]).warm_starts == ()


def test_a_warm_start_of_what_is_not_searched_is_left_out_with_a_note(make):
    made = make(warm_start=[{"lr": 1e-3, "vf_loss_coeff": 0.7}])
    assert made.warm_starts[0] == {"lr": 1e-3}
    assert any("vf_loss_coeff" in note for note in made.notes)


def test_a_warm_start_outside_its_range_is_said_and_not_dropped_in_silence(make):
    made = make(warm_start=[{"lr": 5.0, "num_epochs": 10}])
    assert any("lr=5.0" in note for note in made.notes)
    assert not any("num_epochs" in note for note in made.notes)


def test_a_warm_start_at_the_end_of_a_range_is_within_it(make):
    made = make(warm_start=[{"gamma": 0.95, "lambda_": 0.99, "minibatch_size": 64}])
    assert made.notes == ()
    assert made.space.encode(made.warm_starts[0]).keys() == {"1-gamma", "lambda_", "log2(minibatch_size)"}


def test_tuned_settings_widen_our_ranges_and_none_of_ones_own(make, tmp_path_factory):
    assert make().config.space["entropy_coeff"] == ["loguniform", 1e-8, 0.02]
    own = tmp_path_factory.mktemp("conf")
    (own / "space").mkdir()
    (own / "space" / "mine.yaml").write_text("lr: [loguniform, 1e-4, 1e-2]\nentropy_coeff: [uniform, 0.001, 0.1]\n")
    settings = compose("run", *SAFE, "space=mine", f"hydra.searchpath=[{own}]")
    made = make_plan(parse_config(settings))
    assert made.config.space == {"lr": ["loguniform", 1e-4, 1e-2], "entropy_coeff": ["uniform", 0.001, 0.1]}
    assert made.notes == (
        "the files' own values: entropy_coeff=1e-08 lies outside [uniform, 0.001, 0.1], so it is drawn instead",
    )
    typed = make(space={"entropy_coeff": ["loguniform", 1e-4, 1e-2]})
    assert typed.config.space == {"entropy_coeff": ["loguniform", 1e-4, 1e-2]}, "nor one of the command line"


def test_a_wider_range_that_names_no_range_to_widen_is_refused(make):
    with pytest.raises(ConfigError, match=r"^wider.lr=.* is no pair"):
        make(wider={"lr": ["loguniform", 1e-5, 0.1]})


def test_a_warm_start_of_an_unknown_name_is_refused_with_the_nearest(make):
    with pytest.raises(ConfigError) as refused:
        make(warm_start=[{"lr": 1e-3}, {"lrr": 1e-3}])
    assert refused.value.what.startswith("warm_start[1].lrr")
    assert "'lr'" in refused.value.allowed


def test_a_warm_start_that_is_no_mapping_is_refused(make):
    with pytest.raises(ConfigError, match=r"warm_start\[0\]=0.001 is no mapping"):
        make(warm_start=[1e-3])


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
