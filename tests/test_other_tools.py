"""What users of other tools type is answered with what rltune has for it, and what is advised can be typed."""

from __future__ import annotations

import functools
import os
import re

import pytest
from composing import compose
from omegaconf import OmegaConf
from typed_words import read_advice, replace_word
from typed_words import refuse as refuse_anew

from rltune.cli.application.program import load_commands
from rltune.compose.explaining import explain_unknown
from rltune.config.names import conf_dir
from rltune.config.schema import RunConfig
from rltune.config.validation import refuse_added
from rltune.errors import ConfigError, nearest
from rltune.other_tools import WORDS, find_answer, list_names
from rltune.search.dimensions import KINDS

# What is typed for a word of the table, where it takes no small number.
TYPED = {
    "budget.env_steps": "20000",
    "budget.wall_time_s": "60",
    "output_dir": "/tmp/words",
    "warm_start": "[{lr: 1e-3}]",
    "searcher": "random",
    "scheduler": "median",
    "space": "ppo",
    "objective.direction": "minimize",
    "resources.gpus_per_trial": "0",
    "resources.cpus_per_trial": "1",
    "name": "mine",
    "tracking.experiment": "mine",
    "tracking.uri": "null",
    "env.kwargs": "{render_mode: null}",
    "env.id": "CartPole-v1",
    "env": "cartpole",
    "algo": "ppo",
    "env.vectorize": "dummy",
    "env.wrappers": "[]",
    "env.policies": "null",
    "num_env_runners": "0",
    "lambda_": "0.9",
    "clip_param": "0.2",
    "lr": "1e-3",
    "fcnet_hiddens": "[64,64]",
    "fcnet_activation": "relu",
    "normalise": "[rewards]",
    "rollout_fragment_length": "4",
    "reduction_factor": "3",
    "train_batch_size_per_learner": "4096",
}
refuse = functools.cache(refuse_anew)  # Many words lead to the same advice, and a check of it takes 0.1 s.
OFF_POLICY = re.compile("buffer_size|learning_starts|train_freq|target_(up|net)|gradient_steps|exploration")


@pytest.fixture(scope="module")
def settings():
    return {algo: OmegaConf.to_container(compose("run", f"algo={algo}")) for algo in ("ppo", "dqn")}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def documented(text: str) -> bool:
    """Whether an advice without a setting names a page that exists, or says what to leave out."""
    pages = re.findall(r"docs/[\w-]+\.md", text)
    return all((conf_dir().parent / page).is_file() for page in pages) and ("leave " in text or bool(pages))


@pytest.mark.parametrize("word", WORDS["setting"])
def test_a_setting_of_another_tool_leads_to_one_that_works(word, settings):
    answer = find_answer("setting", word)
    value = TYPED.get(answer.names[0] if answer.names else "", "2")
    algo = "dqn" if OFF_POLICY.match(word) else "ppo"
    error = explain_unknown(f"{word}={value}", word, settings[algo], "HELP")
    if command := re.match(r"rltune (\w+)", error.fix):
        assert command[1] in load_commands()
    elif advice := read_advice(error.fix):
        assert not [each for each in advice if each.lstrip("+").startswith(f"{word}=")]
        again = refuse(f"algo={algo}", *advice)
        assert again is None or re.search("no GPU here|not installed|my_nets", again.what), (advice, again)
    else:
        assert documented(f"{error.allowed} {error.fix}"), error.fix


GROUPS = ("algo", "searcher", "scheduler", "tracking", "resources")


@pytest.mark.parametrize(("group", "option"), [(group, option) for group in GROUPS for option in WORDS[group]])
def test_an_option_of_another_tool_leads_to_one_that_exists(group, option):
    if (conf_dir() / group / f"{option}.yaml").exists():
        return
    error = refuse(f"{group}={option}")
    advice = read_advice(error.fix)
    again = refuse(*advice, *(["env=pendulum"] if group == "algo" else []))
    assert advice
    assert not again or again.key != group or "no such file" not in again.what
    for name in find_answer(group, option).names:
        assert (conf_dir() / group / f"{name}.yaml").is_file()


@pytest.mark.parametrize("kind", WORDS["kind"])
def test_a_range_of_another_tool_leads_to_one_that_works(kind):
    wrong = f"space.lr=[{kind},1e-4,1e-2]"
    error = refuse(wrong)
    advice = read_advice(error.fix)
    if kind == "grid_search":
        assert advice == ["space.lr=[choice,0.0001,0.01]"]
    assert advice[0].startswith("space.lr=[")
    again = refuse(*advice)
    assert again is None or again.key != "space.lr"
    assert set(find_answer("kind", kind).names) <= set(KINDS)


def test_a_command_of_another_tool_leads_to_one_that_exists():
    commands = load_commands()
    for word, answer in WORDS["command"].items():
        assert word not in commands
        assert answer.names[0] in commands


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("learning_rate", ["lr", "gamma"], "lr"),
        ("learning-rate", ["actor_lr"], "actor_lr"),
        ("n_steps", ["num_epochs", "train_batch_size_per_learner"], "train_batch_size_per_learner"),
        ("restore", ["retry", "resume"], "resume"),
        ("true", ["never", "auto"], "auto"),
        ("Maximize", ["min", "max"], "max"),
        ("QR-DQN", ["dqn", "rainbow"], "rainbow"),
    ],
)
def test_meaning_comes_before_spelling(word, known, meant):
    assert nearest(word, known) == meant


def test_a_word_that_no_tool_has_has_no_answer():
    assert find_answer("setting", "novelty") is None
    assert find_answer("cluster", "pbt") is None
    assert list(list_names("novelty")) == []


# What is typed, each with the words that stand beside it.
WRONG = """
budget.trails=4
budget.env_step=1000
budget.num_samples=4
budget.trials=many
env.idd=CartPole-v1
env.normalize_observations=true
env.sutton_barto_reward=true
env.kwargs.sutton_barto_reward=true
env=CartPole-v1
env.vectorize=subproc
algo.trianing.lr=0.1
algo.training.lr_=0.3
algo.training.learning_rate=0.3
algo.training.gama=0.9
algo.training.novelty=1
algo.training.use_critic=true
algo.lr=0.01
algo.num_env_runners=0
algo.num_envs=8
algo.env_runners.num_workers=0
algo.env_runners.num_env_runner=0
algo.rl_module.model_config.fcnet_hidden=[32]
algo.rl_module.model_config.hidden_sizes=[32]
algo.rl_module.model_config.fcnet_use_layernorm=true
+algo.rl_module.model_config.custom_model=mine
+algo.rl_module.rl_module_spec=my:Spec
+algo.environment.render_env=true
algo.environment.env_config={size: 4}
+algo.environment.env_config={size: 4}
+algo.environment.env=CartPole-v1
algo.evaluation.evaluation_interval=1
+algo.evaluation.evaluation_interval=1
+algo.callbacks.callbacks_class=my:Class
+algo.debugging.seed=1
+algo.framework.framework=tf2
+algo.learners.num_gpus_per_learner=0.25
+algo.learners.num_cpus_per_learner=2
+algo.training.train_batch_size=512
+algo.training.use_gae=false
+algo.training.model={}
+algo.multi_agent.policy_mapping_fn=my:function
space.lr=[loguniform,0,1]
space.lr=[loguniform,1e-3]
space.lr={grid_search: [1e-3, 1e-4]}
space.lr=[{grid_search: [1e-3, 1e-4]}]
space.lr={"grid_search": [1e-3, 1e-4]}
space.lr={min: 1e-4, max: 1e-2}
space.lr=tune.qloguniform(1e-4,1e-2,1e-5)
space.lr=[loguniform,1e-2,1e-4]
space.minibatch_size=[pow2,60,100]
space.num_epochs=[randint,1.5,4]
space.learning_rate=[uniform,0.1,1]
space.lrr=[uniform,0.1,1]
space.novelty=4
+space.novelty=4
space.use_critic=[choice,true,false]
+space.num_env_runners=[choice,0,1]
+space.conv_filters=[choice,[[16,4,2]],[[32,4,2]]]
searcher.args.n_startup_trial=4
searcher.args.novelty=4
searcher.kind=hyperopt
searcher=tpee
scheduler.args.grace_period=2000
scheduler.args.max_t=2000
scheduler.args.reduction_facto=3
scheduler=pbt
resources.gpus_per_trail=0
resources.num_cpus=1
tracking.kinds=[tb]
tracking.project=mine
tracking=mlflo
cluster.num_cpu=2
cluster=adress
certify.seed=2
certify=yes
failures.max_retry=2
failures=3
scheduler=null
checkpoint.every=10
checkpoint.num_to_keep=3
objective.direction=maximize
objective.kind=reward
objective.kinds=return
study.storag=null
resume=true
engine=torch
precision=bf16
seed=abc
+experiment=smoke
hydra.run.dir=/tmp/words
hydra.job.chdir=true
--n-trials 4
--algo ppo
--config-name=smoke
algo=sac env=cartpole
""".strip().splitlines()


@pytest.mark.parametrize("line", WRONG)
def test_what_an_error_advises_works_when_it_is_typed(line):
    words = line.split(" ") if line.startswith("--") or line.startswith("algo=") else [line]
    error = refuse(*words)
    assert error is not None
    assert error.allowed
    assert error.fix
    if "-m sweeps." in error.fix or re.search(r"\brltune \w+ ", error.fix):
        advice = read_advice(error.fix)
        assert advice or "--help" in error.fix
        assert refuse(*advice) is None
        return
    if not (advice := read_advice(error.fix)):
        assert documented(error.fix), error.fix
        return
    again = refuse(*replace_word(words, words[0], advice))
    answered = {error.key, *(word.lstrip("+~").partition("=")[0] for word in advice)}
    assert again is None or again.key not in answered, (error.fix, str(again))


# How users of Ray Tune end a trial at a return.
STOPS = {
    "stop={episode_return_mean: 475}": "budget.target=475",
    "stop={env_runners/episode_return_mean: 475}": "budget.target=475",
    "+stop={env_runners/episode_return_mean: 475.0, training_iteration: 10}": "budget.target=475",
    "stop.episode_reward_mean=475": "budget.target=475",
    "+stop.env_runners.episode_return_mean=-110": "budget.target=-110",
    "stop_reward=475": "budget.target=475",
    "budget.stop_reward=475": "budget.target=475",
    "stop={timesteps_total: 20000}": "budget.env_steps=20000",
    "stop={training_iteration: 10}": "budget.env_steps=100000",
    "stop=none": "budget.target=475",
    "patience=5": "budget.plateau=5",
}


@pytest.mark.parametrize("word", STOPS)
def test_a_stop_at_a_return_leads_to_the_target(word):
    error = refuse(word)
    assert error is not None
    assert read_advice(error.fix) == [STOPS[word]]
    assert refuse(STOPS[word]) is None


MAPPED = {
    "space.lr={grid_search: [1e-3, 1e-4]}": "space.lr=[choice,0.001,0.0001]",
    "space.lr=[{grid_search: [1e-3, 1e-4]}]": "space.lr=[choice,0.001,0.0001]",
    'space.lr={"min": 1e-4, "max": 1e-2}': "space.lr=[loguniform,0.0001,0.01]",
    "space.lr={'min': 1e-4, 'max': 1e-2}": "space.lr=[loguniform,0.0001,0.01]",
}


@pytest.mark.parametrize("word", MAPPED)
def test_a_mapping_of_another_tool_leads_to_the_range(word):
    error = refuse(word)
    assert error is not None
    assert (error.key, read_advice(error.fix)) == ("space.lr", [MAPPED[word]])


def test_an_added_group_is_answered_with_the_setting():
    settings = OmegaConf.create({"budget": {"target": None}, "stop": {"episode_return_mean": 475}})
    with pytest.raises(ConfigError) as refused:
        refuse_added(RunConfig, settings)
    assert (refused.value.key, refused.value.fix) == ("stop.episode_return_mean", "budget.target=475")


def test_an_environment_of_rllibs_config_leads_to_its_id():
    error = refuse("+algo.environment.env=Acrobot-v1")
    assert error is not None
    assert (error.key, error.fix) == ("algo.environment.env", "env.id=Acrobot-v1")


def test_a_typo_leaves_nothing_behind(tmp_path):
    refuse("hydra.run.dir=made")
    assert os.listdir(tmp_path) == []
