"""Settings composed in a program that runs, and a person's own files beside ours."""

from __future__ import annotations

from pathlib import Path

import composing
import hydra
import pytest
from omegaconf import OmegaConf
from toy import TOY

from rltune.cli.policies import EvaluateConfig
from rltune.compose.composing import change_settings, compose_settings, read_request, spell_words
from rltune.config.schema import RunConfig
from rltune.errors import ConfigError, RltuneError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def compose(*words: str, config_dir: Path | None = None):
    return read_request(compose_settings("run", RunConfig, words, config_dir), words)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        TOY,
        ("budget.trials=3", "certify=off", "seed=7", "~tuned"),
        ("space.lr=[loguniform,1e-5,1e-2]", "algo=dqn", "env=gym", "env.id='a:B'", "name=null"),
        ("algo.training.lr=1e-4", "+algo.training.quality=0.9", "resources.max_concurrent=null", "tracking.uri='x=y'"),
        ("~space.gamma", "++space.lr=[loguniform,1e-4,1e-2]", "experiment=smoke", "name='007'"),
    ],
)
def test_what_the_tests_compose_is_what_hydra_composes(words, monkeypatch):
    """They set values in a copy of what it has composed before."""
    settings = composing.compose("run", *words)
    monkeypatch.setattr(hydra, "compose", hydra.compose.__wrapped__)
    assert settings == compose_settings("run", RunConfig, words)


def test_an_own_environment_is_found_in_conf_of_the_present_folder(tmp_path, monkeypatch):
    write(tmp_path / "conf" / "env" / "mine.yaml", "name: mine\nid: Pendulum-v1\n")
    monkeypatch.chdir(tmp_path)
    assert compose("env=mine").env.id == "Pendulum-v1"
    monkeypatch.chdir("/")
    with pytest.raises(RltuneError) as refused:
        compose("env=mine")
    assert refused.value.key == "env"


def test_an_own_folder_of_groups_may_have_any_name(tmp_path):
    folder = tmp_path / "it's mine, all"
    write(folder / "env" / "mine.yaml", "name: mine\nid: Pendulum-v1\n")
    assert compose("env=mine", config_dir=folder).env.id == "Pendulum-v1"
    with pytest.raises(ConfigError) as refused:
        compose("env=mine", config_dir=tmp_path / "absent")
    assert refused.value.key == "config_dir"


def test_a_file_with_the_name_of_one_of_ours_is_named_as_unused(tmp_path, monkeypatch, capsys):
    own = write(tmp_path / "conf" / "env" / "cartpole.yaml", "name: cartpole\nid: Pendulum-v1\n")
    monkeypatch.chdir(tmp_path)
    assert compose("env=cartpole").env.id == "CartPole-v1"
    assert str(own) in capsys.readouterr().err
    assert compose("env=acrobot").env.id == "Acrobot-v1"
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_program_that_uses_hydra_itself_goes_on_with_its_own(tmp_path):
    import hydra

    write(tmp_path / "theirs.yaml", "x: 1\n")
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(tmp_path)):
        assert compose("seed=3").seed == 3
        with pytest.raises(RltuneError):
            compose("seed=none")
        assert hydra.compose("theirs").x == 1


@pytest.mark.parametrize("word", ["seed=1,2", "tuned=null", "--multirun", "algo=pp0", "seed='", "=", ""])
def test_what_cannot_be_composed_is_answered_in_three_parts(word):
    with pytest.raises(RltuneError) as refused:
        compose(word)
    assert refused.value.what
    assert refused.value.allowed
    assert refused.value.fix


@pytest.mark.parametrize(
    ("group", "typed", "right"), [("tuned", "ppo_cartpol", "ppo_cartpole"), ("portfolio", "pp", "ppo")]
)
def test_an_option_of_an_optional_group_that_no_file_has_is_refused(tmp_path, group, typed, right):
    with pytest.raises(RltuneError) as refused:
        compose("algo=ppo", "env=cartpole", f"{group}={typed}")
    assert refused.value.key == group
    assert refused.value.fix == f"{group}={right}"
    write(tmp_path / group / "mine.yaml", "# @package _global_\nseed: 5\n")
    assert compose("algo=ppo", "env=cartpole", f"{group}=mine", config_dir=tmp_path).seed == 5


def test_certify_off_with_seeds_is_refused():
    with pytest.raises(ConfigError) as refused:
        compose("certify=off", "certify.seeds=2")
    assert refused.value.key == "certify.seeds"


@pytest.mark.parametrize(("replicates", "fix"), [(1, 4000), (3, 12_000)])
def test_steps_for_less_than_one_trial_are_refused(replicates, fix):
    words, one = ("budget.env_steps=1000", "budget.trials=4", f"replicates={replicates}"), 1000 * replicates
    assert compose(*words, f"budget.total_env_steps={one}").budget.total_env_steps == one
    with pytest.raises(ConfigError) as refused:
        compose(*words, f"budget.total_env_steps={one - 1}")
    assert refused.value.key == "budget.total_env_steps"
    assert refused.value.fix == f"budget.total_env_steps={fix}"


@pytest.mark.parametrize(("algo", "space", "strange"), [("ppo", "dqn", "n_step"), ("dqn", "ppo_lstm", "lambda_")])
def test_the_space_of_another_algorithm_is_named_as_such(algo, space, strange):
    with pytest.raises(ConfigError) as refused:
        compose(f"algo={algo}", f"space={space}")
    assert refused.value.key == "space"
    assert strange in refused.value.what
    for setting in (f"algo={algo}", f"algo={space[:3]}", f"space={space}"):
        assert setting in refused.value.fix


def test_a_space_that_fits_may_be_any(tmp_path):
    """Another algorithm's too: where all of its parameters are there it is a question of ranges."""
    write(tmp_path / "space" / "dqn_mine.yaml", "lr: [loguniform, 1e-4, 1e-2]\n")
    assert list(compose("algo=ppo", "space=dqn_mine", config_dir=tmp_path).space) == ["lr"]
    assert "use_lstm" in compose("algo=ppo", "space=ppo_lstm").space


def test_composed_settings_are_changed_key_by_key():
    settings = "budget: {trials: 4, env_steps: 10}\nnotify: null\nenv: {kwargs: {}}\n"
    changed = change_settings(settings, ["budget.trials=1e2", "notify='${oc.env:HOOK}'", "++env.kwargs.x=1"])
    assert OmegaConf.to_container(changed) == {
        "budget": {"trials": 100, "env_steps": 10},
        "notify": "${oc.env:HOOK}",
        "env": {"kwargs": {"x": 1}},
    }


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("budget.trails=3", "budget.trails"),
        ("cluster=address", "cluster"),
        ("budget.trials=1,2", "budget.trials"),
        ("~notify", "~notify"),
        ("a b", ""),
    ],
)
def test_what_changes_no_single_key_is_refused(word, key):
    with pytest.raises(RltuneError) as refused:
        change_settings("budget: {trials: 4}\nnotify: null\n", [word])
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("words", "implied"),
    [
        (["env.id=CartPole-v1"], ["env=gym"]),
        (["++env.id=CartPole-v1", "experiment=smoke"], ["env=gym"]),
        (["env.id=CartPole-v1", "env=acrobot"], []),
        (["env.id=CartPole-v1", "experiment=acrobot"], []),
        (["env=cartpole"], []),
    ],
)
def test_an_id_alone_means_the_environment_of_any_id(words: list[str], implied: list[str]) -> None:
    assert spell_words(words, RunConfig) == [*words, *implied]
    assert spell_words(words, EvaluateConfig) == words


def test_a_mapping_for_a_group_sets_its_keys() -> None:
    """As a dictionary does in Python, beside the group's file."""
    config = compose("space={lr: [loguniform,1e-4,1e-2], gamma: 0.9}", "env={id: walk:Walk-v0, kwargs: {size: 4}}")
    assert config.space["lr"] == ["loguniform", 1e-4, 1e-2]
    assert config.space["gamma"] == 0.9
    assert config.space["clip_param"][0] == "choice"
    assert (config.env.id, dict(config.env.kwargs)) == ("walk:Walk-v0", {"size": 4})
