"""What a person reads when a sweep ends."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from consoles import Terminal, make_page, screen
from rich.console import Console

from rltune.reporting.closing_page import TrialView, describe_certification

MODEL = {
    "name": "cartpole-ppo",
    "version": "5",
    "uri": "models:/cartpole-ppo@champion",
    "champion": True,
    "why": "a mean return of 195 is better than the 190 of version 4 (sweep first)",
}


def test_the_page_has_the_top_five_the_cost_and_what_was_saved(make, tmp_path):
    console, out = make()
    console.summary(make_page(tmp_path))
    page = out.getvalue()
    assert "24 trials: 7 complete, 15 stopped, 2 failed\n" in page
    assert re.search(r"1 +1 +499 +100k +complete +lr=0\.1\b", page)
    assert re.search(r"5 +5 +495 +100k +complete +lr=1e-5", page)
    assert "lr=1e-6" not in page
    assert "1M env steps, 3 min 20 s of training in 2 min 05 s on 2 slots, which trained 80% of the time\n" in page
    assert "1.4M env steps, about 4 min 40 s of training (58% of the whole) by stopping" in page


def test_an_interrupted_sweep_names_what_was_not_begun(make, tmp_path):
    console, out = make()
    counts = {"total": 3, "complete": 1, "interrupted": 2}
    console.summary(make_page(tmp_path, status="interrupted", counts=counts, num_to_begin=5))
    assert "3 trials: 1 complete, 0 stopped, 0 failed, 2 interrupted; 5 not begun\n" in out.getvalue()


def test_the_next_commands_are_each_on_one_line_as_typed(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    folder = tmp_path / "outputs" / "cartpole-ppo"
    folder.mkdir(parents=True)
    (folder / "study.db").touch()
    console, out = make(Terminal())
    console.summary(
        make_page(
            folder,
            tracking_uri=f"sqlite:///{tmp_path}/mlflow.db",
            model=MODEL,
            resume_command="python -m sweeps.resume sweep=cartpole-ppo",
        )
    )
    lines = [line.strip() for line in screen(out).splitlines()]
    assert "folder    outputs/cartpole-ppo" in lines
    assert "compare the trials    mlflow ui" in lines
    assert "test the winner       python -m sweeps.evaluate policy=models:/cartpole-ppo@champion" in lines
    assert "continue this sweep   python -m sweeps.resume sweep=cartpole-ppo" in lines
    load = 'import rltune; policy = rltune.load_policy("models:/cartpole-ppo@champion")'
    assert f"use it in Python      {load}" in lines
    assert any("optuna-dashboard sqlite:///outputs/cartpole-ppo/study.db" in line for line in lines)


def test_commands_name_the_environment_if_none_is_active(make, tmp_path, monkeypatch):
    (tmp_path / "venv").mkdir()
    for program in ("python", "mlflow"):
        (tmp_path / "venv" / program).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    console, out = make()
    console.summary(make_page(tmp_path, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db"))
    assert "compare the trials    venv/mlflow ui\n" in out.getvalue()
    assert "venv/python -m sweeps.evaluate policy=sweep:cartpole-ppo\n" in out.getvalue()


def test_a_sweep_without_a_winner_offers_nothing_to_reuse(make, tmp_path):
    console, out = make()
    console.summary(make_page(tmp_path, top=[], cost={}, counts={"total": 1, "failed": 1}, status="failed"))
    assert "no trial reported a return" in out.getvalue()
    assert "load_policy" not in out.getvalue()
    assert "sweeps.evaluate" not in out.getvalue()


def test_certification_fits_a_terminal_of_eighty_columns(terminal):
    row = {
        "iqm": -1234.5,
        "low": -1334.4,
        "high": -1133.3,
        "search_score": -999.4,
        "optimism": 235.1,
        "seeds": 5,
        "failed_score": 9.0,
    }
    names = {"trial 12": ("winner", 0.97, 12), "baseline": ("tie", None, 3)}
    rows = [
        {**row, "name": name, "trial": trial, "improvement": odds, "failed_seeds": int(trial == 3), "verdict": verdict}
        for name, (verdict, odds, trial) in names.items()
    ]
    console = Console(file=terminal, highlight=False)
    for part in describe_certification({"configurations": rows, "winner": "trial 12", "seeds": [1, 2, 3, 4, 5]}):
        console.print(part)
    lines = terminal.getvalue().splitlines()
    assert "trial 12 -1,234 -1,334 to -1,133 -999.4 235.1 97% 5 winner" in [" ".join(line.split()) for line in lines]
    assert any(line.startswith("trial 3 =") and line.rstrip().endswith("tie") for line in lines)
    assert max(map(len, lines)) <= 80


def test_the_front_is_shown_where_there_is_a_second_objective(make, tmp_path):
    front = [TrialView(3, "COMPLETE", {"lr": 0.1}, [9.0], second=4.25), TrialView(1, "COMPLETE", {}, [8.0], second=2.0)]
    console, out = make()
    console.summary(make_page(tmp_path, second="train_s", front=front))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    start = lines.index("front score train_s params")
    assert lines[start + 1 : start + 3] == ["trial 3 9 4.25 lr=0.1", "trial 1 8 2"]
    console, out = make()
    console.summary(make_page(tmp_path, second="train_s", num_broken=2))
    assert "the front is empty" in out.getvalue()
    assert "2 failed; 2 of them cannot win, for a constraint\n" in out.getvalue()
    console, out = make()
    console.summary(make_page(tmp_path))
    assert "front:" not in out.getvalue()
    assert "constraint" not in out.getvalue()


def test_a_score_is_told_apart_from_what_is_certified(make, tmp_path):
    winner = {"name": "trial 1", "objective": 44.0}
    played = {"mean": 190.0, "episodes": 100, "low": 180.0, "high": 200.0}
    console, out = make()
    console.summary(make_page(tmp_path, winner=winner | {"evaluation": played}))
    assert "score: while training, exploring (mean of the last 3 reports); fresh episodes: the" in out.getvalue()
    assert "winner    trial 1: mean return 190" in out.getvalue()
    console, out = make()
    console.summary(make_page(tmp_path, winner=winner))
    assert "exploring" not in out.getvalue(), "there is one number"


def test_a_winner_of_an_interrupted_sweep_is_one_so_far(make, tmp_path):
    console, out = make()
    console.summary(make_page(tmp_path, status="interrupted", winner={"name": "trial 1", "objective": 44.0}))
    assert "winner    trial 1 so far, the sweep is not over: by the search's own objective, 44\n" in out.getvalue()


def test_the_page_says_who_the_champion_is(make, tmp_path):
    console, out = make()
    console.summary(make_page(tmp_path, model=MODEL))
    told = "champion  of cartpole-ppo is this sweep's winner, version 5: a mean return of 195 is better than the 190"
    assert told in out.getvalue()
    console, out = make()
    console.summary(make_page(tmp_path, model=MODEL | {"champion": False, "why": "version 4 is certified"}))
    assert "champion  of cartpole-ppo stays what it was: version 4 is certified\n" in out.getvalue()
    assert 'winner is version 5: rltune.load_policy("sweep:cartpole-ppo")\n' in out.getvalue()
