"""Several agents: PettingZoo environments from their config, trained by stock RLlib, acting on dicts afterwards."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest

from rltune.algorithms.multi_agent import ParallelEnvAdapter
from rltune.envs.pettingzoo import assign_policies
from rltune.envs.spec import spec_of
from rltune.envs.validation import check_env
from rltune.errors import ConfigError, PolicyError
from rltune.policies.evaluation import evaluate
from rltune.policies.mlflow_model import make_model_arguments
from rltune.policies.policy import load_policy
from rltune.sweep import plan
from rltune.sweep.plan import make_plan
from rltune.trial.algorithm_runner import AlgorithmRunner

SPREAD = {"id": "mpe2.simple_spread_v3", "kwargs": {"max_cycles": 5}, "policies": "shared"}
SPEAKER = SPREAD | {"id": "mpe2.simple_speaker_listener_v4", "policies": "separate"}
SMALL = (
    "algo.training.train_batch_size_per_learner=64",
    "algo.training.minibatch_size=64",
    "algo.training.num_epochs=1",
    "algo.env_runners.num_envs_per_env_runner=2",
    "algo.rl_module.model_config.fcnet_hiddens=[16]",
    "~space",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, ray_cluster):
    """Two policies of different spaces, two iterations old, with their checkpoint."""
    from composing import compose

    from rltune.config.validation import parse_config

    folder = tmp_path_factory.mktemp("team")
    config = parse_config(compose("run", f"output_dir={folder}", "env=simple_speaker_listener", *SMALL))
    made = make_plan(config)
    plan.preflight(made)
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("rltune.engine").addHandler(handler)
    runner = AlgorithmRunner(made.build, {}, seed=1, kind="fast", threads=1)
    logging.getLogger("rltune.engine").removeHandler(handler)
    progress = [runner.train(), runner.train()]
    (folder / "checkpoint").mkdir()
    runner.save(folder / "checkpoint", {"algo": "ppo", "env": made.build.env.to_dict()})
    yield SimpleNamespace(progress=progress, folder=folder / "checkpoint", runner=runner, build=made.build, lines=lines)
    runner.stop()


def test_several_agents_learn_by_stock_rllib_and_a_line_says_so(trained):
    first, second = trained.progress
    assert 0 < first.env_steps < second.env_steps
    assert second.episodes > 0
    assert math.isfinite(second.return_mean)
    assert math.isfinite(second.learner["total_loss"])
    assert any("stock RLlib" in line and "multi-agent environments" in line for line in trained.lines)


def test_a_saved_team_acts_on_dicts_as_the_networks_that_were_trained(trained):
    import torch

    team = load_policy(trained.folder)
    assert team.owners == {"speaker_0": "speaker", "listener_0": "listener"}
    env = team.env()
    obs, _ = env.reset(seed=3)
    actions = team.act(obs)
    for agent, owner in team.owners.items():
        module = trained.runner._algorithm.get_module(owner)
        with torch.no_grad():
            logits = module.forward_inference({"obs": torch.from_numpy(obs[agent])[None]})["action_dist_inputs"]
        assert actions[agent] == int(logits.argmax())
    batch = team.act({"listener_0": np.stack([obs["listener_0"]] * 3)})
    assert batch["listener_0"].shape == (3,)
    env.step(actions)
    env.close()
    with pytest.raises(PolicyError, match="listener_1"):
        team.act({"listener_1": obs["listener_0"]})


def test_an_evaluation_sums_the_agents_rewards_over_each_episode(trained):
    team = load_policy(trained.folder)
    result = evaluate(team, episodes=10, seed=7)
    env = team.env()
    for episode in (0, 9):
        obs, _ = env.reset(seed=7 + episode)
        total = 0.0
        while env.agents:
            obs, rewards, *_ = env.step(team.act(obs))
            total += sum(rewards.values())
        assert result.returns[episode] == pytest.approx(total)
    env.close()
    assert set(result.lengths) == {25}
    with pytest.raises(PolicyError, match="agent_0"):
        evaluate(team, episodes=1, env=SPREAD)


def test_a_team_is_a_model_of_mlflow_that_takes_and_gives_dicts(trained, tmp_path):
    import mlflow.pyfunc

    team = load_policy(trained.folder)
    mlflow.pyfunc.save_model(str(tmp_path / "model"), **make_model_arguments(trained.folder / "policy"))
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    env = team.env()
    obs, _ = env.reset(seed=0)
    served, acted = model.predict(obs), team.act(obs)
    assert {agent: int(action[0]) for agent, action in served.items()} == {a: int(b) for a, b in acted.items()}
    assert load_policy(tmp_path / "model").owners == team.owners


def test_training_goes_on_from_a_teams_checkpoint(trained):
    again = AlgorithmRunner(trained.build, {}, seed=2, kind="fast", threads=1)
    try:
        again.restore(trained.folder)
        assert again.train().env_steps > trained.progress[-1].env_steps
    finally:
        again.stop()


class Parting:
    """Two agents, of which one is terminated and the other truncated by the same step."""

    possible_agents = ("a", "b")

    def __init__(self):
        self.metadata = {}

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return dict.fromkeys("ab", np.zeros(1, np.float32)), {}

    def step(self, actions):
        self.agents = []
        ends = {"a": True, "b": False}, {"a": False, "b": True}
        return dict.fromkeys("ab", np.zeros(1, np.float32)), {"a": 1, "b": 2}, *ends, {"a": {}, "b": {}}

    def observation_space(self, agent):
        from gymnasium.spaces import Box

        return Box(-1, 1, (1,))

    action_space = observation_space


def test_an_episode_ends_where_one_agent_is_terminated_and_the_other_truncated():
    env = ParallelEnvAdapter(Parting())
    env.reset(seed=0)
    _, rewards, terminated, truncated, _ = env.step({})
    assert rewards == {"a": 1.0, "b": 2.0}
    assert terminated["__all__"] or truncated["__all__"]


def test_policies_by_agent_may_be_named_by_patterns():
    names = ["adversary_0", "adversary_1", "agent_0"]
    assert assign_policies({"adversary_*": "hunters", "agent_0": "prey"}, names) == {
        "adversary_0": "hunters",
        "adversary_1": "hunters",
        "agent_0": "prey",
    }


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        (SPREAD | {"policies": "common"}, "env.policies=common is unknown", "env.policies=shared"),
        (SPREAD | {"policies": {"agent_0": "one"}}, "names no policy for agent_1", "++env.policies.agent_1"),
        (SPREAD | {"policies": {"agent_*": "all", "agnt_2": "b"}}, "env.policies.agnt_2", "env.policies=separate"),
        (SPREAD | {"policies": {"agent_*": "../x"}}, "cannot name a folder", "env.policies=shared"),
        (SPEAKER | {"policies": "shared"}, "share a policy, but their spaces differ", "env.policies=separate"),
        (SPREAD | {"kwargs": {"max_cycle": 5}}, "max_cycle", "env.kwargs={}"),
        (
            SPREAD | {"normalise_observations": True},
            "env.normalise_observations is for one agent",
            "env.normalise_observations=false",
        ),
        (SPREAD | {"id": "pettingzoo.classic.tictactoe_v3", "kwargs": {}}, "its agents take turns", "env.id="),
        (SPREAD | {"id": "mpe2.simple_sprad_v3"}, "cannot be imported", "rltune[multiagent]"),
        (SPREAD | {"id": "CartPole-v1"}, "is no module", "env.id=mpe2"),
        (SPREAD | {"id": "json"}, "defines no environment of several agents", "env.id=mpe2"),
    ],
)
def test_what_no_team_can_be_made_of_is_said_before_any_trial(settings, what, fix):
    with pytest.raises(ConfigError) as refused:
        check_env(spec_of(settings))
    assert what in refused.value.what
    assert fix in refused.value.fix
    assert refused.value.allowed


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("algo=dqn", "algo=dqn is for one agent"),
        ("++algo.rl_module.model_config.use_lstm=true", "is for one agent"),
    ],
)
def test_what_trains_one_agent_alone_is_refused(override, what, request_of):
    with pytest.raises(ConfigError, match=what):
        plan.preflight(make_plan(request_of(override, "env=simple_spread")))
