"""The certification's table and sentences. Most of them are tested with the numbers in test_result.py."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from ended import make_certification

from rltune.certification.description import COLUMNS, describe_result, explain_table, make_table, write_table
from rltune.certification.result import (
    Certification,
    CertifiedPolicy,
    Configuration,
    SeedResult,
    judge_configurations,
)
from rltune.envs.objective import Objective
from rltune.records import BASELINE, Direction

CERTIFICATION = Certification.from_dict(make_certification())


def test_the_table_has_a_row_for_each_configuration() -> None:
    table = make_table(CERTIFICATION)
    assert table.headings[: len(COLUMNS)] == tuple(COLUMNS)
    assert [row[0] for row in table.rows] == ["trial 3", "baseline"]
    assert [row[-1] for row in table.rows] == ["winner, better", ""]
    assert table.best == 0
    assert len(table.to_markdown().splitlines()) == 4


def test_the_measured_policy_is_described() -> None:
    policy = CertifiedPolicy("trial 3", 12, "", 100, 475.0, 440.0, 490.0)
    certification = Certification(**{**vars(CERTIFICATION), "policy": policy})
    (note,) = (note for note in explain_table(certification, Objective()) if "475" in note)
    assert {"440", "490", "100", "12"} <= set(note.replace(")", " ").split())


def test_the_result_has_winner_baseline_difference_and_what_to_expect() -> None:
    text = describe_result(CERTIFICATION, Objective())
    for words in (
        "Trial 3",
        "99 (93.75% interval 97 to 101)",
        "81 (93.75% interval 79 to 83)",
        "5 of 5 seeds",
        "by 18",
        "reached 97",
    ):
        assert words in text


def test_the_files_have_the_same_numbers(tmp_path: Path) -> None:
    text, table = write_table(CERTIFICATION, tmp_path)
    rows = list(csv.DictReader(text.open()))
    assert [(row["name"], row["median"]) for row in rows] == [("trial 3", "99.0"), ("baseline", "81.0")]
    written = json.loads(table.read_text())
    assert [row[written["columns"].index("median")] for row in written["data"]] == [99.0, 81.0]


def certify(best: list[float], baseline: list[float], num_seeds: int = 5, **objective: Any) -> tuple[str, str]:
    """Return sentences and notes on trial 1 and the baseline; a run's episodes are 1 above and below its score."""
    seeds = range(num_seeds)
    configurations = [
        Configuration(
            name,
            trial,
            {},
            None,
            tuple(SeedResult(*run, (run[1] - 1, run[1] + 1)) for run in zip(seeds, scores, strict=False)),
            tuple(seeds[len(scores) :]),
        )
        for name, trial, scores in ((BASELINE, None, baseline), ("trial 1", 1, best))
    ]
    measured = Objective(**objective)
    certification = judge_configurations(configurations, seeds, 2, measured.direction)
    assert certification is not None
    return describe_result(certification, measured), " ".join(explain_table(certification, measured))


def test_a_win_with_the_worse_median_gives_the_number_that_decided() -> None:
    text, _ = certify([30, 40, 41, 50, 51], [10, 20, 42, 43, 44])
    assert "43.67 against 35" in text
    assert "against 35" not in certify([30, 40, 43, 50, 51], [10, 20, 42, 43, 44])[0]


def test_it_gives_the_number_that_decided_for_costs_as_well() -> None:
    costs = [[-score for score in scores] for scores in ([30, 40, 41, 50, 51], [10, 20, 42, 43, 44])]
    assert "-43.67 against -35" in certify(costs[0], costs[1], direction=Direction.MIN)[0]


def test_what_a_failed_seed_counts_as_is_the_score_of_no_run() -> None:
    text, notes = certify([5.0, 4.0], [3.9, 3.0], num_seeds=3)
    assert "reached 5, 4." in text
    assert "trial 1: 5, 4, failed" in notes
    assert "lowest return of any single episode of these runs, 2:" in notes
