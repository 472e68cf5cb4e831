"""Settings as a form offers them: the composed keys, the chosen files' defaults and comments."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rltune.compose.composing import conf_dir
from rltune.compose.form import Field, Setting, make_form, read_keys
from rltune.config.schema import BudgetConfig
from rltune.errors import RltuneError


def fields_of(*words: str) -> dict[str, Field]:
    return {field.key: field for section in make_form(words).sections.values() for field in section}


def test_each_single_value_is_a_field_with_its_default() -> None:
    shown = fields_of()
    written = OmegaConf.load(conf_dir() / "run.yaml").budget
    for name in (field.name for field in fields(BudgetConfig)):
        assert shown[f"budget.{name}"].default == ("null" if written[name] is None else str(written[name]))
    assert shown["seed"].default == "0", "it is no false"
    for section in ("budget", "certify", "resources", "objective"):
        assert [key for key, field in shown.items() if key.startswith(f"{section}.") and not field.meaning] == []
    assert "objective.second.direction" in shown
    assert shown["engine"].choices == ("fast", "rllib")
    assert "at least 1" in shown["replicates"].allowed
    assert "tracking.kinds" not in shown, "a list is no single value"


def test_defaults_and_hints_are_those_of_the_chosen_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "conf" / "certify" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("top: 7 # mine\nseeds: 9\nepisodes: 1\nchampion_episodes: 1\n")
    monkeypatch.chdir(tmp_path)
    usual, smoke, own = fields_of(), fields_of("experiment=smoke"), fields_of("certify=mine")
    assert (usual["certify.seeds"].default, usual["certify.episodes"].default) == ("null", "50")
    assert (smoke["certify.seeds"].default, smoke["budget.trials"].default) == ("0", "2")
    assert (own["certify.top"].default, own["certify.top"].meaning) == ("7", "mine")
    assert own["certify.seeds"].meaning == usual["certify.seeds"].meaning, "where the file says nothing of it"
    assert "mine" in make_form().groups["certify"]
    assert (make_form().chosen["algo"], make_form(["algo=dqn"]).chosen["space"]) == ("ppo", "dqn")
    assert {"ppo", "dqn"} <= set(make_form().groups["algo"])
    with pytest.raises(RltuneError) as error:
        make_form(["certify=no"])
    assert error.value.key == "certify"


def test_secrets_of_a_file_or_a_variable_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "conf" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("# @package _global_\nnotify: ${oc.env:MY_CHAT}\n")
    (own / "told.yaml").write_text(
        "# @package _global_\nnotify: https://hooks.example.org/services/S3CRET\n"
        "study:\n  storage: postgresql://me:S3CRET@db/x\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_CHAT", raising=False)
    assert fields_of()["notify"].default == "null"
    assert fields_of("experiment=mine")["notify"].default == "${oc.env:MY_CHAT}"
    told = fields_of("experiment=told")
    assert "hooks.example.org" in told["notify"].default
    assert "S3CRET" not in str(told)


def test_a_broken_file_that_nobody_chose_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "conf" / "certify" / "broken.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("top: [1\n")
    monkeypatch.chdir(tmp_path)
    assert fields_of()["certify.episodes"].default == "50"


TEXT = """\
# the file's heading
first: 1 # one
section:
  # above
  second: [a, # inside
    b]
  third: 'x # y'
fourth:
  - 1
  - 2
"""


def test_a_comment_behind_or_above_a_key_is_its_meaning(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text(TEXT)
    assert read_keys(file) == [
        Setting("first", "1", "one"), Setting("section.second", "[a, b]", "above"),
        Setting("section.third", "'x # y'", ""), Setting("fourth", "- 1 - 2", ""),
    ]  # fmt: skip
    assert read_keys(file, "certify.")[0].key == "certify.first"
