"""How a sweep is described, in a terminal and on pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from ended import make_certification, write_bounded, write_cost_sweep, write_sweep

from rltune.ledger.storage import open_ledger
from rltune.views.page import describe_baseline, describe_counts, describe_sweep, describe_values, describe_verdict
from rltune.views.sweep_view import load_view
from tests.views.consoles import describe_ended


def test_the_verdicts(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    barred = make_certification(broken="train_s=75, not < 60")
    failed = make_certification(failed_seeds=(16, 17))
    lost = make_certification(per_seed=(), failed_seeds=(11, 12, 13, 14, 15))
    sweeps = {
        "better": write_sweep(tmp_path / "certified", certified=make_certification()),
        "not better": write_sweep(tmp_path / "close", certified=make_certification(17.5)),
        "the baseline cannot win": write_sweep(tmp_path / "barred", certified=barred),
        "seeds failed": write_sweep(tmp_path / "failed", certified=failed),
        "the baseline failed": write_sweep(tmp_path / "lost", certified=lost),
        "the baseline wins": write_sweep(tmp_path / "equal", certified=make_certification(18, trial=4)),
        "interrupted": write_sweep(tmp_path / "stopped", 3, make_certification(), "interrupted"),
        "not certified": write_sweep(tmp_path / "bare"),
        "running": write_sweep(tmp_path / "running", 2, status="running"),
        "no winner": write_sweep(tmp_path / "broken", 2, None, "failed", 'constraints.train_s="< 0.5"'),
        "a cost": write_cost_sweep(tmp_path / "cost"),
    }
    verdicts = {name: describe_verdict(load_view(folder)) for name, folder in sweeps.items()}
    golden("verdicts", "\n".join(f"{name}: {verdict}" for name, verdict in verdicts.items()))


@pytest.mark.parametrize(("published", "is_named"), [(1_000_000, True), (100, False), (None, False)])
def test_a_baseline_published_for_more_steps_is_named(tmp_path: Path, published: int | None, is_named: bool) -> None:
    data = load_view(write_sweep(tmp_path / "s", certified=make_certification()))
    data = replace(data, settings={**data.settings, "published": {"env_steps": published}})
    assert ("1,000,000" in describe_verdict(data)) == is_named


@pytest.mark.parametrize(
    ("published", "command", "file"),
    [
        (100_000, None, "tuned/ppo_cartpole"),
        (100_000, "rltune run tuned=ppo_acrobot", "tuned/ppo_acrobot"),
        (None, "rltune run ~tuned", "algo/ppo"),
        (100_000, "rltune run env=acrobot env.name=mine", "tuned/ppo_acrobot"),
    ],
)
def test_a_page_names_the_baselines_file(tmp_path: Path, published: int | None, command: str | None, file: str) -> None:
    view = load_view(write_sweep(tmp_path / "s", certified=make_certification()))
    settings = {**view.settings, "published": {"env_steps": published}}
    for changed in ("", " algo.training.gamma=0.9") if command else ("",):
        record = replace(view.record, command=command and command + changed)
        now = replace(view, settings=settings, record=record)
        (certified,) = (section for section in describe_sweep(now) if section.name == "certification")
        (note,) = (note for note in certified.notes if note.startswith("baseline: "))
        assert f" conf/{file}.yaml" in note
        assert ("with algo.training.gamma=0.9" in note) is bool(changed)
        assert describe_baseline(now) in describe_values(now).notes[0]


@pytest.mark.parametrize(
    ("chosen", "measured", "keys"),
    [
        (None, None, set()),
        ("validation", None, {"score.env"}),
        ("validation", "validation", {"score.env", "certify.env"}),
        ("validation", "test", {"score.env", "certify.env"}),
        (None, "test", {"certify.env"}),
    ],
)
def test_a_page_says_which_data_chose_the_winner(
    tmp_path: Path, chosen: str | None, measured: str | None, keys: set[str]
) -> None:
    data = load_view(write_sweep(tmp_path / "s", certified=make_certification()))
    plain = describe_verdict(data)
    envs = {
        group: {"env": {"kwargs": {"split": part}} if part else {}}
        for group, part in (("score", chosen), ("certify", measured))
    }
    data = replace(data, settings={**data.settings, "env": {"id": "Prices-v0"}, **envs})
    added = describe_verdict(data).removeprefix(plain)
    assert (bool(added), "decided nothing" in added) == (bool(keys), bool(measured) and measured != chosen)
    assert all(key in added for key in keys)


def test_a_page_says_where_values_come_from(tmp_path: Path) -> None:
    data = load_view(write_sweep(tmp_path / "s"))
    winner = {"name": "trial 0", "trial": 0, "objective": 1.0, "origin": "portfolio"}
    data = replace(data, record=replace(data.record, winner=winner))
    assert describe_verdict(data).endswith("Its values come from the portfolio.")
    trial = data.trials[0]
    words = {
        origin: replace(trial, record=replace(trial.record, origin=origin)).explanation
        for origin in ("portfolio", "searcher", None)
    }
    assert words["portfolio"].endswith("from the portfolio")
    assert words["searcher"] == words[None], "most trials' values do"


def test_the_winners_values_stand_beside_the_defaults(tmp_path: Path) -> None:
    section = describe_values(load_view(write_sweep(tmp_path / "s")))
    assert section.table is not None
    ((name, won, default, searched),) = section.table.rows
    assert (name, won, default) == ("lr", "0.01", "3e-4")
    assert "1e-4" in searched


def test_an_interrupted_sweep_counts_what_is_left(tmp_path: Path) -> None:
    folder = write_bounded(tmp_path / "s")
    with closing(open_ledger(folder)) as ledger:
        ledger.trials.add({"lr": 1e-3}, [7])
        ledger.change_sweep(status="interrupted")
    counts = describe_counts(load_view(folder))
    for words in ("5 trials: 3 complete, 1 stopped", "1 interrupted", "2 of them cannot win", "19 not begun"):
        assert words in counts


def test_failures_of_one_kind_are_one_line(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 2)
    with closing(open_ledger(folder)) as ledger:
        for number in (2, 3):
            ledger.trials.add({"lr": 1e-3}, [number])
            reason = f"infinite-loss in {number}\nTraceback ..."
            ledger.trials.end(number, "FAIL", reason, log=f"trials/{number}/failure.txt")
    (failures,) = (section for section in describe_sweep(load_view(folder)) if section.name == "failures")
    expected = f"2 x infinite-loss in 2; see {folder / 'trials/2/failure.txt'}"
    assert failures.facts == [("trial 2, 3", expected)]


def test_repairs_of_environments_are_counted_by_trial(tmp_path: Path) -> None:
    view = load_view(write_sweep(tmp_path / "s"))
    assert not [section for section in describe_sweep(view) if section.name == "repairs"]
    trials = list(view.trials)
    numbers = {**trials[1].record.numbers, "env_restarts": 9.0}
    trials[1] = replace(trials[1], record=replace(trials[1].record, numbers=numbers))
    (repairs,) = (each for each in describe_sweep(replace(view, trials=trials)) if each.name == "repairs")
    assert repairs.facts == [(f"trial {view.trials[1].number}", "9 x")]


def test_scores_are_explained_if_fresh_episodes_stand_beside_them(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 2)
    assert not describe_sweep(load_view(folder))[-1].notes, "there is one number"
    played = {"mean": 190.0, "episodes": 100, "low": 180.0, "high": 200.0}
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(winner={"trial": 1, "objective": 44.0, "params": {}, "evaluation": played})
    assert describe_sweep(load_view(folder))[-1].notes
    verdict = describe_verdict(load_view(folder))
    assert ("180 to 200" in verdict, "failure" in verdict) == (True, True), "the interval holds more than was seen"
    assert "equal" not in verdict
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(winner={"trial": 1, "evaluation": played | {"episodes": 1, "low": None}})
    assert "equal" in describe_verdict(load_view(folder)), "why it is one, of the many that were played"


def test_search_and_certification_add_up_to_the_cost(tmp_path: Path) -> None:
    (cost,) = (section for section in describe_ended(write_sweep(tmp_path / "s")) if section.name == "cost")
    amounts = [re.findall(r"([\d.]+[kM]) env steps|(\d+ min \d\d s) of training", note) for note in cost.notes]
    assert [[steps or seconds for steps, seconds in note] for note in amounts] == [
        ["1.5M"],
        ["3 min 20 s", "1M", "500k"],
        ["1.4M", "2 min 48 s"],
    ]


def test_a_closing_page_has_the_best_of_many_trials_and_the_values_of_the_winner_alone(tmp_path: Path) -> None:
    view = load_view(write_sweep(tmp_path / "s", 12))
    sections = {section.name: section for section in describe_sweep(view, is_brief=True)}
    table = sections["trials"].table
    assert table is not None
    assert [row[0] for row in table.rows] == [str(number) for number in range(11, 1, -1)]
    assert "values" not in table.headings
    ((label, show),) = sections["trials"].facts
    assert label.startswith("2 more")
    assert show.endswith(f"show sweep=s output_dir={tmp_path}")
    assert sections["verdict"].facts == [("values", "lr=0.01")]


def test_a_closing_page_defines_no_columns(tmp_path: Path) -> None:
    view = load_view(write_sweep(tmp_path / "s", certified=make_certification()))
    brief, whole = (
        next(section for section in describe_sweep(view, is_brief=is_brief) if section.name == "certification")
        for is_brief in (True, False)
    )
    assert len(brief.notes) < len(whole.notes)
    assert brief.table == whole.table
