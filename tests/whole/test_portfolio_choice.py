"""The curves that portfolios are chosen from, and the choice."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks import metadata, portfolio
from benchmarks.judge import STRATEGIES, Replay
from benchmarks.judge_pool import Pool
from benchmarks.metadata import MARKS, Algorithm, Dataset, Part, Trial, list_parts
from benchmarks.portfolio import Problem
from rltune.compose.composing import conf_dir
from rltune.search.space import parse_space

pytestmark = [pytest.mark.fast, pytest.mark.nightly]


@pytest.fixture
def pool() -> Pool:
    """A pair of 64 configurations, two seeds and ten points, whose return rises with the learning rate."""
    rng = np.random.default_rng(0)
    rates = 10 ** rng.uniform(-5, -1, 64)
    configurations = tuple({"learning_rate": float(rate), "gae_lambda": float(rng.random())} for rate in rates)
    curves = np.log10(rates)[:, None, None] * np.ones((64, 2, 10))
    space = parse_space({"learning_rate": ["loguniform", 1e-5, 1e-1], "gae_lambda": ["uniform", 0, 1]})
    return Pool("ppo_cc_toy", curves, tuple(range(100, 1100, 100)), configurations, space)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The names of the sweeps that are run and the number of configurations that each is given; none is trained."""
    done: list[tuple[str, int]] = []

    def run_part(part: Part, configurations: Any) -> list[Trial]:
        done.append((part.name, len(configurations)))
        score = 10.0 * part.shape
        values = configurations or [{"lr": 1e-3}, {"lr": 1e-4}]
        (metadata.WORK / "outputs" / part.name).mkdir(parents=True)
        return [(dict(each), [score + index] * MARKS, 2.0) for index, each in enumerate(values)]

    monkeypatch.setattr(metadata, "run_part", run_part)
    monkeypatch.setattr(
        metadata, "ALGORITHMS", {"ppo": Algorithm(metadata.make_shapes(2, 2), {"cc_toy": 1000}, final=2)}
    )
    return done


def test_a_collection_goes_on_where_it_stopped(
    tmp_path: Path, runs: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "WORK", tmp_path / "work")
    folder, parts = tmp_path / "curves", list(list_parts(["ppo"], []))
    metadata.collect(Dataset.read(folder), parts, 0.001)
    assert runs == [("ppo_cc_toy-0-0", 0)], "4 CPU seconds are more than a thousandth of an hour"
    metadata.collect(Dataset.read(folder), parts, 1)
    assert runs[1:] == [("ppo_cc_toy-1-0", 0), ("ppo_cc_toy-1-1", 2)], "the better half is the second shape's"
    metadata.collect(Dataset.read(folder), parts, 1)
    assert len(runs) == 3
    dataset = Dataset.read(folder)
    assert dataset.curves["ppo_cc_toy"].shape == (4, 2, MARKS)
    assert np.isnan(dataset.curves["ppo_cc_toy"][:, 1, -1]).tolist() == [True, True, False, False]
    assert dataset.pairs["ppo_cc_toy"]["env_steps"][-1] == 1000


def test_a_late_task_has_the_last_sweep_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = Algorithm(metadata.make_shapes(2, 2), {"cc_toy": 1000, "cc_new": 1000}, final=1, late=("cc_new",))
    monkeypatch.setattr(metadata, "ALGORITHMS", {"ppo": algorithm})
    names = [part.name for part in list_parts(["ppo"], [])]
    assert names[:3] == ["ppo_cc_toy-0-0", "ppo_cc_toy-1-0", "ppo_cc_new-1-0"]


def test_configurations_are_spelled_as_hydra_reads_them() -> None:
    values = {"lr": 0.0012345678, "fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", metadata.OBSERVATIONS: True}
    assert metadata.spell_values(values, [metadata.OBSERVATIONS]) == (
        '{lr:0.0012345678,fcnet_hiddens:[64, 64],fcnet_activation:"tanh"}'
    )


def test_the_choice_covers_the_tasks_and_takes_the_cheaper_of_equals() -> None:
    """Three tasks: 1 and 2 are equally good on the first two, 3 on the last alone, and 0 nowhere."""
    table = np.array([[0.0, 1.0, 1.0, -0.5], [0.0, 0.9, 0.9, 0.0], [0.1, 0.0, 0.0, 1.0]])[:, :, None]
    costs = np.array([0.0, 2.0, 1.0, 5.0])
    assert portfolio.choose_portfolio(table, costs, 2) == [2, 3]
    assert portfolio.choose_portfolio(table, -costs, 2) == [1, 3]
    assert sorted(portfolio.choose_portfolio(table, costs, 9)) == [0, 1, 2, 3], "each of them once"


def test_other_versions_and_sources_of_a_task_are_left_out() -> None:
    pairs = [
        "ppo_mujoco_hopper-v4",
        "ppo_brax_hopper",
        "ppo_cc_cartpole",
        "ppo_mujoco_walker2d",
        "ppo_cc_mountain_car",
        "ppo_cc_mountaincar_continuous",
    ]
    assert portfolio.keep_others(pairs, "ppo_mujoco_hopper-v5", "task") == [2, 3, 4, 5]
    assert portfolio.keep_others(pairs, "ppo_brax_hopper", "family") == [2, 4, 5]
    assert portfolio.keep_others(pairs, "ppo_cc_continuous_mountain_car", "task") == [0, 1, 2, 3]


def test_what_is_left_out_has_no_say_in_a_choice() -> None:
    """Configuration 0 is the best on both hoppers and useless elsewhere."""
    pairs = ["ppo_mujoco_hopper", "ppo_brax_hopper", "ppo_cc_cartpole"]
    scores = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 1.0, 0.5]])[:, :, None]
    measured = {pair: row[:, 0] for pair, row in zip(pairs, scores, strict=True)}
    every = np.arange(3)
    problem = Problem(pairs, [{}] * 3, scores, measured, 0.0 * every, {"random": every})
    assert problem.choose_without("ppo_cc_cartpole", "task", 1) == [0]
    assert problem.choose_without("ppo_mujoco_hopper", "task", 1) == [1]
    rows = problem.evaluate("task")
    assert rows["best"]["portfolio 1"] == [0, 0, -1], "of what was chosen without them"
    assert rows["best"]["random 1"] == pytest.approx([1 / 3, 1 / 3, 0.5 / 3], abs=1e-3)


def test_the_expected_best_of_random_ones_is_that_of_all_draws() -> None:
    scores = np.array([0.0, 0.1, 0.7, 1.0])
    draws = [max(pair) for pair in itertools.combinations(scores, 2)]
    assert portfolio.expect_best(scores, 2) == pytest.approx(np.mean(draws))


def test_a_second_seed_that_is_missing_is_no_diverged_run(pool: Pool) -> None:
    _, both = portfolio.measure_scores(pool)
    curves = pool.curves.copy()
    curves[:, 1] = np.nan
    _, first = portfolio.measure_scores(replace(pool, curves=curves))
    assert first.argmax(axis=0).tolist() == both.argmax(axis=0).tolist()
    curves[5] = np.nan
    assert portfolio.measure_scores(replace(pool, curves=curves))[1][5].max() < -0.9


def test_the_shipped_portfolio_is_what_the_curves_give() -> None:
    built = portfolio.build_problem("ppo")
    assert built is not None
    problem, _ = built
    written = portfolio.spell_portfolio("ppo", problem)
    assert written == (conf_dir() / "portfolio" / "ppo.yaml").read_text()
    space, in_file = portfolio.read_space("ppo")
    entries = yaml.safe_load(written)["portfolio"]
    assert 6 <= len(entries) <= portfolio.SIZE
    assert entries[0] == in_file, "the algorithm file's own values come first"
    assert all(values.keys() == in_file.keys() and space.check_values(values) for values in entries)


def test_the_judge_tries_the_portfolio_first(pool: Pool) -> None:
    first = [pool.configurations[7], pool.configurations[3]]
    sweep = Replay(pool, STRATEGIES["portfolio"], cost=12, slots=1, seed=0, first=first)
    sweep.choose()
    assert [record.params for record in sweep.records[:2]] == first
    assert len(sweep.records) > 2
