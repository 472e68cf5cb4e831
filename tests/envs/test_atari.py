"""Standard Atari: the wrappers of its env files, and ale-py's vector environment in their place."""

from __future__ import annotations

import numpy as np
import pytest

from rltune.algorithms.rllib_env import Creator
from rltune.compose.composing import conf_dir
from rltune.envs.build import is_plain, make_training_env
from rltune.envs.episode import RECORD
from rltune.envs.spec import spec_of
from rltune.envs.validation import check_env


def test_atari_gives_rows_of_four_grey_images():
    """Atari gives four grey images, one byte a pixel."""
    pytest.importorskip("ale_py")
    import yaml

    raw = yaml.safe_load((conf_dir() / "env" / "breakout.yaml").read_text())
    spec = spec_of({key: value for key, value in raw.items() if key != "name"})
    facts = check_env(spec)
    env = make_training_env(spec, view=False)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4 * 84 * 84,)
    assert obs.dtype == np.uint8
    assert make_training_env(spec).reset(seed=0)[0].dtype == np.float32
    assert not is_plain(spec, facts)


@pytest.mark.slow
@pytest.mark.parametrize("fire", [False, True])
def test_the_native_atari_vector_gives_what_the_wrappers_give(fire):
    pytest.importorskip("ale_py")
    import yaml

    from rltune.envs.atari import make_native_atari

    raw = yaml.safe_load((conf_dir() / "env" / "breakout.yaml").read_text())
    raw["wrappers"][0]["kwargs"] |= {"noop_max": 0}  # the number of no-ops comes from another generator
    if not fire:
        del raw["wrappers"][1]
    spec = spec_of({key: value for key, value in raw.items() if key != "name"})
    together, single = make_native_atari(spec, 2), make_training_env(spec, view=False)
    assert together.single_observation_space == single.observation_space
    assert together.single_action_space == single.action_space
    seen, obs = together.reset(seed=5)[0][0], single.reset(seed=5)[0]
    if fire:  # pressed for one frame there, for a step of four here: the ball is elsewhere, the wall is not
        wall = (4, 84, 84)
        assert (seen.reshape(wall)[:, :40] == obs.reshape(wall)[:, :40]).mean() > 0.95
        together.close()
        return
    assert (seen == obs).all()
    rng, ended = np.random.default_rng(0), False
    while not ended:
        action = int(rng.integers(4)) if rng.random() < 0.5 else 1
        frames, rewards, terminated, truncated, infos = together.step(np.array([action, 0]))
        obs, reward, over, cut, info = single.step(action)
        assert (frames[0] == obs).all()
        assert (rewards[0], terminated[0], truncated[0]) == (reward, over, cut)
        ended = over or cut
    assert infos[RECORD][0] == info[RECORD]
    assert (together.step(np.array([1, 0]))[0][0] == single.reset()[0]).all(), "begun anew, whatever the action"
    together.close()


def test_frames_of_any_size_are_whole_rows():
    pytest.importorskip("ale_py")
    import yaml

    from rltune.envs.atari import make_native_atari

    raw = yaml.safe_load((conf_dir() / "env" / "breakout.yaml").read_text())
    raw["wrappers"][0]["kwargs"] |= {"noop_max": 0, "screen_size": 51}
    raw["wrappers"] = [each for each in raw["wrappers"] if "Fire" not in each["entry_point"]]
    raw["wrappers"][-1]["kwargs"] = {"stack_size": 3}
    spec = spec_of({key: value for key, value in raw.items() if key != "name"})
    together, single = make_native_atari(spec, 2), make_training_env(spec, view=False)
    assert together.single_observation_space == single.observation_space
    assert (together.reset(seed=5)[0][0] == single.reset(seed=5)[0]).all()
    assert (together.step(np.array([1, 0]))[0][0] == single.step(1)[0]).all()
    together.close()


def test_only_standard_atari_is_sampled_natively():
    """The engine samples standard atari natively and anything else singly."""
    pytest.importorskip("ale_py")
    import yaml

    from rltune.envs.atari import StandardAtari

    raw = yaml.safe_load((conf_dir() / "env" / "pong.yaml").read_text())
    raw.pop("name")
    native = Creator(spec_of(raw)).together(3)
    assert isinstance(native, StandardAtari)
    assert native.num_envs == 3
    native.close()
    other = [*raw["wrappers"], {"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 9}}]
    for change in (
        {"wrappers": other},
        {"rewards": {"normalise": True}},
        {"restarts": 3},
        {"encode": {"observations": "flat"}},
        {"kwargs": {"frameskip": 1, "mode": 1}},
        {"id": "CartPole-v1", "wrappers": [], "kwargs": {}},
    ):
        assert Creator(spec_of(raw | change)).together(3) is None
