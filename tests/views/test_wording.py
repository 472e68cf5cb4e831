"""What a report says in words, and what to type next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from composing import compose
from ended import make_certification, write_cost_sweep, write_sweep

from rltune.config.validation import parse_config
from rltune.views.sweep_view import load_view
from rltune.views.wording import compare_values, describe_verdict, suggest_commands


def test_the_verdicts(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    barred, failed, few, stopped = (make_certification(("baseline",)) for _ in range(4))
    barred["configurations"][1]["broken"] = "train_s=75, not < 60"
    failed["configurations"][1] |= {"failed_seeds": [14, 15], "low": None, "high": None}
    few |= {"winner": "baseline", "seeds": [11], "ties": []}
    few["configurations"][1] |= {"per_seed": few["configurations"][1]["per_seed"][:1], "trial": 4}
    sweeps = {
        "certified": write_sweep(tmp_path / "certified", certified=make_certification()),
        "the baseline cannot win": write_sweep(tmp_path / "barred", certified=barred),
        "seeds failed": write_sweep(tmp_path / "failed", certified=failed),
        "the baseline wins": write_sweep(tmp_path / "few", certified=few),
        "interrupted": write_sweep(tmp_path / "stopped", 3, stopped, "interrupted"),
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


def test_the_winners_values_stand_beside_the_defaults(tmp_path: Path) -> None:
    (row,) = compare_values(load_view(write_sweep(tmp_path / "s")))
    assert (row.name, row.before, row.won, row.has_changed) == ("lr", "3e-4", "0.01", True)


def test_the_command_for_the_winner_alone_composes_to_its_values(tmp_path: Path) -> None:
    said = dict(suggest_commands(load_view(write_sweep(tmp_path / "s"))))
    words = said["Train the winner's values alone"].split()[3:]
    config = parse_config(compose("run", *words))
    assert config.space["lr"] == pytest.approx(0.01)
    assert config.budget.trials == 1
