"""Why an environment cannot be made, in words that say what to type."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltune.envs.constructors import read_parameters
from rltune.envs.rllib_agents import BASE
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError
from tests.support import rllib_team


class Walk(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, True, False, {}


class Rows(Walk):
    def __init__(self, rows: int, columns: int, colours: list[str]) -> None:
        self.parts = rows, columns, colours


class Frame(Walk):
    def __init__(self, frame: Any, window: int = 10) -> None:
        assert frame is not None


class Config(Walk):
    def __init__(self, env_config) -> None:  # type: ignore[no-untyped-def]
        self.length = env_config.get("length", 16)


class Typed(Walk):
    def __init__(self, where: Mapping[str, Any]) -> None:
        assert dict(where) == {}


class Repeat(Walk):
    def __init__(self, repeat: int = 1) -> None: ...


class Handing(Repeat):
    def __init__(self, size: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Any_(Walk):
    def __init__(self, **kwargs: Any) -> None:
        if kwargs:
            raise TypeError("no arguments today")


class Away(Walk):
    def __init__(self, port: int = 5000) -> None:
        raise ConnectionRefusedError(f"the simulator is not running on port {port}")


class Reading(Walk):
    def __init__(self, weather: Any = None, folder: str = "") -> None:
        open(weather["file"] if isinstance(weather, dict) else f"{folder}/weather.csv").close()


class Table(Walk):
    def __init__(self, weather: str, kind: str = "a") -> None:
        np.loadtxt(weather)


class Lost(Walk):
    def __init__(self, value: str) -> None:
        raise FileNotFoundError("there is no display: start Xvfb")


class Outer(Walk):
    def __init__(self, inner: str) -> None:
        self.inner = gym.make(inner)


class Wrong(Walk):
    def __init__(self) -> None:
        len(3)  # type: ignore[arg-type]


class OwnSpec(Walk):
    @property
    def spec(self) -> None:  # type: ignore[override]
        return None


class Plain:
    pass


def make_plain() -> Plain:
    return Plain()


def make_sized(size: int, kind: str = "a") -> Walk:
    return Walk()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = dict(gym.registry)
    for cls in (
        Walk,
        Rows,
        Frame,
        Config,
        Typed,
        Repeat,
        Handing,
        Any_,
        Away,
        Reading,
        Table,
        Lost,
        Outer,
        Wrong,
        Plain,
        make_plain,
        make_sized,
    ):
        gym.register(f"{cls.__name__}-v0", entry_point=cls)
    gym.register("Half-v0", entry_point=Rows, kwargs={"rows": 2, "columns": 2})
    gym.register("Bound-v0", entry_point=functools.partial(make_sized, kind="b"))
    yield
    gym.registry.clear()
    gym.registry.update(before)


def refuse(name: str, **kwargs: Any) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(f"{name}-v0", kwargs=kwargs))
    return refused.value


@pytest.mark.parametrize(
    ("name", "kwargs", "fix"),
    [
        ("Frame", {}, "+env.kwargs.frame=..."),
        ("Frame", {"window": 3}, "+env.kwargs.frame=..."),
        ("Config", {}, "'+env.kwargs.env_config={}'"),
        ("Typed", {}, "'+env.kwargs.where={}'"),
        ("Rows", {}, "'env.kwargs={rows: ..., columns: ..., colours: ...}'"),
        ("Rows", {"rows": 2}, "'env.kwargs={rows: 2, columns: ..., colours: ...}'"),
        ("Half", {}, "+env.kwargs.colours=..."),
        ("make_sized", {}, "+env.kwargs.size=..."),
        ("Bound", {}, "+env.kwargs.size=..."),
    ],
)
def test_a_missing_argument_is_named_with_what_to_type(name: str, kwargs: dict[str, Any], fix: str) -> None:
    refused = refuse(name, **kwargs)
    assert (refused.key, refused.fix) == ("env.id", fix)
    assert "entry_point" in refused.allowed


@pytest.mark.parametrize(("name", "kwargs"), [("Config", {"env_config": {}}), ("Typed", {"where": {}})])
def test_the_typed_argument_makes_the_environment(name: str, kwargs: dict[str, Any]) -> None:
    check_env(EnvSpec(f"{name}-v0", kwargs=kwargs))


@pytest.mark.parametrize(
    ("name", "kwargs", "fix"),
    [
        ("Repeat", {"repeet": 3}, "+env.kwargs.repeat=3 in its place; ~env.kwargs.repeet leaves it out"),
        ("Repeat", {"zzz": 3}, "~env.kwargs.zzz"),
        ("Handing", {"repeet": 3}, "+env.kwargs.repeat=3 in its place; ~env.kwargs.repeet leaves it out"),
        ("Walk", {"size": 1}, "~env.kwargs.size"),
        ("make_sized", {"size": 1, "kindd": "b"}, "+env.kwargs.kind=b in its place; ~env.kwargs.kindd leaves it out"),
    ],
)
def test_an_unknown_argument_is_named_with_those_there_are(name: str, kwargs: dict[str, Any], fix: str) -> None:
    refused = refuse(name, **kwargs)
    assert refused.key == f"env.kwargs.{[*kwargs][-1]}"
    assert refused.fix == fix
    assert "creator" not in refused.what, "these are the constructor's own words"


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("Away", {}, "ConnectionRefusedError: the simulator is not running on port 5000 (test_constructors.py, line"),
        ("Away", {"port": 1}, "is not running on port 1 (test_constructors.py, line"),
        ("Wrong", {}, "TypeError: object of type 'int' has no len() (test_constructors.py, line"),
        ("Any_", {"a": 1}, "TypeError: no arguments today (test_constructors.py, line"),
        ("Outer", {"inner": "Absent-v0"}, "NameNotFound: Environment `Absent` doesn't exist"),
        ("Outer", {"inner": "absent/Walk-v0"}, "NamespaceNotFound: Namespace absent not found."),
    ],
)
def test_a_constructors_own_error_is_shown_with_its_line(name: str, kwargs: dict[str, Any], words: str) -> None:
    refused = refuse(name, **kwargs)
    assert words in refused.what
    assert "python -c" in refused.fix


def test_the_typed_command_shows_where_a_constructor_fails(tmp_path: Path) -> None:
    (tmp_path / "away.py").write_text(
        "import gymnasium as gym\n"
        "class Away(gym.Env):\n    def __init__(self, host='x'):\n        raise OSError(f'nobody at {host}')\n"
        "gym.register('Away-v0', entry_point=Away)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(ConfigError) as refused:
            check_env(EnvSpec("away:Away-v0", kwargs={"host": "it's"}))
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("away", None)
    typed = refused.value.fix.partition("; ")[2].removesuffix(" shows where it fails").replace("python", sys.executable)
    done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, capture_output=True, text=True)
    assert 'away.py", line 4' in done.stderr


@pytest.mark.parametrize(("name", "fix"), [("Plain", "class Plain(gymnasium.Env): in tests.envs"), ("make_plain", "")])
def test_what_is_no_environment_names_its_base_class(name: str, fix: str) -> None:
    refused = refuse(name)
    assert "does not derive from gymnasium.Env" in refused.what
    assert refused.fix.startswith(fix)
    assert "gymnasium.Env" in refused.fix


@pytest.mark.parametrize("maker", [OwnSpec, lambda: OwnSpec()])
def test_an_environment_that_gymnasium_refuses_for_what_it_does_is_one(maker: Any) -> None:
    gym.register("Refused-v0", entry_point=maker)
    refused = refuse("Refused")
    assert "AttributeError" in refused.what
    assert "derive" not in str(refused)


def test_an_environment_of_the_old_gym_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = type("Env", (), {"__module__": "gym.core"})
    gym.register("Old-v0", entry_point=type("Old", (old,), {"__module__": "walk"}))
    assert "old gym" in refuse("Old").fix


WRAPPED = {"entry_point": "rltune.envs.rewards:SummedReward", "kwargs": {"weights": [1, 1]}}


@pytest.mark.parametrize("wrappers", [(), (WRAPPED,)])
def test_a_path_without_its_file_names_argument_and_folder(
    wrappers: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Reading-v0", {"weather": {"file": "weather.csv"}}, wrappers))
    assert (refused.value.key, refused.value.value) == ("env.kwargs.weather.file", "weather.csv")
    assert str(tmp_path) in refused.value.what
    assert refused.value.fix.startswith("+env.kwargs.weather.file=/")
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Reading-v0", {"folder": str(tmp_path)}, wrappers))
    assert refused.value.key == "env.id"
    assert "numpy.array" not in refused.value.fix


def test_a_file_that_a_library_does_not_name_is_the_argument_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Table-v0", {"kind": "b", "weather": "data/rain.csv"}))
    assert (refused.value.key, refused.value.value) == ("env.kwargs.weather", "data/rain.csv")
    assert str(tmp_path) in refused.value.what


@pytest.mark.parametrize("value", ["1.5", "sim.local", "x" * 300 + ".y"])
def test_an_argument_is_no_missing_file_that_the_error_does_not_name(value: str) -> None:
    refused = refuse("Lost", value=value)
    assert (refused.key, refused.value) == ("env.id", "Lost-v0")
    assert "start Xvfb" in refused.what


@pytest.mark.parametrize("base", [("pettingzoo.utils.env", "ParallelEnv"), BASE])
@pytest.mark.parametrize(
    ("env_id", "registers"),
    [
        ("crowd:Crowd", None),
        ("Crowd-v0", lambda made: made),
        ("Crowd-v0", lambda made: lambda size=3: made()),
        ("crowd:Crowd", lambda made: made),
        ("crowd:Crowd", lambda made: lambda size=3: made()),
    ],
)
def test_several_agents_are_made_by_the_file_for_them(
    base: tuple[str, str], env_id: str, registers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = type("Crowd", (type(base[1], (), {"__module__": base[0]}),), {"__module__": "crowd"})
    module = types.ModuleType("crowd")
    vars(module)["Crowd"] = made
    monkeypatch.setitem(sys.modules, "crowd", module)
    if registers:
        entry = gym.envs.registration.EnvSpec("Crowd-v0", entry_point=registers(made))
        monkeypatch.setitem(gym.registry, "Crowd-v0", entry)
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert (refused.value.key, refused.value.fix) == ("env.id", "env=pettingzoo env.id=crowd:Crowd")


def test_rllibs_several_agents_that_gymnasium_makes_are_refused_before_a_wrapper_is_made() -> None:
    gym.register("Leaving-v0", entry_point=lambda: rllib_team.Leaving({}))
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Leaving-v0", wrappers=({"entry_point": "gymnasium.wrappers:FlattenObservation"},)))
    assert refused.value.fix == "env=pettingzoo env.id=tests.support.rllib_team:Leaving"


def test_arguments_that_are_handed_on_are_known() -> None:
    assert read_parameters(Walk) == ((), {}, False)
    assert read_parameters(Handing) == (("size", "repeat"), {}, False)
    assert read_parameters(Any_) == ((), {}, True)
