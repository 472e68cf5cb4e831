"""What is refused before anything heavy is imported, and how it is said."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
from composing import change_setting, compose
from omegaconf import OmegaConf

from rltune.config.schema import BudgetConfig, RunConfig
from rltune.config.validation import parse_config, to_typed
from rltune.errors import ConfigError


def refusal(raw):
    with pytest.raises(ConfigError) as refused:
        parse_config(raw)
    error = refused.value
    assert error.what
    assert error.allowed
    assert error.fix, "an error says what was wrong, what is allowed and what to type next"
    return error


@pytest.mark.parametrize("word", ["+env.idd=3", "+budget.trils=4", "+nothing=1"])
def test_a_key_that_was_added_beside_the_schema_is_refused(word):
    assert refusal(compose("run", word)).key == word.strip("+").partition("=")[0]


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("+lr=0.1", "space.lr=0.1"),
        ("+learning_rate=[uniform,0,1]", "space.lr=..."),
        ("+budget.trils=4", "budget.trials=4"),
        ("+storag=s3://key:secret@host/bucket", "storage=s3://***@host/bucket"),
        ("+verbose=1", "leave verbose out"),
        ("+env.env_config.size=4", "+env.kwargs.size=4"),
    ],
)
def test_an_added_key_is_answered_with_the_one_that_was_meant(word, fix):
    with pytest.raises(ConfigError) as refused:
        parse_config(compose("run", word))
    assert refused.value.fix == fix


def test_a_constraint_that_is_no_bound_is_refused():
    assert refusal(compose("run", "constraints.train_s=60")).fix == "'+constraints.train_s=< 60'"
    assert parse_config(compose("run", 'constraints.train_s="< 60"')).constraints == {"train_s": "< 60"}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["algo=sac", "env=gym", "env.id=Pendulum-v1", "+env.kwargs.size=[1,2.0,{deep:null}]"],
        ["algo=dqn", "experiment=smoke", "resources.trials_per_gpu=auto", "searcher.from_sweeps=[1,b]"],
        ["resources.trials_per_gpu=4", "budget.wall_time_s=60", "tracking=server", "tracking.experiment='${env.name}'"],
    ],
)
def test_settings_are_converted_as_omegaconf_converts_them(words):
    plain = OmegaConf.to_container(compose("run", *words))
    theirs = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), plain))
    built = to_typed(RunConfig, plain)
    assert repr(built) == repr(theirs), "of the same types, too"
    assert built.algo is not plain["algo"]


def test_a_variable_in_the_environments_arguments_stays():
    config = to_typed(RunConfig, compose("run", "+env.kwargs.key='${oc.env:KEY}'", "+env.kwargs.seed='${seed}'"))
    assert config.env.kwargs == {"key": "${oc.env:KEY}", "seed": 0}


@pytest.mark.parametrize("change", [{"seed": -1}, {"budget": BudgetConfig()}, {"engine": "rlib"}])
def test_no_run_config_lies_outside_of_its_bounds(change, composed):
    config = parse_config(composed)
    with pytest.raises(ConfigError):
        replace(config, **change)


@pytest.mark.parametrize(("typed", "value"), [("7", 7), (7, 7), ("${seed}", 3)])
def test_a_value_of_another_type_is_converted(typed, value):
    plain = OmegaConf.to_container(compose("run", "seed=3"))
    plain["budget"]["trials"] = typed
    assert to_typed(RunConfig, plain).budget.trials == value
    plain["budget"]["trials"] = 7.5
    assert refusal(plain).key == "budget.trials"


OUT_OF_RANGE = [
    ("budget.trials", 0),
    ("budget.env_steps", -5),
    ("budget.total_env_steps", 0),
    ("budget.wall_time_s", 0),
    ("budget.wall_time_s", math.nan),
    ("budget.wall_time_s", math.inf),
    ("budget.reports", 0),
    ("replicates", 0),
    ("seed", -1),
    ("seed", 2**32),
    ("budget.trials", 10**9),
    ("certify.seeds", 10**6),
    ("resources.cpus_per_trial", 0),
    ("resources.gpus_per_trial", -0.25),
    ("resources.gpus_per_trial", math.nan),
    ("resources.trials_per_gpu", 0),
    ("resources.trials_per_gpu", 101),
    ("resources.trials_per_gpu", "many"),
    ("resources.max_concurrent", 0),
    ("cluster.num_cpus", 0),
    ("cluster.num_cpus", -3),
    ("cluster.num_gpus", -1),
    ("checkpoint.every_s", -1),
    ("checkpoint.replay_gb", -1),
    ("failures.max_retries", -1),
    ("failures.stop_after", 0),
    ("certify.top", -1),
    ("certify.seeds", -1),
    ("certify.episodes", 0),
    ("certify.champion_episodes", 0),
]


@pytest.mark.parametrize(("key", "value"), OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_by_its_key(key, value, composed):
    """A number out of range is refused by its key with a value that is accepted."""
    error = refusal(change_setting(composed, key, value))
    assert error.what.startswith(f"{key}=")
    suggested_key, _, suggested = error.fix.partition("=")
    assert suggested_key == key
    parse_config(change_setting(composed, key, float(suggested) if "." in suggested else int(suggested)))


def test_a_gpus_share_is_asked_for_in_one_way(composed):
    both = change_setting(change_setting(composed, "resources.trials_per_gpu", 4), "resources.gpus_per_trial", 0.25)
    error = refusal(both)
    assert error.key == "resources.trials_per_gpu"
    assert "resources.gpus_per_trial=0.25" in error.what
    assert error.fix == "resources.trials_per_gpu=4 resources.gpus_per_trial=0"
    assert parse_config(change_setting(both, "resources.gpus_per_trial", 0)).resources.trials_per_gpu == 4


@pytest.mark.parametrize(("key", "value"), [("cluster.address", "auto"), ("algo.learners", {"num_learners": 1})])
def test_only_a_trials_own_process_here_is_measured(composed, key, value):
    measured = change_setting(composed, "resources.trials_per_gpu", "auto")
    assert parse_config(measured).resources.trials_per_gpu == "auto"
    error = refusal(change_setting(measured, key, value))
    assert error.what.startswith("resources.trials_per_gpu=auto with ")
    assert error.fix == "resources.trials_per_gpu=4"


def test_null_leaves_a_bound_out(composed):
    config = parse_config(change_setting(composed, "budget.wall_time_s", None))
    assert config.budget.wall_time_s is None


def test_more_reports_than_steps_are_refused(composed):
    error = refusal(change_setting(composed, "budget.env_steps", 10))
    assert "budget.reports=20" in error.what
    assert error.fix == "budget.reports=10"


def test_this_machine_has_no_autoscaler(composed):
    error = refusal(change_setting(composed, "cluster.autoscale", True))
    assert error.fix == "cluster=address cluster.autoscale=true"


def test_a_running_cluster_has_its_own_cpus(composed):
    joined = change_setting(composed, "cluster.address", "head:6379")
    assert parse_config(joined).cluster.address == "head:6379"
    assert refusal(change_setting(joined, "cluster.num_cpus", 1)).key == "cluster.num_cpus"


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("engine", "rlib", "rllib"),
        ("precision", "bfloat", "bfloat16"),
        ("env.vectorize", "asink", "async"),
        ("objective.kind", "inf", "info"),
        ("objective.direction", "minimal", "min"),
        ("objective.second.direction", "minimum", "min"),
        ("resume", "aut", "auto"),
        ("algo.trainin", {"lr": 1}, "training"),
        ("budget.trails", 3, "trials"),
        ("sed", 3, "seed"),
        ("searcher.knd", "tpe", "kind"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest(key, value, nearest, composed):
    """A word that is not known is answered with the nearest that is."""
    error = refusal(change_setting(composed, key, value))
    assert key in error.what
    assert f"'{nearest}'" in error.allowed


def test_a_value_of_another_type_is_refused_by_its_key(composed):
    assert "budget.trials" in refusal(change_setting(composed, "budget.trials", "many")).what


def test_a_value_that_is_missing_is_asked_for_by_its_key(composed):
    raw = dict(composed)
    raw["budget"] = {key: value for key, value in composed["budget"].items() if key != "trials"}
    assert "budget.trials" in refusal(raw).what


@pytest.mark.parametrize("key", ["name", "class"])
def test_an_algo_file_without_name_or_class_is_refused(key, composed):
    raw = {**composed, "algo": {k: v for k, v in composed["algo"].items() if k != key}}
    assert f"algo.{key}" in refusal(raw).what


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("env_runners.num_cpus_per_env_runner", 2, "remove it: ~algo.env_runners.num_cpus_per_env_runner"),
        ("env_runners.num_gpus_per_env_runner", 0.5, "resources.gpus_per_trial=0.5"),
        ("env_runners.observation_filter", "MeanStdFilter", "algo.normalise=[observations]"),
        ("env_runners.gym_env_vectorize_mode", "sync", "env.vectorize=sync"),
        ("environment.env_config", {"size": 4}, "+env.kwargs={size:4}"),
        ("environment.clip_rewards", True, "env.rewards.clip=1.0"),
        ("learners.custom_resources_per_learner", {"big": 1}, "remove it: ~algo.learners.custom_resources_per_learner"),
        ("evaluation.evaluation_num_env_runners", 1, "certify.episodes=50"),
        ("api_stack.enable_rl_module_and_learner", False, "remove it: ~algo.api_stack"),
        ("rl_module.model_config.lstm_use_prev_action", True, "remove it: ~algo.rl_module.model_config.lstm_use_prev"),
    ],
)
def test_what_nothing_in_a_sweep_reads_is_refused(key, value, fix, composed):
    settings, (section, *above, name) = copy.deepcopy(composed), key.split(".")
    node = settings["algo"].setdefault(section, {})
    for part in above:
        node = node[part]
    node[name] = value
    error = refusal(settings)
    assert error.key == f"algo.{key}"
    assert error.fix.startswith(fix)


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("output_dir", "s3://bucket/sweeps", "storage=s3://bucket/sweeps"),
        ("storage", "sqlite:///study.db", "study.storage="),
        ("storage", "/sweeps", "storage=s3://"),
    ],
)
def test_folder_bucket_and_database_each_have_their_setting(key, value, fix, composed):
    error = refusal({**composed, key: value})
    assert error.key == key
    assert error.fix.startswith(fix)


def test_a_direction_needs_its_second_objective(composed):
    objective = {**composed["objective"], "second": {"key": None, "direction": "max"}}
    error = refusal({**composed, "objective": objective})
    assert error.key == "objective.second.direction"
    assert "objective.second.key=" in error.fix


def test_a_dashboard_is_that_of_a_ray_of_ones_own(composed):
    cluster = {**composed["cluster"], "address": "auto", "dashboard": True}
    assert refusal({**composed, "cluster": cluster}).key == "cluster.dashboard"


def test_an_algo_section_that_is_no_mapping_is_refused(composed):
    assert "algo.training" in refusal({**composed, "algo": {**composed["algo"], "training": 3}}).what


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "latest", "a/b", "a b", "a\\b", "a:b", "a\nb", "a?b", "a#b", "a%b", "a*b", "a'b", "ä"),
        *("-rf", ".service", "_x", "n" * 101, "n" * 300),
    ],
)
def test_a_name_that_cannot_name_a_folder_is_refused(name, composed):
    """A name that cannot name a folder and a database is refused."""
    assert refusal({**composed, "name": name}).key == "name"


@pytest.mark.parametrize("name", ["1", "A-b_c.d", "n" * 100])
def test_a_name_that_can_name_a_folder_is_taken(name, composed):
    assert parse_config({**composed, "name": name}).name == name


@pytest.mark.parametrize("group", ["env", "algo"])
def test_a_name_that_becomes_part_of_a_models_is_refused(group, composed):
    """A name that becomes part of the sweeps and the models is refused likewise."""
    assert f"{group}.name" in refusal({**composed, group: {**composed[group], "name": "a/b"}}).what


def test_a_command_to_be_typed_again_needs_a_name(composed):
    error = refusal(change_setting(composed, "resume", "auto"))
    assert error.key == "name"
    assert error.fix == "name=my-sweep resume=auto"
    parse_config(change_setting(change_setting(composed, "resume", "auto"), "name", "mine"))
    assert refusal(change_setting(composed, "resume", "maybe")).key == "resume"


@pytest.mark.parametrize("storage", ["/shared/outputs", "ftp://bucket/x", "s3:bucket", "s3://", "postgresql://host/db"])
def test_storage_is_a_bucket_or_nothing(storage, composed):
    error = refusal(change_setting(composed, "storage", storage))
    assert error.key == "storage"
    assert "output_dir" in error.allowed


@pytest.mark.parametrize(
    "storage", [None, "s3://bucket", "s3://bucket/a/b?endpoint_override=http://x:9000", "gs://b/c"]
)
def test_an_address_of_a_bucket_is_taken(storage, composed):
    assert parse_config(change_setting(composed, "storage", storage)).storage == storage


def test_a_login_in_the_storage_is_refused(composed):
    error = refusal(change_setting(composed, "storage", "s3://key:word-of-honour@bucket/x"))
    assert "word-of-honour" not in str(error)
