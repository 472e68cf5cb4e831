"""How a sweep ended, and what list and show say about it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import ledger
import pytest
from rich.console import Console

from rltune.certification.finalists import Finalist, describe_winner
from rltune.config.schema import BudgetConfig, RunConfig
from rltune.errors import StudyError
from rltune.reporting.closing_page import certified
from rltune.reporting.tables import list_sweeps, show_sweep
from rltune.study.outcome import Outcome, compute_cost, count_states
from rltune.study.record import TrialRecord
from rltune.study.study import Study
from rltune.sweep.publish import make_closing_page

ENTRIES = [
    TrialRecord(0, "COMPLETE", {"lr": 1e-3}, {500: 3.0, 1000: 9.0}, {"env_steps": 1000, "train_s": 4.0}, 9.0),
    TrialRecord(1, "PRUNED", {"lr": 1e-2}, {100: 12.0}, {"env_steps": 100, "train_s": 0.5}),
    TrialRecord(2, "PRUNED", {"lr": 2e-2}, {300: 1.0}, {"env_steps": 300, "train_s": 1.0}),
    TrialRecord(
        3, "FAIL", {"lr": 1.0}, {100: 99.0}, {"env_steps": 150, "train_s": 0.5, "stop_reason": "non-finite loss"}
    ),
    TrialRecord(4, "RUNNING", {"lr": 5e-3}, {200: 5.0}, {}),
    TrialRecord(5, "RUNNING", {"lr": 6e-3}, {}, {}),
]


def request(env_steps=1000, replicates=1):
    return RunConfig(budget=BudgetConfig(trials=6, env_steps=env_steps, reports=10), replicates=replicates)


def ended(folder=Path(), **changes):
    given = {
        "name": "s",
        "status": "complete",
        "trials": count_states(ENTRIES),
        "winner": {"trial": 0, "params": {"lr": 1e-3}, "objective": 9.0},
        "model": {"name": "cartpole-ppo", "version": "3", "uri": "models:/cartpole-ppo@champion"},
        "cost": compute_cost(ENTRIES, request(), 2, 10.0),
        "folder": folder,
    }
    return Outcome(**{**given, **changes})


def test_trials_are_counted_by_how_they_ended():
    assert count_states(ENTRIES) == {
        "total": 6, "complete": 1, "pruned": 2, "failed": 1, "interrupted": 2
    }  # fmt: skip
    assert set(count_states([]).values()) == {0}


def test_cost_is_what_was_stepped_and_what_stopping_saved():
    cost = compute_cost(ENTRIES, request(), slots=2, wall_s=10.0)
    assert cost["env_steps"] == 1000 + 100 + 300 + 150 + 200
    assert cost["env_steps_saved"] == 900 + 700, "a failed or interrupted trial saves nothing"
    assert cost["train_s"] == 6.0
    assert cost["efficiency"] == 0.3, "six seconds of training in two slots for ten seconds"
    assert (cost["slots"], cost["wall_s"]) == (2, 10.0)


def test_replicates_cost_as_many_times_more():
    cost = compute_cost(ENTRIES, request(replicates=3), slots=2, wall_s=10.0)
    assert cost["env_steps"] == 3 * 1750
    assert cost["env_steps_saved"] == 3 * 1600


def test_a_certifications_runs_are_counted_apart_but_fill_the_slots_too():
    runs = [TrialRecord(0, "COMPLETE", {}, {1000: 5.0}, {"env_steps": 1000, "train_s": 4.0}, 5.0)]
    cost = compute_cost(ENTRIES, request(), 2, 10.0, runs)
    assert (cost["env_steps"], cost["certify_env_steps"]) == (1750, 1000)
    assert (cost["train_s"], cost["certify_train_s"], cost["efficiency"]) == (6.0, 4.0, 0.5)


def test_a_trial_that_overshot_its_budget_saves_nothing_rather_than_less():
    over = [TrialRecord(0, "PRUNED", {}, {1200: 1.0}, {"env_steps": 1200})]
    assert compute_cost(over, request(), 1, 1.0)["env_steps_saved"] == 0


def test_the_summary_file_has_what_it_promises(tmp_path):
    ended(tmp_path).save()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == {"name", "status", "trials", "winner", "model", "cost", "certified", "reason"}
    assert set(summary["cost"]) >= {"env_steps", "env_steps_saved", "train_s", "wall_s", "slots", "efficiency"}
    assert {"trial", "params", "objective"} <= set(summary["winner"])
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"], "written whole, with no draft left"


def test_a_sweep_without_a_winner_says_so_in_its_summary(tmp_path):
    ended(tmp_path, status="failed", winner=None, model=None).save()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["winner"], summary["model"], summary["status"]) == (None, None, "failed")


def test_the_winner_is_described_by_what_leads_back_to_it(tmp_path):
    finalist = Finalist("trial 0", 0, {"lr": 1e-3}, 9.0, tmp_path / "trials/0/best-1000", 0)
    assert describe_winner(finalist, tmp_path) == {
        "name": "trial 0",
        "trial": 0,
        "params": {"lr": 1e-3},
        "objective": 9.0,
        "checkpoint": "trials/0/best-1000",
    }
    assert describe_winner(None, tmp_path) is None


def test_a_return_of_zero_is_a_score_like_any_other():
    assert Finalist("trial 0", 0, {}, 0.0, Path(), 0).score == 0.0
    assert Finalist("control", None, {}, None, Path(), "control-seed-0").score == float("-inf")


def test_the_closing_page_shows_the_best_five_and_no_failed_trial():
    many = [TrialRecord(number, "COMPLETE", {}, {100: float(number)}) for number in range(8)]
    page = make_closing_page(ended(), [*many, ENTRIES[3], ENTRIES[5]], None, None)
    assert [view.number for view in page.top] == [7, 6, 5, 4, 3]


# -- list and show ------------------------------------------------------------------------------------------------


@pytest.fixture
def sweeps(tmp_path):
    """A folder with one sweep, and what makes more."""

    def add(name, age=0, trials=ENTRIES[:5]):
        home = tmp_path / name
        home.mkdir(parents=True)
        (home / "config.yaml").write_text("study:\n  storage: null\n")
        os.utime(home / "config.yaml", (1e9 - age, 1e9 - age))
        study = Study(ledger.empty(home), name, create=True)
        for wanted in trials:
            number, _ = study.ask(lambda suggest: {}, {})
            study.note(number, params=dict(wanted.params), **dict(wanted.attributes))
            for step, objective in wanted.reports.items():
                study.report(number, step, objective)
            if wanted.state != "RUNNING":
                study.finish(number, wanted.state, wanted.value, wanted.attributes.get("stop_reason", "done"))
        study.set_attribute("status", "complete")
        study.close()
        return home

    return add


def listed(tmp_path):
    stream = io.StringIO()
    list_sweeps(str(tmp_path), stream)
    return stream.getvalue()


def shown(sweep, tmp_path):
    stream = io.StringIO()
    show_sweep(sweep, str(tmp_path), stream)
    return stream.getvalue()


def test_sweeps_are_listed_one_a_line_the_newest_last(sweeps, tmp_path):
    long = "acrobot-ppo-20260304-050607-a1b2-and-a-name-of-ones-own"
    for name, age in ((long, 10), ("older", 100)):
        sweeps(name, age=age)
    lines = listed(tmp_path).splitlines()
    assert lines[1].split()[:3] == ["older", "complete", "5"]
    assert lines[2].split()[0] == long, "a name is never broken over two lines: it is there to be copied"
    assert len(lines) == 3
    assert "1/2/1" in lines[1]


def test_the_list_fits_a_terminal_of_eighty_columns(sweeps, tmp_path, terminal):
    names = ("dict-ppo-20261121-212212-b28c", "halfcheetah-sac-20261121-2122-b28c")
    for name in names:
        sweeps(name)
    list_sweeps(str(tmp_path), terminal)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert {tuple(line.split()[:3]) for line in lines if line.startswith(names)} == {
        (name, "complete", "5") for name in names
    }
    assert "1/2/1" in lines[-1]


def test_on_a_narrow_terminal_a_long_name_stays_whole(sweeps, tmp_path, terminal):
    long = "lunarlander_continuous-ppo-20261121-212212-b28c-of-my-own-choice"
    sweeps(long)
    list_sweeps(str(tmp_path), terminal)
    assert terminal.getvalue().splitlines()[-1].split()[:2] == [long, "complete"]


def test_words_in_brackets_are_shown_as_they_are(sweeps, tmp_path):
    sweeps(
        "s",
        trials=[TrialRecord(0, "FAIL", {"layers": ["relu", "tanh"]}, {}, {"stop_reason": "shape [box] is unknown"})],
    )
    text = " ".join(shown("s", tmp_path).split())
    assert "layers=[relu,tanh]" in text
    assert "shape [box] is unknown" in text


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
    names = {"trial 12": ("winner", 0.97, 12), "control": ("tie", None, 3)}
    rows = [
        {**row, "name": name, "trial": trial, "improvement": odds, "failed_seeds": int(trial == 3), "verdict": verdict}
        for name, (verdict, odds, trial) in names.items()
    ]
    console = Console(file=terminal, highlight=False)
    for part in certified({"configurations": rows, "winner": "trial 12", "seeds": [1, 2, 3, 4, 5]}):
        console.print(part)
    lines = terminal.getvalue().splitlines()
    assert "trial 12 -1,234 -1,334 to -1,133 -999.4 235.1 97% 5 winner" in [" ".join(line.split()) for line in lines]
    assert any(line.startswith("trial 3 =") and line.rstrip().endswith("tie") for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_failed_trials_reports_do_not_make_a_sweep_look_good(sweeps, tmp_path):
    sweeps("s")
    assert "99" not in listed(tmp_path), "its only 99 is a trial whose loss was not finite"


def test_a_damaged_sweep_is_named_and_does_not_hide_the_others(sweeps, tmp_path):
    sweeps("good")
    (sweeps("torn", trials=()) / "study.db").write_bytes(b"no database at all" * 100)
    (sweeps("lost", trials=()) / "study.db").unlink()
    (sweeps("garbled", trials=()) / "config.yaml").write_text("study: [half")
    text = listed(tmp_path)
    assert "5" in next(line for line in text.splitlines() if line.startswith("good"))
    for name in ("torn", "lost", "garbled"):
        assert f"{name}" in text
    assert text.count("unreadable") == 3


def test_a_folder_without_sweeps_says_how_to_start_one_in_a_line_that_can_be_copied(tmp_path):
    text = listed(tmp_path / ("a-long-way-down-" * 6))
    assert "python -m sweeps.run algo=ppo env=cartpole" in text
    assert list(tmp_path.iterdir()) == [], "looking makes no folder"


def test_a_sweeps_trials_are_shown_the_best_first_with_why_they_ended(sweeps, tmp_path):
    sweeps("s")
    text = shown("s", tmp_path)
    assert "s: complete" in text
    numbers = [line.split()[0] for line in text.splitlines() if line[:1].isdigit()]
    assert sorted(numbers) == ["0", "1", "2", "3", "4"]
    assert "lr=0.001" in text
    assert "non-finite loss" in " ".join(text.split())
    (unfinished,) = (line for line in text.splitlines() if line.startswith("4 "))
    assert "interrupted" in unfinished  # the sweep has ended, so it cannot be running
    assert "no reason" not in unfinished


def test_without_certification_the_winner_is_named_who_need_not_be_the_searchs_first(sweeps, tmp_path):
    study = Study(f"sqlite:///{sweeps('s') / 'study.db'}", "s")
    played = {"episodes": 10, "mean": 163.1, "low": 150.0, "high": 170.0}
    study.set_attribute("winner", {"name": "trial 1", "objective": 12.0, "evaluation": played})
    study.close()
    assert "winner    trial 1: mean return 163.1 on 10 fresh episodes (150 to 170)" in shown("s", tmp_path)


def test_latest_is_the_sweep_that_was_worked_on_last(sweeps, tmp_path):
    sweeps("older", age=100, trials=())
    sweeps("newer", age=10, trials=())
    assert shown("latest", tmp_path).startswith("newer:")


def test_an_unknown_sweep_is_answered_with_the_nearest(sweeps, tmp_path):
    sweeps("cartpole-one", trials=())
    with pytest.raises(StudyError) as refused:
        shown("cartpole-on", tmp_path)
    assert "'cartpole-one'" in refused.value.allowed
