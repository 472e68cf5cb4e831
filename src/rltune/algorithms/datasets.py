"""Record episodes of a trained policy as a dataset, and read datasets for offline algorithms such as BC and CQL.

A dataset is a Parquet file with one row per step and the columns ``episode``, ``obs``, ``action``, ``reward``,
``terminated``, ``truncated`` and ``next_obs``. Observations are what networks see, and actions what they choose
(`rltune.envs.spaces`). `rltune.algorithms.offline_data` feeds it to RLlib.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rltune.envs.actions import ActionParts
from rltune.envs.build import make_restarting
from rltune.envs.closing import close_env
from rltune.envs.episode import was_cut
from rltune.envs.guest import call_guest
from rltune.envs.observations import make_layout, make_view
from rltune.envs.spaces import read_actions, to_python
from rltune.envs.spec import spec_of
from rltune.envs.step_count import read_reward
from rltune.errors import ConfigError, PolicyError
from rltune.formatting import spell_command
from rltune.policies.evaluation import find_step_limit, make_generator
from rltune.policies.policy import make_mask_reader
from rltune.policies.result import explain_cut

COLUMNS = ("episode", "obs", "action", "reward", "terminated", "truncated", "next_obs")


def record_episodes(policy: Any, path: Path, episodes: int, seed: int, deterministic: bool | None) -> dict[str, Any]:
    """Play episodes with a policy and write their steps to a Parquet file, a dataset for the offline algorithms.

    One in which the environment fails is played again from its seed, if ``env.restarts`` has its copy made again. One
    that does not end within `rltune.policies.evaluation.find_step_limit` steps is truncated there.

    Args:
        policy: The policy, as `rltune.load_policy` returns it.
        path: The file to write; its folder is created.
        seed: The seed of the first episode; the next episode has the next seed.
        deterministic: False samples the actions, which covers more of the environment; None: as the policy acts.

    Returns:
        ``steps`` (the number of steps of all episodes), ``return_mean`` (undiscounted) and ``cut`` (which episodes did
        not end by themselves, in words; empty if all did).

    Raises:
        PolicyError: The file exists.
        GuestError: The environment has raised, and may not be made again.
    """
    if path.exists():
        raise PolicyError(
            "exists", "a file of its own for each dataset", f"out={path.with_stem('data-2')}", key="out", value=path
        )
    spec = spec_of(policy.info["env"])
    with call_guest("make"):
        env = make_restarting(spec, policy.env)
    actions = read_actions(env.action_space, joint=True)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    limit, cut, episode = find_step_limit(env, spec.step_limit), [], 0
    while episode < episodes:
        with call_guest(f"reset or step of the episode of seed {seed + episode}"):
            rows, is_cut, is_whole = _play_episode(policy, env, actions, episode, seed + episode, deterministic, limit)
        if not is_whole:
            continue
        for row in rows:
            for name, value in zip(COLUMNS, row, strict=True):
                columns[name].append(value)
        if is_cut:
            cut.append(seed + episode)
        episode += 1
    close_env(env)
    table = pa.table({name: np.array(columns[name]).tolist() for name in COLUMNS})
    metadata = {"env": policy.info.get("env"), "spaces": policy.spaces, "episodes": episodes}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Mode 0600: only the current user may read the dataset.
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        pq.write_table(table.replace_schema_metadata({"rltune": json.dumps(metadata)}), file)
    return {
        "steps": float(len(columns["reward"])),
        "return_mean": sum(columns["reward"]) / episodes,
        "cut": explain_cut(cut, episodes, limit),
    }


def _play_episode(
    policy: Any, env: Any, actions: ActionParts, episode: int, seed: int, deterministic: bool | None, limit: int
) -> tuple[list[tuple[Any, ...]], bool, bool]:
    """Play one episode; return its rows, whether it was cut at the limit, and whether no failure has cut it."""
    rows: list[tuple[Any, ...]] = []
    (obs, info), state, done, is_cut = env.reset(seed=seed), None, False, False
    rng, reader = make_generator(seed), make_mask_reader(policy, env)
    layout = make_layout(env.observation_space, spec_of(policy.info["env"]).encode)
    while not done:
        mask = {"action_mask": reader.read(obs, info)} if reader else {}
        action, state = policy.predict(obs, state, deterministic=deterministic, rng=rng, **mask)
        following, reward, terminated, truncated, info = env.step(to_python(env.action_space, action))
        if truncated and was_cut(info):  # The copy has failed and was made again (env.restarts).
            return rows, False, False
        if len(rows) + 1 >= limit and not (terminated or truncated):
            truncated = is_cut = True
        seen, then = (np.ravel(make_view(env.observation_space, layout, each)) for each in (obs, following))
        chosen = np.ravel(action if actions.is_identity else actions.encode(action))
        rows.append((episode, seen, chosen, read_reward(reward), terminated, truncated, then))
        obs, done = following, terminated or truncated
    return rows, is_cut, True


def check_dataset(path: str | Path) -> dict[str, Any]:
    """Check that a file is a recorded dataset, and return its metadata: env, spaces and number of episodes.

    Raises:
        ConfigError: The file does not exist, or is not a dataset.
    """
    key = "algo.offline_data.input_"
    fix = spell_command("record policy=sweep:latest out=outputs/data.parquet")
    if not Path(path).is_file():
        raise ConfigError(key, path, ": no such file", f"a dataset as {spell_command('record')} writes it", fix)
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(key, path, f": {error}", f"a dataset as {spell_command('record')} writes it", fix) from None
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise ConfigError(key, path, f"has no column {missing[0]}", ", ".join(COLUMNS), fix)
    metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(b"rltune", b"{}"))
    return metadata


def read_episodes(path: str | Path) -> dict[str, np.ndarray]:
    """Read a recorded dataset as arrays with one row for each environment step.

    Raises:
        ConfigError: As for `check_dataset`.
    """
    check_dataset(path)
    table = pq.read_table(path)
    return {name: np.array(table[name].to_pylist()) for name in COLUMNS}
