"""What each release has written, in a folder of its name, is read by this version, also if it wrote later formats."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltune.cli.application.program import main
from rltune.config import settings_file
from rltune.config.settings_file import read_settings
from rltune.errors import StudyError
from rltune.policies import bundle_reader
from rltune.policies.policy import load_policy
from tests.releases.write import RECORDED, play, select_facts

HERE = Path(__file__).parent
RELEASES = sorted(path.parent.name for path in HERE.glob(f"*/{RECORDED}"))


@pytest.fixture(params=[0, 1], ids=["as it is", "with later formats"])
def num_later(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """By how much this version's formats are later than they are."""
    for module in (settings_file, bundle_reader):
        monkeypatch.setattr(module, "FORMAT", module.FORMAT + request.param)
    return int(request.param)


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path, num_later: int) -> Path:
    """A copy of what a release has written: reading a ledger makes files beside it."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "outputs"))


def type_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], release: Path, *words: str
) -> dict[str, Any]:
    """Type a command that reads sweeps, and return its answer."""
    monkeypatch.setattr("rltune.cli.application.command.end_command", sys.exit)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["rltune", *words, f"output_dir={release}", "json=true"])
    with pytest.raises(SystemExit) as left:
        main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert left.value.code == 0, answer
    return answer


def approximate(value: Any) -> Any:
    """Return a JSON value that equals another one up to rounding."""
    if isinstance(value, dict):
        return {key: approximate(each) for key, each in value.items()}
    if isinstance(value, list):
        return [approximate(each) for each in value]
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


def test_the_first_release_is_kept() -> None:
    assert "0.1.0" in RELEASES


def test_the_sweep_of_a_release_is_shown_listed_and_reported(
    release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = json.loads((release / RECORDED).read_text())["sweep"]
    answer = type_words(monkeypatch, capsys, release, "show", "sweep=first")
    assert select_facts(answer) == approximate(recorded)
    (listed,) = type_words(monkeypatch, capsys, release, "list")["sweeps"]
    assert (listed["name"], listed["status"], listed["trials"]["total"]) == ("first", "complete", 3)
    assert listed["best"] == approximate(recorded["best"])
    page = Path(type_words(monkeypatch, capsys, release, "report", "sweep=first")["report"]).read_text()
    assert f"{recorded['best']['score']:.1f}" in page


def test_the_policies_of_a_release_act_as_they_did(release: Path) -> None:
    recorded = json.loads((release / RECORDED).read_text())["policies"]
    assert len(recorded) >= 5
    for uri, steps in recorded.items():
        policy = load_policy(uri if uri.startswith("sweep:") else release / uri, output_dir=release)
        played = play(policy, np.asarray(steps["observations"], np.float32))
        np.testing.assert_allclose(played["outputs"], steps["outputs"], rtol=0, atol=1e-5, err_msg=uri)
        np.testing.assert_allclose(played["actions"], steps["actions"], rtol=0, atol=1e-5, err_msg=uri)


def test_only_a_sweep_of_the_present_format_is_resumed(release: Path, num_later: int) -> None:
    written = int((release / "first" / "config.yaml").read_text().split()[1])
    if written == settings_file.FORMAT:
        assert read_settings(release / "first", for_resume=True)["budget"]["trials"] == 3
        return
    with pytest.raises(StudyError, match=f"format {written}") as refused:
        read_settings(release / "first", for_resume=True)
    assert refused.value.allowed.startswith(f"format {settings_file.FORMAT},")
