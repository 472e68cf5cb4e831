"""Each row of the table says what the real algorithm does."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from plans import preflight
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from rltune.algorithms.build import import_config_class
from rltune.compat.rllib_internals import read_part
from rltune.compat.row_catalog import see_rows
from rltune.compose.composing import conf_dir
from rltune.config.capabilities import (
    MODEL_SETTINGS,
    SECTIONS,
    TABLE,
    UNKNOWN,
    capabilities_of,
    find_capabilities,
    list_algos,
    network_of,
)
from rltune.driver.plan import make_plan
from rltune.envs.observations import make_layout, make_view_space
from rltune.errors import ConfigError

ALGOS = sorted(path.stem for path in (conf_dir() / "algo").glob("*.yaml"))
ROWS = pytest.mark.parametrize("name", TABLE, ids=lambda name: TABLE[name].name)


def load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("algo", ALGOS)
def test_every_algorithm_that_is_shipped_has_a_row(algo: str) -> None:
    row = capabilities_of(import_config_class(OmegaConf.load(conf_dir() / "algo" / f"{algo}.yaml")))
    assert row.name == {"rainbow": "dqn"}.get(algo, algo)


@ROWS
def test_a_row_is_that_of_the_class_it_names(name: str) -> None:
    assert capabilities_of(load(name)) is TABLE[name]
    assert TABLE[name].name in ALGOS


@ROWS
def test_the_engines_class_stands_in_for_the_algorithms_own(name: str) -> None:
    config = load(name)()
    if TABLE[name].engine is not None:
        ours = load(TABLE[name].engine)
        assert ours.stock_class is config.algo_class
        assert issubclass(ours, config.algo_class)


@pytest.mark.parametrize("algo", ALGOS)
def test_a_row_says_what_an_update_learns_from(algo: str) -> None:
    file = OmegaConf.load(conf_dir() / "algo" / f"{algo}.yaml")
    config = import_config_class(file)()
    row = capabilities_of(type(config))
    assert row.offline == ("offline_data" in file)
    assert (row.data == "replay") == (hasattr(config, "replay_buffer_config") and not row.offline)
    assert (row.data == "replay") == (row.replay_ratio is not None)
    assert row.replay_ratio is None or hasattr(config, row.replay_ratio)


@ROWS
def test_rllibs_own_module_has_the_network_that_the_row_names(name: str) -> None:
    row = TABLE[name]
    if row.network is None:
        assert row.name == "dreamerv3"
        return
    space = gymnasium.spaces.Discrete(2) if row.actions == "discrete" else gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    config = load(name)().environment(observation_space=gymnasium.spaces.Box(-1, 1, (3,)), action_space=space)
    module = config.get_multi_rl_module_spec(spaces={"default_policy": (config.observation_space, space)}).build()
    network = network_of(type(module["default_policy"]))
    assert network == row.network
    for attribute in filter(None, (network.encoder, network.head, network.value)):
        assert read_part(module["default_policy"], attribute) is not None


# A changed value for each setting of the networks whose effect shows in the module. The `_kwargs` belong to their
# initializers, and the activation of the fused critics is no part of the module's text.
INITIALIZERS = [name for name in MODEL_SETTINGS if name.endswith("initializer") and "lstm" not in name]
CHANGED: dict[str, Any] = {
    **{name: [8] for name in ("fcnet_hiddens", "head_fcnet_hiddens", "fusionnet_hiddens")},
    **{name: "zeros_" if "kernel" in name else "ones_" for name in INITIALIZERS},
    **dict.fromkeys(("fcnet_use_layernorm", "head_fcnet_use_layernorm", "free_log_std", "vf_share_layers"), True),
    "fcnet_activation": "relu",
    "head_fcnet_activation": "tanh",
    "conv_filters": [[4, 3, 2]],
    "conv_activation": "tanh",
}
PLAIN = {"fcnet_hiddens": [6, 6], "fcnet_activation": "tanh", "head_fcnet_hiddens": [5], "vf_share_layers": False}


@pytest.mark.slow
@pytest.mark.parametrize("is_image", [False, True], ids=["vectors", "images"])
@pytest.mark.parametrize("is_discrete", [False, True], ids=["continuous", "discrete"])
@ROWS
def test_the_settings_that_a_row_calls_unread_change_no_network(name: str, is_discrete: bool, is_image: bool) -> None:
    row, shape = TABLE[name], (64, 64, 3) if is_image else (4,)
    lacks = ("discrete", "continuous")[is_discrete]
    if row.name == "dreamerv3" or row.actions == lacks or (is_image and not row.images):
        return
    plain = {**PLAIN, **({"conv_filters": [[4, 4, 4]]} if is_image else {})}
    observations = gymnasium.spaces.Box(0, 1, shape, np.float32)
    layout = make_layout(observations)
    actions = gymnasium.spaces.Discrete(2) if is_discrete else gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def build(**settings: Any) -> str:
        torch.manual_seed(0)
        config = load(name)().environment(observation_space=observations, action_space=actions)
        config.rl_module(model_config={**asdict(DefaultModelConfig()), **plain, **settings})
        see_rows(config, layout)
        spaces = {"default_policy": (make_view_space(layout) if is_image else observations, actions)}
        spec = config.get_multi_rl_module_spec(spaces=spaces, inference_only=False)
        module = spec.build()["default_policy"]
        weights = [(key, float(value.sum()), value.shape) for key, value in module.state_dict().items()]
        return f"{module} {weights}"

    unread = {entry.path.rpartition(".")[2]: entry for entry in row.unread if "model_config" in entry.path}
    facts = {"env.is_image": is_image, "env.is_discrete": is_discrete, "class": name}
    before = build()
    for setting, value in CHANGED.items():
        entry = unread.get(setting)
        switch = entry and entry.switch
        is_read = entry is None or bool(switch and switch.is_on(facts.get(switch.path, switch.default)))
        try:
            after = build(**{setting: value})
        except AssertionError:  # RLlib refuses free_log_std for some actions.
            after = before
        assert (after != before) == is_read, setting


def test_an_algorithm_of_ones_own_inherits_a_row() -> None:
    own = type("OwnConfig", (load("ray.rllib.algorithms.tqc:TQCConfig"),), {})
    assert capabilities_of(own).name == "tqc"
    assert capabilities_of(type("SACConfig", (), {})) is UNKNOWN, "a name alone says nothing"
    assert UNKNOWN.engine is None
    assert not UNKNOWN.several_agents


def test_the_settings_of_networks_are_those_of_rllib() -> None:
    theirs = {field.name for field in dataclasses.fields(DefaultModelConfig)}
    assert set(MODEL_SETTINGS) == theirs - {"lstm_use_prev_action", "lstm_use_prev_reward"}, "nothing reads these two"


@pytest.mark.parametrize("section", [name for name, arguments in SECTIONS.items() if arguments is not None])
def test_the_arguments_of_a_section_are_arguments_of_rllib(section: str) -> None:
    theirs = set(inspect.signature(getattr(AlgorithmConfig, section)).parameters)
    assert set(SECTIONS[section] or ()) <= theirs | {"small_policy_init", "encoder", "encoder_kwargs", "module_class"}


def test_errors_name_the_algorithms_that_are_able_to() -> None:
    assert list_algos(lambda row: row.lstm).replace(",", "").split() == ["ppo", "a2c", "appo", "impala", "or", "dqn"]
    assert list_algos(lambda row: row.engine, "and").replace(",", "").split() == ["ppo", "a2c", "dqn", "and", "sac"]
    assert list_algos(lambda row: row.name == "bc") == "bc"
    assert list_algos(lambda row: row.actions == "discrete", with_variants=True) == "dqn or rainbow"
    assert list_algos(lambda row: False) == ""


ONLINE = [algo for algo in ALGOS if "offline_data" not in OmegaConf.load(conf_dir() / "algo" / f"{algo}.yaml")]
NEEDS: dict[str, dict[str, Any]] = {  # what is typed, and which rows it is for
    "env=cartpole": {"able": lambda row: row.actions != "continuous", "refused": "cannot act in env.id=CartPole-v1"},
    "env=pendulum": {"able": lambda row: row.actions != "discrete", "refused": "cannot act in env.id=Pendulum-v1"},
    "env=simple_spread": {"able": lambda row: row.several_agents, "refused": "is for one agent"},
    "++algo.rl_module.model_config.use_lstm=true": {"able": lambda row: row.lstm, "refused": "trains no LSTM"},
}


@pytest.mark.slow  # RLlib builds each of them
@pytest.mark.parametrize("typed", NEEDS)
@pytest.mark.parametrize("algo", ONLINE)
def test_preflight_builds_what_a_row_allows_and_nothing_else(algo: str, typed: str, request_of: Any) -> None:
    able, refused = NEEDS[typed].values()
    row = capabilities_of(import_config_class(OmegaConf.load(conf_dir() / "algo" / f"{algo}.yaml")))
    fitting = "env=pendulum" if row.actions == "continuous" else "env=cartpole"
    request = request_of(f"algo={algo}", *([] if "env=" in typed else [fitting]), typed, "~space", "~tuned")
    if able(row):
        preflight(make_plan(request))
        return
    with pytest.raises(ConfigError, match=refused) as error:
        preflight(make_plan(request))
    assert error.value.allowed
    assert error.value.fix


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("ray.rllib.algorithms.sac:SACConfig", "sac"),
        ("ray.rllib.algorithms.sac.sac:SACConfig", "sac"),
        ("mine:SACConfig", None),
        ("ray.rllib.algorithms.sa:SACConfig", None),
    ],
)
def test_a_row_is_found_by_how_a_class_is_written(target, name):
    row = find_capabilities({"name": "sac", "class": target})
    assert (row.name if row else None) == name


@pytest.mark.parametrize("name", ALGOS)
def test_the_row_of_each_algo_file_is_known_without_its_import(name):
    algo: Any = OmegaConf.load(conf_dir() / "algo" / f"{name}.yaml")
    assert find_capabilities(algo) == capabilities_of(import_config_class(algo))
