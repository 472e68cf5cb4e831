"""The worked example of docs/trading.md: its files and its commands, as the page shows them."""

from __future__ import annotations

import json
import math
import re
import shlex
from contextlib import closing
from pathlib import Path

import pytest
from real import Project

from rltune.ledger.storage import open_ledger
from tests.whole.test_readme import OWN_FILES, ROOT

PAGE = (ROOT / "docs" / "trading.md").read_text()
COMMANDS = re.findall(r"^    (rltune .+)$", PAGE, re.MULTILINE)
SMALL = ("budget.trials=2", "budget.env_steps=2048", "budget.reports=2", "certify.seeds=1", "scheduler=none")


@pytest.mark.slow
@pytest.mark.parametrize("words", [SMALL, pytest.param((), marks=pytest.mark.nightly)])
def test_the_worked_example_chooses_and_reports_apart(tmp_path: Path, words: tuple[str, ...]) -> None:
    for name in ("trading.py", "conf/env/trading.yaml", "conf/experiment/trading.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(OWN_FILES[name])
    project, outputs = Project(tmp_path), dict[str, str]()
    for line in [line for line in COMMANDS if not words or re.search("name=prices|evaluate", line)]:
        typed = shlex.split(line)[1:]
        more = [*words, "tracking=off", "report=false"] if typed[0] == "run" else ["json=true"]
        done = project.type("-m", "rltune", *typed, *more)
        assert done.code == 0, done.out[-3000:]
        outputs[" ".join(typed[:2])] = done.out
    summary = project.summary
    certified, winner = summary["certified"], summary["winner"]
    assert (certified["policy"]["episodes"], certified["policy"]["low"]) == (1, None), "the test part is one episode"
    with closing(open_ledger(project.sweep)) as ledger:
        trials, runs = ledger.trials.records(), ledger.runs.records()
    assert all({"score", "episode/profit", "episode/drawdown"} <= set(trial.numbers) for trial in trials)
    assert all(trial.numbers["episode/profit"] == pytest.approx(trial.score) for trial in trials), "the same episodes"
    assert all(len(run.returns) == len(run.choice_returns) == 1 for run in runs)
    kept = [trial for trial in trials if trial.numbers["episode/drawdown"] < 0.15]
    assert all(trial.broken for trial in trials if trial not in kept)
    names = [row["name"] for row in certified["configurations"]]
    choice = {name: [run.choice_returns[0] for run in runs if _owner(run.of_trial) == name] for name in names}
    if not words:  # Five runs each; their middle half on validation decides.
        middle = {name: sum(sorted(scores)[1:-1]) / 3 for name, scores in choice.items()}
        assert winner["name"] == max(middle, key=lambda name: middle[name])
    best = certified["configurations"][0]
    assert sorted(best["scores"]) == sorted(run.returns[0] for run in runs if _owner(run.of_trial) == winner["name"])
    played = json.loads(outputs["evaluate policy=sweep:prices"].strip().splitlines()[-1])
    assert math.isclose(played["mean"], winner["evaluation"]["mean"], rel_tol=1e-6), "on the test part"


def _owner(trial: int | None) -> str:
    return "baseline" if trial is None else f"trial {trial}"
