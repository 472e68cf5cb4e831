"""A sweep's folder is made, claimed and given back."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rltune.config.uris import hide_login
from rltune.errors import StudyError
from rltune.pipeline import folder as folder_module
from rltune.pipeline.context import SweepContext
from rltune.pipeline.folder import RedactingFormatter, claim_folder, open_folder
from rltune.pipeline.plan import make_plan
from rltune.pipeline.run import check_request
from rltune.study.bucket import BucketAwayError
from rltune.study.storage import start_ledger
from rltune.study.sweep_folder import find_sweep, lock_sweep


def context_of(folder: Path) -> SweepContext:
    return SweepContext(plan=None, name=folder.name, folder=folder, resumed=True, began=0.0)  # type: ignore[arg-type]


def test_one_driver_at_a_time_has_a_folder(tmp_path: Path) -> None:
    with lock_sweep(tmp_path), pytest.raises(StudyError, match="another driver is working on it"):  # noqa: SIM117
        with claim_folder(context_of(tmp_path)):
            pass


def test_a_claim_clears_what_a_killed_driver_left(tmp_path: Path) -> None:
    draft, whole = tmp_path / "trials/7/.best-4711", tmp_path / "trials/7/best-100"
    for folder in (tmp_path / ".tune", draft, whole):
        folder.mkdir(parents=True)
    with claim_folder(context_of(tmp_path)):
        assert not (tmp_path / ".tune").exists()
        assert not draft.exists()
        assert whole.is_dir()


def test_a_new_sweep_survives_a_bucket_that_goes_away_later(
    request_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only before the first trial, when nothing is lost, is the folder of a new sweep removed."""
    monkeypatch.setattr(folder_module, "_check_shared", lambda context, token: None)
    folder = tmp_path / "outputs" / "x"
    plan = make_plan(request_of("cluster=address", "name=x", f"output_dir={folder.parent}"))
    context = SweepContext(plan, "x", folder, False, time.monotonic())
    with pytest.raises(BucketAwayError), open_folder(context):  # noqa: PT012
        (folder / "ledger.db").touch()
        raise BucketAwayError("storage=s3://x does not answer", "", "")
    assert (folder / "ledger.db").exists()


def die_in(step: str, context: SweepContext) -> None:
    """Make a sweep's folder in a process that is killed as this step begins."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        try:
            owner, _, name = step.rpartition(".")
            setattr(logging if owner else folder_module, name, die)
            with open_folder(context):
                start_ledger(None, context.folder, new=True).close()
                die()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize(
    ("step", "begun"),
    [
        ("claim_folder", False),
        ("end_stale_processes", False),
        ("record_processes", False),
        ("write_settings", False),
        ("logging.FileHandler", True),
        ("nothing of it", True),
    ],
)
def test_a_folder_whose_driver_was_killed_has_a_way_on(
    step: str, begun: bool, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    config = request_of("tracking=off", "name=x")
    folder = tmp_path / "outputs/x"
    context = SweepContext(make_plan(config), "x", folder, False, time.monotonic())
    die_in(step, context)
    if begun:
        with pytest.raises(StudyError, match="name=x") as refused:
            check_request(config)
        assert refused.value.fix.startswith("python -m sweeps.resume sweep=x")
        assert find_sweep("x", str(tmp_path / "outputs")) == folder
        start_ledger(None, folder, new=False).close()
    else:
        with pytest.raises(StudyError, match="sweep=x: nothing was begun") as refused:
            find_sweep("x", str(tmp_path / "outputs"))
        assert refused.value.fix == "python -m sweeps.run name=x algo=... env=..."
        check_request(config)
        with open_folder(context):
            pass
        assert find_sweep("x", str(tmp_path / "outputs")) == folder


def test_a_logged_traceback_holds_no_login() -> None:
    hide_login("http://me:open/sesame@mlflow.example")
    try:
        raise ValueError("host 'sesame@mlflow.example'")
    except ValueError:
        record = logging.LogRecord("rltune", logging.ERROR, __file__, 1, "lost open/sesame", (), sys.exc_info())
    shown = RedactingFormatter("%(message)s").format(record)
    assert "lost ***" in shown
    assert "sesame" not in shown
