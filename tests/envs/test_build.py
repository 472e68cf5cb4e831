"""One environment from its settings: built, wrapped, checked, and named for RLlib."""

from __future__ import annotations

import collections
import json
import sys

import gymnasium
import numpy as np
import pytest

from rltune.algorithms.rllib_env import Creator, name_for_rllib
from rltune.config.schema import EnvConfig
from rltune.envs.build import import_wrappers, make_env, make_training_env, make_vector_env
from rltune.envs.rewards import collect_returns
from rltune.envs.spec import EnvSpec, spec_of
from rltune.envs.validation import check_env
from rltune.errors import ConfigError
from sweeps._command import conf_dir

SHORT = {"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 5}}
NORMAL = {"entry_point": "RescaleObservation", "kwargs": {"min_obs": -1.0, "max_obs": 1.0}}


def steps(env):
    """Steps until an episode ends."""
    env.reset(seed=0)
    for count in range(1, 1000):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            return count
    return None


def test_the_settings_and_a_mapping_and_a_specification_mean_the_same_environment():
    expected = EnvSpec("Pendulum-v1", {"g": 9.81}, (SHORT,))
    config = EnvConfig(name="pendulum", id="Pendulum-v1", kwargs={"g": 9.81}, wrappers=[SHORT])
    assert spec_of(config) == expected
    assert spec_of({"id": "Pendulum-v1", "kwargs": {"g": 9.81}, "wrappers": [SHORT]}) == expected
    assert spec_of(expected) is expected
    assert spec_of({"id": "CartPole-v1"}) == EnvSpec("CartPole-v1")


def test_a_specification_can_be_kept_as_json_and_built_from_it():
    spec = EnvSpec("Pendulum-v1", {"g": 9.81}, (SHORT,))
    again = spec_of(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert make_env(again).unwrapped.g == 9.81


def test_arguments_reach_the_environment_and_those_given_last_win():
    spec = EnvSpec("Pendulum-v1", {"g": 1.0})
    assert make_env(spec).unwrapped.g == 1.0
    assert make_env(spec, g=2.0).unwrapped.g == 2.0
    assert make_env(EnvSpec("CartPole-v1"), render_mode="rgb_array").render_mode == "rgb_array"


def test_wrappers_are_applied_in_order_the_last_outermost():
    env = make_env(EnvSpec("Pendulum-v1", {}, (SHORT, NORMAL)))
    assert isinstance(env, gymnasium.wrappers.RescaleObservation)
    assert isinstance(env.env, gymnasium.wrappers.TimeLimit)
    assert steps(env) == 5


def test_copies_step_together_wrappers_included():
    envs = make_vector_env(EnvSpec("Pendulum-v1", {}, (SHORT,)), 3)
    observations, _ = envs.reset(seed=1)
    assert observations.shape == (3, 3)
    assert len(np.unique(observations[:, 0])) == 3, "each copy has a seed of its own"
    for _ in range(5):
        _, _, _, truncated, _ = envs.step(envs.action_space.sample())
    assert truncated.all()
    envs.close()


def test_a_plain_id_keeps_its_name_for_rllib_so_that_its_native_vector_version_can_be_used():
    assert name_for_rllib(EnvSpec("CartPole-v1")) == "CartPole-v1"


def test_a_wrapped_environment_gets_a_name_that_says_all_of_it():
    from ray.tune.registry import ENV_CREATOR, _global_registry

    name = name_for_rllib(EnvSpec("Pendulum-v1", {"g": 1.0}, (SHORT,)))
    other = name_for_rllib(EnvSpec("Pendulum-v1", {"g": 2.0}, (SHORT,)))
    assert name != other
    env = _global_registry.get(ENV_CREATOR, name)({})
    assert env.unwrapped.g == 1.0
    assert steps(env) == 5


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A user's module that registers an environment when it is imported."""
    (tmp_path / "fields_of_ours.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('OurField-v0', CartPoleEnv, max_episode_steps=7)\n"
        "class Twice(gymnasium.RewardWrapper):\n    def reward(self, reward):\n        return 2 * reward\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "fields_of_ours"
    sys.modules.pop("fields_of_ours", None)
    gymnasium.registry.pop("OurField-v0", None)


def test_an_environment_and_a_wrapper_of_ones_own_are_found_in_their_module(own_module):
    spec = EnvSpec(f"{own_module}:OurField-v0", {}, ({"entry_point": f"{own_module}:Twice"},))
    check_env(spec)
    env = make_env(spec)
    env.reset(seed=0)
    assert env.step(0)[1] == 2.0
    name_for_rllib(EnvSpec(f"{own_module}:OurField-v0"))
    assert "OurField-v0" in gymnasium.registry


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
        ("nosuchmodule:X-v0", "'nosuchmodule' cannot be imported", "pip install nosuchmodule"),
        (":CartPole-v1", "", "env.id="),
        ("ALE/Pong-v5", "", "rltune[atari]"),
    ],
)
def test_a_wrong_id_is_answered_with_the_nearest_or_with_what_to_install(env_id, what, fix):
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert refused.value.what.startswith(f"env.id={env_id}")
    assert what in refused.value.what
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("Ant-v5", "mujoco", "mujoco"),
        ("ale_py:ALE/Pong-v5", "ale_py", "atari"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
    ],
)
def test_an_environment_whose_package_is_missing_names_the_extra(env_id, package, extra, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package or "box2d" in name or "mujoco" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # what Python does with a module that cannot be found
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert refused.value.fix == f"pip install 'rltune[{extra}]'"


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {"lenght": 1.0}),
        ("FrozenLake-v1", {"map_name": "9x9"}),
        ("Pendulum-v1", {"render_mode": {"not": "a mode"}}),
    ],
)
def test_an_argument_that_the_environment_refuses_is_named_whatever_it_raises(env_id, kwargs):
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


def test_a_wrapper_that_is_misspelt_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean gymnasium\.wrappers:TimeLimit\?"):
        import_wrappers(EnvSpec("CartPole-v1", {}, ({"entry_point": "TimLimit"},)))


# -- spaces, rewards and what a wrapper may do ---------------------------------------------------------------------


class Compound(gymnasium.Env):
    """Tells which action it got; its spaces are given."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(0)
        self.got = None
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.got = action
        return self.observation_space.sample(), 3.0, False, False, {}


S = gymnasium.spaces
SPACES = {
    "multidiscrete": (S.MultiDiscrete([3, 4]), 7, S.MultiDiscrete([2, 3], start=[1, 0]), 6),
    "multibinary": (S.MultiBinary(5), 5, S.MultiBinary(3), 8),
    "dict": (
        S.Dict(a=S.Discrete(3), b=S.Box(-1, 1, (2, 2))),
        7,
        S.Dict(go=S.Discrete(3, start=2), on=S.Discrete(2)),
        6,
    ),
    "tuple": (
        S.Tuple((S.Box(0, 1, (3,)), S.MultiBinary(2))),
        5,
        S.Tuple((S.Box(0, 1, (3,)), S.Box(-2, 2, (1,)))),
        None,
    ),
}


@pytest.fixture
def compound():
    names = {}
    for name, (obs, _, act, _) in SPACES.items():
        names[name] = f"Compound-{name}-v0"
        gymnasium.register(names[name], Compound, kwargs={"observation_space": obs, "action_space": act})
    yield names
    for name in names.values():
        gymnasium.registry.pop(name)


@pytest.mark.parametrize("name", list(SPACES))
def test_compound_spaces_become_a_vector_and_one_choice_or_vector_that_reaches_the_environment(name, compound):
    _, size, _, actions = SPACES[name]
    spec = EnvSpec(compound[name])
    check_env(spec)
    env = make_env(spec)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.shape == (size,)
    assert env.observation_space.contains(obs)
    assert obs.dtype == np.float32
    assert name_for_rllib(spec) != spec.id, "RLlib builds the flat one"
    if actions is None:
        env.step(np.array([0.5, 0.5, 0.5, -2.0], np.float32))
        assert env.unwrapped.got[1] == -2.0
        return
    assert env.action_space.n == actions
    reached = set()
    for action in range(actions):
        env.step(action)
        reached.add(str(env.unwrapped.got))
    assert len(reached) == actions, "each number is another combination, and none is missing"


def test_spaces_that_nothing_can_take_are_refused_with_what_can(compound):
    for number, (obs, act, what) in enumerate(
        [
            (S.Sequence(S.Discrete(2)), S.Discrete(2), "cannot become a vector"),
            (S.Box(0, 1), S.Tuple((S.Discrete(2), S.Box(0, 1))), "cannot become one choice"),
            (S.Box(0, 1), S.MultiDiscrete([100, 100]), "10000 combinations"),
        ]
    ):
        gymnasium.register(f"Odd{number}-v0", Compound, kwargs={"observation_space": obs, "action_space": act})
        with pytest.raises(ConfigError, match=what) as refused:
            check_env(EnvSpec(f"Odd{number}-v0"))
        assert refused.value.what.startswith(f"env.id=Odd{number}-v0")
        assert refused.value.allowed
        gymnasium.registry.pop(f"Odd{number}-v0")


def test_a_wrapper_that_breaks_the_space_is_refused_before_anything_starts():
    broken = {"entry_point": f"{__name__}:Longer"}
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("CartPole-v1", {}, (broken,)))
    assert "env.wrappers of CartPole-v1: observations have shape (5,)" in refused.value.what
    assert "observation_space" in refused.value.allowed


class Longer(gymnasium.ObservationWrapper):
    """Returns more than it declares."""

    def observation(self, observation):
        return np.append(observation, np.float32(0))


class Lost(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return np.full_like(observation, np.nan)


def test_observations_that_are_no_numbers_are_refused():
    with pytest.raises(ConfigError, match="observations are not finite"):
        check_env(EnvSpec("CartPole-v1", {}, ({"entry_point": f"{__name__}:Lost"},)))


def test_learning_sees_shaped_rewards_and_the_objective_the_true_ones():
    spec = spec_of({"id": "Pendulum-v1", "rewards": {"scale": 0.1, "clip": 0.5, "normalise": False}})
    assert spec_of({"id": "Pendulum-v1", "rewards": {"scale": 1.0, "clip": None, "normalise": False}}).rewards == {}
    assert spec_of({"id": "Pendulum-v1", "rewards": {"normalise": True, "scale": 1.0}}).rewards == {"normalise": True}
    sink = collections.deque()
    with collect_returns(sink):
        shaped = make_training_env(spec)
    true = make_env(spec)
    shaped.reset(seed=3)
    true.reset(seed=3)
    total = 0.0
    for _ in range(200):
        action = np.array([1.0], np.float32)
        raw, seen = true.step(action)[1], shaped.step(action)[1]
        assert seen == pytest.approx(max(-0.5, 0.1 * raw))
        total += raw
    assert list(sink) == [(pytest.approx(total), 200)]


def test_normalised_rewards_settle_at_a_scale_of_their_own_whatever_the_environments():
    def late(scale):
        env = make_training_env(EnvSpec("Pendulum-v1", {}, (), False, {"normalise": True, "scale": scale}))
        env.reset(seed=0)
        return [env.step(np.zeros(1, np.float32))[1] for _ in range(190)][-20:]

    assert late(1.0) == pytest.approx(late(1000.0), rel=1e-3)


def test_normalised_observations_are_refused_for_images_and_choices():
    with pytest.raises(ConfigError, match="normalise_observations=true") as refused:
        check_env(EnvSpec("FrozenLake-v1", {}, (), True))
    assert refused.value.fix == "env.normalise_observations=false"


def test_atari_gives_four_grey_images_in_the_order_that_networks_read_and_its_true_score():
    pytest.importorskip("ale_py")
    import yaml

    raw = yaml.safe_load((conf_dir() / "env" / "breakout.yaml").read_text())
    spec = spec_of({key: value for key, value in raw.items() if key != "name"})
    check_env(spec)
    env = make_training_env(spec)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (84, 84, 4)
    assert 0.0 <= obs.min() < obs.max() <= 1.0
    assert name_for_rllib(spec).startswith("rltune:")


@pytest.mark.parametrize("fire", [False, True])
def test_the_native_atari_vector_gives_what_the_wrappers_give(fire):
    pytest.importorskip("ale_py")
    import yaml

    from rltune.envs.atari import make_native_atari

    raw = yaml.safe_load((conf_dir() / "env" / "breakout.yaml").read_text())
    raw["wrappers"][0]["kwargs"]["noop_max"] = 0  # the number of no-ops comes from another generator
    if not fire:
        del raw["wrappers"][1]
    spec = spec_of({key: value for key, value in raw.items() if key != "name"})
    sink = collections.deque()
    with collect_returns(sink):
        together = make_native_atari(spec, 2)
        single = make_training_env(spec)
    assert together.single_observation_space == single.observation_space
    assert together.single_action_space == single.action_space
    seen, obs = together.reset(seed=5)[0][0], single.reset(seed=5)[0]
    if fire:  # pressed for one frame there, for a step of four here: the ball is elsewhere, the wall is not
        assert (seen[:40] == obs[:40]).mean() > 0.95
        together.close()
        return
    assert (seen == obs).all()
    rng, ended = np.random.default_rng(0), False
    while not ended:
        action = int(rng.integers(4)) if rng.random() < 0.5 else 1
        frames, rewards, terminated, truncated, _ = together.step(np.array([action, 0]))
        obs, reward, over, cut, _ = single.step(action)
        assert (frames[0] == obs).all()
        assert (rewards[0], terminated[0], truncated[0]) == (reward, over, cut)
        ended = over or cut
    assert sink[0] == sink[1]
    assert (together.step(np.array([1, 0]))[0][0] == single.reset()[0]).all(), "begun anew, whatever the action"
    together.close()


def test_the_engine_samples_standard_atari_natively_and_anything_else_singly():
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
        {"kwargs": {"frameskip": 1, "mode": 1}},
        {"id": "CartPole-v1", "wrappers": [], "kwargs": {}},
    ):
        assert Creator(spec_of(raw | change)).together(3) is None
