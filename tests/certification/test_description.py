"""The certification's table and sentences. Most of them are tested with the numbers in test_result.py."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from ended import make_certification

from rltune.certification.description import COLUMNS, describe_result, explain_table, make_table, write_table
from rltune.certification.result import Certification, CertifiedPolicy
from rltune.envs.objective import Objective

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
