"""All that is checked before the first trial, and that checking leaves nothing behind."""

from __future__ import annotations

import json
import re
import sys

import pytest

from rltune.algorithms.build import build_config
from rltune.cluster.resources import Machine
from rltune.driver import plan as planning
from rltune.driver.plan import describe_plan, make_plan
from rltune.envs.validation import examine_env
from rltune.errors import ConfigError, ResourceError, RltuneError

SAFE = ("tracking=off",)
OWN = """import gymnasium
class Own(gymnasium.Wrapper):
    pass
def score(total, length, info):
    return total
gymnasium.register("Own-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=50)
"""


def test_a_plan_imports_nothing_of_the_users(request_of, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "examine_env", examine_env)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_part.py").write_text(OWN)
    words = ("env.id=own_part:Own-v0", "env.wrappers=[{entry_point: 'own_part:Own'}]", "objective.kind=own_part:score")
    plan = make_plan(request_of(*SAFE, "env=gym", *words))
    assert plan.build.facts.time_limit == 50
    assert "own_part" not in sys.modules


def test_a_plain_request_becomes_a_plan_that_fits_the_machine(make):
    made = make()
    assert made.space.names[0] == "lr"
    assert made.build.env.id == "CartPole-v1"
    assert made.share_of(Machine(2, 0)).bundles == [{"CPU": 1.0}]
    assert made.request.limit == 48, "no more at once than there are trials"
    assert made.notes == ()


@pytest.mark.parametrize(
    ("words", "num_notes"),
    [
        ("algo.training.td_error_loss_fn=mse engine=rllib", 1),
        ("+space.td_error_loss_fn=[choice,huber,mse] engine=rllib", 1),
        ("algo.training.td_error_loss_fn=huber engine=rllib", 0),
        ("algo.training.td_error_loss_fn=mse engine=fast", 0),
    ],
)
def test_a_loss_that_is_not_rllibs_own_is_noted(request_of, words, num_notes):
    plan = make_plan(request_of("algo=sac", "env=pendulum", "~tuned", *SAFE, *words.split()))
    assert sum("td_error_loss_fn" in note for note in plan.notes) == num_notes


@pytest.mark.parametrize(("published", "num_notes"), [(1_000_000, 1), (100_000, 0), (None, 0)])
def test_settings_published_for_more_steps_are_noted(make, published, num_notes):
    notes = make(published__env_steps=published, budget__env_steps=100_000).notes
    assert ["1,000,000" in note and "budget.env_steps=100000" in note for note in notes] == [True] * num_notes


@pytest.mark.parametrize(
    ("env_steps", "grace_fraction", "num_notes"), [(100_000, 0.2, 0), (5_000, 0.2, 1), (5_000, 0.5, 0)]
)
def test_a_first_verdict_before_the_first_episode_is_noted(make, env_steps, grace_fraction, num_notes):
    """Eight environments of Pendulum, whose episodes take 200 steps: 1,600 steps."""
    made = make(
        env__id="Pendulum-v1",
        budget__env_steps=env_steps,
        scheduler__args__grace_fraction=grace_fraction,
        algo__env_runners__num_envs_per_env_runner=8,
        published__env_steps=None,
    )
    assert sum("1,600" in note and "scheduler.args.grace_fraction" in note for note in made.notes) == num_notes
    quiet = make(scheduler={"kind": "none", "args": {}}, budget__env_steps=env_steps, published__env_steps=None)
    assert quiet.notes == ()


def test_a_budget_that_no_episode_may_fit_into_is_noted(make):
    several = {"scheduler": {"kind": "none", "args": {}}, "algo__env_runners__num_envs_per_env_runner": 8}
    notes = make(**several, env__id="Pendulum-v1", budget__env_steps=1_599, published__env_steps=None).notes
    assert sum("budget.env_steps=1599" in note and "trials in which no episode ends" in note for note in notes) == 1


@pytest.mark.parametrize(
    ("env_steps", "trials", "steps"), [(4_095, 48, "4,096"), (4_096, 48, None), (255, 1, "256"), (256, 1, None)]
)
def test_an_update_that_collects_more_than_a_trial_has_is_noted(make, env_steps, trials, steps):
    """The space goes to batches of 4,096 steps; the only configuration of one trial has 256."""
    notes = make(budget__env_steps=env_steps, budget__trials=trials).notes
    assert [steps] * bool(steps) == [note.split()[4] for note in notes if "an update may collect" in note]


def test_batches_from_a_replay_memory_are_no_steps_of_the_environment(request_of):
    notes = make_plan(request_of("algo=sac", "env=pendulum", "budget.env_steps=100", *SAFE)).notes
    assert not any("an update may collect" in note for note in notes)


def test_few_trials_of_a_wide_network_get_the_cpus_that_would_idle(make):
    few = {"budget__trials": 2}
    assert make(**few).share_of(Machine(4, 0)).threads == 1
    wide = make(**few, algo__rl_module__model_config__fcnet_hiddens=[512, 64])
    assert wide.share_of(Machine(4, 0)).threads == 2


def test_each_trial_has_seeds_of_its_own_one_per_replicate(make):
    made, other = make(replicates=3), make(replicates=3, seed=1)
    assert made.seeds(5) == made.seeds(5), "a trial that is continued has the same seeds"
    every, others = ([seed for number in range(50) for seed in one.seeds(number)] for one in (made, other))
    assert len(every) == len(set(every)) == 150
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in every)
    assert not set(every) & set(others), "another sweep's seed gives other seeds"


def test_more_replicates_keep_the_seeds_of_fewer(make):
    assert make(replicates=3).seeds(4)[:1] == make(replicates=1).seeds(4)


def test_what_a_worker_builds_from_travels_as_plain_values(make):
    sent = make().assignment_build()
    assert json.loads(json.dumps(sent)) == sent
    plain = {"id": "CartPole-v1", "kwargs": {}, "wrappers": [], "normalise_observations": False, "rewards": {}}
    assert sent["env"] == plain
    assert sent["algo"]["name"] == "ppo"


BOTH, NEITHER = (True, {"normalise": True}), (False, {})


@pytest.mark.parametrize(
    ("typed", "normalised"),
    [
        (["env=pendulum"], BOTH),
        (["env=pendulum", "algo.normalise=[]"], NEITHER),
        (["env=pendulum", "algo.normalise=[rewards]"], (False, {"normalise": True})),
        (["env=pendulum", "algo.normalise=[observations]"], (True, {})),
        (["env=pendulum", "env.rewards.clip=1"], (True, {"clip": 1.0})),
        (["env=pendulum", "algo.env_runners.num_env_runners=1", "cluster.num_cpus=8"], (True, {})),
        (["env=pendulum", "env.vectorize=async"], (True, {})),
        (["env=pendulum", "+algo.env_runners.env_to_module_connector=mine:make"], (False, {"normalise": True})),
        (["env=gym", "env.id=FrozenLake-v1"], (False, {"normalise": True})),
        (["env=breakout"], (False, {"clip": 1.0})),
        (["env=simple_spread"], NEITHER),
        (["env=pendulum", "algo=sac"], NEITHER),
        (["env=pendulum", "algo=sac", "algo.normalise=[observations]"], (True, {})),
    ],
)
def test_what_is_normalised_is_what_is_wanted_and_can_be(request_of, typed, normalised):
    plan = make_plan(request_of(*SAFE, "algo=ppo", "~tuned", *typed))
    env = plan.build.with_params({}).env
    assert (env.normalise_observations, env.rewards) == normalised
    wanted = str([plan.given_settings["algo"]["normalise"], plan.given_settings["space"].get("normalise")])
    for part in ("observations", "rewards"):
        is_noted = any(note.startswith(f"{part} are not normalised") for note in plan.notes)
        assert is_noted == (part in plan.not_normalised and part in wanted)


@pytest.mark.parametrize(
    ("typed", "choices"),
    [
        (["env=pendulum"], ([], ["rewards"], ["observations", "rewards"])),
        (["env=gym", "env.id=FrozenLake-v1"], ([], ["rewards"])),
        (["env=pendulum", "env.rewards.scale=0.1"], ([], ["observations"])),
        (["env=breakout"], None),
        (["env=simple_spread"], None),
        (["env=breakout", "+space.clip_param=[when,{normalise: [rewards]},[uniform,0.1,0.3]]"], None),
    ],
)
def test_only_choices_that_train_differently_are_searched(request_of, typed, choices):
    plan = make_plan(request_of(*SAFE, "algo=ppo", "~tuned", "~space.clip_param", *typed))
    searched = {dimension.name: dimension.args for dimension in plan.space.dimensions}
    assert searched.get("normalise") == choices
    if choices is None:
        assert plan.space.fixed["normalise"] == []
    starts = (*plan.warm_starts, *plan.portfolio)
    assert all(start.get("normalise", []) in (choices or [[]]) for start in starts)
    assert plan.encode_request({"normalise": ["observations", "rewards"]}) == (
        plan.space.encode({"normalise": choices[-1]}) if choices else {}
    )


def test_published_settings_keep_their_observations_and_rewards(request_of):
    env = make_plan(request_of(*SAFE, "algo=ppo", "env=cartpole")).build.with_params({}).env
    assert (env.normalise_observations, env.rewards) == NEITHER


def test_a_time_limit_of_its_own_outweighs_the_settings(request_of):
    env = make_plan(request_of(*SAFE, "env=cartpole", "env.evaluation_steps=7")).build.env
    assert env.evaluation_steps is None
    assert env.digest == make_plan(request_of(*SAFE, "env=cartpole")).build.env.digest


def test_what_is_normalised_can_be_searched(request_of):
    plan = make_plan(request_of(*SAFE, "env=pendulum", "algo=ppo", "~tuned"))
    envs = [
        plan.build.with_params({"normalise": parts}).env for parts in ([], ["rewards"], ["observations", "rewards"])
    ]
    assert [env.list_normalised() for env in envs] == [[], ["rewards"], ["observations", "rewards"]]
    assert len(build_config(plan.build, {"normalise": ["rewards"]}, 0).env_config) > 0
    for fixed in ([], ["rewards"], ["observations", "rewards"]):  # as the report writes it for a winner
        plan = make_plan(
            request_of(*SAFE, "env=pendulum", "algo=ppo", "~tuned", f"space.normalise={json.dumps(fixed)}")
        )
        assert plan.space.fixed == {"normalise": fixed}
        assert describe_plan(plan)["normalised"] == fixed
    with pytest.raises(ConfigError) as refused:
        make_plan(request_of(*SAFE, "env=pendulum", "algo=ppo", "space.normalise=[choice,[reward],[]]"))
    assert refused.value.what.startswith("space.normalise=[reward]")
    make_plan(request_of(*SAFE, "env=pendulum", "algo=ppo", str(refused.value.fix)))


@pytest.mark.parametrize(("env_runners", "learners", "gpus"), [(0, 0, 0), (2, 0, 0), (0, 0, 0.5), (1, 1, 1), (3, 2, 4)])
def test_a_share_has_the_bundles_that_rllib_itself_would_ask_for(make, env_runners, learners, gpus):
    """RLlib finds each env runner's by its number. A learner gets a CPU here, which RLlib spares beside a GPU."""
    own = {"algo__env_runners__num_env_runners": env_runners, "algo__learners__num_learners": learners}
    made = make(**own, resources__gpus_per_trial=gpus, cluster__num_cpus=8, cluster__num_gpus=4)
    config = build_config(made.build, {}, 0)
    theirs = config.algo_class.default_resource_request(config).bundles
    ours = made.share_of(Machine(8, 4)).bundles
    assert [{"GPU": 0.0, **bundle} for bundle in ours] == [{"GPU": 0.0, **bundle} for bundle in theirs]


def test_remote_env_runners_count_as_cpus(make):
    with pytest.raises(ResourceError, match="num_env_runners=64"):
        make(algo__env_runners__num_env_runners=64)


REFUSED = {
    "a thing that cannot be normalised": ({"algo__normalise": ["reward"]}, "algo.normalise=[reward]"),
    "another order": ({"algo__normalise": ["rewards", "observations"]}, "algo.normalise=[rewards,observations]"),
    "a list where a thing is meant": ({"algo__normalise": [["rewards"]]}, "algo.normalise=[[rewards]]"),
    "a space of what the algorithm has not": ({"space__lrr": ["uniform", 0, 1]}, "space.lrr"),
    "a range that makes no sense": ({"space__lr": ["uniform", 1, 0]}, "space.lr"),
    "more CPUs than there are": ({"resources__cpus_per_trial": 4096}, "resources.cpus_per_trial=4096"),
    "an environment that is not there": ({"env__id": "NoSuchEnv-v0"}, "env.id=NoSuchEnv-v0"),
    "a folder that is a file": ({"output_dir": "/etc/passwd"}, "output_dir=/etc/passwd"),
    "a scheduler that is not there": ({"scheduler__kind": "ahsa"}, "scheduler.kind=ahsa"),
    "a scheduler's argument out of range": ({"scheduler__args__grace_fraction": 5}, "scheduler.args.grace_fraction=5"),
    "a scheduler's unknown argument": ({"scheduler__args__grace": 1}, "scheduler.args.grace=1"),
    "a searcher that is not there": ({"searcher__kind": "tpee"}, "searcher.kind=tpee"),
    "a searcher's unknown argument": ({"searcher__args__n_startup": 1}, "searcher.args.n_startup=1"),
    "an MLflow server that does not answer": (
        {"tracking": {"kinds": ["mlflow"], "uri": "http://me:s3cret@127.0.0.1:9", "register": True}},
        "tracking.uri=http://***@127.0.0.1:9",
    ),
    "an MLflow server that is named without tracking=server": (
        {"tracking": {"kinds": ["mlflow"], "uri": "http://127.0.0.1:9"}},
        "tracking.uri=http://127.0.0.1:9",
    ),
    "a folder as MLflow's store": ({"tracking": {"kinds": ["mlflow"], "uri": "./mlruns"}}, "tracking.uri=./mlruns"),
}


@pytest.mark.parametrize(("changes", "what"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_work_is_refused_in_three_parts_before_anything_is_written(make, changes, what):
    with pytest.raises(RltuneError) as refused:
        make(**changes)
    error = refused.value
    assert error.what.startswith(what)
    assert error.allowed
    assert error.fix
    assert "s3cret" not in error.pretty()


def test_a_gpu_is_asked_for_only_where_there_is_one(make, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ResourceError) as refused:
        make(resources__gpus_per_trial=0.25)
    assert refused.value.key == "resources.gpus_per_trial"


@pytest.mark.parametrize(("trials", "gpus"), [(4, 0.25), (3, 1 / 3), (6, 1 / 6), (1, 1.0)])
def test_trials_per_gpu_are_a_fraction_of_each(make, trials, gpus):
    made = make(resources__trials_per_gpu=trials, cluster__num_gpus=2, cluster__num_cpus=64)
    assert (made.request.gpus, made.build.gpus) == (gpus, gpus)
    assert made.notes == make().notes


def test_a_fraction_that_wastes_a_gpu_gets_one_note(make):
    notes = make(resources__gpus_per_trial=0.3, cluster__num_gpus=1).notes
    (note,) = [note for note in notes if "GPU" in note]
    assert "10%" in note, "which stay idle"


def test_a_running_ray_is_asked_for_its_resources_only_once_connected(make):
    made = make(cluster__address="auto", resources__cpus_per_trial=4096)
    with pytest.raises(ResourceError, match="4096"):
        made.share_of(Machine(64, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_folder_in_which_nobody_may_write_is_refused(make):
    with pytest.raises(ConfigError, match="output_dir=/proc/x") as refused:
        make(output_dir="/proc/x")
    assert refused.value.fix == "output_dir=/path/to/sweeps"


SENSELESS = [
    ("space__gamma", ["uniform", 0.9, 1.2], "space.gamma=[uniform,0.9,1.2]", "space.gamma=0.99"),
    ("space__lr", ["choice", 1e-3, 0.0], "space.lr=[choice,0.001,0]", "space.lr=0.0003"),
    ("space__lr", "abc", "space.lr=abc", "space.lr=0.0003"),
    ("algo__training__gamma", 1.5, "algo.training.gamma=1.5", "algo.training.gamma=0.99"),
    ("algo__training__grad_clip", -1, "algo.training.grad_clip=-1", "algo.training.grad_clip=0.5"),
]


@pytest.mark.parametrize(("key", "value", "what", "fix"), SENSELESS)
def test_a_value_that_makes_no_sense_is_refused(make, key, value, what, fix):
    with pytest.raises(ConfigError) as refused:
        make(**{key: value})
    assert refused.value.what.startswith(what)
    assert refused.value.fix == fix


@pytest.mark.parametrize(
    ("overrides", "kind", "able"),
    [(("algo=sac", "env=cartpole"), "discrete", "dqn"), (("algo=dqn", "env=pendulum"), "continuous", "sac")],
)
def test_actions_that_an_algorithm_lacks_are_refused_early(request_of, overrides, kind, able):
    with pytest.raises(ConfigError) as refused:
        make_plan(request_of("tracking=off", *overrides))
    assert kind in refused.value.allowed
    assert "ppo, a2c" in refused.value.allowed
    assert able in refused.value.allowed


@pytest.mark.parametrize("elsewhere", ["algo.env_runners.num_env_runners=1", "env.vectorize=async"])
def test_rewards_and_objectives_may_be_anything_where_others_sample(elsewhere, request_of):
    make_plan(request_of("env=pendulum", "env.rewards.scale=0.1", "objective.direction=min", elsewhere))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("mysql://me:s3cret@db.example/rl", "PostgreSQL"),
        ("postgresql+psycopg://me:s3cret@127.0.0.1:1/rl", "refused"),
        ("nonsense", "parse"),
    ],
)
def test_a_storage_that_cannot_be_used_is_refused_before_a_folder_is(make, address, why):
    with pytest.raises(RltuneError, match=why) as refused:
        make(study__storage=address)
    assert refused.value.key == "study.storage"
    assert "s3cret" not in refused.value.pretty()


def test_a_file_for_several_sweeps_is_not_made_by_a_check(make, tmp_path):
    make(study__storage=f"sqlite:///{tmp_path}/shared.db")


GRID = {"num_epochs": ["choice", 5, 10, 20], "minibatch_size": ["pow2", 64, 128]}


@pytest.mark.parametrize(
    ("trials", "tried", "named"),
    [(4, 4, ["budget.trials=6"]), (6, 6, []), (24, 6, ["budget.trials=24"])],
)
def test_a_grid_ends_after_its_last_point_and_says_so(make, trials, tried, named):
    made = make(space=GRID, searcher={"kind": "grid"}, budget__trials=trials)
    assert made.budget.trials == tried
    notes = [note for note in made.notes if "grid" in note]
    assert [re.findall(r"budget\.trials=\d+", note) for note in notes] == [[setting] for setting in named]
    assert all("6 points" in note for note in notes)


@pytest.mark.parametrize(
    ("space", "trials", "noted"),
    [
        ({"clip_param": ["choice", 0.1, 0.2], "num_epochs": ["choice", 5, 10]}, 8, True),
        ({"clip_param": ["choice", 0.1, 0.2], "num_epochs": ["choice", 5, 10]}, 4, False),
        ({"num_epochs": ["randint", 1, 3]}, 8, True),
        ({"lr": ["uniform", 1e-4, 1e-3]}, 8, False),
        ({"num_epochs": ["or", 1, ["randint", 5, 20, 5]]}, 8, True),
        (
            {
                "train_batch_size_per_learner": ["pow2", 64, 128],
                "minibatch_size": ["pow2", 64, "train_batch_size_per_learner"],
            },
            4,
            True,
        ),
    ],
)
def test_fewer_configurations_than_trials_are_noted(make, space, trials, noted):
    """field/environments 43."""
    notes = make(space=space, budget__trials=trials, portfolio=[]).notes
    assert any(f"budget.trials={trials}" in note and "configuration" in note for note in notes) is noted


def test_a_grid_takes_no_half_of_a_warm_start(make):
    starts = [{"num_epochs": 10}, {"num_epochs": 5, "minibatch_size": 64}, {"num_epochs": 5, "minibatch_size": 64}]
    made = make(space=GRID, searcher={"kind": "grid"}, warm_start=starts)
    whole = {"num_epochs": 5, "log2(minibatch_size)": 6}
    assert [made.fixed_values(number)[0] for number in range(3)] == [{}, whole, {}]
    assert make(space=GRID, warm_start=starts).fixed_values(0)[0] == {"num_epochs": 10}


def test_a_sobol_sequence_is_that_of_the_sweeps_seed(make):
    first, second, other = (
        make(searcher={"kind": "qmc"}, seed=seed).sampler(number) for seed, number in ((5, 1), (5, 2), (6, 1))
    )
    assert (first._sweep_seed, second._sweep_seed, other._sweep_seed) == (5, 5, 6)


LASTING = """
import gymnasium

class Lasting(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.step_number = 0
        return self.observation_space.low, {}

    def step(self, action):
        self.step_number += 1
        return self.observation_space.low, 0.0, self.step_number == self.length, False, {}
"""


@pytest.fixture
def plan_lasting(request_of, tmp_path, monkeypatch):
    """A plan for an environment without a time limit, whose episodes have a length, with four copies."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lasting.py").write_text(LASTING)

    def plan(length, budget, *words):
        env = "env=gym", "env.id=lasting:Lasting", f"+env.kwargs.length={length}", "tracking=off"
        return make_plan(request_of(*env, f"budget.env_steps={budget}", f"{COPIES}=4", *words))

    return plan


@pytest.mark.parametrize(
    ("length", "budget", "words", "what"),
    [
        (20, 4_000, (), None),
        (1_200, 4_000, (), "takes 1,200 steps"),
        (900, 4_000, ("scheduler=none",), None),
        (0, 40_000, (), "no time limit"),
        (0, 4_000, (), "no time limit"),
        (2_300, 2_000, (), "takes 2,300 steps"),  # A batch of 4,096 steps would still have an episode's end.
        (0, 400, ("+env.kwargs.max_episode_steps=10",), None),
        (0, 4_000, ("+env.kwargs.max_episode_steps=1500",), "takes 1,500 steps"),
    ],
)
def test_episodes_longer_than_the_steps_of_a_copy_are_noted(plan_lasting, length, budget, words, what):
    notes = [note for note in plan_lasting(length, budget, *words).notes if "a random episode of" in note]
    assert len(notes) == bool(what)
    assert all(what in note for note in notes)
    ways = "budget.env_steps or fewer copies"
    assert all(ways in note for note in notes)
    for limit in (word for note in notes for word in re.findall(r"\+env\.kwargs\.max_episode_steps=\d+", note)):
        assert not [note for note in plan_lasting(length, budget, limit).notes if "a random episode of" in note]


COPIES = "algo.env_runners.num_envs_per_env_runner"
RUNNERS = "algo.env_runners.num_env_runners"


@pytest.mark.parametrize(
    ("overrides", "key", "fix"),
    [
        ((f"{COPIES}=4", "env.max_copies=3"), "env.max_copies", f"{COPIES}=3, or env.max_copies=4"),
        ((f"{COPIES}=4", "env.max_copies=7", "replicates=2"), "env.max_copies", f"{COPIES}=3, or env.max_copies=8"),
        ((f"{COPIES}=4", "env.max_copies=7", f"{RUNNERS}=2"), "env.max_copies", f"{COPIES}=3, or env.max_copies=8"),
        ((f"{COPIES}=1", "env.max_copies=2", f"{RUNNERS}=4"), "env.max_copies", f"{RUNNERS}=2, or env.max_copies=4"),
        ((f"{COPIES}=8", "env.max_copies=2", f"{RUNNERS}=4"), "env.max_copies", f"{COPIES}=1 {RUNNERS}=2, or "),
        ((f"{COPIES}=3", "+env.per_copy.server=[one_of,a,b]"), "env.per_copy.server", f"{COPIES}=2, or "),
        (("+env.per_copy.server=number", "+env.kwargs.server=2"), "env.kwargs.server", "~env.kwargs.server"),
        (("+env.per_copy.server=number",), "env.per_copy.server", "~env.per_copy.server"),
        (("+env.per_copy.port=[ports,5005]",), "env.per_copy.port", "'++env.per_copy.port=[port,5005]'"),
        (("+env.per_copy.workdir=folders",), "env.per_copy.workdir", "++env.per_copy.workdir=folder"),
        (("env.max_copies=0",), "env.max_copies", "env.max_copies=4"),
        (("env.max_copies=9", "env.vectorize=vector_entry_point"), "env.vectorize", "env.vectorize=sync"),
    ],
)
def test_copies_that_cannot_be_are_refused_with_what_to_type(request_of, overrides, key, fix):
    with pytest.raises(RltuneError) as refused:
        make_plan(request_of("env=cartpole", "~tuned", *SAFE, *overrides))
    assert refused.value.key == key
    assert refused.value.fix.startswith(fix)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v3"])
def test_copies_that_rltune_wraps_are_no_vector_environment(request_of, env_id):
    with pytest.raises(ConfigError) as refused:
        make_plan(request_of("env=gym", f"env.id={env_id}", "~tuned", *SAFE, "env.vectorize=vector_entry_point"))
    assert (refused.value.key, refused.value.fix) == ("env.vectorize", "env.vectorize=sync")


def test_trials_at_once_share_the_copies_of_a_machine(request_of):
    made = make_plan(request_of("env=cartpole", "~tuned", *SAFE, f"{COPIES}=4", "replicates=2", "env.max_copies=17"))
    assert (made.request.copies, made.request.max_copies) == (8, 17)
    assert int(made.request.trials_per_node) == 2
    assert make_plan(request_of("env=cartpole", *SAFE)).request.trials_per_node == float("inf")


KNOBS = (*SAFE, "env=gym", "~tuned", "~space", "portfolio=off", "env.id=knobs:Knobs-v0", "+env.kwargs.repeat=1")


def test_the_baseline_has_the_environments_own_values(request_of):
    words = ("+space.env.kwargs.repeat=[choice,2,4]", "+space.lr=[loguniform,1e-4,1e-2]")
    made = make_plan(request_of(*KNOBS, *words, "warm_start=[{env: {kwargs: {repeat: 4}}}]"))
    assert made.baseline == {"lr": 3e-4, "env.kwargs.repeat": 1}
    assert made.warm_starts == ({"env.kwargs.repeat": 4}, made.baseline)
    assert describe_plan(made)["searched"]["env.kwargs.repeat"] == "[choice, 2, 4]"
    assert sum("env.kwargs.repeat=1, outside" in note for note in made.notes) == 1
    fixed = make_plan(request_of(*KNOBS, "+space.env.kwargs.repeat=2", words[1]))
    assert fixed.baseline["env.kwargs.repeat"] == 2


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [
        (("+space.env.kwargs.repeat=[choice,1,2]",), True),
        (("+space.env.kwargs.repeat=2",), False),
        (("+space.env.rewards.scale=[choice,1,0.1]",), False),
        (("+space.env.kwargs.repeat=[choice,1,2]", "objective.kind=info", "objective.key=earned"), False),
        (("+space.train_env.kwargs.repeat=[choice,1,2]", "objective.kind=info", "objective.key=earned"), False),
        (("+space.train_env.kwargs.repeat=[choice,1,2]", "score.episodes=10"), False),
        (("+space.train_env.kwargs.repeat=[choice,1,2]", "++score.env.kwargs.repeat=3"), False),
    ],
)
def test_what_plain_returns_compare_is_noted(request_of, words, is_noted):
    made = make_plan(request_of(*KNOBS, *words))
    assert any("env.kwargs.repeat" in note and "space.train_env" in note for note in made.notes) == is_noted


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("+space.train_env.kwargs.repeat=[choice,1,2]",), "space.train_env.kwargs.repeat"),
        (("+space.train_env.kwargs.repeat=2",), "space.train_env.kwargs.repeat"),
        (("+space.env.kwargs.repeat=[choice,1,2]", "++score.env.kwargs.repeat=3"), "space.env.kwargs.repeat"),
        (("+space.env.kwargs.repeat=[choice,1,2]", "++certify.env.id=CartPole-v1"), "space.env.kwargs.repeat"),
        (("+space.env.kwargs.weight=[choice,1,2]",), "space.env.kwargs.weight"),
        (("+space.env.kwargs.repeat=[choice,0,1]",), "space.env.kwargs.repeat"),
        (("+space.env.rewards.scale=[uniform,0,1]",), "space.env.rewards.scale"),
    ],
)
def test_what_cannot_be_searched_is_refused(request_of, words, key):
    with pytest.raises(RltuneError) as refused:
        make_plan(request_of(*KNOBS, *words))
    assert refused.value.key == key


@pytest.mark.parametrize("name", ["env.kwargs.repeat", "train_env.kwargs.repeat"])
def test_nothing_of_an_environment_is_searched_without_steps(request_of, name):
    with pytest.raises(ConfigError) as refused:
        make_plan(request_of("algo=bc", "algo.offline_data.input_=played", *KNOBS, f"+space.{name}=[choice,1,2]"))
    assert refused.value.key == f"space.{name}"


def test_shaped_rewards_are_not_normalised_where_their_shape_is_searched(request_of):
    made = make_plan(request_of(*KNOBS, "+space.env.rewards.scale=[choice,1,0.1]", "algo.normalise=[rewards]"))
    assert made.build.algo["normalise"] == []
    assert any(note.startswith("rewards are not normalised") for note in made.notes)
    assert made.build.with_params({"env.rewards.scale": 0.1}).env.rewards == {"scale": 0.1}


def test_a_plan_says_which_policy_acts_for_which_agent(request_of):
    team = ("env=pettingzoo", "env.id=rllib_team:Leaving", "+env.kwargs={config: {length: 9}}")
    for policies, owners in (("rllib_team:map_agent", ["first", "others"]), ("shared", ["shared"] * 2)):
        plan = make_plan(request_of(*SAFE, *team, f"env.policies={policies}", "~space"))
        assert describe_plan(plan)["policies"] == dict(zip("01", owners, strict=True))
    assert describe_plan(make_plan(request_of(*SAFE, "env=cartpole")))["policies"] == {}


@pytest.mark.parametrize(
    ("words", "episodes", "num_notes"),
    [
        ((), 0, 0),
        (("score.episodes=10",), 10, 1),
        (("score.episodes=9",), 9, 2),
        (("++score.env.kwargs.sutton_barto_reward=true",), 10, 2),
        (("++score.env.kwargs.sutton_barto_reward=true", "++certify.env.kwargs.sutton_barto_reward=false"), 10, 1),
        (("++score.env.kwargs.sutton_barto_reward=true", "++certify.env.kwargs.sutton_barto_reward=true"), 10, 2),
        (("++certify.env.kwargs.sutton_barto_reward=true",), 0, 0),
    ],
)
def test_played_scores_are_in_the_plan_with_their_cost(request_of, words, episodes, num_notes):
    """And a note says if they are few, or if the winner is measured on the data that chose it."""
    plan = make_plan(request_of(*SAFE, "env=cartpole", "budget.trials=8", "replicates=2", *words))
    described = describe_plan(plan)
    assert plan.score.episodes == episodes
    assert described["score_episodes"] == 20 * episodes * (8 * 2 + described["certification_runs"])
    assert described["score_env_steps"] == 500 * described["score_episodes"]
    assert len(plan.notes) == num_notes


def test_score_episodes_without_a_copy_are_refused_by_name(request_of):
    one = ("env.max_copies=1", "algo.env_runners.num_envs_per_env_runner=1", "score.episodes=10")
    with pytest.raises(ConfigError) as refused:
        make_plan(request_of(*SAFE, *one))
    assert (refused.value.key, refused.value.value) == ("score.episodes", 10)
    plan = make_plan(request_of(*SAFE, "env.max_copies=4", *one[1:]))
    assert plan.request.trials_per_node == 2, "each trial has one for its training and one for its scores"


def test_a_range_among_a_wrappers_arguments_is_said(request_of):
    wrappers = "env.wrappers=[{entry_point: 'knobs:Bonus', kwargs: {bonus: [uniform, 0, 1]}}]"
    with pytest.raises(ConfigError) as refused:
        make_plan(request_of(*KNOBS, wrappers))
    assert refused.value.key == "env.wrappers.Bonus.kwargs.bonus"
    assert "'+space.env.wrappers.Bonus.kwargs.bonus=[uniform,0,1]'" in refused.value.fix


@pytest.mark.parametrize(("name", "fails"), [("repeat", True), ("log", False)])
def test_a_range_among_the_environments_arguments_is_said(request_of, name, fails):
    """An environment may take such a list."""
    words = (*KNOBS[:-1], f"+env.kwargs.{name}=[choice,1,2]", "env.wrappers=[{entry_point: 'knobs:Bonus'}]")
    fix = f"++env.kwargs.{name}=1 '+space.env.kwargs.{name}=[choice,1,2]'"
    if fails:
        with pytest.raises(ConfigError) as refused:
            make_plan(request_of(*words))
        assert refused.value.key == f"env.kwargs.{name}"
        assert refused.value.fix.startswith(fix)
    else:
        (note,) = (note for note in make_plan(request_of(*words)).notes if f"env.kwargs.{name}" in note)
        assert fix in note


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("env.rewards.scale=0.1", "env.rewards"),
        ("++metrics.speed=last", "metrics"),
        ("env.restarts=1", "env.restarts"),
        ("objective.direction=min", "objective"),
    ],
)
def test_a_vector_version_gives_way_to_single_copies(request_of, word, key):
    plan = make_plan(request_of(*SAFE, "env.vectorize=vector_entry_point", word))
    assert any(f"{key} needs that" in note for note in plan.notes)
    assert build_config(plan.build, {}, 0).gym_env_vectorize_mode != "vector_entry_point"


def test_a_bound_on_a_metric_is_taken(request_of):
    words = ("++metrics.success=last", "+constraints.episode.success='> 0.9'", "objective.second.key=episode/success")
    plan = make_plan(request_of(*SAFE, *words))
    assert plan.criteria.constraints[0].name == plan.criteria.second == "episode/success"
    assert plan.build.env.metrics == {"success": "last"}
