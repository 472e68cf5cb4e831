"""What a built environment tells without a step: wrappers, the time limit, metadata, source."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from rltune.envs.inspection import digest_sources
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError
from tests.envs.walk import Walk, check, refuse

# -- Statistics that nobody keeps -------------------------------------------------------------------------------------


class OwnNormalising(gymnasium.wrappers.NormalizeObservation):
    """A subclass of the user's."""


class Fixed(gymnasium.wrappers.NormalizeObservation):
    """Statistics that were measured once, and stay."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.update_running_mean = False


class Inside(Walk):
    """An environment that plays another one, in Gymnasium's wrapper."""

    def __init__(self) -> None:
        self.games = {"one": [gymnasium.wrappers.NormalizeReward(Walk())]}
        self.inner = self.games["one"][0]

    def reset(self, **kwargs: Any) -> Any:
        return self.inner.reset(**kwargs)

    def step(self, action: Any) -> Any:
        return self.inner.step(action)


def wrapped(*names: str) -> tuple[dict[str, str], ...]:
    return tuple({"entry_point": name} for name in names)


@pytest.mark.parametrize(
    ("made", "wrappers", "key", "part"),
    [
        (Walk, wrapped("NormalizeReward"), "env.wrappers", "rewards"),
        (Walk, wrapped("gymnasium.wrappers:NormalizeObservation", "NormalizeReward"), "env.wrappers", "rewards"),
        (Walk, wrapped(f"{__name__}:OwnNormalising"), "env.wrappers", "observations"),
        (lambda: gymnasium.wrappers.NormalizeObservation(Walk()), (), "env.id", "observations"),
        (lambda: Inside(), (), "env.id", "rewards"),
        (Inside, wrapped("RecordEpisodeStatistics"), "env.id", "rewards"),
    ],
)
def test_running_statistics_of_wrappers_are_refused(made, wrappers, key, part):
    refusal = refuse(made, wrappers=wrappers)
    assert refusal.key == key or refusal.what.startswith(f"{key}:")
    assert f"algo.normalise=[{part}]" in refusal.fix


def test_wrappers_that_an_id_registers_are_looked_at(monkeypatch):
    registered = gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1")).spec
    monkeypatch.setitem(gymnasium.registry, "Wrapped-v0", registered)
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Wrapped-v0"))
    assert refused.value.key == "env.id"


def test_fixed_transformations_are_taken():
    assert check(wrappers=wrapped(f"{__name__}:Fixed")).notes == ()
    assert check(lambda: gymnasium.wrappers.TransformReward(Walk(), lambda reward: reward / 10)).notes == ()


# -- Facts ------------------------------------------------------------------------------------------------------------


def limited(steps: int, made: Any = Walk) -> Any:
    return gymnasium.wrappers.TimeLimit(made(), steps)


class Hosting(Walk):
    """Holds another environment, which has a limit."""

    def __init__(self) -> None:
        self.game = limited(7)


class OldSpec(Walk):
    """Keeps something of its own where Gymnasium keeps its specification."""

    def __init__(self) -> None:
        self.game = Walk(spec={"board": 3})
        self.limited = gymnasium.wrappers.TimeLimit(self.game, 6)


@pytest.mark.parametrize(
    ("made", "spec", "limit"),
    [
        (Walk, {}, None),
        (Walk, {"kwargs": {"max_episode_steps": 9}}, 9),
        (Walk, {"wrappers": ({"entry_point": "TimeLimit", "kwargs": {"max_episode_steps": 5}},)}, 5),
        (lambda: limited(8), {"kwargs": {"max_episode_steps": 9}}, 8),
        (Hosting, {}, 7),
        (OldSpec, {}, 6),
    ],
)
def test_the_time_limit_is_that_of_all_wrappers(made, spec, limit):
    assert check(made, **spec).time_limit == limit


class Rendered(Walk):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 24, "autoreset_mode": object(), 3: np.int64(3)}  # noqa: RUF012


def test_metadata_are_what_json_has():
    assert check(Rendered).metadata == {"render_modes": ["rgb_array"], "render_fps": 24}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A module of the user's whose environment takes its physics from another one."""
    (tmp_path / "said_physics.py").write_text("GRAVITY = 9.8\n")
    (tmp_path / "said_rover.py").write_text(
        "import said_physics\nfrom tests.envs.walk import Walk\nclass Rover(Walk): g = said_physics.GRAVITY\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("said_physics", "said_rover"):
        sys.modules.pop(name, None)


def test_a_digest_follows_the_files_of_an_environment(project):
    import said_rover  # type: ignore[import-not-found]

    first = digest_sources(said_rover.Rover())
    assert {"said_rover", "said_physics"} <= set(first)
    assert not {"numpy", "abc", "rltune", "rltune.envs.spaces", "gymnasium.core", "__main__"} & set(first)
    (project / "said_physics.py").write_text("GRAVITY = 1.6\n")
    again = digest_sources(said_rover.Rover())
    assert [name for name in first if again[name] != first[name]] == ["said_physics"]
    (project / "said_physics.py").unlink()
    assert "said_physics" not in digest_sources(said_rover.Rover())


def test_an_installed_environment_has_a_digest_of_its_class():
    env = gymnasium.make("CartPole-v1")
    assert "gymnasium.envs.classic_control.cartpole" in digest_sources(env)
