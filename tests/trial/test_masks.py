"""Environments that raise at an illegal action are trained, saved, evaluated and exported without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow.exceptions import MlflowException
from strict import STRICT, TRAP, Strict

from rltune import load_policy
from rltune.driver.plan import make_plan
from rltune.engine.algorithm import FastAlgorithm
from rltune.envs import first_steps
from rltune.envs.layout import ILLEGAL
from rltune.errors import GuestError, PolicyError
from rltune.policies.evaluation import evaluate, evaluate_checkpoint
from rltune.policies.export import export_policy
from rltune.policies.mlflow_model import _make_example
from rltune.policies.served_model import load_model
from rltune.policies.video import film_episodes
from rltune.trial.algorithm_runner import AlgorithmRunner

SMALL = {
    "ppo": ["algo.training.train_batch_size_per_learner=128", "algo.training.minibatch_size=64"],
    "a2c": ["algo.training.train_batch_size_per_learner=128"],
    "dqn": [
        "algo.training.train_batch_size_per_learner=16",
        "algo.training.num_steps_sampled_before_learning_starts=50",
        "algo.training.replay_buffer_config.capacity=2000",
        "algo.reporting.min_sample_timesteps_per_iteration=300",
    ],
}
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"place": "observation"}),
    ("ppo", {"place": "info", "form": "tuple", "sizes": [2, 3]}),
    ("ppo", {"place": "method", "form": "joint", "sizes": [2, 3]}),
    ("a2c", {"place": "method", "sizes": [2, 2, 4]}),
    ("dqn", {"place": "info"}),
    ("dqn", {"place": "observation", "form": "tuple", "sizes": [2, 3]}),
    ("dqn", {"place": "method", "form": "joint", "sizes": [2, 3]}),
]


def make_runner(request_of: Callable[..., Any], algo: str, kwargs: dict[str, Any], *words: str) -> AlgorithmRunner:
    kwargs = dict(kwargs)
    env_id = kwargs.pop("id", STRICT)
    typed = [f"+env.kwargs.{name}={str(value).replace(' ', '')}" for name, value in kwargs.items()]
    request = request_of(f"algo={algo}", "env=gym", f"env.id='{env_id}'", *typed, *SMALL.get(algo, []), *words)
    build = make_plan(request).build
    return AlgorithmRunner(build, {}, seed=1, engine="fast", threads=1, scored_steps=1000)


QUICK = (1, 4)  # The places of those that every run of the tests has.
CASES = [pytest.param(*form, marks=() if place in QUICK else pytest.mark.nightly) for place, form in enumerate(FORMS)]


@pytest.mark.parametrize(("algo", "kwargs"), CASES)
def test_no_illegal_action_in_training_evaluation_act_and_export(
    algo: str, kwargs: dict[str, Any], request_of: Callable[..., Any], tmp_path: Path
) -> None:
    runner = make_runner(request_of, algo, kwargs)
    assert isinstance(runner.algorithm, FastAlgorithm)
    for _ in range(2):
        assert runner.train().env_steps > 0
    runner.save(tmp_path, {"algo": algo})
    runner.stop()
    assert evaluate_checkpoint(tmp_path, 5, seed=0).lengths == (30,) * 5

    policy, env = load_policy(tmp_path), Strict(**kwargs)
    for deterministic in (True, False):
        obs, info = env.reset(seed=1)
        over = False
        while not over:
            mask = {"info": info.get("action_mask"), "method": None, "observation": None}[env.place]
            mask = env.action_masks() if env.place == "method" else mask
            obs, _, over, _, info = env.step(policy.act(obs, deterministic, action_mask=mask))
    path = export_policy(policy, tmp_path / "policy.onnx")
    assert path.num_checked == 1000
    import onnxruntime

    names = [each.name for each in onnxruntime.InferenceSession(path.path).get_inputs()]
    assert "action_mask" in names
    if env.place != "observation":
        obs = env.reset(seed=2)[0]
        with pytest.raises(PolicyError, match="mask") as refused:
            policy.act(obs)
        wanted = 'info["action_mask"]' if env.place == "info" else 'get_wrapper_attr("action_masks")()'
        assert wanted in refused.value.fix
        model = load_model(next(tmp_path.rglob("policy.json")).parent)
        batch, mask = np.stack([obs, obs]), np.ones((2, *policy.layout.mask.shape), np.int8)
        served = model({"obs": batch, "action_mask": mask})
        assert served.tolist() == policy.act(batch, action_mask=mask).tolist()
        with pytest.raises(MlflowException, match="action_mask"):
            model(batch)
        example, outputs = _make_example(policy)
        assert model(example).tolist() == outputs[None].tolist()
        with pytest.raises(PolicyError, match="legal"):
            policy.act(obs, action_mask=np.zeros(policy.layout.mask.shape, np.int8))


LISTED = "env.wrappers=[{entry_point: 'rltune.envs.masks:LegalActions', kwargs: {key: moves, lists: true}}]"
JOINT = "env.wrappers=[{entry_point: 'rltune.envs.masks:LegalActions', kwargs: {key: action_mask, joint: true}}]"
DEPENDENT = {"form": "joint", "dependent": "true", "sizes": [2, 2]}
SPECIAL: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "dependent choices, listed": ({**DEPENDENT, "form": "listed"}, (LISTED,)),
    "dependent choices, flags": (DEPENDENT, (JOINT,)),
    "dependent choices, method": ({**DEPENDENT, "place": "method", "sizes": [2, 3, 2]}, ()),
    "an image": ({"place": "observation", "image": "true"}, ()),
    "an image and choices": ({"place": "observation", "image": "true", "sizes": [2, 3], "form": "tuple"}, ()),
}


SPECIAL_CASES = [
    pytest.param(name, algo, marks=() if (name, algo) == ("dependent choices, listed", "ppo") else pytest.mark.nightly)
    for name in SPECIAL
    for algo in ("ppo", "dqn")
]


@pytest.mark.parametrize(("name", "algo"), SPECIAL_CASES)
def test_no_illegal_action_with_dependent_choices_and_images(
    name: str, algo: str, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    kwargs, words = SPECIAL[name]
    runner = make_runner(request_of, algo, kwargs, *words)
    assert isinstance(runner.algorithm, FastAlgorithm)
    runner.train()
    runner.save(tmp_path, {"algo": algo})
    runner.stop()
    policy: Any = load_policy(tmp_path)
    for deterministic in (True, False):
        assert evaluate(policy, episodes=10, seed=0, deterministic=deterministic).lengths == (30,) * 10
    assert export_policy(policy, tmp_path / "policy.onnx").num_checked == 1000


LONG = 20_000
WAYS = {
    "sync": (),
    "async": ("env.vectorize=async", "algo.env_runners.num_envs_per_env_runner=4"),
    "env runners": ("algo.env_runners.num_env_runners=1",),
}


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn"])
def test_many_steps_have_no_illegal_action(
    algo: str, way: str, request_of: Callable[..., Any], ray_cluster: Any, tmp_path: Path
) -> None:
    kwargs: dict[str, Any] = {"place": "method", "form": "joint", "sizes": [2, 3], "dependent": "true"}
    runner = make_runner(request_of, algo, kwargs, *WAYS[way])
    assert isinstance(runner.algorithm, FastAlgorithm)
    while runner.train().env_steps < LONG:
        pass
    runner.save(tmp_path, {"algo": algo})
    runner.restore(tmp_path)
    assert runner.train().env_steps > LONG
    runner.stop()
    policy = load_policy(tmp_path)
    for deterministic in (True, False):
        assert evaluate(policy, LONG // 30, deterministic=deterministic).lengths == (30,) * (LONG // 30)


STOCK = {
    "appo": ("appo", ()),
    "impala": ("impala", ()),
    "rainbow": ("rainbow", ("algo.training.num_steps_sampled_before_learning_starts=50",)),
    "memory": ("ppo", ("++algo.rl_module.model_config.use_lstm=true",)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("kwargs", [{"place": "info"}, {"place": "observation", "form": "tuple", "sizes": [2, 3]}])
@pytest.mark.parametrize("name", STOCK)
def test_stock_rllib_takes_no_illegal_action(
    name: str, kwargs: dict[str, Any], request_of: Callable[..., Any], ray_cluster: Any, tmp_path: Path
) -> None:
    algo, words = STOCK[name]
    runner = make_runner(request_of, algo, kwargs, *words)
    assert not isinstance(runner.algorithm, FastAlgorithm)
    while runner.train().env_steps < 1000:
        pass
    runner.save(tmp_path, {"algo": algo})
    runner.stop()
    policy: Any = load_policy(tmp_path)
    for deterministic in (True, False):
        assert evaluate(policy, 20, deterministic=deterministic).lengths == (30,) * 20
    assert export_policy(policy, tmp_path / "policy.onnx").num_checked > 0


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_mask_of_ones_trains_bit_for_bit_as_without(algo: str, request_of: Callable[..., Any]) -> None:
    weights = []
    for kwargs in ({"ones": "true", "plain": "true"}, {"ones": "true"}):
        runner = make_runner(request_of, algo, kwargs, "algo.normalise=[]")
        for _ in range(3):
            runner.train()
        weights.append(runner.algorithm.loop.flat.data.clone())
        runner.stop()
    assert bool((weights[0] == weights[1]).all())


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_resumed_trial_goes_on_with_legal_actions(algo: str, request_of: Callable[..., Any], tmp_path: Path) -> None:
    runner = make_runner(request_of, algo, {"place": "info"})
    runner.train()
    runner.save(tmp_path, {"algo": algo})
    runner.stop()
    other = make_runner(request_of, algo, {"place": "info"})
    other.restore(tmp_path)
    assert other.train().env_steps > 0
    other.stop()


@pytest.mark.parametrize(
    ("algo", "place", "words"),
    [
        ("ppo", "info", ()),
        pytest.param("dqn", "observation", (), marks=pytest.mark.nightly),
        pytest.param("a2c", "method", ("env.vectorize=async",), marks=pytest.mark.nightly),
    ],
)
def test_nothing_legal_in_an_episode_is_an_error_of_its_step(
    algo: str, place: str, words: tuple[str, ...], request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_steps, "EPISODE_STEPS", 10)  # The check sees nothing of it.
    runner = make_runner(request_of, algo, {"blocked_at": 14, "place": place}, *words)

    def train() -> None:
        for _ in range(10):
            runner.train()

    with pytest.raises(GuestError, match="no legal action") as fault:
        train()
    assert "step 14 of copy" in fault.value.call + fault.value.problem
    runner.stop()


@pytest.mark.nightly
def test_nothing_legal_in_an_evaluation_or_a_film_is_an_error(request_of: Callable[..., Any], tmp_path: Path) -> None:
    runner = make_runner(request_of, "ppo", {})
    runner.save(tmp_path, {"algo": "ppo"})
    runner.stop()
    policy, blocked = load_policy(tmp_path), {"id": STRICT, "kwargs": {"blocked_at": 14}}
    with pytest.raises(GuestError, match="no legal action") as fault:
        evaluate(policy, episodes=2, env=blocked)
    assert "step 14 of copy" in fault.value.call
    result = evaluate(policy, episodes=2)
    films = film_episodes(policy, result, tmp_path / "films")
    assert [film.episode_return for film in films] == [result.max, min(result.returns), result.min]
    with pytest.raises(GuestError, match="no legal action"):
        film_episodes(policy, result, tmp_path / "others", env=blocked)


def test_dqn_learns_the_legal_action_beside_a_huge_value(request_of: Callable[..., Any]) -> None:
    """The next state's illegal action would be the best one for ever, and its value that of all others."""
    words = ["algo.training.epsilon=0.3", "algo.training.gamma=0.5", "algo.training.dueling=false"]
    runner = make_runner(request_of, "dqn", {"id": TRAP}, *words, "algo.training.target_network_update_freq=50")
    module = runner.algorithm.learner_module
    with torch.no_grad():
        for head in (module.af, module._target_af):
            list(head.parameters())[-1][2] += 1000.0
    for _ in range(8):
        runner.train()
    rows = torch.tensor([[1.0, 0.0, 1, 1, 0], [0.0, 1.0, 1, 1, 0]])
    with torch.no_grad():
        values = module.compute_q_values({"obs": rows})["qf_preds"]
    assert values.argmax(1).tolist() == [1, 0]
    assert values[:, :2].abs().max() < 5.0
    assert (values[:, 2] == ILLEGAL).all()
    runner.stop()
