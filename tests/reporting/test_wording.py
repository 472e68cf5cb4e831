"""What a report says in words, and what to type next."""

from __future__ import annotations

from pathlib import Path

import pytest
from composing import compose
from ended import make_certification, write_sweep

from rltune.config.validation import parse_config
from rltune.reporting.sweep_data import load_sweep_data
from rltune.reporting.wording import compare_values, describe_verdict, suggest_commands


def test_a_control_that_is_not_beaten_is_said_to_win(tmp_path: Path) -> None:
    record = make_certification() | {"winner": "baseline"}
    said = describe_verdict(load_sweep_data(write_sweep(tmp_path / "s", certified=record)))
    assert said.startswith("The published settings stand: nothing that the search found is better.")


@pytest.mark.parametrize(("published", "is_named"), [(1_000_000, True), (100, False), (None, False)])
def test_a_baseline_published_for_more_steps_is_named(tmp_path: Path, published: int | None, is_named: bool) -> None:
    data = load_sweep_data(write_sweep(tmp_path / "s", certified=make_certification()))
    data.settings["published"] = {"env_steps": published}
    assert ("1,000,000" in describe_verdict(data)) == is_named


def test_an_uncertified_verdict_warns_of_the_searchs_own_score(tmp_path: Path) -> None:
    said = describe_verdict(load_sweep_data(write_sweep(tmp_path / "s")))
    assert said.startswith("Trial 11 has the best score of 12 trials, 88.")
    assert "luckiest" in said


def test_the_winners_values_stand_beside_the_defaults(tmp_path: Path) -> None:
    (row,) = compare_values(load_sweep_data(write_sweep(tmp_path / "s")))
    assert (row.name, row.before, row.won, row.changed) == ("lr", "3e-4", "0.01", True)


def test_the_command_for_the_winner_alone_composes_to_its_values(tmp_path: Path) -> None:
    said = dict(suggest_commands(load_sweep_data(write_sweep(tmp_path / "s"))))
    words = said["Train the winner's values alone"].split()[3:]
    config = parse_config(compose("run", *words))
    assert config.space["lr"] == pytest.approx(0.01)
    assert config.budget.trials == 1


def test_a_constraint_that_none_keeps_is_the_verdict(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 2, None, "failed", 'constraints.train_s="< 0.5"')
    verdict = describe_verdict(load_sweep_data(folder))
    assert verdict.startswith("No trial keeps train_s < 0.5, so there is no winner; the nearest is trial")


def test_a_baseline_that_cannot_win_is_said_to(tmp_path: Path) -> None:
    certified = make_certification()
    certified["configurations"][1]["broken"] = "train_s=75, not < 60"
    verdict = describe_verdict(load_sweep_data(write_sweep(tmp_path / "s", 6, certified)))
    assert "the baseline's is 81 (95% interval 70 to 90), but it cannot win: train_s=75, not < 60." in verdict
