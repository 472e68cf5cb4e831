"""Every command that reads a sweep takes the address of its ledger, which the sweep's settings hold without a login."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import make_sweep
from ended import make_certification, write_sweep
from real import play_here

from rltune.cli.application.answer import Answer, print_answer
from rltune.cli.application.program import load_command
from rltune.config.settings_file import FORMAT
from rltune.errors import RltuneError

REDACTED = "postgresql+psycopg://***@db.example/rl"


def run(name: str, *words: str) -> int:
    """Do a command's work as it is done when it was typed."""
    answer = load_command(name).answer(words)
    assert isinstance(answer, Answer)
    return print_answer(answer)


READERS = {
    "show": (("sweep=far",), "far: complete"),
    "report": (("sweep=far",), "index.html"),
    "compare": (("sweeps=[far]", "out=comparison"), "trial 3"),
}


@pytest.mark.parametrize("command", READERS)
def test_a_sweep_is_read_where_the_command_says(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_sweep(tmp_path / "far", 3, make_certification())
    (folder / "ledger.db").rename(tmp_path / "shared.db")
    settings = (folder / "config.yaml").read_text().replace("storage: null", f"storage: {REDACTED}")
    (folder / "config.yaml").write_text(settings)
    words, wanted = READERS[command]
    with pytest.raises(RltuneError) as refused:
        run(command, f"output_dir={tmp_path}", *words)
    assert refused.value.key == "study.storage"
    assert run(command, f"output_dir={tmp_path}", f"study.storage=sqlite:///{tmp_path / 'shared.db'}", *words) == 0
    said = capsys.readouterr().out
    assert wanted in said
    assert "unreadable" not in said


@pytest.mark.parametrize("command", ["evaluate", "export", "record"])
def test_a_policy_is_found_where_the_command_says(
    command: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    make_sweep(tmp_path / "far", checkpoint, storage)
    (tmp_path / "far" / "config.yaml").write_text(json.dumps({"format": FORMAT, "study": {"storage": REDACTED}}))
    words = ["policy=sweep:far/3", f"output_dir={tmp_path}"]
    words.append("format=torch" if command == "export" else "episodes=1")
    words += ["out=data"] if command == "record" else []
    monkeypatch.setattr("rltune.cli.policies._call_in_child", play_here)
    with pytest.raises(RltuneError) as refused:
        run(command, *words)
    assert refused.value.key == "policy"
    assert run(command, f"study.storage={storage}", *words) == 0
