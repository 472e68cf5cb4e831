"""A worker's message survives the way through Tune's config."""

from __future__ import annotations

from pathlib import Path

from toy import make_task

from rltune.records import CERTIFY
from rltune.trial.assignment import Assignment


def test_tunes_config_gives_the_same_task_back(tmp_path: Path) -> None:
    task = Assignment(**make_task(tmp_path, engine="fast")["assignment"])
    assert Assignment(**task.to_config()["assignment"]) == task


def test_a_certifications_run_has_a_folder_beside_the_trials(tmp_path: Path) -> None:
    task = make_task(tmp_path, number=7)["assignment"]
    assert Assignment(**task).trial_dir == "trials/7"
    assert Assignment(**task | {"kind": CERTIFY}).trial_dir == "certify/7"
