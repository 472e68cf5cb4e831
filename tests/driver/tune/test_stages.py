"""The two kinds of trials."""

from __future__ import annotations

from types import SimpleNamespace

from rltune.driver.tune.stages import Stage
from rltune.records import CERTIFY, TRIALS


def test_only_the_searchs_stage_is_the_search():
    stages = [Stage(SimpleNamespace(kind=kind), None) for kind in (TRIALS, CERTIFY)]
    assert [stage.is_search for stage in stages] == [True, False]
