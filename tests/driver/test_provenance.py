"""What a sweep notes of where it comes from."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from composing import compose
from gymnasium import spaces as S

from rltune.config.settings_file import write_settings
from rltune.config.validation import parse_config
from rltune.driver import provenance
from rltune.driver.provenance import (
    compare_environment,
    describe_environment,
    list_versions,
    read_git_commit,
    record_start,
)
from rltune.driver.starting import plan_begun
from rltune.envs.facts import EnvFacts
from rltune.errors import ConfigError


def test_a_package_that_is_missing_is_said_to_be(monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("optuna", "no-such-package"))
    versions = list_versions()
    assert versions["optuna"][0].isdigit()
    assert versions["no-such-package"] == "not installed"


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_git_commit() == ""


def test_the_commit_is_that_of_the_folder_of_the_command(tmp_path, monkeypatch):
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    monkeypatch.chdir(tmp_path)
    assert len(read_git_commit()) == 40


def test_a_resumed_sweep_keeps_its_start_and_notes_new_settings(open_mine):
    with open_mine("budget.trials=2") as sweep:
        record_start(sweep.ledger, sweep.plan.folder, sweep.plan.settings, sweep.plan.build.facts)
        before = sweep.ledger.sweep()
        sweep.ledger.change_sweep(status="interrupted")
    with open_mine("budget.trials=4") as sweep:
        record_start(sweep.ledger, sweep.plan.folder, sweep.plan.settings, sweep.plan.build.facts)
        after = sweep.ledger.sweep()
        assert replace(after, config=before.config, wall_s=before.wall_s) == before
        assert after.status == "running"
        assert "\n  trials: 4" in after.config


FACTS = EnvFacts(S.Box(0, 1, (2,)), S.Discrete(3), sources={"my.walk": "1a", "my.physics": "2b"})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"observation_space": S.Box(0, 1, (3,))}, "observation space"),
        ({"observation_space": S.Box(0, 2, (2,)), "sources": {"my.walk": "9z"}}, "observation space"),
        ({"action_space": S.Discrete(4)}, "action space"),
    ],
)
def test_other_spaces_than_at_the_start_are_refused_with_both(changes, name):
    now = replace(FACTS, **changes)
    with pytest.raises(ConfigError) as refused:
        compare_environment(describe_environment(FACTS), now, "my.walk:Walk-v0")
    assert (refused.value.key, refused.value.value) == ("env.id", "my.walk:Walk-v0")
    assert describe_environment(now)[name] in refused.value.what
    assert describe_environment(FACTS)[name] in refused.value.allowed


def test_a_changed_source_is_one_line_with_its_files():
    recorded = describe_environment(FACTS)
    assert not compare_environment(recorded, FACTS, "Walk-v0")
    assert not compare_environment(recorded, replace(FACTS, sources={"my.walk": "1a", "new": "3c"}), "Walk-v0")
    assert not compare_environment({"python": "3.11"}, FACTS, "Walk-v0"), "a sweep that has recorded none"
    assert not compare_environment(recorded, None, "Walk-v0")
    (note,) = compare_environment(recorded, replace(FACTS, sources={"my.walk": "9z", "my.physics": "9z"}), "Walk-v0")
    assert "my/walk.py" in note
    assert "my/physics.py" in note


def test_a_resume_compares_the_environment_with_the_start(open_mine, tmp_path):
    config = parse_config(compose("run", "tracking=off", "name=mine"))
    with open_mine() as sweep:
        write_settings(sweep.plan.folder, sweep.plan.given_settings)
        versions = sweep.ledger.sweep().versions
        assert versions["action space"] == "Discrete(2)"
    assert "source of gymnasium.envs.classic_control.cartpole" in versions
    assert not any("began" in note for note in plan_begun(config, tmp_path / "mine").notes)
    edited = {name: "another" if name.startswith("source of") else value for name, value in versions.items()}
    with open_mine() as sweep:
        sweep.ledger.change_sweep(versions=edited)
    assert any("cartpole.py" in note for note in plan_begun(config, tmp_path / "mine").notes)
    with open_mine() as sweep:
        sweep.ledger.change_sweep(versions=versions | {"action space": "Discrete(9)"})
    with pytest.raises(ConfigError) as refused:
        plan_begun(config, tmp_path / "mine")
    assert (refused.value.key, refused.value.exit_code) == ("env.id", 2)
