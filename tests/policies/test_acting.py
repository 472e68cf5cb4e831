"""A policy acts by sampling where its best action is worse, and what it was compared on counts for nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from saved import open_checkpoint, write_checkpoint

from rltune.certification.finalists import EVALUATION_SEED, SCORE_SEED, derive_own_seed, derive_run_seed
from rltune.checkpoints.store import open_store
from rltune.policies import acting
from rltune.policies.acting import choose_acting, describe_acting, read_acting, save_acting
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.evaluation import evaluate
from rltune.policies.policy import load_policy
from tests.policies.bundles import BOX, write_linear

SAMPLED = {"deterministic": False, "episodes": 20, "deterministic_mean": -200.0, "sampled_mean": -12.0, "cut": 0}
Q = {"kind": "q", "dueling": False, "atoms": 1, "epsilon": 0.5}


class Corridor(gymnasium.Env):
    """All places look alike, and the middle one swaps the actions (Sutton & Barto 2018, example 13.1)."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pay=-1.0):
        self.pay = pay

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        right = (action == 1) != (self.place == 1)
        self.place = self.place + 1 if right else max(0, self.place - 1)
        return np.zeros(4, np.float32), self.pay, self.place == 3, False, {}


gymnasium.register("ShortCorridor-v0", Corridor, max_episode_steps=200)
gymnasium.register("EndlessCorridor-v0", Corridor)


def write_policy(folder: Path, env: dict[str, Any] | None = None, **more: Any) -> Path:
    """A policy to which both actions are worth the same: the best one is always the first."""
    write_linear(folder / "policy", BOX, {"id": "ShortCorridor-v0"} | (env or {}), **more)
    return folder


class Silent(Corridor):
    """Only the info of an episode's last step says what the episode is worth."""

    def step(self, action):
        obs, reward, over, truncated, _ = super().step(action)
        return obs, reward, over, truncated, {"score": 1.0} if over else {}


gymnasium.register("SilentCorridor-v0", Silent)


def test_sampling_wins_where_cut_episodes_have_no_score(tmp_path: Path) -> None:
    objective = {"kind": "info", "key": "score", "direction": "max"}
    env = {"id": "SilentCorridor-v0", "objective": objective, "evaluation_steps": 300}
    decision = choose_acting(write_policy(tmp_path, env), [1.0, 1.0])
    assert decision is not None
    assert (decision["deterministic"], decision["deterministic_mean"], decision["sampled_mean"]) == (False, None, 1.0)
    assert "max_episode_steps" in describe_acting(decision)


def test_sampling_wins_where_the_best_action_never_arrives(tmp_path: Path) -> None:
    decision = choose_acting(write_policy(tmp_path), [-12.0, -9.0, -15.0])
    assert decision is not None
    assert decision["deterministic"] is False
    assert decision["deterministic_mean"] == -200
    assert -30 < decision["sampled_mean"] < -4


def test_episodes_without_an_end_are_cut_and_named(tmp_path: Path) -> None:
    env = {"id": "EndlessCorridor-v0", "evaluation_steps": 100}
    decision = choose_acting(write_policy(tmp_path, env), [-12.0, -9.0, -15.0])
    assert decision is not None
    assert (decision["deterministic_mean"], decision["cut"]) == (-100, 20)
    assert "max_episode_steps" in describe_acting(decision)


def test_a_cost_is_better_the_lower_it_is(tmp_path: Path) -> None:
    objective = {"kind": "return", "direction": "min"}
    env = {"kwargs": {"pay": 1.0}, "objective": objective}
    assert choose_acting(write_policy(tmp_path / "cost", env), [12.0, 9.0, 15.0]) is not None
    assert choose_acting(write_policy(tmp_path / "score", {"kwargs": {"pay": 1.0}}), [12.0, 9.0, 15.0]) is None


@pytest.mark.parametrize(
    ("scores", "head", "played"),
    [
        ([-200.0, -200.0, -200.0], None, [True]),  # Not worse than training.
        ([-190.0, -250.0, -100.0], None, [True]),  # Worse within the errors of both means.
        ([-100.0, -110.0, -90.0], Q, []),  # Values are no distribution.
        ([], None, []),  # A checkpoint without training episodes, as of an offline algorithm.
    ],
)
def test_others_act_deterministically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[float], head: Any, played: list[bool]
) -> None:
    ways = []

    def spy(*arguments: Any, **named: Any) -> Any:
        ways.append(named["deterministic"])
        return evaluate(*arguments, **named)

    monkeypatch.setattr("rltune.policies.evaluation.evaluate", spy)
    assert choose_acting(write_policy(tmp_path, **({"head": head} if head else {})), scores) is None
    assert ways == played


def test_sampling_that_is_no_better_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training was better by chance, or by other weights."""
    monkeypatch.setattr(Corridor, "step", lambda self, action: (np.zeros(4, np.float32), -1.0, False, False, {}))
    assert choose_acting(write_policy(tmp_path), [-12.0, -9.0, -15.0]) is None


def test_no_number_that_is_shown_comes_from_these_episodes() -> None:
    names = [f"sweep-{index}" for index in range(1000)]
    latest = max(EVALUATION_SEED, *map(derive_own_seed, names), *(derive_run_seed(name, 100, 1000) for name in names))
    assert latest + 100_000 < acting.FIRST_SEED
    assert acting.FIRST_SEED + acting.NUM_EPISODES < SCORE_SEED < 2**31 - 100_000


def test_the_way_of_acting_is_saved_with_the_policy(tmp_path: Path) -> None:
    saved = write_checkpoint(tmp_path, "trials/0", "best", {"env_steps": 100, "objective": -12.0}, write_policy)
    before = open_checkpoint(tmp_path, saved)
    assert before is not None
    assert read_acting(before) is None
    record = save_acting(open_store(tmp_path), saved, SAMPLED)
    folder = open_checkpoint(tmp_path, record)
    assert folder is not None
    assert (record.objective, record.env_steps, record.path != saved.path) == (-12.0, 100, True)
    assert read_acting(folder) == SAMPLED
    policy, old = load_policy(folder, trust=True), load_policy(before, trust=True)
    assert (policy.deterministic, old.deterministic) == (False, True)
    assert "sampled" in repr(policy)
    assert "sampled" not in repr(old)
    rows = np.zeros((1000, 4))
    assert 0.4 < policy.act(rows, rng=0).mean() < 0.6
    assert set(policy.act(rows, deterministic=True)) == set(old.act(rows)) == {0}
    assert evaluate(policy, 10) == evaluate(policy, 10, deterministic=False) != evaluate(policy, 10, deterministic=True)
    assert not evaluate(policy, 10).deterministic


def test_policies_of_several_agents_act_alike(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        for name in ("left", "right"):
            write_linear(folder / "policy" / "policies" / name, BOX)
        description = {"format": 1, "owners": {"left_0": "left", "right_0": "right"}}
        (folder / "policy" / "policy.json").write_text(json.dumps(description))

    saved = write_checkpoint(tmp_path, "trials/0", "best", {"env_steps": 100, "objective": -12.0}, fill)
    folder = open_checkpoint(tmp_path, save_acting(open_store(tmp_path), saved, SAMPLED))
    assert folder is not None
    team = load_policy(folder)
    assert not team.deterministic
    rows = np.zeros((100, 4))
    assert all(len(set(actions)) == 2 for actions in team.act({"left_0": rows, "right_0": rows}).values())


def test_an_episode_of_sampled_actions_can_be_played_again(tmp_path: Path) -> None:
    """Alone, and beside others."""
    policy = BundlePolicy.load(write_policy(tmp_path) / "policy")
    returns = evaluate(policy, 40, seed=5, deterministic=False).returns
    assert [evaluate(policy, 1, seed=5 + index, deterministic=False).returns[0] for index in range(40)] == list(returns)
    assert len(set(returns)) > 5
