"""Films of a policy: of the right episodes, whole, and playable."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import imageio.v2
import imageio_ffmpeg
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig

from rltune.envs.build import make_env
from rltune.errors import PolicyError
from rltune.policies import video
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.bundle_writer import write_bundle
from rltune.policies.evaluation import evaluate
from rltune.policies.video import check_filmable, film_episodes, name_films
from tests.policies.rllib_modules import runner_of


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    write_bundle(runner_of(PPOConfig(), "CartPole-v1").module, folder, info={"env": {"id": "CartPole-v1"}})
    return BundlePolicy.load(folder)


@pytest.mark.slow
def test_best_median_and_worst_are_filmed_as_they_were_evaluated(
    cartpole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, stages = evaluate(cartpole, episodes=5, seed=40), []

    def make_stage(*given, **named):
        stages.append(make_env(*given, **named))
        return stages[-1]

    monkeypatch.setattr(video, "make_env", make_stage)
    films = {film.which: film for film in film_episodes(cartpole, result, tmp_path / "videos", seed=40)}
    wanted = {"best": result.max, "median": float(np.median(result.returns)), "worst": result.min}
    assert {which: film.episode_return for which, film in films.items()} == wanted
    assert len(stages) == 1, "all films show one copy"
    for film in films.values():
        frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(film.path))
        assert frames == film.episode_return + 1  # CartPole pays 1 a step; the first frame is the reset
        assert seconds == pytest.approx(frames / 50, abs=0.1)
        assert b"avc1" in film.path.read_bytes()  # H.264, which every browser plays


@pytest.mark.slow
def test_sampled_episodes_are_filmed_as_they_were_evaluated(cartpole, tmp_path: Path) -> None:
    result = evaluate(cartpole, episodes=5, seed=40, deterministic=False)
    films = {film.which: film.episode_return for film in film_episodes(cartpole, result, tmp_path, seed=40)}
    assert films == {"best": result.max, "median": float(np.median(result.returns)), "worst": result.min}


def test_an_environment_that_cannot_draw_is_named(cartpole, tmp_path: Path) -> None:
    result = evaluate(cartpole, episodes=1)
    with pytest.raises(PolicyError, match="env=NoSuch-v0"):
        film_episodes(cartpole, result, tmp_path, env="NoSuch-v0")


def test_what_cannot_be_filmed_is_refused_before_playing(cartpole, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolicyError, match="env=NoSuch-v0"):
        check_filmable(cartpole, "NoSuch-v0")
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"rltune\[video\]"):
        check_filmable(cartpole)


def test_an_environment_that_fails_without_a_word_is_named_too(cartpole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "_draw_frame", lambda stage: next(iter([])))
    with pytest.raises(PolicyError, match=r"env=CartPole-v1 .*StopIteration"):
        check_filmable(cartpole)


@pytest.mark.parametrize(("error", "fix"), [(TypeError, "video=false"), (ModuleNotFoundError, "pip install")])
def test_only_a_missing_package_is_advised_to_install(cartpole, monkeypatch, error: type, fix: str) -> None:
    monkeypatch.setattr(video, "_draw_frame", lambda stage: (_ for _ in ()).throw(error("render")))
    with pytest.raises(PolicyError) as refused:
        check_filmable(cartpole)
    assert refused.value.fix.startswith(fix)


@pytest.mark.slow
def test_films_of_another_policy_or_evaluation_lie_apart(cartpole, tmp_path: Path) -> None:
    def folder_of(first: int, env: str | None = None) -> str:
        result = evaluate(cartpole, episodes=2, seed=first, env=env)
        films = film_episodes(cartpole, result, tmp_path, seed=first, env=env)
        assert {path.name for path in films[0].path.parent.iterdir()} == {film.path.name for film in films}
        return str(films[0].path.parent.relative_to(tmp_path))

    cartpole.info |= {"sweep": "cartpole-ppo-ab12", "trial": 7, "seed": 3}
    assert folder_of(0) == "cartpole-ppo-ab12-trial-7-seed-3/CartPole-v1-seeds-0-1"
    assert folder_of(5, "CartPole-v0") == "cartpole-ppo-ab12-trial-7-seed-3/CartPole-v0-seeds-5-6"
    cartpole.info["trial"] = 8
    assert folder_of(0) == "cartpole-ppo-ab12-trial-8-seed-3/CartPole-v1-seeds-0-1"


@pytest.mark.fast
def test_films_of_a_baseline_have_its_name() -> None:
    info = {"sweep": "first", "trial": None, "run": "baseline-seed-2", "seed": 11}
    assert name_films(info, "CartPole-v1", range(2)).parts[0] == "first-baseline-seed-2-seed-11"


@pytest.mark.fast
@pytest.mark.parametrize("sweep", ["../../../escaped", "/escaped", "..", "a/../..", "\x00", "x" * 300, 7])
def test_no_name_leads_a_film_out_of_its_folder(sweep: str, tmp_path: Path) -> None:
    for info in ({"sweep": sweep}, {"trial": sweep}, {"seed": sweep}, {"sweep": sweep, "trial": "/.."}):
        for env_id in ("CartPole-v1", "..", "/x"):
            folder = tmp_path / "films" / name_films(info, env_id, range(3))
            folder.mkdir(parents=True, exist_ok=True)
            assert folder.resolve().parent.parent == (tmp_path / "films").resolve()


class Board:
    """Draws one pixel for each field of a board of 5 x 7."""

    def render(self) -> np.ndarray:
        return np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


@pytest.mark.fast
def test_a_board_of_few_pixels_is_enlarged() -> None:
    frame = video._draw_frame(Board())
    assert frame.shape == (160, 224, 3)
    assert (frame[::32, ::32] == Board().render()).all()


class OddlySized(gymnasium.Wrapper):
    """Draws pictures of 399 x 599 pixels, and takes nothing but Python ints, as in training."""

    def step(self, action):
        assert type(action) is int
        return self.env.step(action)

    def render(self):
        return self.env.render()[:-1, :-1]


@pytest.mark.slow
def test_an_odd_size_is_padded_so_that_players_take_it(cartpole, tmp_path: Path) -> None:
    env = {"id": "CartPole-v1", "kwargs": {}, "wrappers": [{"entry_point": f"{__name__}:OddlySized"}]}
    films = film_episodes(cartpole, evaluate(cartpole, episodes=1, env=env), tmp_path, env=env)
    with imageio.v2.get_reader(films[0].path) as reader:
        assert reader.get_meta_data()["size"] == (600, 400)


@pytest.mark.slow
def test_the_best_episode_of_a_cost_is_the_least(cartpole, tmp_path: Path) -> None:
    env = {"id": "CartPole-v1", "kwargs": {}, "objective": {"kind": "return", "direction": "min"}}
    result = evaluate(cartpole, episodes=4, env=env)
    films = {film.which: film.episode_return for film in film_episodes(cartpole, result, tmp_path, env=env)}
    assert (films["best"], films["worst"]) == (min(result.returns), max(result.returns))
    assert films["best"] < films["worst"]
