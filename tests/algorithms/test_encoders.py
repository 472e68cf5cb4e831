"""Networks with an encoder of the user's: RLlib's modules, the engine, files, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch

from rltune.algorithms.arguments import apply_params, build_search_space, locate_argument
from rltune.algorithms.build import Build, build_config
from rltune.algorithms.checks import check_algorithm, list_encoders
from rltune.compat.row_catalog import ENCODER, LAYOUT
from rltune.config.capabilities import find_capabilities
from rltune.config.validation import check_config
from rltune.engine import build_algorithm, find_static_obstacle
from rltune.engine.algorithm import FastAlgorithm
from rltune.envs.layout import Layout
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError
from rltune.policies.bundle_reader import BundlePolicy, GraphNetwork
from rltune.policies.bundle_writer import write_bundle
from rltune.policies.extractors import write_graph
from rltune.policies.policy import load_policy
from tests.support.rooms import ROOM, Room
from tests.support.strict import STRICT, Strict

NETS = "tests.support.own_nets"
ATTENTION = f"{NETS}:Attention"
MODULE = "tests.support.own_module:Module"
KWARGS = {"heads": 4, "dropout": 0.5}
ENVS = {"ppo": "CartPole-v1", "a2c": "Pendulum-v1", "dqn": "CartPole-v1"}


def make_build(algo, env="CartPole-v1", model=None, kwargs=None, **settings):
    algo["rl_module"] |= {"encoder": ATTENTION, "encoder_kwargs": KWARGS, **settings}
    algo["rl_module"]["model_config"] |= model or {}
    spec = EnvSpec(env, kwargs or {})
    return Build(algo, spec, facts=check_env(spec))


@pytest.fixture
def train(algo):
    """Train some iterations in the engine; closed at the end."""
    built = []

    def start(name, iterations=2, model=None, env=None, kwargs=None, rl_module=None, **training):
        file = algo(name)
        file["training"] |= training
        build = make_build(file, env or ENVS[name], model, kwargs, **(rl_module or {}))
        algorithm = build_algorithm(build_config(build, {}, 0))
        built.append(algorithm)
        for _ in range(iterations):
            algorithm.train()
        return algorithm

    yield start
    for algorithm in built:
        algorithm.stop()


SMALL = {"train_batch_size_per_learner": 128, "num_epochs": 2}
REPLAY = {"num_steps_sampled_before_learning_starts": 100, "epsilon": 0.1}


@pytest.mark.parametrize(("name", "training"), [("ppo", SMALL), ("a2c", {}), ("dqn", REPLAY)])
@pytest.mark.parametrize("model", [{}, {"fcnet_hiddens": [], "vf_share_layers": True}])
def test_the_engine_trains_an_encoder_whose_policy_acts_alike(train, tmp_path, name, training, model):
    if name == "dqn":
        model = {key: value for key, value in model.items() if key != "vf_share_layers"}
    algorithm = train(name, model=model, **training)
    assert isinstance(algorithm, FastAlgorithm)
    module, learned = algorithm.get_module(), algorithm.learner_module
    weights, sampled = dict(learned.state_dict()), dict(module.state_dict())
    assert any("places" in key for key in sampled)
    assert all(torch.equal(sampled[key], weights[key]) for key in sampled)
    write_bundle(module, tmp_path, info={"algo": name})
    policy = load_policy(tmp_path, trust=True)
    space = policy.observation_space
    observations = np.random.default_rng(0).normal(size=(100, *space.shape)).astype(np.float32)
    with torch.no_grad():
        out = module.forward_inference({"obs": torch.from_numpy(observations)})
    if "actions" in out:
        assert (policy.act(observations) == out["actions"].numpy()).all()
    else:
        expected = policy.network(torch.from_numpy(observations))
        assert np.allclose(expected.numpy(), out["action_dist_inputs"].numpy(), atol=1e-5)


COMBINED = {"encoder": "tests.support.own_nets:Combined", "encoder_kwargs": None}


@pytest.mark.parametrize(("name", "training"), [("ppo", SMALL), ("dqn", REPLAY)])
def test_an_extractor_sees_the_dict_of_the_environment(train, tmp_path, name, training):
    algorithm = train(name, env=ROOM, rl_module=COMBINED, **training)
    assert isinstance(algorithm, FastAlgorithm)
    module, space = algorithm.get_module(), Room().observation_space
    write_bundle(module, tmp_path, info={"algo": name}, observation_space=space)
    policy = load_policy(tmp_path, trust=True)
    observations = [space.sample() for _ in range(20)]
    actions = policy.act(policy.stack(observations))
    rows = torch.from_numpy(policy.layout.view(np.stack([policy.layout.encode(each) for each in observations])))
    with torch.no_grad():
        out = module.forward_inference({"obs": rows})
    expected = out["actions"] if name == "dqn" else out["action_dist_inputs"].argmax(1)
    assert (actions == expected.numpy()).all()
    assert policy.act(observations[0]) == actions[0]
    seen = {key: value[:1] for key, value in policy.stack(observations).items()}
    darker = policy.stack([{**observations[0], "camera": np.zeros_like(observations[0]["camera"])}])
    outputs = [policy.network(torch.from_numpy(policy.prepare_inputs(each, None)[0])) for each in (seen, darker)]
    assert not torch.allclose(*outputs)


@pytest.mark.parametrize(("name", "training"), [("ppo", SMALL), ("dqn", REPLAY)])
def test_an_extractor_chooses_legal_actions_alone(train, name, training):
    kwargs = {"place": "observation"}  # Which raises at an illegal action.
    algorithm = train(name, 6, env=STRICT, kwargs=kwargs, rl_module=COMBINED, **training)
    assert algorithm.counters["num_episodes_lifetime"] > 2


@pytest.mark.slow  # It exports a graph.
@pytest.mark.parametrize(("name", "training"), [("ppo", SMALL), ("dqn", REPLAY)])
def test_a_graph_chooses_legal_actions_alone(train, tmp_path, name, training):
    algorithm = train(name, 1, env=STRICT, kwargs={"place": "observation"}, rl_module=COMBINED, **training)
    env, layout = Strict("observation"), Layout.from_dict(algorithm.config.model_config[LAYOUT])
    write_bundle(algorithm.get_module(), tmp_path, info={}, observation_space=env.observation_space, layout=layout)
    assert write_graph(str(tmp_path))
    policy = BundlePolicy.load(tmp_path)
    assert type(policy.network) is GraphNetwork
    observation, _ = env.reset(seed=0)
    for step in range(30):
        observation, *_ = env.step(policy.act(observation, deterministic=step % 2 == 0))  # Raises at an illegal one.


def test_the_encoder_learns_and_its_dropout_acts_in_learning_alone(train):
    algorithm = train("ppo", iterations=0, **SMALL)
    encoder = algorithm.learner_module.encoder.actor_encoder
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    rows = torch.ones(3, 4)
    with torch.no_grad():
        assert torch.equal(encoder({"obs": rows})["encoder_out"], encoder({"obs": rows})["encoder_out"])
    with torch.enable_grad():
        assert not torch.equal(encoder({"obs": rows})["encoder_out"], encoder({"obs": rows})["encoder_out"])
    algorithm.train()
    changed = {key for key, value in encoder.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {key for key in before if not key.endswith("places")}


def test_a_resumed_encoder_acts_as_before(train, tmp_path):
    first = train("ppo", **SMALL)
    first.save_to_path(tmp_path / "state")
    second = train("ppo", iterations=0, **SMALL)
    second.restore_from_path(tmp_path / "state")
    rows = {"obs": torch.randn(10, 4)}
    with torch.no_grad():
        before, after = (each.get_module().forward_inference(rows)["action_dist_inputs"] for each in (first, second))
    assert torch.equal(before, after)


def test_an_encoder_is_no_module_of_the_users(algo):
    config = build_config(make_build(algo()), {}, 0)
    assert find_static_obstacle(config) is None
    assert config.model_config[ENCODER].num_features == 8
    assert ENCODER not in build_config(make_build(algo(), encoder=None), {}, 0).model_config


def test_an_lstm_follows_the_encoder(algo):
    config = build_config(make_build(algo(), model={"use_lstm": True, "lstm_cell_size": 8}), {}, 0)
    spaces = {"default_policy": (gymnasium.spaces.Box(-9, 9, (4,)), gymnasium.spaces.Discrete(2))}
    module = config.get_multi_rl_module_spec(spaces=spaces, inference_only=False).build()["default_policy"]
    tokenizer = module.encoder.actor_encoder.tokenizer
    assert type(tokenizer).__name__ == "RowEncoder"
    out = module.forward_inference({"obs": torch.ones(2, 1, 4), "state_in": _repeat(module.get_initial_state(), 2)})
    assert out["action_dist_inputs"].shape == (2, 1, 2)


def _repeat(state, count):
    return {k: _repeat(v, count) if isinstance(v, dict) else v[None].repeat(count, 1, 1) for k, v in state.items()}


def test_an_encoder_and_its_arguments_are_searched_by_name(algo):
    raw = {
        "encoder": ["choice", None, ATTENTION],
        "encoder_kwargs": {"heads": ["when", {"encoder": ATTENTION}, ["choice", 2, 4]], "dropout": 0.1},
    }
    file = algo()
    space = build_search_space(file, raw)
    assert locate_argument(file, "encoder_kwargs.heads") == ("rl_module", "encoder_kwargs", "heads")
    assert {dimension.name: dict(dimension.when) for dimension in space.dimensions} == {
        "encoder": {},
        "encoder_kwargs.heads": {"encoder": (ATTENTION,)},
    }
    applied = apply_params(file, {"encoder": ATTENTION, "encoder_kwargs.heads": 2, **space.fixed})["rl_module"]
    assert applied["encoder_kwargs"] == {"heads": 2, "dropout": 0.1}
    check_algorithm(file, space, find_capabilities(file), several_agents=False)
    heads = [kwargs["heads"] for _, kwargs in list_encoders(file, space)]
    assert sorted(heads) == [2, 4]


def test_arguments_in_the_file_are_for_the_files_encoder(algo):
    file = algo() | {"rl_module": algo()["rl_module"] | {"encoder": ATTENTION, "encoder_kwargs": {"heads": 2}}}
    own = apply_params(file, {"encoder": ATTENTION, "encoder_kwargs.dropout": 0.1})["rl_module"]
    other = apply_params(file, {"encoder": f"{NETS}:Linear", "encoder_kwargs.size": 3})["rl_module"]
    assert (own["encoder_kwargs"], other["encoder_kwargs"]) == ({"heads": 2, "dropout": 0.1}, {"size": 3})
    assert apply_params(file, {"lr": 1})["rl_module"]["encoder_kwargs"] == {"heads": 2}


def refuse(file, several_agents=False, **raw):
    space = build_search_space(file, raw)
    with pytest.raises(ConfigError) as refused:
        check_algorithm(file, space, find_capabilities(file), several_agents=several_agents)
    return refused.value


@pytest.mark.parametrize("name", ["sac", "appo"])
def test_other_algorithms_refuse_an_encoder_by_name(algo, name):
    file = algo(name)
    file["rl_module"]["encoder"] = ATTENTION
    error = refuse(file)
    assert (error.key, error.value) == ("algo.rl_module.encoder", ATTENTION)
    assert error.allowed.startswith("ppo, a2c or dqn")


def test_several_agents_have_no_encoder(algo):
    file = algo() | {"rl_module": algo()["rl_module"] | {"encoder": ATTENTION}}
    assert refuse(file, several_agents=True).key == "algo.rl_module.encoder"


@pytest.mark.parametrize("target", ["Attention", "__main__:Attention", "my_nets.Attention"])
def test_an_encoder_has_a_module_that_trials_can_import(algo, target):
    file = algo() | {"rl_module": algo()["rl_module"] | {"encoder": target}}
    assert refuse(file).fix == "algo.rl_module.encoder=my_nets:Attention"


def test_a_whole_module_of_ones_own_is_left_to_stock_rllib(algo, settings):
    file = algo()
    model = {**file["rl_module"]["model_config"], "units": 6}
    build = make_build(file, encoder=None, encoder_kwargs=None, module_class=MODULE, model_config=model)
    check_config(replace(settings["ppo"], algo=build.algo))
    config = build_config(build, {}, 0)
    assert find_static_obstacle(config) == "a user's RLModule"
    spaces = {"default_policy": (build.facts.observation_space, build.facts.action_space)}
    module = config.get_multi_rl_module_spec(spaces=spaces, inference_only=False).build()["default_policy"]
    assert (type(module).__name__, module.policy.in_features) == ("Module", 6)


def test_a_module_of_ones_own_is_an_rlmodule_without_an_encoder(algo):
    with pytest.raises(ConfigError) as refused:
        build_config(make_build(algo(), encoder=None, encoder_kwargs=None, module_class=ATTENTION), {}, 0)
    assert refused.value.key == "algo.rl_module.module_class"
    both = algo() | {"rl_module": algo()["rl_module"] | {"encoder": ATTENTION, "module_class": MODULE}}
    assert refuse(both).key == "algo.rl_module.encoder"


def test_arguments_without_an_encoder_are_refused(algo):
    file = algo() | {"rl_module": algo()["rl_module"] | {"encoder_kwargs": {"heads": 2}}}
    assert refuse(file).key == "algo.rl_module.encoder_kwargs"
    assert refuse(algo(), encoder_kwargs={"heads": ["choice", 2, 4]}).key == "algo.rl_module.encoder_kwargs"


def test_a_searched_argument_has_a_value_in_the_baseline(algo):
    file = algo() | {"rl_module": algo()["rl_module"] | {"encoder": ATTENTION}}
    error = refuse(file, encoder_kwargs={"heads": ["choice", 2, 4]})
    assert error.fix == "++algo.rl_module.encoder_kwargs.heads=2"
