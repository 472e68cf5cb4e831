"""Where an argument of an algo file stands, and how a sample's values get there."""

from __future__ import annotations

import math

import pytest
from omegaconf import OmegaConf

from rltune.algorithms import arguments as module
from rltune.algorithms.arguments import (
    TRAINING_BOUNDS,
    apply_params,
    build_search_space,
    check_argument,
    check_unread,
    count_gpus,
    list_arguments,
    locate_argument,
    name_arguments,
    values_of,
)
from rltune.compose.composing import conf_dir
from rltune.config.capabilities import UNKNOWN, find_capabilities
from rltune.errors import ConfigError
from rltune.search.space import Space


def check_values(algo, space):
    module.check_values(algo, space, find_capabilities(algo) or UNKNOWN)


def test_an_argument_is_found_in_whichever_section_it_stands(algo):
    assert locate_argument(algo(), "lr") == ("training", "lr")
    assert locate_argument(algo(), "num_envs_per_env_runner") == ("env_runners", "num_envs_per_env_runner")
    assert locate_argument(algo(), "fcnet_hiddens") == ("rl_module", "model_config", "fcnet_hiddens")
    assert locate_argument(algo("dqn"), "capacity") == ("training", "replay_buffer_config", "capacity")


def test_sections_and_the_algorithms_name_are_no_arguments(algo):
    assert not {"training", "rl_module", "name", "class"} & set(list_arguments(algo()))


def test_a_name_that_stands_twice_needs_its_section(algo):
    twice = algo()
    twice["env_runners"]["lr"] = 1
    with pytest.raises(ConfigError) as refused:
        locate_argument(twice, "lr")
    assert "training.lr" in refused.value.allowed
    assert "env_runners.lr" in refused.value.allowed
    assert locate_argument(twice, "training.lr") == ("training", "lr")


def test_an_unknown_name_is_answered_with_the_nearest(algo):
    with pytest.raises(ConfigError) as refused:
        locate_argument(algo(), "clip_parm")
    assert refused.value.what.startswith("space.clip_parm:")
    assert "'clip_param'" in refused.value.allowed
    with pytest.raises(ConfigError, match=r"^warm_start\[0\]\.clip_parm"):
        locate_argument(algo(), "clip_parm", "warm_start[0].clip_parm")
    with pytest.raises(ConfigError) as refused:
        locate_argument(algo(), "a/b", "warm_start[0].a/b")
    assert refused.value.fix == "leave a/b out", "Hydra deletes no item of a list, and reads no such key"


def test_an_added_parameter_that_is_misspelt_is_answered_whole(algo):
    """With the name that the algorithm has, and the range that was meant."""
    with pytest.raises(ConfigError, match=r"^space\.learning_rate=") as refused:
        build_search_space(algo(), {"gamma": 0.9, "learning_rate": ["loguniform", 1e-4, 1e-2]})
    assert refused.value.fix == "space.lr=[loguniform,1e-4,0.01]"


def test_a_samples_values_go_into_a_copy_of_the_file(algo):
    before = algo()
    given = algo()
    merged = apply_params(given, {"lr": 0.5, "fcnet_hiddens": [8], "num_envs_per_env_runner": 2})
    assert merged["training"]["lr"] == 0.5
    assert merged["rl_module"]["model_config"]["fcnet_hiddens"] == [8]
    assert merged["env_runners"]["num_envs_per_env_runner"] == 2
    assert given == before


def test_the_algo_files_own_values_are_found_by_name(algo):
    assert values_of(algo(), ("lr", "fcnet_hiddens")) == {"lr": 3.0e-4, "fcnet_hiddens": [64, 64]}


@pytest.mark.parametrize(
    ("learners", "per_learner", "per_trial", "gpus"),
    [(0, None, 0.0, 0.0), (0, 0.5, 0.0, 0.5), (2, 1, 0.0, 2.0), (2, None, 4.0, 4.0), (2, 2, 4.0, 4.0)],
)
def test_a_trials_gpus_are_named_by_trial_or_by_learner(learners, per_learner, per_trial, gpus):
    algo = {"learners": {"num_learners": learners, "num_gpus_per_learner": per_learner}}
    assert count_gpus(algo, per_trial, "") == gpus


def test_two_numbers_of_gpus_that_differ_are_refused():
    with pytest.raises(ConfigError, match=r" 2 GPUs\b.*trials_per_gpu ") as refused:
        count_gpus({"learners": {"num_learners": 2, "num_gpus_per_learner": 1}}, 1.0, "resources.trials_per_gpu")
    assert refused.value.fix == "~algo.learners.num_gpus_per_learner"


@pytest.mark.parametrize("name", sorted(TRAINING_BOUNDS))
def test_a_suggested_value_is_accepted_and_a_negative_one_refused(name):
    with pytest.raises(ConfigError, match=f"algo.training.{name}=-1") as refused:
        check_argument(f"algo.training.{name}", -1)
    key, _, suggested = refused.value.fix.partition("=")
    check_argument(key, float(suggested))


@pytest.mark.parametrize(
    ("name", "value", "passes"),
    [
        ("gamma", 1, True),
        ("gamma", 1.0000001, False),
        ("lr", 0, False),
        ("lr", "abc", False),
        ("lr", True, False),
        ("lr", None, True),
        ("lr", [[0, 1e-3], [1000, 0.0]], True),
        ("vf_clip_param", math.inf, True),
        ("entropy_coeff", 0, True),
        ("minibatch_size", 0, False),
        ("td_error_loss_fn", "mse", True),
        ("td_error_loss_fn", "squared", False),
        ("grad_clip_by", "norms", False),
        ("argument_of_a_users_own", -1, True),
    ],
)
def test_the_edges_of_the_bounds_of_training(name, value, passes):
    if passes:
        check_argument(f"space.{name}", value)
    else:
        with pytest.raises(ConfigError):
            check_argument(f"space.{name}", value)


@pytest.mark.parametrize("file", sorted(conf_dir().glob("algo/*.yaml")), ids=lambda file: file.stem)
def test_the_values_of_each_algo_file_lie_within_the_bounds(file):
    training = OmegaConf.to_container(OmegaConf.load(file))["training"]
    for name, value in training.items():
        if value != "???":
            check_argument(f"algo.training.{name}", value)


UNREAD = {
    "ppo": {
        "training.model": {"fcnet_hiddens": [256, 256]},
        "training.vf_share_layers": True,
        "training.optimizer": {"type": "sgd"},
        "training.use_gae": False,
        "training.num_aggregator_actors_per_learner": 1,
        "rl_module.model_config.head_fcnet_kernel_initializer": "xavier_uniform_",
        "rl_module.model_config.fusionnet_hiddens": [8],
        "rl_module.model_config.max_seq_len": 40,
    },
    "a2c": {"training.vf_share_layers": True},
    "dqn": {
        "training.adam_epsilon": 0.1,
        "training.hiddens": [8],
        "training.noisy": True,
        "training.sigma0": 2.0,
        "training.categorical_distribution_temperature": 5.0,
        "training.model": {"fcnet_hiddens": [8]},
        "training.replay_buffer_config.prioritized_replay_alpha": 0.3,
        "training.replay_buffer_config.storage_unit": "episodes",
        "training.minibatch_size": 256,
        "training.num_epochs": 7,
        "training.num_sgd_iter": 7,
        "training.shuffle_batch_per_epoch": True,
        "rl_module.model_config.vf_share_layers": True,
    },
    "rainbow": {"training.noisy": True},
    "sac": {
        "training.q_model_config": {"fcnet_hiddens": [8]},
        "training.policy_model_config": {"fcnet_hiddens": [8]},
        "training.optimization_config": {"actor_learning_rate": 1.0},
        "training._use_beta_distribution": True,
        "training._deterministic_loss": True,
        "training.replay_buffer_config.prioritized_replay_beta": 0.3,
        "training.minibatch_size": 256,
        "training.num_epochs": 7,
        "training.lr": 0.02,
        "rl_module.model_config.log_std_clip_param": 3.0,
        "rl_module.model_config.fusionnet_hiddens": [8],
    },
    "appo": {"training.use_gae": False, "training.lambda_": 0.1, "training.target_worker_clipping": 9.0},
    "impala": {"training.opt_type": "rmsprop", "training.decay": 0.9, "training.vtrace": False},
}


def set_in(algo, path, value):
    *above, last = path.split(".")
    for part in above:
        algo = algo.setdefault(part, {})
    algo[last] = value


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in UNREAD.items() for path in paths])
def test_an_argument_that_changes_nothing_is_refused(algo, name, path):
    typed = algo(name)
    check_values(typed, Space((), {}))
    set_in(typed, path, UNREAD[name][path])
    with pytest.raises(ConfigError) as refused:
        check_values(typed, Space((), {}))
    assert refused.value.key == f"algo.{path}"
    assert refused.value.exit_code == 2
    assert refused.value.allowed
    assert refused.value.fix.endswith(f"~algo.{path}")


# Arguments that are read with another one alone: algorithm, argument and value, the other one and the value with which
# it reads.
READ_WITH = [
    ("ppo", "training.kl_coeff", 3.0, "training.use_kl_loss", True),
    ("ppo", "training.kl_target", 0.5, "training.use_kl_loss", True),
    ("ppo", "training.train_batch_size", 128, "training.train_batch_size_per_learner", None),
    ("ppo", "rl_module.model_config.lstm_cell_size", 32, "rl_module.model_config.use_lstm", True),
    ("ppo", "env_runners.sample_timeout_s", 5.0, "env_runners.num_env_runners", 1),
    ("ppo", "fault_tolerance.env_runner_health_probe_timeout_s", 5.0, "env_runners.num_env_runners", 1),
    ("ppo", "learners.max_requests_in_flight_per_learner", 5, "learners.num_learners", 2),
    ("a2c", "training.kl_coeff", 3.0, "training.use_kl_loss", True),
    ("appo", "rl_module.model_config.lstm_cell_size", 40, "rl_module.model_config.use_lstm", True),
    ("dqn", "training.v_max", 5.0, "training.num_atoms", 51),
    ("dqn", "training.burn_in_len", 5, "rl_module.model_config.use_lstm", True),
    ("dqn", "training.replay_buffer_config.alpha", 0.9, "training.replay_buffer_config.type", "Prioritized"),
    ("sac", "training.replay_buffer_config.beta", 0.9, "training.replay_buffer_config.type", "Prioritized"),
    ("sac", "training.grad_clip_by", "norm", "training.grad_clip", 0.5),
    ("rainbow", "training.td_error_loss_fn", "mse", "training.num_atoms", 1),
]


@pytest.mark.parametrize(
    ("name", "value", "spaces", "is_read"),
    [
        ("fcnet_hiddens", [8], {"is_image": True, "is_discrete": True}, True),
        ("fcnet_hiddens", [8], {"is_image": False, "is_discrete": True}, True),
        ("conv_filters", [[8, 4, 2]], {"is_image": False, "is_discrete": True}, False),
        ("conv_filters", [[8, 4, 2]], {"is_image": True, "is_discrete": True}, True),
        ("free_log_std", True, {"is_image": False, "is_discrete": True}, False),
        ("free_log_std", True, {"is_image": False, "is_discrete": False}, True),
        ("fcnet_hiddens", [8], None, True),
        ("conv_filters", [[8, 4, 2]], None, True),
    ],
)
def test_what_the_environments_spaces_leave_unread_is_refused(algo, name, value, spaces, is_read):
    typed, path = algo(), f"rl_module.model_config.{name}"
    set_in(typed, path, value)
    row = find_capabilities(typed)
    if is_read:
        check_unread(typed, Space((), {}), row, spaces)
        return
    with pytest.raises(ConfigError) as refused:
        check_unread(typed, Space((), {}), row, spaces)
    assert refused.value.key == f"algo.{path}"


@pytest.mark.parametrize(
    ("name", "form", "fix"),
    [
        ("num_env_runners", ["choice", 0, 1], "algo.env_runners.num_env_runners=0"),
        ("num_env_runners", 2, "algo.env_runners.num_env_runners=2"),
        ("num_learners", ["choice", 0, 2], "algo.learners.num_learners=0"),
    ],
)
def test_a_trials_share_of_the_machine_cannot_be_searched(algo, name, form, fix):
    with pytest.raises(ConfigError) as refused:
        build_search_space(algo(), {name: form})
    assert (refused.value.key, refused.value.fix) == (f"space.{name}", fix)


def turn_on(typed, switch, on):
    set_in(typed, switch, f"{on}EpisodeReplayBuffer" if on == "Prioritized" else on)


@pytest.mark.parametrize(("name", "path", "value", "switch", "on"), READ_WITH)
def test_an_argument_is_refused_while_another_has_it_unread(algo, name, path, value, switch, on):
    typed = algo(name)
    set_in(typed, path, value)
    with pytest.raises(ConfigError) as refused:
        check_values(typed, Space((), {}))
    assert (refused.value.key, refused.value.exit_code) == (f"algo.{path}", 2)
    assert switch.rpartition(".")[2] in refused.value.allowed
    turn_on(typed, switch, on)
    check_values(typed, Space((), {}))


@pytest.mark.parametrize(("name", "path", "value", "switch", "on"), READ_WITH)
def test_a_searched_one_is_refused_unless_a_trial_reads_it(algo, name, path, value, switch, on):
    typed, argument = algo(name), path.rpartition(".")[2]
    set_in(typed, path, value)
    half = value // 2 if isinstance(value, int) and not isinstance(value, bool) else None
    space = {argument: ["choice", value, None if isinstance(value, str) else half or value * 0.5]}
    with pytest.raises(ConfigError) as refused:
        check_values(typed, build_search_space(typed, space))
    assert refused.value.fix.endswith(f"~space.{argument}")
    turn_on(typed, switch, on)
    check_values(typed, build_search_space(typed, space))


@pytest.mark.parametrize(
    ("use_lstm", "when", "reads"),
    [
        (["choice", False, True], None, True),
        (["choice", False, True], True, True),
        (["choice", False, True], False, False),
        (True, None, True),
        (False, None, False),
    ],
)
def test_one_arm_of_a_space_that_reads_an_argument_is_enough(algo, use_lstm, when, reads):
    sizes = ["choice", 32, 64]
    space = {"use_lstm": use_lstm, "lstm_cell_size": sizes if when is None else ["when", {"use_lstm": when}, sizes]}
    built = build_search_space(algo(), space)
    if reads:
        check_values(algo(), built)
    else:
        with pytest.raises(ConfigError, match="lstm_cell_size"):
            check_values(algo(), built)


def test_a_former_name_that_decides_is_refused_beside_the_search(algo):
    typed, space = algo(), {"num_epochs": ["choice", 5, 10]}
    check_values(typed, build_search_space(typed, space))
    typed["training"]["num_sgd_iter"] = 3
    with pytest.raises(ConfigError, match=r"^algo\.training\.num_epochs="):
        check_values(typed, build_search_space(typed, space))
    check_values(typed, Space((), {}))


def test_what_the_shipped_file_has_may_lie_idle(algo):
    """Who turns a feature off need not remove its other settings."""
    without = algo()
    without["training"]["use_critic"] = False  # Nothing reads vf_clip_param now.
    check_values(without, Space((), {}))
    plain = algo("rainbow")
    plain["training"]["num_atoms"] = 1  # Nothing reads v_min and v_max now.
    check_values(plain, Space((), {}))


SCHEDULE = [[0, 0.2], [100_000, 0.05]]


@pytest.mark.parametrize(
    ("name", "argument"),
    [("ppo", "clip_param"), ("ppo", "gamma"), ("sac", "tau"), ("dqn", "training_intensity")],
)
def test_a_schedule_that_rllib_cannot_follow_is_refused(algo, name, argument):
    typed = algo(name)
    typed["training"][argument] = SCHEDULE
    with pytest.raises(ConfigError) as refused:
        check_values(typed, Space((), {}))
    assert (refused.value.key, refused.value.fix) == (f"algo.training.{argument}", f"algo.training.{argument}=0.2")
    assert "lr" in refused.value.allowed
    for form in (SCHEDULE, ["choice", SCHEDULE, 0.1]):
        with pytest.raises(ConfigError) as refused:
            check_values(algo(name), build_search_space(algo(name), {argument: form}))
        assert refused.value.key == f"space.{argument}"


@pytest.mark.parametrize(
    ("name", "argument"), [("ppo", "lr"), ("ppo", "entropy_coeff"), ("sac", "actor_lr"), ("dqn", "epsilon")]
)
def test_a_schedule_that_rllib_follows_is_accepted(algo, name, argument):
    typed = algo(name)
    typed["training"][argument] = SCHEDULE
    check_values(typed, Space((), {}))


@pytest.mark.parametrize(
    "buffer", ["MultiAgentReplayBuffer", "ReplayBuffer", "EpisodeBuffer", "ray.rllib.utils.replay_buffers.ReplayBuffer"]
)
def test_a_replay_buffer_that_rllib_cannot_use_is_refused(algo, buffer):
    typed, key = algo("dqn"), "algo.training.replay_buffer_config.type"
    typed["training"]["replay_buffer_config"]["type"] = buffer
    with pytest.raises(ConfigError) as refused:
        check_values(typed, Space((), {}))
    assert (refused.value.key, refused.value.fix) == (key, f"{key}=EpisodeReplayBuffer")
    space = build_search_space(algo("dqn"), {"type": ["choice", "EpisodeReplayBuffer", buffer]})
    with pytest.raises(ConfigError, match=r"^space\.type="):
        check_values(algo("dqn"), space)


def test_a_searched_argument_that_changes_nothing_is_refused(algo):
    typed = algo("dqn")
    typed["training"]["adam_epsilon"] = 1e-8
    with pytest.raises(ConfigError) as refused:
        check_values(typed, build_search_space(typed, {"adam_epsilon": ["loguniform", 1e-8, 1e-1]}))
    assert refused.value.key == "algo.training.adam_epsilon"
    assert refused.value.fix.endswith("~space.adam_epsilon")


def test_an_unknown_replay_setting_is_answered_with_the_nearest(algo):
    typed = algo("dqn")
    typed["training"]["replay_buffer_config"]["capacty"] = 100
    with pytest.raises(ConfigError) as refused:
        check_values(typed, Space((), {}))
    assert "'capacity'" in refused.value.allowed


def test_a_replay_buffer_of_ones_own_has_its_own_settings(algo):
    typed = algo("dqn")
    typed["training"]["replay_buffer_config"] |= {"type": "my_package.buffers.EpisodeBuffer", "half_life": 100}
    check_values(typed, Space((), {}))


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("lr", [1e-4, 1e-2], "space.lr=[loguniform,0.0001,0.01]"),
        ("lr", [1e-4, 1e-3, 1e-2], "space.lr=[choice,0.0001,0.001,0.01]"),
        ("gamma", [0.9, 0.99], "space.gamma=[uniform,0.9,0.99]"),
        ("minibatch_size", [64, 256], "space.minibatch_size=[pow2,64,256]"),
        ("num_epochs", [1, 10], "space.num_epochs=[randint,1,10]"),
        ("lr", [], "space.lr=0.0003"),
    ],
)
def test_a_list_without_a_kind_is_answered_with_the_range_that_was_meant(name, value, fix):
    with pytest.raises(ConfigError) as refused:
        check_argument(f"space.{name}", value)
    assert (refused.value.key, refused.value.fix) == (f"space.{name}", fix)
    check_argument(f"space.{name}", [[0, 0.9], [1000, 0.5]])  # This is a schedule.


def test_a_modules_overrides_make_no_argument_ambiguous(algo):
    made = algo()
    made["rl_module"]["algorithm_config_overrides_per_module"] = {"shared": {"lr": 1e-3}}
    assert locate_argument(made, "lr") == ("training", "lr")


ENV = {"id": "CartPole-v1", "kwargs": {"gamma": 1, "frame_skip": 1, "names": ["a", "b"]}}


def test_an_environments_argument_is_named_by_its_path(algo):
    """The algorithm's bounds are not those of an argument of the same name."""
    file = name_arguments(algo(), ENV)
    space = build_search_space(file, {"gamma": 0.9, "env": {"kwargs": {"gamma": ["choice", 5, [[0, 1], [2, 3]]]}}})
    check_values(file, space)
    assert locate_argument(file, "env.kwargs.gamma") == ("env", "kwargs", "gamma")
    assert locate_argument(file, "gamma") == ("training", "gamma")
    names = ("env.kwargs.gamma", "train_env.kwargs.gamma", "env.rewards.clip")
    assert values_of(file, names) == dict(zip(names, (1, 1, None), strict=True))
    assert apply_params(algo(), {"gamma": 0.9, "env.kwargs.gamma": 5})["training"]["gamma"] == 0.9
    assert build_search_space(file, {"env.kwargs.names": ["b", "c"]}).fixed == {"env.kwargs.names": ["b", "c"]}


@pytest.mark.parametrize("parent", ["lr", "env.kwargs.gamma"])
def test_conditions_name_an_environments_arguments(algo, parent):
    file = name_arguments(algo(), ENV)
    raw = {"env.kwargs.frame_skip": ["when", {parent: 2}, ["choice", 1, 4]], "lr": ["choice", 1, 2]}
    space = build_search_space(file, raw)
    assert space.idle == ({} if parent == "lr" else {"env.kwargs.frame_skip": "env.kwargs.gamma is 1"})
    raw |= {"env.kwargs.gamma": ["choice", 1, 2], "lr": ["when", {"env.kwargs.gamma": [1]}, ["choice", 1, 2]]}
    points = {tuple(point.items()) for point in build_search_space(file, raw).corners()}
    if parent == "lr":
        assert (("env.kwargs.gamma", 1), ("lr", 2), ("env.kwargs.frame_skip", 4)) in points
        assert (("env.kwargs.gamma", 2),) in points
    else:
        assert (("env.kwargs.gamma", 2), ("env.kwargs.frame_skip", 4)) in points


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("env.kwargs.repeat", "+env.kwargs.repeat=2"),
        ("train_env.kwargs.repeat", "+env.kwargs.repeat=2"),
        ("repeat", "'+space.env.kwargs.repeat=[...]' with +env.kwargs.repeat=VALUE"),
        ("frame_skip", "'+space.env.kwargs.frame_skip=[...]'"),
    ],
)
def test_an_argument_of_the_environment_is_refused_with_its_name(algo, name, fix):
    file = name_arguments(algo(), ENV)
    with pytest.raises(ConfigError) as refused:
        values_of(file, build_search_space(file, {name: ["choice", 2, 4]}).names)
    assert refused.value.key == f"space.{name}"
    assert refused.value.fix.endswith(fix)


@pytest.mark.parametrize("raw", [{"clip_param": {"min": 0.1, "max": 0.4}}, {"lr": {"values": [1e-4, 1e-3]}}])
def test_a_range_of_another_tool_in_a_file_is_refused(algo, raw):
    """field/evaluation 13, as a file or a script of Python has it."""
    with pytest.raises(ConfigError) as refused:
        build_search_space(algo(), raw)
    assert refused.value.key == f"space.{next(iter(raw))}"
    assert refused.value.fix in ("space.clip_param=[uniform,0.1,0.4]", "space.lr=[choice,0.0001,0.001]")
