"""The result of an evaluation travels as JSON and says which episodes were cut."""

from __future__ import annotations

import json

import pytest

from rltune.policies.result import Evaluation, explain_cut

pytestmark = pytest.mark.fast


def test_a_result_is_the_same_after_its_way_through_json() -> None:
    result = Evaluation((1.0, 3.0), (5, 9), 2.0, 1.4, 2.0, None, None, 1.0, 3.0, cut=(7,), deterministic=False)
    assert Evaluation.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_only_cut_episodes_are_explained() -> None:
    assert explain_cut((), 3, 9) == ""
    words = explain_cut((7, 8), 3, 10_000)
    assert all(part in words for part in ("2 of 3", "10,000", "7, 8", "env.evaluation_steps", "TimeLimit"))
