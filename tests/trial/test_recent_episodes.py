"""Which episodes a report is the mean of."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rltune.envs.episode import EpisodeRecord
from rltune.trial.recent_episodes import RecentEpisodes, explain_no_episode, read_training_scores


def episode(total: float, length: int = 10) -> EpisodeRecord:
    return EpisodeRecord(total, length, -total)


def test_those_that_ended_in_the_last_steps_count() -> None:
    recent = RecentEpisodes(1000)
    for env_steps in range(500, 5001, 500):
        recent.add(env_steps, [episode(env_steps)] * 4)
    assert recent.summarize()["return_mean"] == pytest.approx((4500 + 5000) / 2)
    assert recent.summarize()["score"] == pytest.approx(-(4500 + 5000) / 2)


def test_long_episodes_are_counted_back_to_the_fifth() -> None:
    """However long ago it ended; before five have ended, all of them."""
    recent = RecentEpisodes(1000)
    means = []
    for number in range(1, 9):
        recent.add(10_000 * number, [episode(number, 10_000)])
        recent.add(10_000 * number + 5000, [])
        means.append(recent.summarize()["return_mean"])
    assert means == [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0]


def test_an_iteration_longer_than_the_window_counts_as_a_whole() -> None:
    recent = RecentEpisodes(100)
    recent.add(4096, [episode(0)] * 40)
    recent.add(8192, [episode(1), episode(5)] * 20)
    assert recent.summarize() == {
        "return_mean": 3.0,
        "return_min": 1,
        "return_max": 5,
        "score": -3.0,
        "episode_length_mean": 10.0,
        "episode_length_max": 10.0,
        "recent_episodes": 40,
        "scored_episodes": 40,
        "metrics": {},
        "episodes_with": {},
    }


def test_metrics_are_means_over_the_episodes_of_the_score() -> None:
    recent = RecentEpisodes(100, ["success", "a.b"])
    recent.add(100, [EpisodeRecord(0.0, 1, 0.0, metrics=(9.0, 9.0))] * 5)
    recent.add(300, [EpisodeRecord(1.0, 1, 1.0, metrics=(float(i % 2), math.nan)) for i in range(10)])
    recent.add(310, [EpisodeRecord(cut=True)])
    again = RecentEpisodes(100, ["success", "a.b"])
    again.load(json.loads(json.dumps(recent.state())))
    for each in (recent, again):
        summary = each.summarize()
        assert summary["metrics"]["episode/success"] == 0.5
        assert math.isnan(summary["metrics"]["episode/a/b"])
        assert summary["episodes_with"] == {"episode/success": 10, "episode/a/b": 0}
        assert summary["recent_episodes"] == 10


def test_episodes_without_a_score_are_left_out_and_counted(tmp_path: Path) -> None:
    recent = RecentEpisodes(100)
    recent.add(10, [EpisodeRecord(1.0, 1, score) for score in (1.0, math.nan, 3.0)])
    summary = recent.summarize()
    assert (summary["score"], summary["scored_episodes"], summary["recent_episodes"]) == (2.0, 2, 3)
    (tmp_path / "episodes.json").write_text(json.dumps({"recent": recent.state(), "evaluated": 0}))
    assert read_training_scores(tmp_path) == [1.0, 3.0]
    recent = RecentEpisodes(100)
    recent.add(10, [EpisodeRecord(1.0, 1, math.nan)])
    assert math.isnan(recent.summarize()["score"])


def test_an_episode_that_a_failure_has_cut_counts_nowhere() -> None:
    recent = RecentEpisodes(100)
    recent.add(10, [episode(3.0), episode(1000.0)._replace(cut=True, restarts=1)])
    assert recent.summarize()["return_mean"] == recent.summarize()["return_max"] == 3.0


def test_nothing_is_known_before_the_first_end() -> None:
    recent = RecentEpisodes(100)
    recent.add(5000, [])
    assert recent.summarize() == {}


def test_restored_episodes_are_dropped_when_the_others_would_be() -> None:
    first, second = RecentEpisodes(1000), RecentEpisodes(1000)
    first.add(600, [episode(1.0)] * 3)
    first.add(900, [episode(2.0)] * 6)
    second.load(json.loads(json.dumps(first.state())))
    for env_steps in (1500, 1700, 2500):
        for recent in (first, second):
            recent.add(env_steps, [episode(env_steps)])
        assert second.state() == first.state()
        assert second.summarize() == first.summarize()
    assert [at for at, *_ in first.state()] == [900, 900, 1500, 1700, 2500]


def test_episodes_in_the_window_are_a_fair_sample() -> None:
    """Half of them take 20 steps and return 20, half take 1000 and return 1000: no more short ones than there are."""
    recent, now, ends = RecentEpisodes(5000), 0, []
    for env in range(16):
        lengths = [20, 1000] if env % 2 else [1000, 20]
        at = env * 60
        while at < 20_000:
            for length in lengths:
                at += length
                ends.append((at * 16, length))
    for at, length in sorted(ends):
        now = max(now, at)
        if 250_000 < at <= 300_000:
            recent.add(at, [EpisodeRecord(length, length, length)])
    assert recent.summarize()["return_mean"] == pytest.approx(510, abs=130)


def test_only_sampled_episodes_are_training_scores(tmp_path: Path) -> None:
    recent = RecentEpisodes(100.0)
    recent.add(10, [EpisodeRecord(1.0, 5, 2.0), EpisodeRecord(3.0, 5, 4.0)])
    assert read_training_scores(tmp_path) == []
    for evaluated, scores in ((0, [2.0, 4.0]), (10, [])):
        (tmp_path / "episodes.json").write_text(json.dumps({"recent": recent.state(), "evaluated": evaluated}))
        assert read_training_scores(tmp_path) == scores


def test_an_episode_that_never_ended_is_explained_with_numbers() -> None:
    several, single = explain_no_episode(4000, 4), explain_no_episode(4000, 1)
    assert all(word in several for word in ("4 copies", "1,000 steps", "=100 ", "num_envs_per_env_runner=1"))
    assert "4,000 steps" in single
    assert "num_envs_per_env_runner" not in single
