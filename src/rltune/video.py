"""Episodes of a policy as MP4 files: the best, the median and the worst of an evaluation, played again and filmed.

Needs no display. Runs anywhere; the encoder is the extra ``video``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rltune import bundle_reader, environment, team
from rltune.errors import PolicyError
from rltune.policy import Evaluation, environment_of
from rltune.restored import Restored

FPS = 30  # where the environment does not say


@dataclass(frozen=True)
class Film:
    """One episode's file.

    Attributes:
        path: The MP4.
        which: best, median or worst.
        seed: The environment's.
        episode_return: As it was played for the film.
    """

    path: Path
    which: str
    seed: int
    episode_return: float


def check() -> None:
    """Whether films can be made here.

    Raises:
        PolicyError: The encoder is not installed.
    """
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise PolicyError(
            "video=true needs imageio-ffmpeg, which is not installed",
            "the extra 'video', or video=false",
            "pip install 'rltune[video]'",
        )


def check_policy(policy: Any) -> None:
    """Whether its episodes can be played a second time, which is when they are filmed.

    Raises:
        PolicyError: They cannot.
    """
    team.one_agent(policy, "video=true")
    if isinstance(policy, Restored):
        raise PolicyError(
            "video=true: RLlib's parts, which this policy needs, do not play an episode a second time alike",
            "policies that act without RLlib: those of PPO, DQN, SAC, TQC and BC",
            "video=false",
        )


def film(policy: bundle_reader.Policy, result: Evaluation, folder: Path, seed: int = 0, env: Any = None) -> list[Film]:
    """Play the best, the median and the worst episode of an evaluation again, and film them.

    Args:
        policy: As it was evaluated: deterministic.
        result: The evaluation.
        folder: Where to; made if missing.
        seed: The evaluation's.
        env: The evaluation's.

    Raises:
        PolicyError: The encoder is missing, or the environment cannot draw itself.
    """
    check()
    check_policy(policy)
    for name in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):  # pygame would look for a sound card and a screen
        os.environ.setdefault(name, "dummy")
    folder.mkdir(parents=True, exist_ok=True)
    order = np.argsort(result.returns, kind="stable")
    chosen = {"best": order[-1], "median": order[(len(order) - 1) // 2], "worst": order[0]}
    films = []
    for which, episode in chosen.items():
        path = folder / f"{which}-seed-{seed + episode}.mp4"
        films.append(Film(path, which, int(seed + episode), _shoot(policy, env, int(seed + episode), path)))
    return films


def _shoot(policy: bundle_reader.Policy, env: Any, seed: int, path: Path) -> float:
    """Play and encode one episode; frame by frame, so that a long one needs no memory."""
    import imageio_ffmpeg

    spec = environment_of(policy, env)
    try:
        stage = environment.make(spec, render_mode="rgb_array")
    except Exception as error:  # an environment raises whatever it likes
        raise _cannot_draw(spec["id"], error) from error
    total = [0.0]
    try:
        frames = _frames(policy, stage, seed, total)
        try:
            first = next(frames)
        except Exception as error:
            raise _cannot_draw(spec["id"], error) from error
        height, width = first.shape[:2]
        fps = stage.metadata.get("render_fps") or FPS
        draft = path.with_name(f".{path.name}")
        # Players want even sizes; one that is not is padded by ffmpeg, not scaled.
        pad = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
        writer = imageio_ffmpeg.write_frames(
            str(draft), (width, height), fps=fps, macro_block_size=1, output_params=[*pad, "-f", "mp4"]
        )
        writer.send(None)
        writer.send(first)
        for frame in frames:
            writer.send(frame)
        writer.close()
        draft.replace(path)
    finally:
        stage.close()
    return total[0]


def _frames(policy: bundle_reader.Policy, stage: Any, seed: int, total: list[float]) -> Iterator[np.ndarray]:
    """What is seen of one episode; its return is added up in ``total``."""
    obs, _ = stage.reset(seed=seed)
    state: Any = None
    started, ended = True, False
    yield _image(stage)
    while not ended:
        action, state = policy.predict(obs, state, np.array([started]), deterministic=True)
        started = False
        obs, reward, terminated, truncated, _ = stage.step(action[()] if np.ndim(action) == 0 else action)
        total[0] += float(reward)
        ended = bool(terminated or truncated)
        yield _image(stage)


def _image(stage: Any) -> np.ndarray:
    image = stage.render()
    if not isinstance(image, np.ndarray) or image.ndim != 3:
        raise TypeError(f"render() gives {type(image).__name__}, no picture")
    return np.ascontiguousarray(image, dtype=np.uint8)


def _cannot_draw(name: str, error: Exception) -> PolicyError:
    return PolicyError(
        f"env={name} cannot be filmed: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}",
        "an environment that renders with render_mode='rgb_array', and the packages that it draws with",
        "pip install 'rltune[video]', or video=false",
    )
