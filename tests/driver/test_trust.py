"""Whose sweeps are resumed: what a folder's settings name and its checkpoints hold runs as the user."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ended import write_sweep

from rltune.driver import run
from rltune.driver.folder import hold_sweep, open_folder
from rltune.driver.plan import Invocation, Plan
from rltune.driver.requests.actions import retry_failed
from rltune.driver.run import resume_sweep, run_sweep
from rltune.errors import StudyError
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef

SAME = ("budget.env_steps=1000", "~tuned", "~space", "+space.lr=[loguniform,1e-4,1e-2]")


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the sweeps that were gone on with; each one's folder is opened as its driver does."""
    names: list[str] = []

    def begin(plan: Plan, invocation: Invocation) -> None:
        with hold_sweep(plan) as ledger, open_folder(plan, ledger):
            names.append(plan.name)

    monkeypatch.setattr(run, "drive", begin)
    return names


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interrupted sweep of one's own, in the usual place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    return write_sweep(tmp_path / "outputs" / "mine", 2, None, "interrupted", "name=mine")


@pytest.mark.parametrize("way", ["resume", "run resume=auto"])
def test_another_users_sweep_is_resumed_with_trust_only(
    way: str, sweep: Path, resumed: list[str], request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(sweep / "somebody"))  # the folder was unpacked by another user
    again: Callable[[], Any] = lambda: resume_sweep(SweepRef("mine"))  # noqa: E731
    if way != "resume":
        again = lambda: run_sweep(request_of(*SAME, "name=mine", "resume=auto", "tracking=local"))  # noqa: E731
    with pytest.raises(StudyError) as refused:
        again()
    assert (refused.value.key, refused.value.exit_code, resumed) == ("sweep", 2, [])
    resume_sweep(SweepRef("mine"), trust=True)
    again()
    assert resumed == ["mine", "mine"], "what was trusted once is one's own from then on"


def test_settings_that_were_changed_need_trust(sweep: Path, resumed: list[str]) -> None:
    settings = sweep / "config.yaml"
    text = settings.read_text().replace("id: CartPole-v1", "id: evil:CartPole-v1")
    settings.write_text(text[: text.rindex("# sha256")] + "# sha256: any\n")
    with pytest.raises(StudyError) as refused:
        resume_sweep(SweepRef("mine"))
    assert (refused.value.key, resumed) == ("sweep", [])


def test_an_own_sweep_is_resumed_wherever_it_was_copied(sweep: Path, resumed: list[str], tmp_path: Path) -> None:
    shutil.copytree(sweep, tmp_path / "elsewhere" / "another-name")
    resume_sweep(SweepRef("another-name", tmp_path / "elsewhere"))
    assert resumed == ["another-name"]


def test_one_that_was_never_marked_is_retried_with_trust_only(
    sweep: Path, resumed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (sweep / ".made-by").unlink()
    with contextlib.closing(open_ledger(sweep)) as ledger:
        number = ledger.trials.add({"lr": 1e-3}, [7]).number
        ledger.trials.end(number, "FAIL", "it broke")
    with pytest.raises(StudyError) as refused:
        retry_failed(SweepRef("mine"))
    assert (refused.value.key, resumed) == ("sweep", [])
    retry_failed(SweepRef("mine"), trust=True)
    assert resumed == ["mine"]


def test_a_sweep_has_one_mark(sweep: Path, resumed: list[str]) -> None:
    resume_sweep(SweepRef("mine"))
    assert [path.relative_to(sweep).as_posix() for path in sweep.rglob(".made-by")] == [".made-by"]
