"""Film the best, median and worst episodes of a policy's evaluation as MP4 files.

Gymnasium's RecordVideo is not used: it holds an episode's frames in memory (an Atari game's 27,000 are 2.7 GB), leaves
odd sizes that browsers do not play, and needs moviepy, which does not take this Pillow. Needs no display. Runs
anywhere; the encoder is the extra ``video``.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rltune.config.capabilities import list_algos
from rltune.envs.build import make_env, make_restarting
from rltune.envs.closing import close_env
from rltune.envs.episode import was_cut
from rltune.envs.guest import call_guest
from rltune.envs.objective import Objective
from rltune.envs.spaces import to_python
from rltune.envs.spec import spec_of
from rltune.envs.step_count import read_reward
from rltune.errors import GuestError, PolicyError, describe_exception
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.evaluation import environment_of, find_step_limit, make_generator, seed_globally
from rltune.policies.policy import AnyPolicy, make_mask_reader, require_single_agent
from rltune.policies.result import Evaluation
from rltune.policies.rllib_policy import RLlibPolicy

MAX_NAME = 200  # Longer names are cut at their front, because file systems have a limit.
FPS = 30  # The frame rate if the environment's metadata names none.
# Frames are padded to even sizes, because video players refuse odd widths and heights.
PAD = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]

MIN_SIDE = 160
"""Frames with a shorter side are enlarged by a whole number, since some environments draw one pixel for each field."""


@dataclass(frozen=True)
class Film:
    """The video file of one episode.

    Attributes:
        which: best, median or worst.
        episode_return: As it was played for the film.
    """

    path: Path
    which: str
    seed: int
    episode_return: float


def check_filmable(policy: AnyPolicy, env: str | Mapping[str, Any] | None = None) -> None:
    """Refuse an environment that cannot render frames, or a missing encoder, before any episode is played.

    Args:
        env: As for `rltune.policies.evaluation.evaluate`.

    Raises:
        PolicyError: The encoder is missing, the policy does not play an episode a second time alike, or the
            environment cannot draw itself.
    """
    with _open_stage(environment_of(_require_player(policy), env)):
        pass


def _require_player(policy: AnyPolicy) -> BundlePolicy:
    """Return the policy, which is one that can be filmed, and refuse others, or a missing encoder."""
    if not all(importlib.util.find_spec(package) for package in ("imageio", "imageio_ffmpeg")):
        raise PolicyError(
            "needs imageio[ffmpeg], which is not installed",
            "the extra 'video', or video=false",
            "pip install 'rltune[video]'",
            key="video",
            value=True,
        )
    if isinstance(policy, RLlibPolicy):
        raise PolicyError(
            ": this policy needs RLlib, which cannot repeat an episode for the film",
            f"policies that act without RLlib: those of {list_algos(lambda row: row.network, 'and')}",
            "video=false",
            key="video",
            value=True,
        )
    return require_single_agent(policy, "video=true")


def film_episodes(
    policy: AnyPolicy,
    result: Evaluation,
    folder: Path,
    seed: int = 0,
    env: str | Mapping[str, Any] | None = None,
) -> list[Film]:
    """Replay the best, median and worst episode of an evaluation, and film each.

    Args:
        policy: As it was evaluated.
        folder: The folder of all films; each policy, and each evaluation of it, gets a folder of its own in it.
        seed: The evaluation's.
        env: The evaluation's.

    Raises:
        PolicyError: As for `check_filmable`.
        GuestError: The environment has raised, and may not be made again.
    """
    player = _require_player(policy)
    spec, info = environment_of(player, env), player.info
    folder = folder / name_films(info, spec["id"], range(seed, seed + len(result.returns)))
    direction = Objective.from_settings(spec.get("objective") or {}).direction
    ordered = np.argsort(direction.sign * np.asarray(result.returns), kind="stable").tolist()
    order = [episode for episode in ordered if episode not in result.unscored]
    chosen = {"best": order[-1], "median": order[(len(order) - 1) // 2], "worst": order[0]}
    films = []
    with _open_stage(spec) as stage:
        folder.mkdir(parents=True, exist_ok=True)
        for which, episode in chosen.items():
            path = folder / f"{which}-seed-{seed + episode}.mp4"
            step_limit = spec_of(spec).step_limit
            episode_return = _film_episode(player, stage, step_limit, result.deterministic, seed + episode, path)
            films.append(Film(path, which, seed + episode, episode_return))
    return films


def name_films(info: Mapping[str, Any], env_id: str, seeds: range) -> Path:
    """Name the folder of a policy's films, relative to that of all; no name in the policy's files leads out of it."""
    parts = {key: info[key] for key in ("trial", "seed") if info.get(key) is not None}
    owner = [] if "trial" in parts else [info.get("run")]  # The baseline has no number, and its run has a name.
    who = [info.get("sweep") or "policy", *filter(None, owner), *(f"{key}-{value}" for key, value in parts.items())]
    names = ("-".join(map(str, who)), f"{env_id}-seeds-{seeds[0]}-{seeds[-1]}")
    return Path(*(re.sub(r"[^A-Za-z0-9_.]+", "-", name)[-MAX_NAME:].lstrip(".") or "policy" for name in names))


def _film_episode(
    policy: BundlePolicy, stage: Any, step_limit: int, deterministic: bool, seed: int, path: Path
) -> float:
    """Replay and encode one episode frame by frame, without keeping its frames in memory; return its return."""
    from imageio.v2 import get_writer

    draft = path.with_name(f".{path.name}")
    with seed_globally(seed), call_guest(f"reset, step or render of the episode of seed {seed}"):
        limit = find_step_limit(stage, step_limit)
        reader = make_mask_reader(policy, stage)
        fps = stage.metadata.get("render_fps") or FPS
        is_whole = False
        while not is_whole:
            total, length, state, over, info, rng = 0.0, 0, None, False, {}, make_generator(seed)
            writer: Any = get_writer(
                draft, "FFMPEG", fps=fps, pixelformat="yuv420p", macro_block_size=1, output_params=PAD
            )
            with writer as mp4:
                obs, info = stage.reset(seed=seed)
                begins = np.array([True])
                mp4.append_data(_draw_frame(stage))
                while not over:
                    mask = reader and reader.read(obs, info)
                    action, state = policy.predict(obs, state, begins, deterministic, rng, mask)
                    obs, reward, terminated, truncated, info = stage.step(to_python(stage.action_space, action))
                    over = terminated or truncated or length + 1 >= limit
                    if truncated and was_cut(info):  # The copy has failed and was made again (env.restarts).
                        break
                    mp4.append_data(_draw_frame(stage))
                    total, length, begins = total + read_reward(reward), length + 1, np.array([False])
            is_whole = not was_cut(info)
    draft.replace(path)
    return total


@contextmanager
def _open_stage(spec: Mapping[str, Any]) -> Iterator[Any]:
    """Build an environment that renders frames without a screen, and close it at the end of the context.

    Raises:
        PolicyError: It cannot draw itself.
    """
    # Without these variables, pygame would look for a screen and a sound card.
    for name in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):
        os.environ.setdefault(name, "dummy")
    with ExitStack() as stack:
        try:
            stage = make_restarting(spec_of(spec), partial(make_env, spec, render_mode="rgb_array"))
            stack.callback(close_env, stage)
            stage.reset(seed=0)
            _draw_frame(stage)
        except Exception as error:  # The environment is a user's code, which may raise any exception.
            cause = error.__cause__ if isinstance(error, GuestError) else error
            is_lacking = isinstance(cause, ImportError | gymnasium.error.DependencyNotInstalled)
            raise PolicyError(
                f"cannot be filmed: {describe_exception(error)[:200]}",
                "an environment that takes render_mode='rgb_array' and whose render() returns an array then",
                "pip install 'rltune[video]', or video=false" if is_lacking else "video=false, or correct its render()",
                key="env",
                value=spec["id"],
            ) from error
        yield stage


def _draw_frame(stage: Any) -> np.ndarray:
    image = stage.render()
    if not isinstance(image, np.ndarray) or image.ndim != 3:
        raise TypeError(f"render() gives {type(image).__name__}, no picture")
    factor = math.ceil(MIN_SIDE / min(image.shape[:2]))
    return image.repeat(factor, 0).repeat(factor, 1) if factor > 1 else image
