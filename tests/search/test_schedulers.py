"""Which stopping rule a scheduler file means, and what it may say about it."""

from __future__ import annotations

import pytest

from rltune.errors import ConfigError
from rltune.search.schedulers import build_stopping_rule

ASHA = {"grace_fraction": 0.1, "reduction_factor": 3}


def test_the_two_schedulers_that_a_file_may_name():
    assert build_stopping_rule("none", {}, 1000) is None
    assert build_stopping_rule("asha", ASHA, 1000).levels == [100, 300, 900]


@pytest.mark.parametrize(
    ("kind", "args", "what", "allowed"),
    [
        ("ahsa", {}, "scheduler.kind=ahsa", "'asha'"),
        ("asha", {**ASHA, "grace": 3}, "scheduler.args.grace=3", "'grace_fraction'"),
        ("none", {"reduction": 3}, "scheduler.args.reduction=3", "'reduction_factor'"),
        ("asha", {**ASHA, "grace_fraction": 0}, "scheduler.args.grace_fraction=0", "above 0"),
        ("asha", {**ASHA, "grace_fraction": 1.5}, "scheduler.args.grace_fraction=1.5", "at most 1"),
        ("asha", {**ASHA, "reduction_factor": 1}, "scheduler.args.reduction_factor=1", "at least 2"),
        ("asha", {"reduction_factor": 3}, "scheduler.args.grace_fraction", "above 0"),
        ("asha", {"grace_fraction": 0.1}, "scheduler.args.reduction_factor", "at least 2"),
        ("asha", {**ASHA, "grace_fraction": "soon"}, "scheduler.args.grace_fraction=soon", "above 0"),
        ("asha", {**ASHA, "reduction_factor": None}, "scheduler.args.reduction_factor=None", "at least 2"),
    ],
)
def test_a_scheduler_that_makes_no_sense_is_refused(kind, args, what, allowed):
    with pytest.raises(ConfigError) as refused:
        build_stopping_rule(kind, args, 1000)
    assert what in refused.value.what
    assert allowed in refused.value.allowed
    assert "scheduler" in refused.value.fix


def test_no_stopping_ignores_ashas_arguments():
    """An experiment sets them, and a person may run it with scheduler=none."""
    assert build_stopping_rule("none", {**ASHA, "grace_fraction": 7}, 1000) is None
