"""What Hydra and OmegaConf raise, in words that say what to type."""

from __future__ import annotations

import pytest

from rltune.cli.requests import RetryConfig
from rltune.compose.command_settings import read_command_settings
from rltune.compose.composing import compose_settings
from rltune.compose.explaining import describe_allowed, refuse_flags, refuse_hydra_words
from rltune.config.schema import RunConfig
from rltune.errors import ConfigError, RltuneError


@pytest.mark.parametrize(
    ("word", "allowed", "fix"),
    [
        ("budget.trials=abc", "a whole number", "budget.trials=48"),
        ("budget.trials=", "a whole number", "budget.trials=48"),
        ("budget.trials=[4,8]", "a whole number", "budget.trials=48"),
        ("budget.trials=null", "a whole number", "budget.trials=48"),
        ("failures.stall_s=soon", "a number", "failures.stall_s=300"),
        ("budget.wall_time_s=soon", "a number, at least 1, or null", "budget.wall_time_s=3600"),
        ("certify.seeds=five", "a whole number, from 0 to", "certify.seeds=5"),
        ("resources.max_concurrent=all", "a whole number, at least 1, or null", "resources.max_concurrent=1"),
        ("report=maybe", "true or false", "report=True"),
        ("tracking.kinds=wandb", "a list", "tracking.kinds=[wandb]"),
        ("budgett.trials=4", "one of: algo, budget", "budget.trials=4"),
        ("space.env.kwargs.repeat=[choice,1,2]", "with +", "+space.env.kwargs.repeat=[choice,1,2]"),
        ("space.train_env.kwargs.w=[uniform, 0, 1]", "with +", "'+space.train_env.kwargs.w=[uniform, 0, 1]'"),
        ("budget.trils=4", "one of: env_steps, plateau, reports, target, total_env_steps, trials", "budget.trials=4"),
        ("lr=0.001", "one of: algo, budget", "space.lr=0.001"),
        ("gama=0.9", "one of: algo, budget", "space.gamma=0.9"),
        ("trials=4", "one of: algo, budget", "budget.trials=4"),
        ("grad_clip=1", "one of: algo, budget", "algo.training.grad_clip=1"),
        ("space.learning_rate=[uniform,0,1]", "one of: clip_param", "space.lr=[uniform,0,1]"),
        ("nonesuch=4", "one of: algo, budget", "run --help"),
        ("env=FrozenLake-v1", "one of: acrobot", "env=gym env.id=FrozenLake-v1"),
        ("env=heating:Heating-v0", "one of: acrobot", "env=gym env.id=heating:Heating-v0"),
        ("env=CartPole-v1", "one of: acrobot", "env=cartpole"),
        ("env=ale_py:ALE/Pong-v5", "one of: acrobot", "env=pong"),
        ("env=MountainCarContinuous-v0", "one of: acrobot", "env=gym env.id=MountainCarContinuous-v0"),
        ("env=cartpol", "one of: acrobot", "env=cartpole"),
        ("space.novelty=4", "one of", "run --help"),
        ("space.use_critic=false", "one of", "+algo.training.use_critic=null +space.use_critic=false"),
        ("algo=PPO", "one of: a2c", "algo=ppo"),
        ("env_id=CartPole-v1", "one of: algo", "env.id=CartPole-v1"),
        ("budget_trials=4", "one of: algo", "budget.trials=4"),
        ("algo=td3", "one of: a2c", "algo=tqc"),
        ("space.n_steps=512", "one of: clip_param", "space.train_batch_size_per_learner=512"),
        ("n_steps=512", "one of: algo", "space.train_batch_size_per_learner=512"),
        ("portfolio=[{lr: 1e-3}]", "one of: off, ppo", "warm_start=[{lr: 3e-4}]"),
        ("space={lr: [loguniform,1}", "one of: a2c", "space.NAME=VALUE"),
        ("stop={env_runners/episode_return_mean: 475}", "one of: algo, budget", "budget.target=475"),
        ("n_envs=8", "one of: algo, budget", "algo.env_runners.num_envs_per_env_runner=8"),
        ("num_envs=8", "one of: algo, budget", "algo.env_runners.num_envs_per_env_runner=8"),
        ("algo.num_envs=8", "one of", "algo.env_runners.num_envs_per_env_runner=8"),
        ("device=cuda", "GPUs", "resources.gpus_per_trial=1"),
        ("algo=[ppo,dqn]", "a single value", "run -m algo=ppo,dqn"),
        ("algo=ppo,dqn", "a single value", "run -m algo=ppo,dqn"),
        ("space.lr=choice(0.1,0.2)", "a range or a choice", "space.lr=[choice,0.1,0.2]"),
        ("space.lr=0.1,0.2", "a range or a choice", "space.lr=[choice,0.1,0.2]"),
        ("+scheduler.args.reduction_factor=4", "the key without +", "scheduler.args.reduction_factor=4"),
        ("env.rewards.normalise=true", "a list", "algo.normalise=[rewards]"),
        ("warm_start=3", "a list", "run --help"),
        ("searcher.from_sweeps=mine", "a list", "searcher.from_sweeps=[mine]"),
        ("warm_start={lr: 1e-3}", "a list", "'warm_start=[{lr: 1e-3}]'"),
        ("constraints=[train_s]", "{name: value}", "run --help"),
        ("space.clip_param={min: 0.1, max: 0.4}", "[kind, ...]", "space.clip_param=[uniform,0.1,0.4]"),
        ("space.lr={min: 1e-4, max: 1e-2}", "[kind, ...]", "space.lr=[loguniform,0.0001,0.01]"),
        ("space.clip_param={values: [0.1, 0.2]}", "[kind, ...]", "space.clip_param=[choice,0.1,0.2]"),
        ("space.clip_param={grid_search: [0.1, 0.2]}", "[kind, ...]", "space.clip_param=[choice,0.1,0.2]"),
        ("space.num_epochs={type: int, bounds: [1, 9]}", "[kind, ...]", "space.num_epochs=[randint,1,9]"),
        ("space.lr=[choice,1", "key=value, each quote", "'space.lr=[choice,1]'"),
        ("metrics={energy: sum", "key=value, each quote", "'metrics={energy: sum}'"),
        ("shop:Shop-v0", "key=value, quoted", "env.id=shop:Shop-v0"),
        ("CartPole-v1", "key=value, quoted", "env.id=CartPole-v1"),
        ("pendulum", "key=value, quoted", "env=pendulum"),
        ("dqn", "key=value, quoted", "algo=dqn"),
        ("name='mine", "key=value, each quote", "run --help"),
        ("+env.kwargs.größe=3", "keys of Latin letters", "kwargs: {größe: 3}}, then env=mine"),
    ],
)
def test_a_wrong_word_names_its_type_and_what_to_type(word: str, allowed: str, fix: str) -> None:
    with pytest.raises(RltuneError) as refused:
        compose_settings("run", RunConfig, [word])
    assert refused.value.key == word.partition("=")[0]
    assert refused.value.allowed.startswith(allowed)
    assert fix in refused.value.fix


@pytest.mark.parametrize(("typed", "fix"), [("trials=0", "trials=[0]"), ("trials=x", "retry --help")])
def test_a_value_where_a_list_belongs_is_suggested_in_brackets(typed: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_command_settings("retry", RetryConfig, [typed])
    assert (refused.value.key, refused.value.problem) == ("trials", "is no list")
    assert refused.value.fix.endswith(fix)


@pytest.mark.parametrize(
    ("typed", "key", "fix"),
    [
        ("seed=1 metrics={a: sum, b: mean} algo=ppo", "metrics", "'metrics={a: sum, b: mean}'"),
        ("space.lr=[uniform, 0, 1]", "space.lr", "'space.lr=[uniform, 0, 1]'"),
        ("env.id = shop:Shop-v0", "env.id", "env.id=shop:Shop-v0"),
    ],
)
def test_a_setting_that_the_shell_has_split_is_suggested_whole(typed: str, key: str, fix: str) -> None:
    with pytest.raises(RltuneError) as refused:
        compose_settings("run", RunConfig, typed.split())
    assert (refused.value.key, refused.value.fix) == (key, fix)


@pytest.mark.parametrize("last", ["metrics={fuel: sum}", "+metrics.fuel=sum"])
def test_a_mapping_after_a_list_names_the_list(last: str) -> None:
    with pytest.raises(RltuneError) as refused:
        compose_settings("run", RunConfig, ["env=gym", "metrics=[energy]", last])
    assert last.startswith(refused.value.key)
    assert refused.value.fix == "leave metrics=[energy] out"


def test_the_key_that_is_wrong_is_named_whole() -> None:
    with pytest.raises(RltuneError) as refused:
        compose_settings("run", RunConfig, ["budget.trials=8", "budget.trial=9"])
    assert (refused.value.key, refused.value.fix) == ("budget.trial", "budget.trials=9")


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("--algo ppo --env cartpole", "run algo=ppo env=cartpole"),
        ("--algo=ppo seed=1", "run algo=ppo seed=1"),
        ("algo=ppo --n-trials 4 -m", "run algo=ppo budget.trials=4 -m"),
        ("--config-path=mine", "run --config-dir=mine"),
        ("--config-name smoke", "run experiment=smoke"),
        ("--json seed=1", "run json=true seed=1"),
        ("algo=ppo --dry-run", "run algo=ppo check=true"),
        ("algo=ppo -f", "run algo=ppo"),
        ("algo=ppo --verbose seed=1", "run algo=ppo seed=1"),
    ],
)
def test_flags_are_answered_as_settings(typed: str, fix: str) -> None:
    with pytest.raises(RltuneError) as refused:
        refuse_flags("run", typed.split())
    assert refused.value.fix.endswith(fix)
    refuse_flags("run", ["-m", "algo=ppo,dqn", "--config-dir", "mine", "--cfg", "job"])


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("hydra.run.dir=mine", "output_dir=mine"),
        ("+hydra.sweep.dir=mine", "output_dir=mine"),
        ("hydra/launcher=joblib", "leave hydra/launcher out"),
        ("hydra.job.chdir=true", "leave hydra.job.chdir out"),
    ],
)
def test_settings_of_hydra_that_change_nothing_are_refused(word, fix):
    with pytest.raises(RltuneError) as refused:
        refuse_hydra_words(["seed=1", word])
    assert refused.value.what.startswith(f"{word}:")
    assert refused.value.fix == fix
    refuse_hydra_words(["hydra.searchpath=[file://mine]", "hydra.verbose=true"])


def test_a_group_that_has_an_option_is_answered_without_plus():
    with pytest.raises(RltuneError) as refused:
        compose_settings("run", RunConfig, ["+experiment=smoke"])
    assert refused.value.fix == "experiment=smoke"


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("seed", "a whole number, from 0 to 4294967295"),
        ("budget.total_env_steps", "a whole number, at least 1, or null"),
        ("resources.trials_per_gpu", "a whole number, from 1 to 100, or auto, or null"),
        ("engine", "one of: fast, rllib"),
        ("name", "text or null"),
        ("report", "true or false"),
        ("space.lr", ""),
        ("no.such.key", ""),
    ],
)
def test_a_settings_type_and_bounds_are_read_from_the_schema(key: str, shown: str) -> None:
    assert describe_allowed(RunConfig, key) == shown
