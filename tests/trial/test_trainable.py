"""What a worker makes of its task, without Ray."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import few_copies
import numpy as np
import pytest
import torch
from ray.exceptions import NodeDiedError, RayActorError
from saved import open_checkpoint
from toy import ToyRunner, ToyTrial, make_task

from rltune.checkpoints.clients import StoreUnavailableError, UnsharedStoreError
from rltune.checkpoints.store import read_state
from rltune.driver.plan import make_plan
from rltune.engine.sampling.vector_envs import SyncEnvs
from rltune.envs import first_steps
from rltune.envs.spec import EnvSpec
from rltune.envs.step_count import STEPS, SamplingEnded
from rltune.errors import Cause, ConfigError, GuestError, NonFiniteError, RewardError
from rltune.records import PLATEAU, TARGET_HELD, CheckpointRecord
from rltune.trial import trainable
from rltune.trial.supervisor import STOP_FILE
from rltune.trial.trainable import Trial, describe_failure


def run_trial(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that the trial hands back until it is done."""
    trial = ToyTrial(dict(config))
    results = [trial.step()]
    while not results[-1].get("done"):
        results.append(trial.step())
    trial.stop()
    return results


def reports(results: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(result["nominal_steps"], result["score"]) for result in results if "nominal_steps" in result]


def test_checkpoints_come_when_due_between_reports_too(tmp_path: Path) -> None:
    """However far apart the reports are."""
    results = run_trial(make_task(tmp_path))
    assert [result["env_steps"] for result in results] == list(range(100, 1001, 100))
    assert reports(results) == [(500, 0.5), (1000, 1.0)]
    assert all(result["records"]["latest"]["env_steps"] == result["env_steps"] for result in results)
    assert not any("best" in result["records"] for result in results if "nominal_steps" not in result)


def test_a_trial_works_in_the_folder_of_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typed").mkdir()
    trial = ToyTrial(make_task(tmp_path / "outputs", folder=str(tmp_path / "typed")))
    assert Path.cwd() == tmp_path / "typed"
    trial.stop()
    ToyTrial(make_task(tmp_path / "outputs", folder=str(tmp_path / "not-on-this-node"))).stop()


def test_a_process_that_leaves_closes_everything_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit begins before anything of the user's is called, and the exit handlers are last."""
    done: list[object] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda limit_s, **options: done.append(limit_s))
    monkeypatch.setattr(ToyRunner, "stop", lambda runner: done.append("closed"))
    monkeypatch.setattr(trainable, "run_exit_handlers", lambda: done.append("exit handlers"))
    trial = ToyTrial(make_task(tmp_path))
    trial.leave()
    assert done == [trainable.LEAVE_S, "closed", "exit handlers"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, SystemExit])
def test_no_exception_of_the_users_ends_a_worker(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the trial would count as lost, and be tried again and again."""

    def train(runner: ToyRunner) -> Any:
        raise kind

    monkeypatch.setattr(ToyRunner, "train", train)
    result = run_trial(make_task(tmp_path))[-1]
    assert (result["cause"], result["done"]) == ("environment", True)
    assert kind.__name__ in result["failed"] or "sys.exit" in result["failed"]


def test_nothing_comes_between_reports_while_no_checkpoint_is_due(tmp_path: Path) -> None:
    assert [result["env_steps"] for result in run_trial(make_task(tmp_path, checkpoint_every_s=600.0))] == [500, 1000]


@pytest.mark.parametrize(("seeds", "trained"), [((1,), [700]), ((1, 2), [500, 300])])
def test_a_trial_restored_between_reports_sends_the_same_ones(
    seeds: tuple[int, ...], trained: list[int], tmp_path: Path
) -> None:
    trial = ToyTrial(make_task(tmp_path, seeds=seeds))
    for _ in range(7):
        record = trial.step()["records"]["latest"]
    trial.stop()
    assert open_checkpoint(tmp_path, CheckpointRecord(**record))
    assert record["objective"] is None, "it belongs to no report"
    kept = read_state(tmp_path / record["path"])["progress"]
    assert [progress["env_steps"] for progress in kept] == trained
    rest = run_trial(make_task(tmp_path, seeds=seeds, latest=record, checkpoint_every_s=600.0))
    assert reports(rest) == [(500, 0.5), (1000, 1.0)][-len(rest) :]
    assert len(rest) == len(seeds)


@pytest.mark.parametrize(
    ("batch", "sampled"),
    [
        (100, [300, 500, 800, 1000]),
        (512, [512, 512, 1024, 1024]),
        (700, [700, 700, 1400, 1400]),
        (4096, [4096] * 4),
    ],
)
def test_every_batch_reports_at_the_same_marks(batch: int, sampled: list[int], tmp_path: Path) -> None:
    """What was sampled by then stands beside the mark: whole iterations, of which one may pass several marks."""
    task = make_task(tmp_path, reports=4, params={"quality": 1.0, "batch": batch}, checkpoint_every_s=600.0)
    results = run_trial(task)
    assert [result["nominal_steps"] for result in results] == [250, 500, 750, 1000]
    assert [result["env_steps"] for result in results] == sampled
    assert [result["score"] for result in results] == [result["env_steps"] / 1000 for result in results]
    assert [result["done"] for result in results] == [False, False, False, True]
    trained = {result["env_steps"] for result in results if "env_steps_per_s" in result}
    assert trained == {result["env_steps"] for result in results}, "no rate where nothing was trained"
    assert sum("env_steps_per_s" in result for result in results) == len(trained)


SCORE = {"episodes": 3, "seed": 7, "env": {}}


def test_each_report_is_scored_by_the_same_episodes(tmp_path: Path) -> None:
    trial = ToyTrial(make_task(tmp_path, reports=4, seeds=(1, 2), score=SCORE, checkpoint_every_s=600.0))
    results = [trial.step() for _ in range(4)]
    sampled = [result["env_steps"] for result in results]
    assert [result["score"] for result in results] == [(steps / 1000) ** 2 for steps in sampled]
    assert [result["return_mean"] for result in results] == [steps / 1000 for steps in sampled], "of the training"
    assert trial._runners[0].played == trial._runners[1].played == [(steps, 7, 3) for steps in sampled]
    best = [result["records"]["best"]["objective"] for result in results]
    assert best == [result["score"] for result in results]
    trial.stop()


def test_a_bounded_copy_for_scores_has_the_trials_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a copy gets alone, such as a config with its place, is of the specification with which it was taken."""
    taken: list[EnvSpec] = []

    class FakeCopy:
        def __init__(self, spec: EnvSpec) -> None:
            taken.append(spec)

        def take(self) -> FakeCopy:
            return self

    monkeypatch.setattr(trainable, "Copy", FakeCopy)
    env = {"id": "Toy-v0", "max_copies": 2, "kwargs": {"config": {"size": 4, "part": "training"}}}
    build, params = {"algo": {"name": "toy"}, "env": env}, {"quality": 1.0, "env.kwargs.config.size": 6}
    trial = ToyTrial(make_task(tmp_path, build=build, params=params))
    Trial._open_score_copies(trial, {"env": {"kwargs": {"seed": 1}}})
    assert [spec.kwargs for spec in taken] == [{"config": {"size": 6, "part": "training"}, "seed": 1}]
    trial.stop()


def test_an_iteration_past_several_reports_is_scored_once(tmp_path: Path) -> None:
    trial = ToyTrial(make_task(tmp_path, reports=4, score=SCORE, params={"quality": 1.0, "batch": 4096}))
    assert [trial.step()["score"] for _ in range(4)] == [4.096**2] * 4
    assert len(trial._runners[0].played) == 1
    trial.stop()


def test_what_is_scored_before_any_episode_of_the_training(tmp_path: Path) -> None:
    params = {"quality": 1.0, "fault": "no_episode"}
    (first, last) = run_trial(make_task(tmp_path, score=SCORE, params=params, checkpoint_every_s=600.0))
    assert (first["score"], last["score"]) == (0.25, 1.0)
    assert math.isnan(last["return_mean"])


def test_a_stop_during_a_score_plays_it_again_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"score": SCORE, "checkpoint_every_s": 600.0}
    trial = ToyTrial(make_task(tmp_path, **task))
    with monkeypatch.context() as patch:
        patch.setattr(STEPS, "is_ending", True)
        result = trial.step()
    assert (result["interrupted"], result["env_steps"], "nominal_steps" in result) == (True, 500, False)
    trial.stop()
    rest = run_trial(make_task(tmp_path, **task, latest=result["records"]["latest"]))
    assert reports(rest) == [(500, 0.25), (1000, 1.0)]


def test_each_episode_of_a_score_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, signs = ToyTrial(make_task(tmp_path, reports=1, score=SCORE)), list[int]()
    monkeypatch.setattr(trial._supervisor, "report_progress", lambda: signs.append(1))
    monkeypatch.setattr(trial._runners[0], "train", lambda: trial._runners[0]._progress)
    trial._runners[0]._progress = replace(trial._state.progress[0], env_steps=1000)
    trial.step()
    assert len(signs) == 1 + SCORE["episodes"]
    trial.stop()


def test_an_end_plays_what_chooses_beside_what_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other seeds: both may be the same environment."""
    played = list[tuple[int, Mapping[str, Any]]]()

    def play(trial: ToyTrial, folder: Path, copies: Any, seed: int, env: Mapping[str, Any]) -> Any:
        played.append((seed, env))
        return [float(len(played))] * trial.task.episodes, {"episode/part": [float(len(played))]}

    monkeypatch.setattr(ToyTrial, "play", play)
    kinds = {"evaluation_env": {"id": "Test-v0"}, "choice_env": {"id": "Validation-v0"}, "episodes": 5}
    results = run_trial(make_task(tmp_path, evaluation_seed=100, checkpoint_every_s=600.0, **kinds))
    assert (results[-1]["returns"], results[-1]["choice_returns"]) == ([1.0] * 5, [2.0] * 5)
    assert results[-1]["metrics"] == {"episode/part": [1.0]}, "what is reported"
    assert played == [(100, {"id": "Test-v0"}), (105, {"id": "Validation-v0"})]


def test_a_trial_ends_once_its_score_has_held_the_target(tmp_path: Path) -> None:
    """The toy's score is 0.1 after 100 steps, 0.2 after 200 and so on."""
    task = make_task(tmp_path, reports=10, target=0.35, checkpoint_every_s=600.0)
    results = run_trial(task)
    assert reports(results) == [(100 * place, place / 10) for place in range(1, 6)]
    assert [result["ended"] for result in results] == [None] * 4 + [TARGET_HELD]
    assert results[-1]["done"]


def test_a_trial_ends_whose_score_becomes_no_better(tmp_path: Path) -> None:
    task = make_task(tmp_path, reports=10, plateau=3, params={"quality": 0.0}, checkpoint_every_s=600.0)
    results = run_trial(task)
    assert (len(results), results[-1]["ended"]) == (4, PLATEAU)


def test_an_iteration_past_several_reports_holds_no_target(tmp_path: Path) -> None:
    params = {"quality": 1.0, "batch": 600}
    results = run_trial(make_task(tmp_path, reports=10, target=0.5, params=params, checkpoint_every_s=600.0))
    assert [result["env_steps"] for result in results] == [600] * 6 + [1200]


@pytest.mark.parametrize("num_before", [3, 5, 6])
def test_a_certification_run_ends_early_and_plays_then(tmp_path: Path, num_before: int) -> None:
    """Also if it is interrupted after that many results, before, at and after its end."""
    task: dict[str, Any] = {"reports": 10, "target": 0.35, "episodes": 2, "kind": "certify"}
    trial, latest = ToyTrial(make_task(tmp_path, **task)), None
    results = []
    for _ in range(num_before):
        results.append(trial.step())
        latest = results[-1]["records"].get("latest", latest)
    best = next(result["records"]["best"] for result in reversed(results) if "best" in result["records"])
    trial.stop()
    rest = run_trial(make_task(tmp_path, **task, latest=latest, best=best))
    assert rest[-1]["returns"] == [1.0] * 2
    assert (rest[-1]["nominal_steps"], rest[-1]["ended"], rest[-1]["done"]) == (500, TARGET_HELD, True)
    assert max(steps for steps, _ in reports([*results, *rest])) == 500


def test_a_budget_that_its_reports_do_not_divide_has_whole_marks(tmp_path: Path) -> None:
    results = run_trial(make_task(tmp_path, env_steps=1001, reports=3, checkpoint_every_s=600.0))
    assert [result["nominal_steps"] for result in results] == [334, 668, 1001]
    (only,) = run_trial(make_task(tmp_path, env_steps=1, reports=1, checkpoint_every_s=600.0))
    assert (only["nominal_steps"], only["env_steps"], only["done"]) == (1, 100, True)


def test_a_trial_restored_within_an_iteration_goes_on_at_the_next_mark(tmp_path: Path) -> None:
    """One iteration passes three marks; the driver is killed after the first of them."""
    params = {"quality": 1.0, "batch": 800}
    trial = ToyTrial(make_task(tmp_path, reports=4, params=params))
    first = trial.step()
    trial.stop()
    record = first["records"]["latest"]
    rest = run_trial(make_task(tmp_path, reports=4, params=params, latest=record, checkpoint_every_s=600.0))
    assert reports([first, *rest]) == [(250, 0.8), (500, 0.8), (750, 0.8), (1000, 1.6)]


def test_an_interruption_saves_the_state_and_is_no_report(tmp_path: Path) -> None:
    """A report between two marks could be compared with no other trial's."""
    trial = ToyTrial(make_task(tmp_path, reports=1, checkpoint_every_s=600.0, params={"quality": 1.0, "batch": 300}))
    train = trial._runners[0].train

    def train_and_stop() -> Any:
        (tmp_path / STOP_FILE).touch()
        return train()

    trial._runners[0].train = train_and_stop
    result = trial.step()
    trial.stop()
    assert (result["done"], result["interrupted"], "nominal_steps" in result) == (True, True, False)
    assert (result["env_steps"], result["records"]["latest"]["env_steps"]) == (300, 300)


def test_an_interruption_before_the_first_step_saves_nothing(tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).touch()
    (result,) = run_trial(make_task(tmp_path))
    assert (result["interrupted"], result.get("records")) == (True, {})


def test_a_reward_that_is_no_number_is_no_divergence(tmp_path: Path) -> None:
    trial = ToyTrial(make_task(tmp_path))
    trial.step()

    def train() -> Any:
        STEPS.steps += 7
        raise RewardError("nan")

    trial._runners[0].train = train
    result = trial.step()
    trial.stop()
    assert re.fullmatch(r"nan.* 107", result["failed"])
    assert result["cause"] == "reward"
    assert "training.lr" not in result["traceback"]


NORMALISED = (
    "env=pendulum",
    "algo.normalise=[observations,rewards]",
    "algo.env_runners.num_envs_per_env_runner=3",
)


def read_numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of the training, without what a clock says."""
    names = ("env_steps", "episodes", "score", "return_mean", "return_min", "return_max", "episode_length_mean")
    numbers = {name: value for name, value in report.items() if name in names or name.startswith("learner/")}
    return {name: None if math.isnan(value) else value for name, value in numbers.items()}


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_resumed_trial_ends_as_one_that_never_stopped(
    algo: str, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    """Same reports and weights, bit for bit, though its rewards and observations are normalised by what it has seen."""
    task = {
        "params": {"train_batch_size_per_learner": 300},
        "env_steps": 1500,
        "engine": "fast",
        "build": make_plan(request_of(f"algo={algo}", *NORMALISED)).assignment_build(),
    }

    def begin(name: str, **other: Any) -> Trial:
        (tmp_path / name).mkdir(exist_ok=True)
        return Trial(make_task(tmp_path / name, **task, **other))

    def finish(trial: Trial) -> tuple[list[dict[str, Any]], Any]:
        results = [trial.step()]
        while not results[-1].get("done"):
            results.append(trial.step())
        assert "failed" not in results[-1], results[-1]["traceback"]
        flat = trial._runners[0].algorithm.loop.flat.data.clone()  # type: ignore[attr-defined]
        trial.stop()
        return [read_numbers(result) for result in results if "nominal_steps" in result], flat

    reports, weights = finish(begin("whole", checkpoint_every_s=600.0))
    assert len(reports) == 2
    first = begin("interrupted")
    for _ in range(4):  # past the first report, and in the middle of an episode
        record = first.step()["records"]["latest"]
    first.stop()
    resumed, again = finish(begin("interrupted", latest=record, checkpoint_every_s=600.0))
    assert resumed == reports[-1:]
    assert resumed[0]["episodes"] > 0
    assert again.equal(weights)


@pytest.mark.slow
def test_ctrl_c_amid_an_iteration_loses_none_of_its_steps(
    request_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One iteration in a slow environment takes minutes: what it has sampled is gone on with, bit for bit."""
    task = {
        "params": {"train_batch_size_per_learner": 600},
        "env_steps": 1200,
        "engine": "fast",
        "checkpoint_every_s": 600.0,
        "build": make_plan(request_of("algo=ppo")).assignment_build(),
    }

    def finish(trial: Trial) -> tuple[dict[str, Any], Any]:
        while not (result := trial.step())["done"]:
            pass
        flat = trial._runners[0].algorithm.loop.flat.data.clone()  # type: ignore[attr-defined]
        trial.cleanup()
        return result, flat

    (tmp_path / "whole").mkdir()
    _, weights = finish(Trial(make_task(tmp_path / "whole", **task)))
    (tmp_path / "cut").mkdir()
    first = Trial(make_task(tmp_path / "cut", **task))
    began = STEPS.steps
    step = SyncEnvs.step

    def step_and_end(envs: SyncEnvs, actions: Any) -> Any:
        STEPS.is_ending = STEPS.is_ending or STEPS.steps - began > 400
        return step(envs, actions)

    monkeypatch.setattr(SyncEnvs, "step", step_and_end)
    result, _ = finish(first)
    assert result["interrupted"]
    assert 400 < result["env_steps"] < 450
    assert "score" in result
    monkeypatch.undo()
    last, again = finish(Trial(make_task(tmp_path / "cut", **task, latest=result["records"]["latest"])))
    assert last["nominal_steps"] == 1200
    assert again.equal(weights)


REAL = {
    # Batches, targets and noise are all in use well before the middle. CartPole ends episodes, Pendulum cuts them.
    "dqn": ("cartpole", {"num_steps_sampled_before_learning_starts": 200, "target_network_update_freq": 70}),
    "sac": ("pendulum", {"num_steps_sampled_before_learning_starts": 100, "train_batch_size_per_learner": 32}),
}


def make_real_trial(algo: str, request_of: Callable[..., Any], folder: Path, **other: Any) -> Trial:
    env, training = REAL[algo]
    build = make_plan(request_of(f"algo={algo}", f"env={env}", "~tuned")).assignment_build()
    build["algo"]["training"] |= training
    build["algo"]["reporting"] |= {"min_sample_timesteps_per_iteration": 100, "min_time_s_per_iteration": 0}
    build["algo"]["rl_module"]["model_config"] |= {"fcnet_hiddens": [16], "head_fcnet_hiddens": []}
    known = {
        "checkpoint_every_s": 1e9,
        "replay_gb": 0.001,
        "engine": "fast",
        "env_steps": 1200,
        "reports": 2,
        "build": build,
    }
    return Trial(make_task(folder, **known | {"params": {}} | other))


def read_weights(trial: Trial) -> torch.Tensor:
    parameters = trial._runners[0].algorithm.learner_module.parameters()
    return torch.cat([one.detach().flatten() for one in parameters]).clone()


def interrupt(trial: Trial, at: int, folder: Path) -> dict[str, Any]:
    """Train on to ``at`` steps, ask the trial to stop, and return the record of what it saved."""
    runner = trial._runners[0]
    train = runner.train

    def train_and_stop() -> Any:
        progress = train()
        if progress.env_steps >= at:
            (folder / STOP_FILE).touch()
        return progress

    runner.train = train_and_stop
    while not (report := trial.step()).get("interrupted"):
        assert not report["done"]
    trial.cleanup()
    (folder / STOP_FILE).unlink()
    return dict(report["records"]["latest"])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_an_interrupted_trial_ends_with_the_same_weights(
    algo: str, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    """Bit for bit: memory, draws, noise, clocks, optimizers and the episode under way are as they were."""
    whole, first = (make_real_trial(algo, request_of, tmp_path / name) for name in ("whole", "parts"))
    while not (report := whole.step())["done"]:
        pass
    assert "failed" not in report, report.get("traceback")
    record = interrupt(first, 700, tmp_path / "parts")
    second = make_real_trial(algo, request_of, tmp_path / "parts", latest=record, seeds=(1,))
    while not (resumed := second.step())["done"]:
        pass
    assert "notes" not in resumed
    assert torch.equal(read_weights(second), read_weights(whole))
    ours, theirs = (trial._runners[0].algorithm.replay for trial in (second, whole))
    np.testing.assert_array_equal(ours.rows, theirs.rows)
    about = ("return_mean", "episodes", "env_steps")
    assert [resumed[name] for name in about] == [report[name] for name in about]
    whole.cleanup(), second.cleanup()


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dqn", pytest.param("sac", marks=pytest.mark.nightly)])
def test_a_trial_without_its_memory_learns_when_its_log_says(
    algo: str, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    record = interrupt(make_real_trial(algo, request_of, tmp_path, replay_gb=0.0), 700, tmp_path)
    trial = make_real_trial(algo, request_of, tmp_path, latest=record, replay_gb=0.0)
    start = REAL[algo][1]["num_steps_sampled_before_learning_starts"]
    kept, runner = read_weights(trial), trial._runners[0]
    began, learned = record["env_steps"], []
    runner.algorithm.config = runner.algorithm.config.copy(copy_frozen=False)
    runner.algorithm.config.min_sample_timesteps_per_iteration = 1
    train = runner.train

    def train_and_look() -> Any:
        progress = train()
        if not torch.equal(read_weights(trial), kept):
            learned.append(progress.env_steps - began)
        return progress

    runner.train = train_and_look
    report = trial.step()
    (note,) = report["notes"]
    assert "checkpoint.replay_gb=0)" in note
    assert f" {start} " in note
    assert start <= learned[0] < start + 8
    trial.cleanup()


def test_the_way_of_acting_is_kept_before_the_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are played with the checkpoint that the ledger gets, and the driver is told why."""
    decision = {"deterministic": False, "episodes": 20, "deterministic_mean": -200.0, "sampled_mean": -12.0, "cut": 0}
    played: list[Path] = []

    def play(trial: ToyTrial, folder: Path, *_: object) -> tuple[list[float], dict[str, list[float | None]]]:
        played.append(folder)
        return [1.0], {"episode/energy": [None]}

    monkeypatch.setattr("rltune.trial.trainable.choose_acting", lambda *_: decision)
    monkeypatch.setattr(ToyTrial, "play", play)
    *_, last = run_trial(make_task(tmp_path, kind="certify", episodes=3))
    assert (last["returns"], last["metrics"]) == ([1.0], {"episode/energy": [None]})
    record = CheckpointRecord(**last["records"]["best"])
    assert played == [open_checkpoint(tmp_path, record)]
    assert (record.env_steps, record.objective) == (1000, 1.0)
    assert any("-12" in note and "-200" in note for note in last["notes"])


def _raise_from(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (GuestError("step 3 fails", call="step 3"), Cause.ENVIRONMENT),
        (_raise_from(RuntimeError(), GuestError("step 3 fails", call="step 3")), Cause.ENVIRONMENT),
        (RuntimeError(RuntimeError(RewardError("the reward is None"))), Cause.REWARD),
        (_raise_from(GuestError("step 3 fails"), OSError(errno.ENOSPC, "no")), Cause.ENVIRONMENT),
        (NonFiniteError("total_loss is not finite"), Cause.DIVERGED),
        (OSError(errno.ENOSPC, "no"), Cause.DISK_FULL),
        (ValueError("mesh.stl: File too large"), Cause.UNKNOWN),
        (StoreUnavailableError(""), Cause.OUTAGE),
        (UnsharedStoreError(""), Cause.OUTAGE),
        (ConfigError("objective.key", "x", "is missing"), Cause.REFUSED),
        (RayActorError(), Cause.LOST_PROCESS),
        (NodeDiedError("gone"), Cause.LOST_NODE),
    ],
)
def test_a_workers_report_has_the_cause_of_its_failure(error: BaseException, cause: Cause, tmp_path: Path) -> None:
    assert describe_failure(error, 100, tmp_path)["cause"] == cause


def test_a_disk_that_is_full_for_the_sweep_is_no_fault_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rltune.ledger.disk_full.MIN_FREE_BYTES", math.inf)
    error = _raise_from(GuestError("step 3 fails"), OSError(errno.ENOSPC, "no"))
    assert describe_failure(error, 100, tmp_path)["cause"] == Cause.DISK_FULL


def test_unknown_bytes_break_no_workers_report() -> None:
    described = describe_failure(ValueError("no file \udcff"), 100, Path())
    assert "udcff" in str(described).encode().decode()


def test_a_simulator_of_one_copy_is_started_twice_in_a_trial(
    request_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for its training and once for its evaluation, however often that ends early."""
    words = ["algo=dqn", "env.id=FewCopies-v0", "algo.env_runners.num_envs_per_env_runner=1"]
    build = make_plan(request_of(*words)).assignment_build()
    build["algo"]["reporting"] |= {"min_sample_timesteps_per_iteration": 100, "min_time_s_per_iteration": 0}
    task = {"build": build, "env_steps": 300, "reports": 1, "engine": "fast", "params": {}, "kind": "certify"}
    task |= {"episodes": 5, "checkpoint_every_s": 1e9}
    few_copies.forget()
    trial = Trial(make_task(tmp_path, **task))
    assert few_copies.STARTED == [1]

    def end_early(done: int, total: int) -> None:
        monkeypatch.setattr(STEPS, "is_ending", True)
        raise SamplingEnded

    trained = trial.step()
    assert not trained["done"], trained.get("traceback")
    monkeypatch.setattr(trial, "_report_episode", end_early)
    report = trial.step()
    assert report.get("interrupted"), report.get("traceback")
    trial.cleanup()
    assert few_copies.STARTED == [1, 1]
    assert not few_copies.OPEN

    again = Trial(make_task(tmp_path, **task, latest=report["records"]["latest"], best=report["records"].get("best")))
    report = again.step()
    assert len(report["returns"]) == 5, report.get("traceback")
    again.cleanup()
    assert few_copies.STARTED == [1] * 4
    assert not few_copies.OPEN


def test_a_trial_that_has_failed_saves_early_and_ever_less_often(tmp_path: Path) -> None:
    task = make_task(tmp_path, checkpoint_every_s=600.0, env_steps=3000, reports=1, saves_early=True)
    saved = [result["env_steps"] for result in run_trial(task) if "nominal_steps" not in result]
    assert saved == [200, 500, 1100, 2200]


@pytest.mark.parametrize("batch", [512, 4096])
def test_a_trial_gets_on_though_each_attempt_fails_early(
    batch: int, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    """However long its iterations are: what an unfinished one has sampled is kept, in any environment."""
    words = ["env.id=failing:Failing-v0", "algo.env_runners.num_envs_per_env_runner=1", "+env.kwargs={fail_at: 400}"]
    build = make_plan(request_of(*words)).assignment_build()
    params = {"train_batch_size_per_learner": batch, "minibatch_size": 64, "num_epochs": 1, "normalise": ["rewards"]}
    task = {"build": build, "env_steps": 900, "reports": 1, "engine": "fast", "params": params}
    latest, reached = None, []
    for _ in range(4):
        trial = Trial(make_task(tmp_path, **task, checkpoint_every_s=600.0, saves_early=True, latest=latest))
        results = [trial.step()]
        while not results[-1].get("done"):
            results.append(trial.step())
        trial.stop()
        records = [result["records"]["latest"] for result in results if result.get("records", {}).get("latest")]
        latest = records[-1]
        reached.append(latest["env_steps"])
        if "failed" not in results[-1]:
            break
        assert results[-1]["cause"] == "environment", results[-1]["traceback"]
        assert results[-1]["num_ended"] >= 79, "episodes of five steps, those of the unfinished iteration, too"
    assert reached == sorted(set(reached)), "each attempt has brought more"
    assert reached[-1] >= 900 or batch > 900


def test_a_failed_attempt_says_that_no_episode_has_ended(
    request_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["env.id=failing:Failing-v0", "+env.kwargs={fail_at: 50, length: 60}"]
    monkeypatch.setattr(first_steps, "EPISODE_STEPS", 40)  # The check sees nothing of it.
    build = make_plan(request_of(*words)).assignment_build()
    task = {"build": build, "env_steps": 900, "reports": 1, "engine": "fast", "params": {}}
    trial = Trial(make_task(tmp_path, **task, checkpoint_every_s=600.0))
    result = trial.step()
    trial.stop()
    assert (result["cause"], result["num_ended"]) == ("environment", 0)


def test_a_failed_evaluation_costs_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of the whole budget comes before the episodes, from which the next attempt plays them again."""

    def fail(*_: Any) -> list[float]:
        raise ConnectionResetError("gone")

    task = {"kind": "certify", "episodes": 3}
    with monkeypatch.context() as patch:
        patch.setattr(ToyTrial, "play", fail)
        *_, trained, failed = run_trial(make_task(tmp_path, **task))
    assert "gone" in failed["failed"]
    latest = trained["records"]["latest"]
    assert (latest["env_steps"], trained["nominal_steps"]) == (1000, 1000)
    monkeypatch.setattr(ToyRunner, "train", fail)
    (last,) = run_trial(make_task(tmp_path, **task, latest=latest, best=trained["records"].get("best")))
    assert (last["nominal_steps"], last["returns"]) == (1000, [1.0] * 3)
