"""The judge of the search's defaults: pools are read as they are meant, and strategies score as they must."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks import defaults, judge
from benchmarks.intervals import RUNS, bound_mean
from benchmarks.judge import STRATEGIES, Case, RayHalving, Replay, Strategy, rank_as_ray, replay, view_as_ray
from benchmarks.judge_pool import Pool, read_pools
from rltune.records import Report, TrialForSampler, TrialRecord
from rltune.search.schedulers import GoOn, Stop

pytestmark = [pytest.mark.fast, pytest.mark.nightly]
STEPS = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """64 configurations of 10 seeds and 5 points: the return rises with lr, and one run in a hundred diverges."""
    rng = np.random.default_rng(0)
    rates = 10 ** rng.uniform(-5, -1, 64)
    targets = rng.random(64) < 0.5
    configurations: list[dict[str, Any]] = [
        {"lr": float(rate), "clip": float(rng.random()), "target": bool(on), "tau": float(rng.random()) if on else ""}
        for rate, on in zip(rates, targets, strict=True)
    ]
    worth = 100 + 20 * np.log10(rates)
    curves = worth[:, None, None] * np.linspace(0.2, 1, 5) + rng.normal(0, 2, (64, 10, 5))
    curves[0, 0], curves[1, 0, 2:] = -1e21, np.nan
    write(tmp_path, {"ppo_cc_toy": curves}, {"ppo_cc_toy": {"env_steps": STEPS, "configurations": configurations}})
    return tmp_path


def write(folder: Path, curves: dict[str, Any], configurations: dict[str, Any]) -> None:
    np.savez(folder / "curves.npz", **{name: value.astype(np.float32) for name, value in curves.items()})
    with gzip.open(folder / "configurations.json.gz", "wt") as file:
        json.dump(configurations, file)


@pytest.fixture
def pool(folder: Path) -> Pool:
    (only,) = read_pools(folder)
    return only


def test_the_space_is_read_from_the_configurations(pool: Pool) -> None:
    dimensions = {one.name: one for one in pool.space.dimensions}
    assert {name: one.kind for name, one in dimensions.items()} == {
        "lr": "loguniform",
        "clip": "uniform",
        "target": "choice",
        "tau": "uniform",
    }
    assert dimensions["tau"].when == {"target": (True,)}
    assert pool.marks == (200, 400, 600, 800, 1000)


def test_a_diverged_run_costs_a_configuration_no_more_than_the_best_one_gains(pool: Pool) -> None:
    assert pool.score(int(pool.worth.argmax())) == 1
    assert pool.curves[0, 0].min() > -100, "-1e21 is not taken as a return"
    assert np.isnan(pool.curves[1, 0, 2:]).all()
    assert min(pool.score(one) for one in range(64)) > -2


def test_a_configuration_is_the_nearest_to_itself_and_is_tried_once(pool: Pool) -> None:
    for index in range(64):
        assert pool.nearest(pool.drawn[index], []) == index
        assert pool.nearest(pool.drawn[index], [index]) != index


def test_what_matters_decides_which_configuration_is_the_most_like_a_proposal(pool: Pool) -> None:
    """Only lr matters: a proposal far away on the other axes is still the configuration of its lr."""
    rates = np.array([one["lr"] for one in pool.configurations])
    index = int(np.argsort(rates)[32])
    proposal = {**pool.drawn[index], "clip": 1 - pool.drawn[index]["clip"]}
    plain = replace(pool, is_plain=True)
    ranks = np.argsort(np.argsort(rates))
    assert abs(ranks[pool.nearest(proposal, [])] - 32) <= 1
    assert abs(ranks[plain.nearest(proposal, [])] - 32) > 3
    likeness = pool.measure_likeness()
    assert likeness["stretched"] > max(0.95, likeness["plain"])


def test_all_strategies_spend_the_same_with_certification_and_baseline(pool: Pool) -> None:
    for slots in (1, 4):
        strategy = Strategy({"kind": "random"}, {"kind": "none"}, replicates=2, is_certified=True)
        sweep = Replay(pool, strategy, cost=40, slots=slots, seed=0)
        sweep.choose()
        points = sum(len(record.reports) for record in sweep.records) * strategy.replicates
        assert points == pytest.approx((40 - 2 * 3) * 5, abs=2 * slots * 5), (
            "three seeds of the winner and the baseline"
        )
        assert sweep.spent == pytest.approx(40, abs=2 * slots)


def test_a_number_of_trials_is_replayed_exactly(pool: Pool) -> None:
    sweep = Replay(pool, STRATEGIES["defaults"], cost=None, slots=1, seed=0, num_trials=24)
    sweep.choose()
    assert len(sweep.records) == 24


def test_ray_stops_reports_and_ranks_as_ray_tune_does(pool: Pool) -> None:
    rule = RayHalving(1000, {"grace_fraction": 0.1, "reduction_factor": 4})
    assert isinstance(rule.decide(Report(0, 200, 5.0)), GoOn), "there is nothing to compare the first trial with"
    assert isinstance(rule.decide(Report(1, 200, 4.0)), Stop), "Ray compares the second one already"
    assert isinstance(rule.decide(Report(2, 200, 6.0)), GoOn)
    stopped = TrialRecord(1, "PRUNED", {}, {200: 4.0})
    assert view_as_ray(stopped, None) == TrialForSampler("COMPLETE", 4.0, {})
    assert rank_as_ray(stopped) == 4.0
    sweep = Replay(pool, STRATEGIES["ray"], cost=20, slots=1, seed=0)
    chosen = sweep.choose()
    highest = max(sweep.records, key=lambda record: list(record.reports.values())[-1])
    assert pool.configurations[chosen] == highest.params
    assert any(record.state == "PRUNED" for record in sweep.records)


def test_what_knows_more_scores_higher(pool: Pool) -> None:
    few, tried, spent = np.mean(replay(pool, STRATEGIES["random"], Case("pool", 2, 1, 20), 2), axis=0)
    many, _, _ = np.mean(replay(pool, STRATEGIES["random"], Case("pool", 40, 1, 20), 40), axis=0)
    assert few < many - 0.1
    assert many > 0.8
    assert (tried, spent) == pytest.approx((2, 2))


def test_a_pool_without_more_configurations_is_seen_in_what_was_spent(pool: Pool) -> None:
    _, tried, spent = np.mean(replay(pool, STRATEGIES["random"], Case("pool", 100, 1, 2), 100), axis=0)
    assert (tried, spent) == pytest.approx((64, 64), abs=1)


@pytest.mark.parametrize("sizes", [(4, 4), (6, 6), (10, 5), (6,), (12,)])
def test_an_interval_of_few_values_holds_in_95_percent(sizes: tuple[int, ...]) -> None:
    """A percentile bootstrap, which the tables had before, holds less often."""
    rng, num_draws = np.random.default_rng(1), 4000
    bounds = [bound_mean(*(RUNS["normal"](rng, size) for size in sizes)) for _ in range(num_draws)]
    assert sum(each.low <= 0 <= each.high for each in bounds) > 0.94 * num_draws


def test_intervals_are_those_of_student_and_welch() -> None:
    ours, theirs = [12.0, 14.0, 13.0, 13.5], [10.0, 11.0, 9.0]
    of_one = stats.ttest_1samp(ours, 0).confidence_interval(0.95)
    of_two = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert bound_mean(ours)[1:] == pytest.approx((of_one.low, of_one.high))
    assert bound_mean(ours, theirs) == pytest.approx((3.125, of_two.low, of_two.high))
    assert bound_mean([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.5, 0.5)
    assert bound_mean([1.0]) == (1.0, -np.inf, np.inf)


def test_real_sweeps_are_shown_with_their_losses() -> None:
    """What older defaults lost stays in the table, and the file's own values are those of the same sweeps."""

    def make_rows(arm: str, commit: str, scores: list[float], **more: Any) -> list[dict[str, Any]]:
        rows = [
            {"case": "toy", "arm": arm, "commit": commit, "seed": seed, "certified": score, "baseline": score - 1}
            for seed, score in enumerate(scores)
        ]
        return [row | {"cost": {"env_steps": 1000}} | more for row in rows]

    rows = make_rows("defaults", "c2", [12.0, 14.0, 13.0, 13.0])
    rows += make_rows("portfolio=off", "c2", [10.0, 11.0, 9.0, 10.0])
    rows += make_rows("ppo before", "c1", [20.0, 21.0, 19.0, 20.0])
    rows += make_rows("defaults", "c1", [5.0, 6.0, 4.0, 5.0], older=True)
    rows[0]["baseline"] = None
    lines = [line.strip("| ").split(" | ") for line in defaults.table({"results": rows}).splitlines()[2:]]
    assert [line[4] for line in lines] == ["13", "10", "20", "5"]
    assert [line[5].split(" ")[0] for line in lines] == ["", "+3", "", ""]
    assert [line[6].split(" ")[0] for line in lines] == ["-7", "-10", "", "-15"]
    assert [line[7] for line in lines] == [f"{own} (3 of 4 sweeps)" for own in ("12.3", "9", "19", "4")]


def test_the_files_own_values_count_whoever_tried_them() -> None:
    configurations = [{"name": "baseline", "trial": 0, "median": 7.0}, {"name": "trial 3", "trial": 3, "median": None}]
    summary = {"certified": {"configurations": configurations}}
    assert defaults.read_certified(summary) == {"certified": 7.0, "baseline": 7.0}


def test_the_table_shows_the_lead_of_the_defaults() -> None:
    facts = {"tried": 9, "spent": 8}
    strategies = {
        "defaults": {**facts, "pairs": {"a": 0.9, "b": 0.7, "c": 0.8}},
        "random": {**facts, "pairs": {"a": 0.6, "b": 0.6, "c": 0.6}},
    }
    part = {"over": "pool", "cost": 48, "size": "48", "slots": 1, "repetitions": 7, "strategies": strategies}
    rows = judge.table({"results": [part], "likeness": {"toy": {"plain": 0.1, "stretched": 0.2}}}).splitlines()
    assert "| defaults | 0.800 [0.552, 1.048] | 0.720 |  | 7 | 9 |" in rows[2]
    assert "| random | 0.600 [0.600, 0.600] | 0.600 | +0.200 [-0.048, +0.448] | 7 | 9 |" in rows[3]


@pytest.mark.slow
def test_the_command_writes_what_is_asked_of_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "judge.json"
    words = ["judge", "--data", str(folder), "--repetitions", "2", "--cost", "32", "--beside", "1"]
    only = "random,ray,defaults"
    monkeypatch.setattr("sys.argv", [*words, "--json", str(path), "--only", only])
    judge.main()
    record = json.loads(path.read_text())
    assert record["results"][0]["strategies"].keys() == set(only.split(","))
    assert [
        (part["over"].split()[0], part["cost"], part["num_trials"], part["slots"], part["repetitions"])
        for part in record["results"]
    ] == [
        ("pool", 32, None, 1, 2),
        ("pool", None, judge.SETTINGS["budget"]["trials"], 1, 1),
        ("pool", 16, None, 1, 1),
        ("pool", 64, None, 1, 1),
        ("pool", 32, None, 4, 1),
        ("all", 32, None, 1, 1),
        ("surrogate", 32, None, 1, 1),
    ]
    as_typed = record["results"][1]["strategies"]
    assert as_typed["random"]["spent"] == pytest.approx(as_typed["defaults"]["spent"], abs=1)
    assert "--data FOLDER" in record["command"]
    assert "| pool | 32 | 1 | defaults |" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["judge", "--data", str(tmp_path / "absent")])
    with pytest.raises(SystemExit):
        judge.main()
    assert "curves.npz" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*words, "--cost", "10"])
    with pytest.raises(SystemExit):
        judge.main()
    assert "--cost=10" in capsys.readouterr().err
