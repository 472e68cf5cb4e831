"""Every space of Gymnasium: it trains, and its policy speaks its language, or it is refused by name.

Hypothesis draws nested observation and action spaces. PPO trains two iterations in each with the engine; the
environment refuses actions that its space does not contain.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from any_space import ACTIONS, OBSERVATIONS, make_space
from gymnasium.spaces.utils import flatten
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rltune.algorithms.normalising import find_obstacles
from rltune.driver.plan import Plan, make_plan
from rltune.engine.algorithm import FastAlgorithm
from rltune.envs.observations import encode_observation, find_layout
from rltune.errors import ConfigError
from rltune.policies.evaluation import evaluate
from rltune.policies.export import export_policy
from rltune.policies.policy import load_policy
from rltune.policies.video import film_episodes
from rltune.trial.algorithm_runner import AlgorithmRunner

SAMPLES = 100
PARAMS = {"train_batch_size_per_learner": 48, "num_epochs": 1, "minibatch_size": 24}
WORDS = ("algo=ppo", "env=gym", "~tuned", "portfolio=off", "env.id=any_space:AnySpace-v0", "tracking=off")
COPIES = "algo.env_runners.num_envs_per_env_runner=2"
NUMBER = itertools.count()


def plan_for(request_of: Callable[..., Any], observation: Any, action: Any, *words: str) -> Plan | None:
    """Return the plan for an environment of such spaces; None if the check refuses it by the name of what it has not.

    Raises:
        AssertionError: It refuses it without a name, or without anything to type.
    """
    request = request_of(*WORDS, COPIES, *words)
    kwargs = json.loads(json.dumps({"observation": observation, "action": action}))
    try:
        return make_plan(replace(request, env=replace(request.env, kwargs=kwargs)))
    except ConfigError as error:
        refusal = error
    assert any(word in str(refusal) for word in ("observations", "action", "leaf")), refusal
    assert refusal.allowed, refusal
    assert refusal.fix, refusal
    return None


def check_spaces(
    request_of: Callable[..., Any], folder: Path, observation: Any, action: Any, normalise: bool, onnx: bool = False
) -> bool:
    """Train in an environment of such spaces, resume, and compare policies; return whether its check has passed."""
    if (plan := plan_for(request_of, observation, action)) is None:
        return False
    build = plan.build
    obstacles = find_obstacles(build.algo, build.env, build.vectorize, build.facts.find_policy_spaces())
    wanted = ["observations"] if normalise and "observations" not in obstacles else []
    params = {**PARAMS, "normalise": wanted}
    first, second = (AlgorithmRunner(build, params, seed, "fast", threads=1, scored_steps=1000) for seed in (1, 2))
    try:
        assert isinstance(first.algorithm, FastAlgorithm), "stock RLlib trains"
        first.train()
        assert first.train().env_steps >= 96
        for name, runner in (("trained", first), ("resumed", second)):
            if runner is second:
                second.restore(folder / "trained")
                assert second.train().env_steps > 96
            runner.save(folder / name, {"algo": "ppo"})
            compare(runner, plan, folder / name, is_normalised=bool(wanted))
        if onnx:
            export_policy(load_policy(folder / "resumed"), folder / "resumed.onnx")
    finally:
        first.stop(), second.stop()
    return True


def compare(runner: AlgorithmRunner, plan: Plan, folder: Path, is_normalised: bool) -> None:
    """Compare the network of a bundle with the trained module, and ask whether its actions lie in their space."""
    facts, env = plan.build.facts, plan.build.env
    policy: Any = load_policy(folder)
    layout, space = find_layout(facts.observation_space, env), make_space(env.kwargs["observation"])
    space.seed(0)
    observations = [space.sample() for _ in range(SAMPLES)]
    rows = np.stack([layout.view(encode_observation(facts.observation_space, layout, obs)) for obs in observations])
    if is_normalised:
        columns = layout.vector_columns
        rows[:, columns] = policy.observation_filter.apply(rows[:, columns])
    with torch.no_grad():
        outputs = runner.algorithm.get_module().forward_inference({"obs": torch.from_numpy(rows)})
        batch, single = policy.prepare_inputs(observations[0], None)[0], policy.network
        assert batch.shape == (1, rows.shape[1])
        of_bundle = torch.cat([single(torch.from_numpy(policy.prepare_inputs(obs, None)[0])) for obs in observations])
    expected = outputs["action_dist_inputs"].numpy()
    seen = of_bundle.numpy()[:, : expected.shape[1]]
    np.testing.assert_allclose(seen, expected[:, : seen.shape[1]], rtol=1e-4, atol=1e-5)
    again, taken = load_policy(folder), make_space(env.kwargs["action"])
    for obs in observations:
        for deterministic in (True, False):
            action = policy.act(obs, deterministic=deterministic, rng=np.random.default_rng(0))
            other = again.act(obs, deterministic=deterministic, rng=np.random.default_rng(0))
            assert taken.contains(action) or taken.contains(np.asarray(action)), f"{action!r} is not in {taken}"
            np.testing.assert_array_equal(flatten(taken, action), flatten(taken, other))


INF = float("inf")
BOX, FLAG = ["Box", [-1], [1], [3], "float32"], ["MultiBinary", 2]
TABLE, HALF = ["Box", [-2], [3], [2, 2], "float64"], ["Box", [-5, 0], [5, INF], [2], "float32"]
PIXELS = ["Box", [0], [255], [12, 10, 3], "uint8"]
FIXED: dict[str, tuple[Any, Any]] = {
    "a camera beside a vector": (["Dict", {"eye": PIXELS, "arm": BOX}], ["Discrete", 3, -1]),
    "states and choices": (["Discrete", 5, 2], ["MultiDiscrete", [3, 2], [0, 1]]),
    "nested": (
        ["Tuple", [["Dict", {"b": FLAG, "a": BOX}], ["Discrete", 3, -2]]],
        ["Box", [-2], [3], [2, 2], "float64"],
    ),
    "some bounds": (
        ["Box", [float("-inf")], [4], [2, 2], "float64"],
        ["Box", [-5, 0], [5, float("inf")], [2], "float32"],
    ),
    "a hybrid": (["MultiDiscrete", [2, 3], [-1, 4]], ["Dict", {"go": ["Discrete", 3, 0], "force": BOX}]),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_spaces_train_export_and_resume(name: str, request_of: Callable[..., Any], tmp_path: Path) -> None:
    assert check_spaces(request_of, tmp_path, *FIXED[name], normalise=name != "nested", onnx=True)


@pytest.mark.parametrize("name", ["a hybrid", "nested"])
def test_a_policy_of_nested_actions_is_filmed(name: str, request_of: Callable[..., Any], tmp_path: Path) -> None:
    plan = plan_for(request_of, *FIXED[name])
    assert plan is not None
    runner = AlgorithmRunner(plan.build, PARAMS, 1, "fast", threads=1, scored_steps=1000)
    runner.save(tmp_path, {"algo": "ppo"})
    runner.stop()
    policy = load_policy(tmp_path)
    for deterministic in (True, False):
        result = evaluate(policy, episodes=3, deterministic=deterministic)
        films = film_episodes(policy, result, tmp_path / "films")
        assert [film.episode_return for film in films] == [8.0] * 3


@pytest.mark.parametrize(
    "name", ["a hybrid", *(pytest.param(name, marks=pytest.mark.nightly) for name in FIXED if name != "a hybrid")]
)
def test_a_network_with_memory_sees_and_chooses_parts(
    name: str, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    memory = ("++algo.rl_module.model_config.use_lstm=true", "algo.rl_module.model_config.lstm_cell_size=8")
    plan = plan_for(request_of, *FIXED[name], *memory)
    assert plan is not None
    runner = AlgorithmRunner(plan.build, PARAMS, 1, "fast", threads=1, scored_steps=1000)
    try:
        assert not isinstance(runner.algorithm, FastAlgorithm)
        assert runner.train().env_steps >= 48
        runner.save(tmp_path, {"algo": "ppo"})
        runner.restore(tmp_path)
        assert runner.train().env_steps > 48
    finally:
        runner.stop()
    policy: Any = load_policy(tmp_path)
    assert policy.memory_size == 16
    assert evaluate(policy, episodes=5).lengths == (8,) * 5  # The environment takes no action outside of its space.
    assert export_policy(policy, tmp_path / "policy.onnx").num_checked > 0


def check_drawn(request_of: Callable[..., Any], folder: Path, count: int) -> None:
    """Check as many drawn pairs of spaces."""
    settled = settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )

    @settled
    @given(observation=OBSERVATIONS, action=ACTIONS, normalise=st.booleans())
    def check(observation: Any, action: Any, normalise: bool) -> None:
        check_spaces(request_of, folder / str(next(NUMBER)), observation, action, normalise)

    check()


def test_drawn_spaces_train_or_are_refused_by_name(request_of: Callable[..., Any], tmp_path: Path) -> None:
    check_drawn(request_of, tmp_path, 10)


@pytest.mark.nightly
@pytest.mark.timeout(6000)
def test_many_drawn_spaces_train_or_are_refused(request_of: Callable[..., Any], tmp_path: Path) -> None:
    check_drawn(request_of, tmp_path, int(os.environ.get("RLTUNE_DRAWS", "300")))
