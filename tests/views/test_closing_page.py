"""What a person reads when a sweep ends."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rltune.envs.objective import Objective
from rltune.records import Check
from rltune.views.closing_page import describe_certification
from rltune.views.console import Console as SweepConsole
from tests.views.consoles import Terminal, make_page, make_trial, screen

MODEL = {
    "name": "cartpole-ppo",
    "version": "5",
    "uri": "models:/cartpole-ppo@champion",
    "champion": True,
    "why": "a mean return of 195 is better than the 190 of version 4 (sweep first)",
}
ROW = {"iqm": -1234.5, "low": -1334.4, "high": -1133.3, "search_score": -999.4, "seeds": 5}
CERTIFIED = {
    "configurations": [
        {**ROW, "name": name, "trial": trial, "improvement": improvement, "failed_seeds": failed, "verdict": verdict}
        | {"failed_score": -1500.0}
        for name, trial, improvement, failed, verdict in (
            ("trial 12", 12, 0.97, 0, "winner"),
            ("baseline", 3, None, 1, "tie"),
        )
    ],
    "winner": "trial 12",
    "seeds": [1, 2, 3, 4, 5],
}


@pytest.fixture
def closing(one_terminal, tmp_path, monkeypatch):
    """The closing page of a sweep in ``outputs/cartpole-ppo``, where an environment is active."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    (tmp_path / "outputs" / "cartpole-ppo").mkdir(parents=True)

    def render(stream=None, **changes):
        out = io.StringIO() if stream is None else stream
        failed = [make_trial(number, "FAIL", stop_reason=f"the pole broke at {number}") for number in (20, 21)]
        SweepConsole(out).close(make_page(tmp_path / "outputs" / "cartpole-ppo", failed=failed, **changes))
        return screen(out)

    return render


def test_the_page_of_a_certified_sweep(closing, tmp_path, golden):
    (tmp_path / "outputs" / "cartpole-ppo" / "study.db").touch()
    (tmp_path / "outputs" / "cartpole-ppo" / "report").mkdir()
    (tmp_path / "outputs" / "cartpole-ppo" / "report" / "index.html").touch()
    front = [
        make_trial(3, "COMPLETE", {"lr": 0.1}, [9.0], second=4.25),
        make_trial(1, "COMPLETE", {}, [8.0], second=2.0),
    ]
    page = closing(
        certified=CERTIFIED,
        model=MODEL,
        tracking_uri=f"sqlite:///{tmp_path}/mlflow.db",
        second="train_s",
        front=front,
        winner={"trial": 2},
        verdict="Trial 2 wins.",
    )
    golden("closing_page", page.replace(str(tmp_path), "<folder>"))


def test_commands_and_paths_are_never_broken_over_lines(closing, tmp_path):
    lines = closing(Terminal(), model=MODEL, resume_command="python -m sweeps.resume sweep=cartpole-ppo").splitlines()
    ends = ("python -m sweeps.resume sweep=cartpole-ppo", f'load_policy("{MODEL["uri"]}")', "outputs/cartpole-ppo")
    for command in ends:
        assert any(line.rstrip().endswith(command) for line in lines)


def test_commands_name_the_environment_if_none_is_active(one_terminal, stream, tmp_path, monkeypatch):
    (tmp_path / "venv").mkdir()
    for program in ("python", "mlflow"):
        (tmp_path / "venv" / program).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    SweepConsole(stream).close(make_page(tmp_path, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db"))
    assert "venv/mlflow ui\n" in stream.getvalue()
    assert "venv/python -m" in stream.getvalue()
    assert "sweeps.evaluate policy=sweep:cartpole-ppo\n" in stream.getvalue()


def test_a_sweep_without_a_winner_offers_nothing_to_reuse(closing):
    page = closing(top=[], cost={}, trials={"total": 1, "failed": 1}, status="failed")
    assert "load_policy" not in page
    assert "sweeps.evaluate" not in page


def test_an_interrupted_sweep_counts_what_is_left(closing):
    counts = {"total": 3, "complete": 1, "interrupted": 2}
    broken = make_trial(0, "COMPLETE", {}, [1.0], checks=(Check("train_s", "< 60", 70.0, 10.0),))
    page = closing(status="interrupted", trials=counts, num_to_begin=5, others=[broken])
    for words in ("2 interrupted", "5 not begun", "constraint"):
        assert words in page


def test_fresh_episodes_are_told_apart_from_a_score(closing):
    winner = {"name": "trial 1", "objective": 44.0}
    played = {"mean": 190.0, "episodes": 100, "low": 180.0, "high": 200.0}
    assert "score = " in closing(winner=winner | {"evaluation": played})
    assert "score = " not in closing(winner=winner), "there is one number"


def test_a_winner_that_is_no_champion_is_loaded_by_its_sweep(closing):
    page = closing(model=MODEL | {"champion": False, "why": "version 4 is certified"})
    assert 'load_policy("sweep:cartpole-ppo")' in page


def test_certification_fits_a_terminal_of_eighty_columns(terminal):
    console = Console(file=terminal, highlight=False)
    for part in describe_certification(CERTIFIED, Objective()):
        console.print(part)
    assert max(map(len, terminal.getvalue().splitlines())) <= 80
