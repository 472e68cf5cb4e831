"""The settings: what the files in conf/ compose to, and what is refused before anything heavy is imported."""

from __future__ import annotations

import copy
import functools
import math
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from composing import compose as compose_anew
from omegaconf import OmegaConf

from rltune.algorithms.arguments import values_of
from rltune.config.names import make_sweep_name, sweep_folder_of
from rltune.config.settings_file import format_settings, read_settings, write_settings
from rltune.config.validation import parse_config
from rltune.errors import ConfigError, StudyError
from rltune.search.schedulers import build_stopping_rule
from rltune.search.space import parse_space
from sweeps._command import conf_dir

CONF = conf_dir()
compose = functools.cache(compose_anew)  # each takes a quarter of a second; no test changes what it is given
NAMELESS = ("gym", "pettingzoo")  # the environment is named on the command line
OPTIONS = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))
EXPERIMENTS = [path.stem for path in OPTIONS if path.parts[0] == "experiment"]


@pytest.fixture(scope="module")
def composed():
    """The settings of a plain run, as plain values."""
    return OmegaConf.to_container(compose("run"), resolve=True)


def changed(raw, key, value):
    """A copy of the settings with one value changed or added."""
    copied = copy.deepcopy(raw)
    *above, last = key.split(".")
    place = copied
    for part in above:
        place = place[part]
    place[last] = value
    return copied


def refusal(raw):
    with pytest.raises(ConfigError) as refused:
        parse_config(raw)
    error = refused.value
    assert error.what
    assert error.allowed
    assert error.fix, "an error says what was wrong, what is allowed and what to type next"
    return error


# -- the files ----------------------------------------------------------------------------------------------------


OFFLINE = ("bc", "cql", "iql", "marwil")


def dataset_of(overrides):
    """What an offline algorithm cannot be composed without."""
    return ["algo.offline_data.input_=data.parquet"] if {f"algo={name}" for name in OFFLINE} & set(overrides) else []


def rounds():
    """Overrides that take every choice once, several groups at a time: composing takes a quarter of a second."""
    by_group = {}
    for option in OPTIONS:
        by_group.setdefault(option.parts[0], []).append(option)
    separate = [by_group.pop(group) for group in ("experiment", "tuned", "space", "recipe")]
    for number in range(max(map(len, by_group.values()))):
        chosen = [options[number % len(options)] for options in by_group.values()]
        named = ["env.id=CartPole-v1"] if any(option.stem in NAMELESS for option in chosen) else []
        yield [f"{option.parts[0]}={option.stem}" for option in chosen] + named, chosen
    for option in separate[1][::9]:  # test_every_algorithm.py reads each of them
        algo, _, env = option.stem.partition("_")
        yield [f"algo={algo}", f"env={env}"], [option]
    for option in separate[2]:
        algo = option.stem.partition("_")[0]
        yield [f"algo={algo}"] + [f"space={option.stem}"] * (option.stem != algo), [option]
    for option in separate[3]:
        experiment, _, algo = option.stem.partition("_")
        yield [f"algo={algo}", f"experiment={experiment}"], [option]


@pytest.mark.parametrize(("overrides", "options"), list(rounds()), ids=lambda value: " ".join(map(str, value)))
def test_every_choice_of_every_group_composes_to_a_sweep_that_makes_sense(overrides, options):
    chosen = compose("run", *overrides, *dataset_of(overrides))
    config = parse_config(chosen)
    searched = parse_space(config.space)
    assert set(values_of(config.algo, searched.names)) == set(searched.names)
    for option in options:
        place = chosen if option.parts[0] in ("tuned", "recipe") else chosen[option.parts[0]]
        assert set(OmegaConf.load(CONF / option)) <= set(place), f"what {option} sets is what the sweep gets"


def test_each_file_of_a_named_thing_is_called_by_its_name():
    for option in OPTIONS:
        raw = OmegaConf.load(CONF / option)
        if option.parts[0] in ("algo", "env"):
            assert option.stem in NAMELESS or raw.name == option.stem, option
        if option.parts[0] in ("searcher", "scheduler", "tracking"):
            assert raw.kind == option.stem, option


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_command_in_an_experiments_first_comment_composes_that_experiment(name):
    comments = [line for line in (CONF / "experiment" / f"{name}.yaml").read_text().splitlines() if line[:1] == "#"]
    assert comments[0] == "# @package _global_"
    command = re.fullmatch(r"# python -m sweeps\.run (.+)", comments[1])
    assert command, f"{name}: its first comment is the command that runs it"
    overrides = command.group(1).split()
    assert f"experiment={name}" in overrides
    config = parse_config(compose("run", *overrides))
    recipe = OmegaConf.load(CONF / "experiment" / f"{name}.yaml")
    for key in ("trials", "env_steps"):
        if OmegaConf.select(recipe, f"budget.{key}") is not None:
            assert getattr(config.budget, key) == recipe.budget[key]


def test_an_experiment_runs_without_early_stopping_when_asked_to():
    config = parse_config(compose("run", "experiment=mountaincar", "scheduler=none"))
    assert build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps) is None


@pytest.mark.parametrize("root", sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "hydra_settings"))
def test_every_command_has_a_root_file_that_begins_with_how_to_type_it(root):
    assert (CONF / f"{root}.yaml").read_text().startswith(f"# python -m sweeps.{root}")


def test_every_value_in_run_yaml_says_what_it_is():
    _, _, settings = (CONF / "run.yaml").read_text().partition("\n\n")
    values = [line for line in settings.splitlines() if re.match(r"\s*\w+:\s*[^#\s]", line)]
    assert len(values) > 12
    assert [line.strip() for line in values if "#" not in line] == []


def test_every_file_says_what_it_is_for():
    plain = [str(option) for option in OPTIONS if not (CONF / option).read_text().startswith("#")]
    assert [name for name in plain if not name.startswith("env/")] == []


def test_one_entry_of_a_space_can_be_replaced_fixed_or_left_out():
    one = ("space.lr=[loguniform,1e-5,1e-2]", "space.clip_param=3e-1", "~space.gamma")
    config = parse_config(compose("run", *one, "budget.wall_time_s=1e3"))
    assert config.space["lr"] == ["loguniform", 1e-5, 1e-2], "and 1e-5 is a number, not a word"
    assert config.space["clip_param"] == 0.3
    assert "gamma" not in config.space
    assert config.budget.wall_time_s == 1000.0


def test_the_space_follows_the_algorithm():
    assert set(compose("run", "algo=dqn").space) == set(OmegaConf.load(CONF / "space" / "dqn.yaml"))


def test_tuned_settings_come_along_with_the_pair_that_they_are_for(composed):
    assert composed["algo"]["training"]["train_batch_size_per_learner"] == 256
    assert parse_config(compose("run", "experiment=acrobot")).algo["training"]["lambda_"] == 0.94


# -- the schema ---------------------------------------------------------------------------------------------------


def test_what_is_kept_in_a_sweeps_folder_reads_back_as_the_same_request(composed):
    config = parse_config(composed)
    assert parse_config(OmegaConf.create(format_settings(config))) == config


def test_composed_settings_hold_no_library_types_that_would_travel_to_workers():
    config = parse_config(compose("run", "warm_start=[{lr:1e-3}]"))
    assert type(config.algo["training"]) is dict
    assert type(config.space["lr"]) is list
    assert type(config.warm_start[0]) is dict


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
    ("resources.cpus_per_trial", 0),
    ("resources.gpus_per_trial", -0.25),
    ("resources.gpus_per_trial", math.nan),
    ("resources.max_concurrent", 0),
    ("cluster.num_cpus", 0),
    ("cluster.num_cpus", -3),
    ("cluster.num_gpus", -1),
    ("checkpoint.every_s", -1),
    ("failures.max_retries", -1),
    ("failures.stop_after", 0),
    ("certify.top", -1),
    ("certify.seeds", -1),
    ("certify.episodes", 0),
    ("certify.champion_episodes", 0),
]


@pytest.mark.parametrize(("key", "value"), OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_by_its_key_with_a_value_that_is_accepted(key, value, composed):
    error = refusal(changed(composed, key, value))
    assert error.what.startswith(f"{key}=")
    suggested_key, _, suggested = error.fix.partition("=")
    assert suggested_key == key
    parse_config(changed(composed, key, float(suggested) if "." in suggested else int(suggested)))


def test_null_leaves_a_bound_out(composed):
    config = parse_config(changed(composed, "budget.wall_time_s", None))
    assert config.budget.wall_time_s is None


def test_more_reports_than_steps_are_refused(composed):
    error = refusal(changed(composed, "budget.env_steps", 10))
    assert "budget.reports=20" in error.what
    assert error.fix == "budget.reports=10"


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("engine", "rlib", "rllib"),
        ("env.vectorize", "asink", "async"),
        ("tracking.kind", "servr", "server"),
        ("algo.trainin", {"lr": 1}, "training"),
        ("budget.trails", 3, "trials"),
        ("sed", 3, "seed"),
        ("searcher.knd", "tpe", "kind"),
    ],
)
def test_a_word_that_is_not_known_is_answered_with_the_nearest_that_is(key, value, nearest, composed):
    error = refusal(changed(composed, key, value))
    assert key in error.what
    assert f"'{nearest}'" in error.allowed


def test_a_value_of_another_type_is_refused_by_its_key(composed):
    assert "budget.trials" in refusal(changed(composed, "budget.trials", "many")).what


def test_a_value_that_is_missing_is_asked_for_by_its_key(composed):
    raw = dict(composed)
    raw["budget"] = {key: value for key, value in composed["budget"].items() if key != "trials"}
    assert "budget.trials" in refusal(raw).what


@pytest.mark.parametrize("key", ["name", "class"])
def test_an_algo_file_without_name_or_class_is_refused(key, composed):
    raw = {**composed, "algo": {k: v for k, v in composed["algo"].items() if k != key}}
    assert f"algo.{key}" in refusal(raw).what


def test_an_algo_section_that_is_no_mapping_is_refused(composed):
    assert "algo.training" in refusal({**composed, "algo": {**composed["algo"], "training": 3}}).what


# -- names and folders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my-sweep", "a", "ppo_2.1", "2026-01-01"])
def test_a_name_of_letters_digits_dashes_and_points_is_taken_as_it_is(name, composed):
    assert make_sweep_name(parse_config({**composed, "name": name})) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "latest", "a/b", "a b", "a\\b", "a:b", "a\nb", "a?b", "a#b", "a%b", "a*b", "a'b", "ä"]
)
def test_a_name_that_cannot_name_a_folder_and_a_database_is_refused(name, composed):
    assert "name=" in refusal({**composed, "name": name}).what


@pytest.mark.parametrize("group", ["env", "algo"])
def test_a_name_that_becomes_part_of_the_sweeps_and_the_models_is_refused_likewise(group, composed):
    assert f"{group}.name" in refusal({**composed, group: {**composed[group], "name": "a/b"}}).what


def test_a_new_sweep_is_called_after_what_it_does_and_when(composed):
    config = parse_config(composed)
    moment = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    names = {make_sweep_name(config, moment) for _ in range(20)}
    assert all(re.fullmatch(r"cartpole-ppo-20260304-050607-[0-9a-f]{4}", name) for name in names)
    assert len(names) > 1, "two sweeps in one second have names of their own"


def test_a_sweeps_folder_is_absolute_since_tune_changes_the_working_directory(composed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    relative = parse_config({**composed, "output_dir": "out"})
    assert sweep_folder_of(relative, "s") == tmp_path / "out" / "s"
    home = parse_config({**composed, "output_dir": "~/out"})
    assert sweep_folder_of(home, "s") == Path("/home/someone/out/s")


def test_a_password_in_an_address_is_not_written_with_the_settings(composed):
    raw = changed(composed, "study.storage", "postgresql+psycopg://me:s3cret@db.example/rl")
    raw = changed(raw, "tracking.uri", "http://me:s3cret@mlflow.example:5000")
    kept = format_settings(parse_config(raw))
    assert "s3cret" not in kept
    assert "db.example" in kept
    assert "mlflow.example" in kept


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: text.rindex("# sha256")],  # all settings there, the last ones of their section maybe not
        lambda text: "".join(text.splitlines(keepends=True)[:-4]),
        lambda text: text.replace("trials: 24", "trials: 94"),
        lambda text: "",
        lambda text: "\0" * len(text),
    ],
    ids=["no digest", "cut short", "one digit", "emptied", "zeroed"],
)
def test_damaged_settings_are_refused_by_a_resume_and_a_copy_can_take_their_place(damage, composed, tmp_path):
    config = parse_config(composed)
    write_settings(tmp_path, config)
    path = tmp_path / "config.yaml"
    whole = path.read_text()
    assert parse_config(read_settings(tmp_path, whole=True)) == config
    path.write_text(damage(whole))
    with pytest.raises(StudyError, match=r"config\.yaml"):
        read_settings(tmp_path, whole=True)
    path.write_text(format_settings(config))  # what MLflow and the study keep
    assert parse_config(read_settings(tmp_path, whole=True)) == config


def test_settings_that_a_person_changed_on_purpose_are_taken(composed, tmp_path):
    text = format_settings(parse_config(composed)).replace("trials: 24", "trials: 94")
    (tmp_path / "config.yaml").write_text(text[: text.rindex("# sha256")] + "# sha256: any\n")
    assert read_settings(tmp_path, whole=True).budget.trials == 94
