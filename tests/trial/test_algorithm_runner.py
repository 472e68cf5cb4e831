"""What a runner makes of RLlib's results; that it trains each algorithm, tests/conformance shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import ray
import torch
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rltune import load_policy
from rltune.cluster.resources import Machine
from rltune.driver.plan import make_plan
from rltune.engine.algorithm import FastAlgorithm
from rltune.envs import first_steps
from rltune.envs.observations import make_layout
from rltune.envs.spaces import read_actions
from rltune.envs.spec import spec_of
from rltune.envs.step_count import STEPS
from rltune.errors import ConfigError, NonFiniteError
from rltune.policies.evaluation import Copies, evaluate_checkpoint
from rltune.policies.policy import load_playable
from rltune.policies.rllib_policy import REASON_FILE
from rltune.policies.uri import Source
from rltune.trial.algorithm_runner import AlgorithmRunner
from rltune.trial.metrics import merge_seeds
from tests.envs.test_actions import list_numbers
from tests.trial.informed import run_informing


class Scripted:
    """An algorithm whose results are known."""

    def __init__(self, losses: list[tuple[int, float]]) -> None:
        self.losses = iter(losses)

    def train(self) -> dict[str, Any]:
        trained, loss = next(self.losses)
        learner = {"num_module_steps_trained_lifetime": trained, "total_loss": loss}
        return {"env_runners": {}, "learners": {"default_policy": learner}}


@pytest.fixture
def runner_of(request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., AlgorithmRunner]:
    """A runner of an algorithm with these (steps trained so far, loss)."""

    def make(*losses: tuple[int, float]) -> AlgorithmRunner:
        engines: list[str] = []

        def build(config: Any, engine: str, precision: str) -> Scripted:
            engines.append(engine)
            return Scripted(list(losses))

        monkeypatch.setattr("rltune.trial.algorithm_runner.build_algorithm", build)
        runner = AlgorithmRunner(
            make_plan(request_of()).build, {}, seed=1, engine="rllib", threads=1, scored_steps=1000
        )
        assert engines == ["rllib"]
        return runner

    return make


@pytest.mark.parametrize(("learners", "begins"), [(0, ["cap 0.25", "build"]), (1, ["build", "cap 0.25"])])
def test_memory_is_limited_before_the_first_tensor(
    request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, learners: int, begins: list[str]
) -> None:
    """A remote learner is limited in its own process, once it is there."""
    seen: list[str] = []

    def build(config: Any, engine: str, precision: str) -> Any:
        seen.append("build")
        group = SimpleNamespace(foreach_learner=lambda work: work("the learner"))
        return SimpleNamespace(learner_group=group, stop=lambda: None)

    monkeypatch.setattr("rltune.trial.algorithm_runner.build_algorithm", build)
    monkeypatch.setattr("rltune.trial.algorithm_runner.cap_memory", lambda share: seen.append(f"cap {share}"))
    wanted = ("resources.trials_per_gpu=4", f"algo.learners.num_learners={learners}")
    request = request_of(*wanted, "cluster.num_cpus=8", "cluster.num_gpus=1")
    AlgorithmRunner(make_plan(request).build, {}, seed=1, engine="rllib", threads=1, scored_steps=1000)
    assert seen == begins


def test_an_iteration_without_an_update_keeps_the_last_statistics(runner_of: Callable[..., AlgorithmRunner]) -> None:
    """APPO and IMPALA report NaN then (Ray 2.60)."""
    runner = runner_of((64, 0.5), (64, math.nan), (128, 0.25))
    assert [runner.train().learner["total_loss"] for _ in range(3)] == [0.5, 0.5, 0.25]


def test_a_loss_of_an_update_that_is_not_finite_ends_the_trial(runner_of: Callable[..., AlgorithmRunner]) -> None:
    runner = runner_of((64, 0.5), (128, math.inf))
    runner.train()
    with pytest.raises(NonFiniteError, match="total_loss=inf"):
        runner.train()


def test_an_iteration_before_the_first_sample_is_no_error(runner_of: Callable[..., AlgorithmRunner]) -> None:
    """Env runners that are slow to start deliver later, and a trial whose env runners hang ends as stalled."""
    runner = runner_of()
    runner.algorithm.train = dict
    progress = runner.train()
    assert (progress.env_steps, progress.episodes) == (0, 0)


class Declared(gymnasium.Env[Any, Any]):
    """An environment of the given spaces that takes no action outside of its own."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), 1.0, False, self.steps == 8, {}


STATES, TABLE = gymnasium.spaces.Discrete(4, start=2), gymnasium.spaces.Box(-1.0, 1.0, (3, 2))
PIXELS = gymnasium.spaces.Box(0, 255, (12, 16, 3), np.uint8)
S = gymnasium.spaces
WHOLE = S.Box(np.array([0, -2]), np.array([2, 1]), dtype=np.int32)
DECLARED: dict[str, tuple[str, Any, Any]] = {
    "states and choices from -1": ("ppo", STATES, gymnasium.spaces.Discrete(3, start=-1)),
    "an image and whole numbers": ("dqn", PIXELS, WHOLE),
    "tables": ("ppo", TABLE, gymnasium.spaces.Box(-2.0, 3.0, (2, 2), np.float16)),
    "some bounds": ("ppo", TABLE, gymnasium.spaces.Box(np.float32([-5, 0]), np.float32([5, np.inf]))),
    "a number": ("sac", TABLE, gymnasium.spaces.Box(0.0, 3.0, ())),
    "choices": ("ppo", TABLE, S.MultiDiscrete([3, 2, 5])),
    "choices from 1, by a2c": ("a2c", TABLE, S.MultiDiscrete([[3, 2], [2, 4]], start=[[1, -3], [0, 2]])),
    "100 buttons": ("ppo", TABLE, S.MultiBinary(100)),
    "four buttons": ("dqn", TABLE, S.MultiBinary((2, 2))),
    "whole numbers": ("ppo", TABLE, S.Box(0, 255, (2, 2), np.uint8)),
    "whole numbers by sac": ("sac", TABLE, WHOLE),
    "a dict of choices": ("ppo", TABLE, S.Dict(go=S.Discrete(3, start=2), on=S.MultiBinary(2))),
    "choices and numbers": ("ppo", TABLE, S.Dict(go=S.Discrete(3, start=2), at=S.Box(-1.0, 2.0, (2,)), on=WHOLE)),
    "a tuple by a2c": ("a2c", TABLE, S.Tuple((S.Box(0.0, np.inf, ()), S.Tuple((S.Discrete(2), S.MultiBinary(2)))))),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_policy_speaks_the_language_of_its_environment(
    name: str, request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    algo, observation_space, action_space = DECLARED[name]
    kwargs = {"observation_space": observation_space, "action_space": action_space}
    entry = gymnasium.envs.registration.EnvSpec("Declared-v0", Declared, kwargs=kwargs)
    monkeypatch.setitem(gymnasium.registry, "Declared-v0", entry)
    small = "algo.training.train_batch_size_per_learner=64"
    build = make_plan(request_of(f"algo={algo}", "env=gym", "env.id=Declared-v0", small)).build
    runner = AlgorithmRunner(build, {}, seed=1, engine="fast", threads=1, scored_steps=1000)
    assert isinstance(runner.algorithm, FastAlgorithm)
    assert runner.train().env_steps > 0
    runner.save(tmp_path, {"algo": algo})
    runner.stop()

    policy = load_policy(tmp_path)
    assert (policy.observation_space, policy.action_space) == (observation_space, action_space)
    observations = [observation_space.sample() for _ in range(50)]
    layout = make_layout(observation_space)
    seen = torch.from_numpy(layout.view(np.stack([layout.encode(obs) for obs in observations])))
    if observation_space == TABLE:  # What PPO normalises.
        seen = torch.from_numpy(policy.prepare_inputs(np.stack(observations), None)[0])
    with torch.no_grad():
        outputs = runner.algorithm.get_module().forward_inference({"obs": seen})
    best = outputs.get("actions")  # DQN's module chooses by itself.
    if best is None:
        distribution = runner.algorithm.get_module().get_inference_action_dist_cls()
        best = distribution.from_logits(outputs["action_dist_inputs"]).to_deterministic().sample()
        best = np.concatenate([np.reshape(part, (50, -1)) for part in best], 1) if isinstance(best, tuple) else best
    actions = read_actions(action_space, joint=algo == "dqn")
    for row, obs in enumerate(observations):
        action, sampled = policy.act(obs), policy.act(obs, deterministic=False)
        for each in (action, sampled):
            assert action_space.contains(np.asarray(each) if action_space.shape == () else each)
        if algo != "sac":  # RLlib's own evaluation of SAC does not squash the mean.
            np.testing.assert_allclose(
                list_numbers(action), list_numbers(actions.decode_one(np.asarray(best[row]))), rtol=1e-5, atol=1e-5
            )
    assert evaluate_checkpoint(tmp_path, 3, seed=0).mean == 8.0


@pytest.mark.parametrize("name", ["choices", "choices and numbers", "whole numbers"])
@pytest.mark.parametrize("how", ["async", pytest.param("rllib", marks=pytest.mark.ray)])
def test_parts_reach_environments_however_they_are_stepped(
    how: str, name: str, request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: Any
) -> None:
    if how == "rllib":
        request.getfixturevalue("ray_cluster")
    kwargs = {"observation_space": TABLE, "action_space": DECLARED[name][2]}
    entry = gymnasium.envs.registration.EnvSpec("Declared-v0", Declared, kwargs=kwargs)
    monkeypatch.setitem(gymnasium.registry, "Declared-v0", entry)
    words = ("algo.training.train_batch_size_per_learner=64", "algo.env_runners.num_envs_per_env_runner=2")
    vectorize = ("env.vectorize=async",) if how == "async" else ()
    build = make_plan(request_of("algo=ppo", "env=gym", "env.id=Declared-v0", *words, *vectorize)).build
    engine = "fast" if how == "async" else "rllib"
    runner = AlgorithmRunner(build, {"num_epochs": 1}, seed=1, engine=engine, threads=1, scored_steps=1000)
    assert isinstance(runner.algorithm, FastAlgorithm) == (engine == "fast")
    assert runner.train().env_steps > 0
    runner.save(tmp_path, {"algo": "ppo"})
    runner.stop()
    assert evaluate_checkpoint(tmp_path, 3, seed=0).mean == 8.0


NORMALISED = ("algo=ppo", "env=pendulum", "algo.normalise=[rewards]", "algo.env_runners.num_envs_per_env_runner=3")


@pytest.mark.parametrize("engine", ["fast", pytest.param("rllib", marks=pytest.mark.ray)])
def test_normalised_rewards_go_on_at_their_scale(
    engine: str, request_of: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A deviation that began anew would give the first rewards after a resume a hundred times their size."""
    if engine == "rllib":
        request.getfixturevalue("ray_cluster")
    build = make_plan(request_of(*NORMALISED)).build
    params = {"train_batch_size_per_learner": 600, "num_epochs": 1}
    source, target = (AlgorithmRunner(build, params, seed, engine, threads=1, scored_steps=1000) for seed in (1, 2))
    source.train(), source.train()
    source.save(tmp_path, {})
    target.restore(tmp_path)
    rewards = []
    for runner in (source, target):
        envs = runner.algorithm.env_runner.env
        envs.reset(seed=[1, 2, 3]) if engine == "rllib" else envs.reset([1, 2, 3])
        rewards.append(envs.step(np.zeros((3, 1), np.float32))[1].tolist())
        runner.stop()
    assert rewards[1] == rewards[0]
    assert source._recent.state() == target._recent.state()


@pytest.mark.parametrize("parts", [["rewards"], ["observations", "rewards"]])
def test_a_policy_says_what_its_trial_normalised(
    parts: list[str], request_of: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("algo=ppo", "env=pendulum", "~tuned", "+space.normalise=[choice,[rewards],[observations,rewards]]")
    params = {"normalise": parts, "train_batch_size_per_learner": 256, "num_epochs": 1}
    runner = AlgorithmRunner(make_plan(request_of(*words)).build, params, 1, "fast", threads=1, scored_steps=1000)
    runner.train()
    runner.save(tmp_path, {"seed": 1})
    runner.stop()
    policy = load_policy(tmp_path / "policy")
    assert spec_of(policy.info["env"]).list_normalised() == parts
    assert (policy.observation_filter is not None) == ("observations" in parts)


def test_a_training_does_not_notice_the_episodes_of_its_scores(request_of: Callable[..., Any]) -> None:
    """Neither its random numbers, nor its running statistics, nor its count of steps."""
    build = make_plan(request_of("algo=ppo", "env=pendulum", "algo.normalise=[observations,rewards]")).build
    params = {"train_batch_size_per_learner": 256, "num_epochs": 1}
    runners = [AlgorithmRunner(build, params, 1, "fast", threads=1, scored_steps=1000) for _ in range(2)]
    trained = []
    for index, runner in enumerate(runners):
        runner.train()
        steps = STEPS.steps
        if index:
            with Copies() as copies:
                played = [runner.play(copies=copies, episodes=3, seed=5, env={}).returns for _ in range(2)]
            assert played[0] == played[1], "the same episodes"
            assert len(set(played[0])) == 3
        assert STEPS.steps == steps
        trained.append((runner.train(), runner._observation_stats()["count"]))
        runner.stop()
    assert repr(trained[0]) == repr(trained[1])  # Both have NaN, which no data class of Python 3.13 calls equal.


FAILING = (
    "env=gym", "env.id=failing:Failing-v0", "+env.kwargs.length=20", "algo=ppo", "env.restarts=100000",
    "algo.env_runners.num_envs_per_env_runner=2", "objective.kind=info", "objective.key=energy", "metrics=[energy]",
)  # fmt: skip
WAYS = {
    "sync": ("fast", ()),
    "async": ("fast", ("env.vectorize=async",)),
    "env runners": ("fast", ("algo.env_runners.num_env_runners=1",)),
    "replay": ("fast", ("algo=dqn",)),
    "stock": ("rllib", ()),
    "stock async": ("rllib", ("env.vectorize=async",)),
    "stock env runners": ("rllib", ("algo.env_runners.num_env_runners=1",)),
    "stock replay": ("rllib", ("algo=dqn",)),
}


SLOW = ("replay", "stock env runners", "stock async")  # to build, which the other ways show as well


@pytest.mark.ray
@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.nightly] * (way in SLOW)) for way in WAYS])
def test_cut_episodes_count_nowhere_however_copies_step(
    way: str, request_of: Callable[..., Any], tmp_path: Path, ray_cluster: Any
) -> None:
    """Each whole episode returns 210 and has an energy of 20; a copy fails in its third one."""
    engine, words = WAYS[way]
    plan = make_plan(request_of(*FAILING, "+env.kwargs.fail_at=50", *words))
    params = (
        {} if "algo=dqn" in words else {"train_batch_size_per_learner": 500, "num_epochs": 1, "minibatch_size": 250}
    )
    first, second = (AlgorithmRunner(plan.build, params, seed, engine, threads=1, scored_steps=1e9) for seed in (1, 2))
    num_before, progress = STEPS.episodes, first.train()
    while progress.env_restarts < 4:
        progress = first.train()
    if "env runners" not in way:  # These count in processes of their own.
        assert STEPS.episodes - num_before == progress.episodes
    assert (progress.return_min, progress.return_max, progress.score) == (210.0, 210.0, 20.0)
    assert progress.metrics == {"episode/energy": 20.0}
    assert progress.episodes in (2 * progress.env_restarts + extra for extra in range(5))
    assert "the simulator has closed the connection" in progress.fault
    first.save(tmp_path, {"env": plan.assignment_build()["env"]})
    second.restore(tmp_path)
    after = second.train()
    assert after.env_restarts >= progress.env_restarts
    assert (after.return_min, after.return_max, after.fault) == (210.0, 210.0, progress.fault)
    first.stop(), second.stop()


GLITCHING = ("env=gym", "env.id=glitching:Glitching-v0", "algo=ppo", "algo.normalise=[observations]")


@pytest.mark.parametrize("engine", ["fast", pytest.param("rllib", marks=pytest.mark.ray)])
def test_a_far_value_is_named_with_its_column_and_bounds(
    engine: str, request_of: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "rllib":
        request.getfixturevalue("ray_cluster")
    words = (*GLITCHING, "~tuned", "algo.env_runners.num_envs_per_env_runner=1")
    build = make_plan(request_of(*words)).build
    params = {"train_batch_size_per_learner": 200, "num_epochs": 1, "minibatch_size": 100}
    first, second = (AlgorithmRunner(build, params, seed, engine, threads=1, scored_steps=1000) for seed in (1, 2))
    notes = [first.train().far_value for _ in range(3)]
    assert (notes[0], notes[1]) == ("", notes[2])
    assert all(word in notes[1] for word in ("1e+08", "observation[1]", "-5.0", "5.0"))
    first.save(tmp_path, {})
    second.restore(tmp_path)
    assert second.train().far_value == notes[1]
    first.stop(), second.stop()
    assert load_policy(tmp_path / "policy").observation_filter.scale.max() < 5


JUDGED = (
    'env.wrappers=[{entry_point: "judged:Judged"}]', "algo=ppo", "env=cartpole", "~tuned",
    "objective.kind=info", "objective.key=energy", "objective.direction=min",
)  # fmt: skip


@pytest.mark.parametrize("engine", ["fast", pytest.param("rllib", marks=pytest.mark.ray)])
def test_an_own_objective_is_trained_saved_and_evaluated(
    engine: str, request_of: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An episode's energy is its length, and so its return; a cost keeps its sign."""
    if engine == "rllib":
        request.getfixturevalue("ray_cluster")
    plan = make_plan(request_of(*JUDGED))
    first, second = (AlgorithmRunner(plan.build, {}, seed, engine, threads=1, scored_steps=1000) for seed in (1, 2))
    progress = first.train()
    assert progress.return_mean > 10
    assert progress.score == pytest.approx(progress.return_mean)
    first.save(tmp_path, {"env": plan.assignment_build()["env"]})
    second.restore(tmp_path)
    assert second._recent.state() == first._recent.state()
    played = evaluate_checkpoint(tmp_path, 5, 0)
    assert played.returns == tuple(float(length) for length in played.lengths)
    first.stop(), second.stop()


def test_stock_rllib_fills_a_lost_memory_before_it_learns(
    request_of: Callable[..., Any], ray_cluster: Any, tmp_path: Path
) -> None:
    """It saves none, and compares with the steps of the whole trial, which are enough at once."""
    short = ["algo.training.num_steps_sampled_before_learning_starts=60", "algo.reporting={}"]
    made = make_plan(request_of("algo=dqn", "env=cartpole", "~tuned", *short))
    made.build.algo["reporting"].update(min_sample_timesteps_per_iteration=1, min_time_s_per_iteration=0)
    first, second = (
        AlgorithmRunner(made.build, {}, seed=1, engine="rllib", threads=1, scored_steps=1000) for _ in range(2)
    )
    while (began := first.train().env_steps) < 100:
        pass
    first.save(tmp_path, {})
    assert first.replay_bytes == 0, "it has none to save"
    second.restore(tmp_path)
    assert second.load_replay(None) == 60

    def learned() -> float:
        return float(sum(p.detach().abs().sum() for p in second._learner_module().parameters()))

    before = learned()
    while (steps := second.train().env_steps) and learned() == before:
        pass
    first.stop(), second.stop()
    assert 60 <= steps - began < 70


FOUR = Machine(4, 1)  # the tests' Ray
PLAIN = ("algo=ppo", "env=cartpole", "~tuned", "cluster.num_cpus=4", "algo.env_runners.num_envs_per_env_runner=2")
SHORT = {"train_batch_size_per_learner": 128, "minibatch_size": 64, "num_epochs": 2}


def test_an_own_connector_is_played_by_rllib_and_not_bundled(
    request_of: Callable[..., Any], ray_cluster: Any, tmp_path: Path
) -> None:
    """A bundle would show the network observations that it has not learned from."""
    own = "+algo.env_runners.env_to_module_connector=own_parts:make_mirror"
    runner = AlgorithmRunner(
        make_plan(request_of(*PLAIN, own)).build, SHORT, seed=1, engine="fast", threads=1, scored_steps=1000
    )
    runner.train()
    runner.save(tmp_path, {"env": {"id": "CartPole-v1"}})
    assert (tmp_path / REASON_FILE).read_text().endswith(" env_to_module_connector\n")
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    module = runner.algorithm.get_module()
    with torch.no_grad():
        scores = module.forward_inference({"obs": torch.from_numpy(-obs)})["action_dist_inputs"]
    actions, _ = load_playable(Source(str(tmp_path), trust=True)).predict(obs)
    runner.stop()
    assert actions.tolist() == scores.argmax(1).tolist()
    assert len(set(actions.tolist())) == 2


def read_learners(runner: AlgorithmRunner) -> list[np.ndarray]:
    """The weights of each learner, in one row."""

    def flatten(learner: Any) -> np.ndarray:
        params = learner.module["default_policy"].parameters()
        return np.concatenate([param.detach().numpy().ravel() for param in params])

    return [answer.get() for answer in runner.algorithm.learner_group.foreach_learner(flatten)]


def test_two_learners_learn_the_same_from_twice_the_batch(
    request_of: Callable[..., Any], ray_cluster: Any, tmp_path: Path
) -> None:
    build = make_plan(request_of(*PLAIN, "algo.learners.num_learners=2")).build
    runner = AlgorithmRunner(build, SHORT, seed=1, engine="fast", threads=1, scored_steps=1000)
    begun = read_learners(runner)[0]
    progress = runner.train()
    first, second = read_learners(runner)
    assert 256 <= progress.env_steps < 260
    assert np.abs(first - begun).max() > 0
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)
    runner.save(tmp_path, {"env": {"id": "CartPole-v1"}})
    runner.stop()
    assert not (tmp_path / REASON_FILE).exists()
    load_playable(Source(str(tmp_path), trust=True)).predict(np.zeros((1, 4), np.float32))
    resumed = AlgorithmRunner(build, SHORT, seed=2, engine="fast", threads=1, scored_steps=1000)
    resumed.restore(tmp_path)
    for weights in read_learners(resumed):
        np.testing.assert_array_equal(weights, first)
    assert resumed.train().env_steps >= 2 * 256
    resumed.stop()


def test_the_env_runners_of_several_seeds_share_the_trials_bundles(
    request_of: Callable[..., Any], ray_cluster: Any
) -> None:
    """RLlib asks for each by its bundle's number: with a whole CPU each the second seed's would wait for ever."""
    made = make_plan(request_of(*PLAIN, "algo.env_runners.num_env_runners=1", "replicates=2"))

    @ray.remote(num_cpus=1)
    def train_in_turn(seeds: list[int]) -> list[int]:
        runners = [AlgorithmRunner(made.build, SHORT, seed, "fast", 1, scored_steps=1000) for seed in seeds]
        return [runner.train().env_steps for runner in runners]

    group = placement_group(made.share_of(FOUR).bundles)
    inside = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    try:
        steps = ray.get(train_in_turn.options(scheduling_strategy=inside).remote(made.seeds(0)), timeout=120)
    finally:
        remove_placement_group(group)
    assert all(128 <= each < 132 for each in steps)


@pytest.mark.parametrize(
    ("overrides", "engine"),
    [
        ((), "fast"),
        (("env.vectorize=async",), "fast"),
        (("env.vectorize=vector_entry_point",), "fast"),
        (("algo=dqn", "algo.training.num_steps_sampled_before_learning_starts=1000"), "fast"),
        (("+env.kwargs.plain=false",), "fast"),
        pytest.param((), "rllib", marks=pytest.mark.slow),
    ],
)
def test_metrics_are_the_same_however_copies_are_stepped(
    request_of: Callable[..., Any], overrides: tuple[str, ...], engine: str
) -> None:
    """The shortest of them ends in the middle of an iteration, and the rare one is there in every third episode."""
    runner = run_informing(request_of, *overrides, engine=engine)
    try:
        progress = runner.train()
        while progress.env_steps < 150:
            progress = runner.train()
    finally:
        runner.stop()
    metrics = progress.metrics
    assert {name: metrics[name] for name in metrics if name != "episode/rare"} == {
        "episode/speed": 3.0, "episode/energy": 10.0, "episode/force": -1.0, "episode/rewards/forward": 2.5,
        "episode/done": 1.0,
    }  # fmt: skip
    counts = progress.episodes_with
    assert counts["episode/speed"] == progress.recent_episodes
    assert 0 < counts["episode/rare"] <= progress.recent_episodes / 3 + 1


@pytest.mark.parametrize("missing", [None, -1.0])
def test_episodes_without_the_objectives_key_fail_no_trial(
    request_of: Callable[..., Any], missing: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third episode alone has it: the others are left out, or count as is set."""
    monkeypatch.setattr(first_steps, "EPISODE_STEPS", 3)  # The check does not see the end of an episode without it.
    words = ("objective.kind=info", "objective.key=rare", f"objective.missing={'null' if missing is None else missing}")
    runner = run_informing(request_of, *words)
    try:
        progress = runner.train()
    finally:
        runner.stop()
    report = merge_seeds([progress], 0.0)
    if missing is None:
        assert report["score"] == report["episode/rare"] >= 3.0
        assert 0 < report["scored_episodes"] < report["recent_episodes"] / 2
    else:
        assert report["score"] < report["episode/rare"]
        assert "scored_episodes" not in report


@pytest.mark.parametrize("plain", [True, False])
def test_a_half_episode_at_a_checkpoint_adds_no_half_sum(
    request_of: Callable[..., Any], tmp_path: Path, plain: bool
) -> None:
    """An environment that can be pickled goes on in its episode; another one begins anew, without the half sum."""
    kwargs = (f"+env.kwargs.plain={str(plain).lower()}", "algo.training.train_batch_size_per_learner=104")
    runner = run_informing(request_of, *kwargs)
    runner.train()
    runner.save(tmp_path, {})
    runner.stop()
    runner = run_informing(request_of, *kwargs)
    try:
        runner.restore(tmp_path)
        assert runner.train().metrics["episode/energy"] == 10.0
    finally:
        runner.stop()


KNOBS = (
    "env=gym", "~tuned", "env.id=knobs:Knobs-v0", "+env.kwargs={repeat: 1, weight: 1.0, size: 3}",
    "objective.kind=info", "objective.key=earned", "algo.training.train_batch_size_per_learner=64",
    "algo.training.num_epochs=1", "algo.env_runners.num_envs_per_env_runner=2",
)  # fmt: skip


@pytest.mark.parametrize("engine", ["fast", pytest.param("rllib", marks=pytest.mark.slow)])
def test_a_policy_is_judged_in_the_settings_environment(
    request_of: Callable[..., Any], tmp_path: Path, engine: str
) -> None:
    """What is for learning only is not the policy's; what is part of the policy goes with it."""
    plan = make_plan(request_of(*KNOBS, "+space.train_env.kwargs.weight=[choice,1,100]"))
    params = {"train_env.kwargs.weight": 100.0, "env.kwargs.repeat": 4}
    runner = AlgorithmRunner(plan.build, params, 1, engine, threads=1, scored_steps=1000)
    progress = runner.train()
    while not progress.episodes:
        progress = runner.train()
    runner.save(tmp_path, {})
    runner.stop()
    assert progress.return_mean == pytest.approx(100 * progress.score)
    assert progress.episode_length_mean == 2
    policy = load_policy(tmp_path, trust=True)
    assert policy.info["env"]["kwargs"] == {"repeat": 4, "weight": 1.0, "size": 3}
    assert policy.info["train_env"]["kwargs"] == {"repeat": 4, "weight": 100.0, "size": 3}
    played = evaluate_checkpoint(tmp_path, 3, 0)
    assert max(played.lengths) == 2
    assert max(played.returns) <= 8


def test_a_large_reward_for_learning_wins_nothing(request_of: Callable[..., Any]) -> None:
    """The episodes by which trials are scored pay what the settings say."""
    words = (*KNOBS, "objective.kind=return", "objective.key=null", "score.episodes=10")
    plan = make_plan(request_of(*words, "+space.train_env.kwargs.weight=[choice,1,100]"))
    scores = []
    for weight in (1.0, 100.0):
        runner = AlgorithmRunner(plan.build, {"train_env.kwargs.weight": weight}, 1, "fast", 1, scored_steps=1000)
        while not (progress := runner.train()).episodes:
            pass
        scores.append(runner.play(copies=None, episodes=10, seed=0).mean)
        runner.stop()
        assert progress.return_mean > 3 * weight
    assert max(scores) <= 8


def test_other_spaces_than_those_of_the_check_end_a_trial(request_of: Callable[..., Any]) -> None:
    """Between the ends of a range nothing was checked."""
    plan = make_plan(request_of(*KNOBS))
    with pytest.raises(ConfigError, match=r"\(5,\)"):
        AlgorithmRunner(plan.build, {"env.kwargs.size": 5}, 1, "fast", threads=1, scored_steps=1000)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [(), ("objective.kind=info", "objective.key=b.goals", "objective.direction=min")])
def test_several_agents_have_metrics_and_objectives_by_agent(
    request_of: Callable[..., Any], tmp_path: Path, objective: tuple[str, ...]
) -> None:
    words = ("env=pettingzoo", "env.id=informing_team", "env.policies=shared", "++metrics={a.goals: sum, b.goals: sum}")
    small = ("algo.training.train_batch_size_per_learner=64", "algo.training.minibatch_size=32")
    plan = make_plan(request_of(*words, *small, "algo.env_runners.num_envs_per_env_runner=1", *objective))
    assert not any(note.startswith("metrics: ") for note in plan.notes)
    runner = AlgorithmRunner(plan.build, {}, seed=1, engine="fast", threads=1, scored_steps=1000)
    try:
        progress = runner.train()
        assert progress.metrics == {"episode/a/goals": 1.0, "episode/b/goals": 3.0}
        assert (progress.return_mean, progress.score) == (8.0, 3.0 if objective else 8.0)
        runner.save(tmp_path, {})
    finally:
        runner.stop()
    result = evaluate_checkpoint(tmp_path, 2, 0)
    assert result.metrics == {"episode/a/goals": (1.0,), "episode/b/goals": (3.0,)}, "its episodes are equal"
    assert result.mean == progress.score
