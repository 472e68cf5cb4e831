"""What a sweep notes of where it comes from."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from rltune.driver import provenance
from rltune.driver.provenance import list_versions, read_git_commit, record_start


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
        record_start(sweep.ledger, sweep.folder, sweep.plan.settings)
        before = sweep.ledger.sweep()
        sweep.ledger.change_sweep(status="interrupted")
    with open_mine("budget.trials=4") as sweep:
        record_start(sweep.ledger, sweep.folder, sweep.plan.settings)
        after = sweep.ledger.sweep()
        assert replace(after, config=before.config, wall_s=before.wall_s) == before
        assert after.status == "running"
        assert "\n  trials: 4" in after.config
