"""A command starts a sweep anew, from where it was left, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ended import write_sweep

from rltune.config.budget import fit_sizes
from rltune.driver import starting
from rltune.driver.plan import make_plan
from rltune.errors import ConfigError, StudyError
from rltune.ledger.outcome import Outcome
from rltune.ledger.sweep_ref import SweepRef

AUTO = ("name=mine", "resume=auto", "tracking=off", "scheduler=none", "budget.trials=1")


def test_a_resume_changes_budgets_and_addresses_alone(tmp_path: Path) -> None:
    folder = write_sweep(
        tmp_path / "mine", 2, None, "interrupted", "name=mine", "budget.trials=4", "cluster.num_cpus=3"
    )
    ref = SweepRef("mine", tmp_path, storage="s3://bucket", ledger_url="postgresql+psycopg://host/db")
    changes = {"budget": {"trials": 8, "wall_time_s": None}, "cluster": {"address": "local", "num_cpus": 2}}
    config = starting.change_settings(folder, ref, changes)
    assert (config.budget.trials, config.budget.wall_time_s) == (8, None)
    assert (config.cluster.address, config.cluster.num_cpus) == (None, 2)
    assert (config.storage, config.study.storage) == (ref.storage, ref.ledger_url)
    assert starting.change_settings(folder, ref, {"budget": {"trials": 8}}).cluster.num_cpus == 3
    joined = starting.change_settings(folder, ref, {"cluster": {"address": "head:6379"}}).cluster
    assert (joined.address, joined.num_cpus) == ("head:6379", None), "the cluster has its own"
    with pytest.raises(StudyError) as refused:
        starting.change_settings(folder, ref, {"budget": {"trials": 3}})
    assert refused.value.key == "budget.trials"
    starting.require_changeable(changes)
    with pytest.raises(StudyError) as refused:
        starting.require_changeable(changes | {"seed": 3})
    assert refused.value.key == "seed"
    endured = {"env": {"restarts": 50, "max_copies": None}, "failures": {"stall_s": 60.0}}
    starting.require_changeable(endured)
    assert starting.change_settings(folder, ref, endured).env.restarts == 50
    with pytest.raises(StudyError) as refused:
        starting.require_changeable({"env": {"restarts": 50, "id": "Other-v0"}})
    assert refused.value.key == "env.id"
    file = folder / "config.yaml"  # An earlier version ignored the number beside an address.
    body = file.read_text().rpartition("# sha256")[0].replace("cluster:\n  address: null", "cluster:\n  address: auto")
    file.write_text(f"{body}# sha256: any\n")
    stored = starting.change_settings(folder, ref, {}).cluster
    assert (stored.address, stored.num_cpus) == ("auto", None)


@pytest.mark.parametrize(
    ("words", "changes", "size"),
    [
        ((), {}, (3, 5)),
        ((), {"certify": {"seeds": 7}}, (3, 7)),
        (("certify.top=1", "certify.seeds=3"), {}, (1, 3)),
        (("certify.top=2", "certify.seeds=3"), {}, (2, 3)),
        (("certify=off",), {}, (3, 0)),
    ],
)
def test_the_certification_of_an_extended_sweep_grows_unless_its_size_was_given(
    tmp_path: Path, words: tuple[str, ...], changes: dict[str, Any], size: tuple[int, int]
) -> None:
    folder = write_sweep(tmp_path / "mine", 2, None, "interrupted", "certify=on", *words, "budget.trials=4")
    extended = {"budget": {"trials": 60}} | changes
    config, _ = fit_sizes(starting.change_settings(folder, SweepRef("mine", tmp_path), extended))
    assert (config.certify.top, config.certify.seeds) == size


def test_the_certification_of_an_extended_grid_fits_the_points_that_the_grid_has(tmp_path: Path) -> None:
    words = ("certify=on", "searcher=grid", "space.lr=[choice,1,2,3,4,5,6,7,8]")
    folder = write_sweep(tmp_path / "mine", 2, None, "interrupted", *words, "budget.trials=4")
    changes = {"budget": {"trials": 60}}
    plan = make_plan(starting.change_settings(folder, SweepRef("mine", tmp_path), changes), folder)
    assert (plan.budget.trials, plan.certify.top, plan.certify.seeds) == (8, 1, 3)
    assert any("budget.trials=60" in note for note in plan.notes)


SEARCHED = ("space.lr=[loguniform,1e-5,1e-2]", "+space.num_epochs=[choice,5,10]")


@pytest.mark.parametrize(
    ("space", "key", "fix"),
    [
        ({"num_epochs": ["choice", 5, 10, 20]}, None, ""),
        ({"lr": ["uniform", 1e-4, 1e-3], "num_epochs": ["randint", 1, 30, 5]}, None, ""),
        ({"num_epochs": 10}, "space.num_epochs", "[choice,10]"),
        ({"clip_param": ["choice", 0.1, 0.2]}, "space.clip_param", "leave space.clip_param out"),
        ({"env": {"kwargs": {"wind": ["choice", 1, 2]}}}, "space.env.kwargs.wind", "leave space.env.kwargs.wind out"),
        ({"num_epochs": ["uniform", 1, 10]}, "space.num_epochs", "[randint,1,10]"),
        ({"num_epochs": ["chioce", 1, 10]}, "space.num_epochs", "[choice,1,10]"),
    ],
)
def test_a_resume_changes_ranges_of_what_is_searched(
    tmp_path: Path, space: dict[str, Any], key: str | None, fix: str
) -> None:
    folder = write_sweep(tmp_path / "mine", 2, None, "interrupted", *SEARCHED, "budget.trials=4")
    ref = SweepRef("mine", tmp_path)
    starting.require_changeable({"space": space})
    if key is None:
        changed = starting.change_settings(folder, ref, {"space": space}).space
        assert changed == {"lr": ["loguniform", 1e-5, 1e-2], "num_epochs": ["choice", 5, 10]} | space
        return
    with pytest.raises(ConfigError) as refused:
        make_plan(starting.change_settings(folder, ref, {"space": space}), folder)
    assert refused.value.key == key
    assert fix in refused.value.fix
    if "clip_param" in space:
        assert "searcher.from_sweeps=[mine]" in refused.value.allowed


def test_a_grid_may_only_grow(tmp_path: Path) -> None:
    words = ("searcher=grid", "space.lr=1e-3", "+space.num_epochs=[choice,5,10]")
    folder, ref = write_sweep(tmp_path / "mine", 2, None, "interrupted", *words), SweepRef("mine", tmp_path)
    grown = starting.change_settings(folder, ref, {"space": {"num_epochs": ["choice", 5, 10, 20]}})
    assert make_plan(grown, folder).budget.trials == 3
    with pytest.raises(ConfigError):
        starting.change_settings(folder, ref, {"space": {"num_epochs": ["choice", 10, 20, 40]}})


@pytest.mark.usefixtures("ray_cluster")
def test_auto_stores_the_ledger_that_a_killed_driver_did_not(toy_run: Callable[..., Outcome], monkeypatch: Any) -> None:
    folder = toy_run(*AUTO).folder
    for is_stored in (False, True):
        monkeypatch.setattr(starting, "read_stored_history", lambda store: ["a host", "a host stored"][: 1 + is_stored])  # noqa: B023
        end = starting.find_end(folder, None)
        assert (end is not None) is is_stored, "the sweep is opened again to store it"
