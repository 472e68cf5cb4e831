"""What the files in conf/ compose to, and that they fit the schema."""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace
from typing import Any

import pytest
from composing import compose as compose_anew
from omegaconf import OmegaConf

from rltune.algorithms.arguments import values_of
from rltune.cli.run import ResumeConfig, resume
from rltune.compose.command_settings import read_command_settings
from rltune.compose.composing import conf_dir
from rltune.config.schema import derive_env_name
from rltune.config.validation import parse_config
from rltune.driver import run, starting
from rltune.search.schedulers import NoStopping, build_stopping_rule
from rltune.search.space import parse_space

CONF = conf_dir()
compose = functools.cache(compose_anew)  # each takes a quarter of a second; no test changes what it is given
NAMELESS = ("gym", "pettingzoo")  # the environment is named on the command line
OPTIONS = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))
EXPERIMENTS = [path.stem for path in OPTIONS if path.parts[0] == "experiment"]


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


@pytest.mark.slow  # Hydra composes each of them.
@pytest.mark.parametrize(("overrides", "options"), list(rounds()), ids=lambda value: " ".join(map(str, value)))
def test_every_choice_of_every_group_composes_to_a_sweep(overrides, options):
    """Every choice of every group composes to a sweep that makes sense."""
    chosen = compose("run", *overrides, *dataset_of(overrides))
    config = parse_config(chosen)
    searched = parse_space(config.space)
    assert set(values_of(config.algo, searched.names)) == set(searched.names)
    for option in options:
        place = chosen if option.parts[0] in ("tuned", "portfolio", "recipe") else chosen[option.parts[0]]
        assert set(OmegaConf.load(CONF / option)) <= set(place), f"what {option} sets is what the sweep gets"


def test_each_file_of_a_named_thing_is_called_by_its_name():
    for option in OPTIONS:
        raw = OmegaConf.load(CONF / option)
        if option.parts[0] in ("algo", "env"):
            assert option.stem in NAMELESS or raw.name == option.stem, option
        if option.parts[0] in ("searcher", "scheduler"):
            assert raw.kind == option.stem or ":" in raw.kind, option  # a class has a file of any name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiments_first_comment_is_its_command(name):
    """The command in an experiments first comment composes that experiment."""
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
    rule = build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    assert isinstance(rule, NoStopping)


@pytest.mark.parametrize("root", sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "hydra_settings"))
def test_a_commands_root_file_begins_with_how_to_type_it(root):
    """Every command has a root file that begins with how to type it."""
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


def test_tuned_settings_come_with_the_pair_they_are_for(composed):
    """Tuned settings come along with the pair that they are for."""
    assert composed["algo"]["training"]["train_batch_size_per_learner"] == 256
    assert parse_config(compose("run", "experiment=acrobot")).algo["training"]["lambda_"] == 0.94


def test_composed_settings_hold_no_library_types():
    """Composed settings hold no library types that would travel to workers."""
    config = parse_config(compose("run", "warm_start=[{lr:1e-3}]"))
    assert type(config.algo["training"]) is dict
    assert type(config.space["lr"]) is list
    assert type(config.warm_start[0]) is dict


def test_an_id_alone_names_the_sweep():
    names = {
        "my_envs:Drift-v0": "my_envs-drift",
        "ALE/Pong-v5": "ale-pong",
        "My Env-v12": "my-env",
        "CartPole": "cartpole",
    }
    assert {env_id: derive_env_name(env_id) for env_id in names} == names


@pytest.mark.parametrize(("autoscale", "changed"), [(False, {"cluster": {"autoscale": False}}), (None, {})])
def test_a_resume_may_say_whether_the_cluster_grows(
    autoscale: bool | None, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [] if autoscale is None else [f"cluster.autoscale={autoscale}"]
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(
        run,
        "resume_sweep",
        lambda _, **given: arguments.update(given) or SimpleNamespace(exit_code=0, folder=None, to_dict=dict),
    )
    resume.work(read_command_settings("resume", ResumeConfig, words))
    assert starting._drop_none(arguments["changes"]) == changed


@pytest.mark.parametrize(("settings", "steps"), [({"budget": {"env_steps": 50_000}}, 5000), ({}, 10_000)])
def test_a_schedule_may_follow_the_budget(settings, steps):
    """Commands without a budget take the default sweep's."""
    file = OmegaConf.create({**settings, "epsilon": [[0, 1.0], ["${rltune.budget_share:0.1}", 0.05]]})
    assert OmegaConf.to_container(file, resolve=True)["epsilon"] == [[0, 1.0], [steps, 0.05]]
