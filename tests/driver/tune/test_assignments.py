"""A trial's worker learns where to go on from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from opened import make_assignments
from saved import write_checkpoint

from rltune.certification.finalists import EVALUATION_SEED, derive_own_seed
from rltune.cluster.resources import Share
from rltune.driver.sweep import Sweep
from rltune.driver.tune.assignments import choose_newest
from rltune.records import CERTIFY, CheckpointRecord, TrialRecord
from rltune.search.seeds import derive_certification_seeds, derive_trial_seeds
from rltune.trial.assignment import Assignment

Build = Callable[[TrialRecord], Assignment]
NEW = TrialRecord(3, "RUNNING", {"lr": 0.1}, seeds=(7, 8))


@pytest.fixture
def sweep(make_sweep: Callable[..., Sweep]) -> Sweep:
    return make_sweep("replicates=2", share=Share(2.0, 0.0, 0))


@pytest.fixture
def build(sweep: Sweep) -> Build:
    return make_assignments(sweep).build


def save(folder: Path, kind: str, env_steps: int) -> CheckpointRecord:
    state = {"env_steps": env_steps, "objective": 5.0}
    saved = write_checkpoint(folder, "trials/3", kind, state)
    return replace(saved, sequence=env_steps)  # as the ledger numbers them


def test_a_new_trial_starts_from_nothing(build: Build, sweep: Sweep) -> None:
    task = build(NEW)
    assert (task.number, task.params, task.seeds, task.threads) == (3, {"lr": 0.1}, (7, 8), 2)
    assert (task.latest, task.older, task.best, sweep.console.notes) == (None, None, None, [])


def test_each_attempt_has_a_folder_of_its_own(build: Build) -> None:
    """The worker of an earlier attempt may have been cut off, and come back."""
    attempts = {build(record).attempt for record in (NEW, NEW, replace(NEW, node="n2"))}
    assert len(attempts) == 3
    assert "" not in attempts


def test_a_trial_goes_on_from_its_newest_checkpoint(build: Build, sweep: Sweep) -> None:
    best, latest = save(sweep.plan.folder, "best", 100), save(sweep.plan.folder, "latest", 200)
    task = build(replace(NEW, checkpoint=best, latest=latest))
    assert (task.latest, task.older, task.best) == (latest.to_dict(), best.to_dict(), best.to_dict())
    assert sweep.console.notes == []


def test_a_trial_goes_on_with_its_replay_memory(build: Build, sweep: Sweep) -> None:
    fill = lambda folder: (folder / "replay").mkdir()  # noqa: E731
    latest = write_checkpoint(sweep.plan.folder, "trials/3", "latest", {"env_steps": 100, "objective": None}, fill)
    best = save(sweep.plan.folder, "best", 200)
    task = build(replace(NEW, checkpoint=best, latest=latest))
    assert (task.latest, task.best, task.replay_gb) == (latest.to_dict(), best.to_dict(), 0.2)


def test_a_damaged_checkpoint_is_named_and_passed_over(build: Build, sweep: Sweep) -> None:
    best, latest = save(sweep.plan.folder, "best", 100), save(sweep.plan.folder, "latest", 200)
    record = replace(NEW, checkpoint=best, latest=latest)
    (sweep.plan.folder / latest.path / "state.json").write_text("t")
    assert build(record).latest == best.to_dict()
    (sweep.plan.folder / best.path / "state.json").write_text("t")
    task, notes = build(record), sweep.console.notes
    assert (task.latest, task.best) == (None, None)
    assert latest.path in notes[0]
    assert best.path in notes[0], "from which it goes on"
    assert latest.path in notes[1]
    assert best.path not in notes[1], "it starts anew"
    assert len(notes) == 2


def test_a_run_of_the_certification_plays_at_its_end(build: Build) -> None:
    task = build(replace(NEW, kind=CERTIFY, seed_index=0))
    assert (task.kind, task.trial_dir, task.episodes > 0, task.evaluation_seed > 0) == (
        "certify",
        "certify/3",
        True,
        True,
    )
    assert (build(NEW).episodes, build(NEW).kind) == (0, "trials")


@pytest.mark.parametrize(
    ("of_trial", "trial", "run"), [(None, None, "baseline-seed-1"), (2, 2, "trial-002-seed-1")], ids=["baseline", "2"]
)
def test_a_policy_of_the_certification_names_the_trial_whose_values_it_has(
    build: Build, of_trial: int | None, trial: int | None, run: str
) -> None:
    tags = build(replace(NEW, kind=CERTIFY, seed_index=0, of_trial=of_trial)).tags
    assert (tags["trial"], tags["run"]) == (trial, run)
    assert (build(NEW).tags["trial"], build(NEW).tags["run"]) == (3, "trial 3")


def test_each_training_seed_plays_start_states_of_its_own(make_sweep: Callable[..., Sweep]) -> None:
    """Two sweeps differ, and configurations are compared seed by seed on the same start states."""
    sweeps = ("cartpole-1", "cartpole-2")
    assignments = {
        name: make_assignments(make_sweep("certify.seeds=5", "certify.episodes=50", name=name)) for name in sweeps
    }

    def play(name: str, number: int, seed_index: int) -> range:
        task = assignments[name].build(TrialRecord(number, "RUNNING", {}, kind=CERTIFY, seed_index=seed_index))
        return range(task.evaluation_seed, task.evaluation_seed + task.episodes)

    played = [env_seed for sweep in sweeps for seed_index in range(5) for env_seed in play(sweep, 3, seed_index)]
    assert len(set(played)) == len(played) == 2 * 5 * 50
    assert play("cartpole-1", 4, 2) == play("cartpole-1", 3, 2)
    others = [derive_trial_seeds(0, number, 1)[0] for number in range(24)]
    others += derive_certification_seeds(0, 5, others)
    others += range(EVALUATION_SEED, EVALUATION_SEED + 100)
    others += (first + episode for first in map(derive_own_seed, sweeps) for episode in range(100))
    assert not set(played) & set(others)
    assert max(played) < 2**31


def test_the_newest_checkpoint_is_the_one_recorded_last(tmp_path: Path) -> None:
    """One that is damaged sends its trial back to fewer steps."""
    best, again = save(tmp_path, "best", 300), replace(save(tmp_path, "latest", 200), sequence=301)
    assert choose_newest([again, best]) == choose_newest([best, again]) == again
    assert choose_newest([]) is None


def test_values_that_outgrow_their_share_get_a_larger_one_once(make_sweep: Callable[..., Sweep]) -> None:
    common = Share(1.0, 0.25, 0)
    assignments = make_assignments(make_sweep(share=common))
    greedy, other = TrialRecord(1, "RUNNING", {"width": 512, "lr": 0.1}), TrialRecord(2, "RUNNING", {"width": 64})
    run = TrialRecord(1, "RUNNING", {"lr": 0.1, "width": 512}, kind=CERTIFY, seed_index=0)
    read = lambda record: assignments.build(record).build["gpus"]  # noqa: E731
    assert [read(record) for record in (greedy, other, run)] == [0.25] * 3
    assert assignments.enlarge_share(greedy, 0.25) == replace(common, gpus=0.5)
    assert [read(record) for record in (greedy, other, run)] == [0.5, 0.25, 0.5]
    assert assignments.enlarge_share(run, 0.25), "its attempt had the common share"
    assert assignments.enlarge_share(greedy, 0.5) is None


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_a_trial_with_a_whole_gpu_or_none_gets_no_more(gpus: float, make_sweep: Callable[..., Sweep]) -> None:
    assignments = make_assignments(make_sweep(share=Share(1.0, gpus, 0)))
    assert assignments.enlarge_share(NEW, gpus) is None
