"""Which environments are refused before a sweep starts, and what the answer says."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import few_copies
import gymnasium
import knobs
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec as EnvRecord
from strict import STRICT

from rltune.envs.masks import MaskSource
from rltune.envs.searched import list_corner_envs
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env, check_envs, examine_env, qualify_id, refuse_program
from rltune.errors import Cause, ConfigError, GuestError, RltuneError

VECTOR = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
SHORT = {"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 5}}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"])
def test_the_environments_of_conf_pass(env_id):
    check_env(EnvSpec(env_id))


@pytest.mark.parametrize(
    ("env_id", "what", "fix"),
    [
        ("CartPol-v1", "doesn't exist", "env.id=CartPole-v1"),
        ("cartpole-v1", "doesn't exist", "env.id=CartPole-v1"),
        ("CartPole-v9", "v9", "env.id=CartPole-v1"),
        ("NoSuchEnv-v0", "doesn't exist", "env.id="),
        ("not an id!", "Malformed", "env.id="),
        ("gymnasium.envs:CartPol-v1", "doesn't exist", "env.id=gymnasium.envs:CartPole-v1"),
        ("nosuchmodule:X-v0", "'nosuchmodule' cannot be imported", "put nosuchmodule.py into this folder"),
        ("minigird:MiniGrid-X-v0", "No module named 'minigird'", "env.id=minigrid:MiniGrid-X-v0"),
        (":CartPole-v1", "", "env.id="),
        ("ALE/Pong-v5", "", "rltune[atari]"),
    ],
)
def test_a_wrong_id_is_answered_with_the_nearest(env_id, what, fix, monkeypatch):
    """A wrong id is answered with the nearest or with what to install."""
    for known in [name for name in gymnasium.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, known)  # of ale-py, which another test may have imported
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert (refused.value.key, refused.value.value) == ("env.id", env_id)
    assert what in refused.value.what
    assert fix in refused.value.fix


@pytest.mark.parametrize("env_id", ["Circuit-v0", "circuits:Circuit-v0"])
def test_an_id_of_an_old_plugin_names_its_function(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = EntryPoint("__root__", "circuits.__init__:register_envs", "gymnasium.envs")
    monkeypatch.setattr("rltune.envs.validation.entry_points", lambda group: [plugin])
    monkeypatch.setitem(sys.modules, "circuits", ModuleType("circuits"))
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert "from circuits import register_envs; register_envs()" in refused.value.fix
    assert "env.id=my_env:Circuit-v0" in refused.value.fix


def test_an_environment_that_a_library_has_outgrown_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return np.no_such_name

    monkeypatch.setitem(gymnasium.registry, "Old-v0", EnvRecord("Old-v0", make))
    with pytest.raises(GuestError) as refused:
        check_env(EnvSpec("Old-v0"))
    assert (refused.value.key, refused.value.value) == ("env.id", "Old-v0")
    assert f"numpy {np.__version__}" in refused.value.problem
    assert "env.kwargs" not in str(refused.value)


class Slotted(gymnasium.Env[Any, Any]):
    __slots__ = ("metadata",)


@pytest.mark.parametrize("point", [Slotted, lambda: (_ for _ in ()).throw(gymnasium.error.ResetNeeded("too early"))])
def test_a_registered_id_is_not_called_unknown(point: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Slotted-v0", EnvRecord("Slotted-v0", point))
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Slotted-v0"))
    assert (refused.value.key, refused.value.value) == ("env.id", "Slotted-v0")
    assert "env.id=" not in refused.value.fix


class Board(gymnasium.Env[Any, Any]):
    def __init__(self, rows: int, columns: int, *, colours: int, seed: int = 0) -> None:
        raise FileNotFoundError("levels.csv")


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({}, "'env.kwargs={rows: ..., columns: ..., colours: ...}'"),
        ({"columns": 4}, "'env.kwargs={columns: 4, rows: ..., colours: ...}'"),
    ],
)
def test_arguments_that_a_constructor_requires_are_listed(
    given: dict[str, Any], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gymnasium.registry, "Board-v0", EnvRecord("Board-v0", Board))
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Board-v0", given))
    assert (refused.value.key, refused.value.value, refused.value.fix) == ("env.id", "Board-v0", fix)


def test_a_constructor_without_arguments_has_its_line_named(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = {"rows": 1, "columns": 1, "colours": 1}
    monkeypatch.setitem(gymnasium.registry, "Board-v0", EnvRecord("Board-v0", Board, kwargs=registered))
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Board-v0"))
    assert (refused.value.key, refused.value.value) == ("env.id", "Board-v0")
    assert "test_validation.py, line " in refused.value.problem
    assert "env.kwargs" not in str(refused.value)


@pytest.mark.parametrize("points", [{"vector_entry_point": VECTOR}, {"entry_point": VECTOR}])
def test_an_environment_that_is_only_a_vector_is_named(points, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Many-v0", EnvRecord("Many-v0", **points))
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("Many-v0"))
    assert (refused.value.key, refused.value.value) == ("env.id", "Many-v0")
    assert "vector environment" in refused.value.problem
    assert "entry_point" in refused.value.fix


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("Ant-v5", "mujoco", "mujoco"),
        ("ale_py:ALE/Pong-v5", "ale_py", "atari"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
    ],
)
def test_a_missing_package_names_the_extra(env_id, package, extra, monkeypatch):
    """An environment whose package is missing names the extra."""
    for name in [name for name in sys.modules if name.split(".")[0] == package or "box2d" in name or "mujoco" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # what Python does with a module that cannot be found
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert f"'rltune[{extra}]'" in refused.value.fix


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {"lenght": 1.0}),
        ("FrozenLake-v1", {"map_name": "9x9"}),
        ("Pendulum-v1", {"render_mode": {"not": "a mode"}}),
    ],
)
def test_an_argument_that_the_environment_refuses_is_named(env_id, kwargs):
    """An argument that the environment refuses is named whatever it raises."""
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id, kwargs))
    assert "env.kwargs" in refused.value.what
    assert next(iter(kwargs)) in refused.value.what


@pytest.mark.parametrize(
    ("wrapper", "what"),
    [
        ("TimeLimit", "is no wrapper"),
        ({"kwargs": {}}, "is no wrapper"),
        ({"entry_point": "TimeLimit", "kwarg": {}}, "is no wrapper"),
        ({"entry_point": "nosuchmodule:Wrapper"}, "cannot import nosuchmodule:Wrapper"),
        ({"entry_point": "TimLimit"}, "cannot import TimLimit"),
        ({"entry_point": "os:system", "kwargs": {"command": "true"}}, "is no gymnasium.Wrapper"),
        ({"entry_point": "gymnasium:make"}, "is no gymnasium.Wrapper"),
        ({"entry_point": "TimeLimit"}, "max_episode_steps"),
        ({"entry_point": "TimeLimit", "kwargs": {"max_episode_steps": -3}}, "max_episode_steps"),
        ({"entry_point": "TimeLimit", "kwargs": {"max_steps": 3}}, "max_steps"),
    ],
)
def test_a_wrapper_that_cannot_be_applied_is_named(wrapper, what):
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("CartPole-v1", {}, (SHORT, wrapper)))
    assert refused.value.what.startswith("env.wrappers")
    assert what in refused.value.what


def test_a_wrapper_that_breaks_the_space_is_refused():
    """A wrapper that breaks the space is refused before anything starts."""
    broken = {"entry_point": f"{__name__}:Longer"}
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("CartPole-v1", {}, (broken,)))
    assert refused.value.what.startswith("env.wrappers")
    assert "(5,)" in refused.value.what
    assert "observation_space" in refused.value.allowed


class Longer(gymnasium.ObservationWrapper):
    """Returns more than it declares."""

    def observation(self, observation):
        return np.append(observation, np.float32(0))


class Lost(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return np.full_like(observation, np.nan)


def test_observations_that_are_no_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"observation\[0\] .*nan\n"):
        check_env(EnvSpec("CartPole-v1", {}, ({"entry_point": f"{__name__}:Lost"},)))


class Room(gymnasium.Env):
    """Observes and rewards what a test says, at the reset and at each step."""

    observation_space = gymnasium.spaces.Box(-50.0, 50.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, values, rewards=(1.0,) * 20, space=None):
        self.values, self.rewards = list(values), list(rewards)
        self.observation_space = space or self.observation_space

    def reset(self, *, seed=None, options=None):
        return self.values.pop(0), {}

    def step(self, action):
        return self.values.pop(0), self.rewards.pop(0), False, len(self.values) == 12, {}


class Unseeded(Room):
    def reset(self):
        return self.values.pop(0), {}


def check_room(values, made=Room, **kwargs):
    """Check an environment that observes these values, the last one again and again."""
    values = [np.array([0.0, value], np.float32) if isinstance(value, float) else value for value in values]
    kwargs["values"] = values + [values[-1]] * 20
    gymnasium.register("Watched-v0", entry_point=made)
    try:
        check_env(EnvSpec("Watched-v0", kwargs))
    finally:
        del gymnasium.registry["Watched-v0"]


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ((0.0, np.inf), "by step 1: observation[1] is inf"),
        ((0.0, np.zeros(3, np.float32)), "by step 1: observation has shape (3,) and type float32"),
        ((np.zeros(2, np.complex64),), "by reset: observation has shape (2,) and type complex64"),
    ],
)
def test_observations_outside_their_space_are_refused(values, what):
    with pytest.raises(ConfigError) as refused:
        check_room(values)
    assert refused.value.what.startswith(f"env.id=Watched-v0, {what}")
    assert refused.value.allowed
    assert refused.value.fix


def test_rounding_at_a_bound_and_precision_are_no_fault():
    check_room((50.0001, -50.0001, 50.0))
    check_room((np.array([0.0, 50.0]), [0, 1]), space=gymnasium.spaces.Box(-50, 50, (2,), np.float32))
    check_room((0.0, 1e30), space=gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32))


def test_a_choice_outside_its_space_is_refused():
    check_room((3, 4), space=gymnasium.spaces.Discrete(2, start=3))
    with pytest.raises(ConfigError, match=r"step 1: .* 5\b") as refused:
        check_room((3, 5), space=gymnasium.spaces.Discrete(2, start=3))
    assert refused.value.allowed.startswith("3 to 4")


class Spaceless(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)


def test_a_missing_space_is_named():
    with pytest.raises(ConfigError, match="action_space") as refused:
        check_room((0.0,), made=lambda values: Spaceless())
    assert (refused.value.key, refused.value.value) == ("env.id", "Watched-v0")


@pytest.mark.parametrize("reward", [math.nan, math.inf, np.float32("-inf")])
def test_a_reward_that_is_no_number_is_refused(reward):
    with pytest.raises(ConfigError, match=f"step 3: .* {float(reward)}\n"):
        check_room((0.0,), rewards=[1.0, np.float32(1), reward])


def test_a_reset_without_a_seed_is_told_how_to_write_one():
    with pytest.raises(GuestError, match="TypeError") as refused:
        check_room((0.0,), made=Unseeded)
    assert refused.value.allowed.startswith("def reset(")
    assert "wrappers" not in refused.value.fix


@pytest.mark.parametrize(
    ("kind", "num_values"),
    [
        ("OldStep", "4"),
        ("OldLimited", "4"),
        ("OldReset", "by reset: returned one float"),
        ("OldPair", "the last one a float"),
    ],
)
def test_what_old_gym_returns_is_refused(kind, num_values, monkeypatch):
    limit = 5 if kind == "OldLimited" else None
    spec = gymnasium.envs.registration.EnvSpec(f"{kind}-v0", globals()[kind], max_episode_steps=limit)
    monkeypatch.setitem(gymnasium.registry, f"{kind}-v0", spec)
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(f"{kind}-v0"))
    assert num_values in refused.value.what
    assert refused.value.key == "env.id" or "env.id" in refused.value.what
    assert "return" in refused.value.fix


class OldStep(Room):
    """An environment with old Gym's four values of a step."""

    def __init__(self):
        super().__init__((0.0,))

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OldLimited(OldStep):
    """The same in Gymnasium's TimeLimit, which unpacks five."""


class OldReset(OldStep):
    """An environment whose reset returns the observation alone."""

    def reset(self, *, seed=None, options=None):
        return 0.0


class OldPair(OldStep):
    """An environment whose reset returns an observation of two numbers."""

    def reset(self, *, seed=None, options=None):
        return 0.0, 0.0


@pytest.fixture
def heating(tmp_path, monkeypatch):
    """A module beside the person, which registers an environment and has another class."""
    (tmp_path / "warming.py").write_text(
        "import gymnasium\n"
        "class Plain: pass\n"
        "class Unregistered(gymnasium.Env): pass\n"
        "class Broken(gymnasium.Env):\n    def __init__(self): import nosuchpackage\n"
        "gymnasium.register('Broken-v0', entry_point=Broken)\n"
        "class Uncertain(Broken): pass\n"
        "LATER = ['team/Away-v0']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    gymnasium.registry.pop("Broken-v0", None)
    sys.modules.pop("warming", None)


@pytest.mark.parametrize(
    ("env_id", "part", "fix"),
    [
        ("Broken-v0", "a registered Gymnasium id", "env.id=warming:Broken-v0"),
        ("Unregistered-v0", "a registered Gymnasium id", "env.id=warming:Unregistered-v0"),
        ("Nonesuch-v0", "a registered Gymnasium id", "env.id=my_module:Nonesuch-v0"),
        ("warming:Plain", "derives from gymnasium.Env", "class Plain(gymnasium.Env): in warming"),
        ("warming:Zzz-v0", "warming:Broken-v0", "in warming"),
        ("warming:Broken-v1", "'Broken-v0'", "env.id=warming:Broken-v0"),
        ("warming:Unregistered-v0", "'Unregistered'", "env.id=warming:Unregistered"),
        ("warming:Broken", "warming:Broken-v0", "env.id=warming:Broken-v0"),
        ("Unregistered", "module:Class", "env.id=warming:Unregistered"),
        ("team/Away-v0", "a registered Gymnasium id", "env.id=warming:team/Away-v0"),
        ("warming:team/Gone-v0", "warming:Broken-v0", "in warming"),
        ("team/Gone-v0", "an installed package", "install the package"),
        ("warming:Uncertain", "installed", "nosuchpackage"),
        ("warming:Broken-v0", "installed", "nosuchpackage"),
    ],
)
def test_an_environment_of_ones_own_is_answered_with_its_module(env_id, part, fix, heating):
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert refused.value.key == "env.id"
    assert part in refused.value.allowed
    assert fix in refused.value.fix


@pytest.mark.parametrize(("value", "made"), [(np.nan, Room), (0.0, Unseeded)])
def test_a_refusal_is_all_that_a_person_reads(value, made):
    """Gymnasium's own checker would warn before it, in colours."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(RltuneError):
            check_room((value,), made=made)
    assert [str(one.message) for one in said] == []


@pytest.mark.parametrize("rewards", [{"clip": 0.0}, {"clip": -1.0}, {"scale": -0.1}])
def test_rewards_that_would_teach_nothing_are_refused(rewards):
    with pytest.raises(ConfigError, match=r"^env\.rewards: ") as refused:
        check_env(EnvSpec("CartPole-v1", rewards=rewards))
    assert refused.value.allowed == "numbers above 0"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, None),
        ({"objective": {"kind": "info", "key": "missing"}}, "objective.key"),
        ({"wrappers": ({"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"steps": 1}},)}, "env.wrappers"),
        ({"wrappers": ({"entry_point": f"{__name__}:Lost"},)}, "env.wrappers"),
        ({"rewards": {"scale": 0.0}}, "env.rewards"),
    ],
)
def test_a_check_makes_one_copy_and_closes_it(settings, key):
    few_copies.forget()
    with pytest.raises(ConfigError) if key else contextlib.nullcontext() as refused:
        check_env(EnvSpec("FewCopies-v0", **settings))
    if refused:
        assert refused.value.key == key
    assert ([] if key == "env.rewards" else [1]) == few_copies.STARTED
    assert not few_copies.OPEN


def test_a_check_learns_what_is_known_without_a_copy():
    spec = EnvSpec("CartPole-v1", {"max_episode_steps": 30})
    facts = check_env(spec)
    assert (facts.time_limit, facts.mask, facts.agents) == (30, None, ())
    assert facts.observation_space.shape == (4,)
    assert facts.metadata["render_fps"] == 50
    assert check_env(EnvSpec("Taxi-v3")).mask


GUEST = """import os, sys, time, gymnasium
class Guest(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, call="make", how="work"):
        self.at = call, how
        self.reach("make")
    def reach(self, call):
        if call == self.at[0]:
            reach(self.at[1])
    def reset(self, *, seed=None, options=None):
        self.reach("reset")
        return self.observation_space.sample() * 0, {}
    def step(self, action):
        self.reach("step")
        return self.observation_space.sample() * 0, 0.0, False, False, {}
    def close(self):
        self.reach("close")
def reach(how):
    print("licence: none left")
    if how == "exit":
        sys.exit(0)
    if how == "die":
        os._exit(0)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "hang":
        time.sleep(600)
    if how == "move":
        os.chdir("/")
    if how == "read":
        import argparse
        argparse.ArgumentParser().parse_args()
    if how == "number":
        int(sys.argv[1])
gymnasium.register("Guest-v0", Guest)
if "IMPORT" in os.environ:
    reach(os.environ["IMPORT"])
"""
ENDS = [("reset", "exit"), ("import of guest", "hang"), ("step 1", "die"), ("import of guest", "read")]
MORE_ENDS = [
    ("import of guest", "exit"), ("make", "exit"), ("step 1", "exit"), ("close", "exit"), ("make", "die"),
    ("make", "interrupt"), ("reset", "hang"), ("step 1", "hang"), ("close", "hang"), ("import of guest", "number"),
]  # fmt: skip


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the working folder."""
    (tmp_path / "guest.py").write_text(GUEST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("guest")
@pytest.mark.parametrize(
    ("call", "how"), [*ENDS, *(pytest.param(*each, marks=pytest.mark.nightly) for each in MORE_ENDS)]
)
def test_whatever_a_guest_does_is_a_wrong_request(call: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_import = call.startswith("import")
    if is_import:
        monkeypatch.setenv("IMPORT", how)
    kwargs = {} if is_import else {"call": call.split()[0], "how": how}
    with pytest.raises(RltuneError) as refused:
        examine_env(EnvSpec("guest:Guest-v0", kwargs), stall_s=2.0)
    error = refused.value
    assert (error.key, error.value, error.exit_code) == ("env.id", "guest:Guest-v0", 2)
    assert isinstance(error, GuestError)
    assert error.call == call
    assert "licence: none left" in error.what
    assert ("__main__" in error.fix) == (how in ("read", "number"))


@pytest.mark.usefixtures("guest")
def test_a_guest_moves_and_prints_in_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rltune.envs.child.REMIND_S", 0.0)
    facts = examine_env(EnvSpec("guest:Guest-v0", {"how": "move"}), stall_s=60.0)
    assert facts.action_space == gymnasium.spaces.Discrete(2)
    assert Path.cwd() == tmp_path
    assert "guest" not in sys.modules
    out = capfd.readouterr().out
    assert "licence" not in out
    assert "failures.stall_s=60" in out


@pytest.mark.parametrize(
    ("point", "qualified"),
    [
        (type("Mine", (gymnasium.Env,), {"__module__": "my_project.walk"}), "my_project.walk:Program-v0"),
        (functools.partial(type("Mine", (gymnasium.Env,), {"__module__": "walk"}), 3), "walk:Program-v0"),
        ("my_project.walk:Mine", "my_project.walk:Program-v0"),
        ("gymnasium.envs.classic_control:CartPoleEnv", "Program-v0"),
        (type("Mine", (gymnasium.Env,), {"__module__": "__main__"}), "__main__:Program-v0"),
        (None, "Program-v0"),
    ],
)
def test_an_id_of_the_program_gets_its_module(point: Any, qualified: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if point is not None:
        monkeypatch.setitem(gymnasium.registry, "Program-v0", gymnasium.envs.registration.EnvSpec("Program-v0", point))
    assert qualify_id("Program-v0") == qualified


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (EnvSpec("__main__:Own-v0"), "env.id"),
        (EnvSpec("CartPole-v1", wrappers=({"entry_point": "__main__:Own"},)), "env.wrappers[0]"),
        (EnvSpec("CartPole-v1", objective={"kind": "__main__:score", "direction": "max"}), "objective.kind"),
    ],
)
@pytest.mark.parametrize(
    ("file", "run_as", "module"),
    [
        ("/a/my_sweep.py", None, "my_sweep"),
        ("/a/b.py", "a.b", "a.b"),
        (None, None, "my_env"),
        ("/bin/rltune", None, "my_env"),
    ],
)
def test_what_the_program_defines_is_refused(
    spec: EnvSpec, key: str, file: str | None, run_as: str | None, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__file__, main.__spec__ = file, ModuleSpec(run_as, None) if run_as else None
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(ConfigError) as refused:
        refuse_program(spec)
    assert refused.value.key == key
    assert f"{key}={module}:" in refused.value.fix


def test_an_objective_that_hangs_ends_the_check(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hanging_score.py").write_text("import time\ndef score(*episode):\n    time.sleep(600)\n")
    spec = EnvSpec("CartPole-v1", objective={"kind": "hanging_score:score"})
    with pytest.raises(GuestError) as caught:
        examine_env(spec, stall_s=1.0)
    assert caught.value.cause is Cause.STALLED
    assert (caught.value.key, caught.value.value) == ("objective.kind", "hanging_score:score")


@pytest.mark.parametrize("sizes", [(5,), (2, 3)])
@pytest.mark.parametrize("form", ["flat", "tuple", "joint"])
@pytest.mark.parametrize("place", ["observation", "info", "method"])
def test_strict_environments_are_stepped_by_their_masks(place, form, sizes):
    facts = check_env(EnvSpec(STRICT, {"place": place, "form": form, "sizes": sizes}))
    assert facts.mask == MaskSource(place, sizes, form == "joint" and len(sizes) > 1)
    assert sum("action mask" in note for note in facts.notes) == 1


def check_corners(**values):
    """Check the environment of the settings, and what it becomes with each of these values."""
    spec = EnvSpec("knobs:Knobs-v0", {"repeat": 1, "weight": 1.0, "size": 3, "most": 1.0, "max_episode_steps": 8})
    points = [{f"env.kwargs.{name}": value} for name, given in values.items() for value in given]
    knobs.STARTED.clear()
    return check_envs(spec, list_corner_envs(spec, points))


def test_an_environment_is_checked_at_each_corner_once():
    facts = check_corners(repeat=(1, 2, 4), max_episode_steps=(4, 20))
    assert [started["repeat"] for started in knobs.STARTED] == [1, 2, 4, 1, 1]
    assert facts.time_limit == 20
    assert check_corners(max_episode_steps=(4, -1)).time_limit is None


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"size": (3, 5)}, "observation space"),
        ({"most": (1.0, 2.0)}, "action space"),
        ({"most": (1.0, None)}, "action space"),
        ({"repeat": (0, 1)}, "ValueError"),
        ({"weight": (1.0, "heavy")}, "TypeError"),
    ],
)
def test_a_corner_that_cannot_be_is_refused_by_its_name(values, problem):
    with pytest.raises(RltuneError) as refused:
        check_corners(**values)
    (name,) = values
    assert refused.value.key == f"space.env.kwargs.{name}"
    assert problem in refused.value.what
    assert f"~space.env.kwargs.{name}" in refused.value.fix
    assert all(each["repeat"] >= 0 for each in knobs.STARTED)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_corner_that_shapes_rewards_needs_no_copy(scale):
    spec = EnvSpec("knobs:Knobs-v0")
    knobs.STARTED.clear()
    points = [{"env.rewards.scale": 0.1}, {"env.rewards.scale": scale}]
    with pytest.raises(ConfigError) as refused:
        check_envs(spec, list_corner_envs(spec, points))
    assert refused.value.key == "space.env.rewards.scale"
    assert len(knobs.STARTED) == 1


def test_rewards_of_several_agents_are_not_shaped_at_a_corner():
    spec = EnvSpec("mpe2.simple_spread_v3", {"max_cycles": 5}, policies="shared")
    with pytest.raises(ConfigError) as refused:
        check_envs(spec, list_corner_envs(spec, [{"env.rewards.scale": 1.0}, {"env.rewards.scale": 0.1}]))
    assert (refused.value.key, refused.value.value) == ("space.env.rewards.scale", 0.1)
