"""What Hydra and OmegaConf raise, in words that say what to type."""

from __future__ import annotations

from typing import Any

import pytest

from rltune.composition.composing import compose_settings
from rltune.composition.explaining import describe_type, find_type
from rltune.config.schema import RunConfig
from rltune.errors import RltuneError


@pytest.mark.parametrize(
    ("word", "allowed", "fix"),
    [
        ("budget.trials=abc", "a whole number", "budget.trials=24"),
        ("budget.trials=", "a whole number", "budget.trials=24"),
        ("budget.trials=[4,8]", "a whole number", "budget.trials=24"),
        ("budget.trials=null", "a whole number", "budget.trials=24"),
        ("failures.stall_s=soon", "a number", "failures.stall_s=300"),
        ("budget.wall_time_s=soon", "a number or null", "run --help"),
        ("report=maybe", "true or false", "report=True"),
        ("budget.trils=4", "did you mean 'trials'?", "budget.trials=4"),
        ("space.novelty=4", "one of", "+space.novelty=4 adds a key"),
    ],
)
def test_a_wrong_word_names_its_type_and_what_to_type(word: str, allowed: str, fix: str) -> None:
    with pytest.raises(RltuneError) as refused:
        compose_settings("run", RunConfig, [word])
    assert refused.value.what.startswith(word)
    assert refused.value.allowed.startswith(allowed)
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("seed", "a whole number"),
        ("budget.total_env_steps", "a whole number or null"),
        ("name", "text or null"),
        ("report", "true or false"),
        ("space.lr", "a value of the key's type"),
        ("no.such.key", "a value of the key's type"),
    ],
)
def test_a_settings_type_is_read_from_the_schema(key: str, shown: Any) -> None:
    assert describe_type(find_type(RunConfig, key)) == shown
