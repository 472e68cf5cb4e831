"""Films of a policy: of the right episodes, whole, and playable."""

from __future__ import annotations

from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from test_bundle import runner_of

from rltune import bundle, video
from rltune.errors import PolicyError
from rltune.policy import evaluate


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    bundle.write(runner_of(PPOConfig(), "CartPole-v1").module, folder, info={"env": {"id": "CartPole-v1"}})
    return bundle.load(folder)


def test_best_median_and_worst_episode_are_filmed_as_they_were_evaluated(cartpole, tmp_path: Path) -> None:
    result = evaluate(cartpole, episodes=5, seed=40)
    films = {film.which: film for film in video.film(cartpole, result, tmp_path / "videos", seed=40)}
    wanted = {"best": result.max, "median": float(np.median(result.returns)), "worst": result.min}
    assert {which: film.episode_return for which, film in films.items()} == wanted
    for film in films.values():
        frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(film.path))
        assert frames == film.episode_return + 1  # CartPole pays 1 a step; the first frame is the reset
        assert seconds == pytest.approx(frames / 50, abs=0.1)
        assert b"avc1" in film.path.read_bytes()  # H.264, which every browser plays


def test_an_environment_that_cannot_draw_is_named(cartpole, tmp_path: Path) -> None:
    result = evaluate(cartpole, episodes=1)
    with pytest.raises(PolicyError, match="env=NoSuch-v0 cannot be filmed"):
        video.film(cartpole, result, tmp_path, env="NoSuch-v0")


def test_a_missing_encoder_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"pip install 'rltune\[video\]'"):
        video.check()
