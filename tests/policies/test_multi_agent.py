"""Several agents: trained by stock RLlib, acting on dicts afterwards."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest
from composing import compose
from plans import preflight

from rltune.config.validation import parse_config
from rltune.driver.plan import make_plan
from rltune.errors import ConfigError, PolicyError
from rltune.policies.evaluation import evaluate
from rltune.policies.mlflow_model import make_model_arguments
from rltune.policies.policy import load_policy
from rltune.trial.algorithm_runner import AlgorithmRunner

SPREAD = {"id": "mpe2.simple_spread_v3", "kwargs": {"max_cycles": 5}, "policies": "shared"}


STRICT = ("env=pettingzoo", "env.id=strict_team", "env.policies=separate")
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

    folder = tmp_path_factory.mktemp("team")
    config = parse_config(compose("run", f"output_dir={folder}", "env=simple_speaker_listener", *SMALL))
    made = make_plan(config)
    preflight(made)
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("rltune.engine").addHandler(handler)
    runner = AlgorithmRunner(made.build, {}, seed=1, engine="fast", threads=1, scored_steps=1000)
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


def test_saved_policies_act_on_dicts_as_the_trained_networks(trained):
    import torch

    team = load_policy(trained.folder)
    assert team.owners == {"speaker_0": "speaker", "listener_0": "listener"}
    env = team.env()
    obs, _ = env.reset(seed=3)
    actions = team.act(obs)
    for agent, owner in team.owners.items():
        module = trained.runner.algorithm.get_module(owner)
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


def test_several_agents_are_one_model_that_takes_and_gives_dicts(trained, tmp_path):
    import mlflow.pyfunc

    team = load_policy(trained.folder)
    mlflow.pyfunc.save_model(str(tmp_path / "model"), **make_model_arguments(trained.folder / "policy"))
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    env = team.env()
    obs, _ = env.reset(seed=0)
    served, acted = model.predict(obs), team.act(obs)
    assert {agent: int(action[0]) for agent, action in served.items()} == {a: int(b) for a, b in acted.items()}
    assert load_policy(tmp_path / "model").owners == team.owners


def test_training_goes_on_from_the_agents_checkpoint(trained):
    again = AlgorithmRunner(trained.build, {}, seed=2, engine="fast", threads=1, scored_steps=1000)
    try:
        again.restore(trained.folder)
        assert again.train().env_steps > trained.progress[-1].env_steps
    finally:
        again.stop()


@pytest.mark.parametrize(
    ("algo", "joint"),
    [
        ("ppo", True),
        *(pytest.param(algo, False, marks=pytest.mark.nightly) for algo in ("ppo", "a2c", "appo", "impala")),
    ],
)
def test_no_illegal_action_of_several_agents(algo, joint, request_of, ray_cluster, tmp_path):
    words = [word for word in SMALL if algo == "ppo" or ("minibatch" not in word and "epochs" not in word)]
    made = make_plan(request_of(f"algo={algo}", *STRICT, *words, f"+env.kwargs.joint={joint}"))
    preflight(made)
    runner = AlgorithmRunner(made.build, {}, seed=1, engine="fast", threads=1, scored_steps=1000)
    for _ in range(4):
        runner.train()
    runner.save(tmp_path, {"algo": algo, "env": made.build.env.to_dict()})
    runner.restore(tmp_path)
    assert runner.train().env_steps > 0
    runner.stop()
    team = load_policy(tmp_path)
    assert all(policy.layout.mask for policy in team.policies.values())
    for deterministic in (True, False):
        assert evaluate(team, episodes=20, seed=0, deterministic=deterministic).lengths == (20,) * 20


def test_a_mask_in_the_info_of_several_agents_is_refused(request_of):
    with pytest.raises(ConfigError) as refused:
        make_plan(request_of(*STRICT, "+env.kwargs.place=info"))
    assert refused.value.key == "env.action_mask"
    assert "env.action_mask=off" in refused.value.fix


@pytest.mark.nightly
def test_a_team_of_rllib_is_trained_by_a_users_mapping(request_of, ray_cluster, tmp_path):
    words = ("env=pettingzoo", "env.id=rllib_team:Leaving", "+env.kwargs={config: {length: 9}}")
    made = make_plan(request_of(*words, "env.policies=rllib_team:map_agent", *SMALL))
    preflight(made)
    runner = AlgorithmRunner(made.build, {}, seed=1, engine="fast", threads=1, scored_steps=1000)
    runner.train()
    runner.save(tmp_path, {"algo": "ppo", "env": made.build.env.to_dict()})
    runner.stop()
    team = load_policy(tmp_path)
    assert team.owners == {"0": "first", "1": "others"}
    assert set(evaluate(team, episodes=2, seed=0).lengths) == {9}
