"""Settings as a form asks for them: the schema's keys, the chosen files' defaults and comments."""

from __future__ import annotations

from dataclasses import fields

import pytest
from omegaconf import OmegaConf

from rltune.composition.composing import conf_dir
from rltune.composition.form import list_fields, list_keys
from rltune.config.schema import BudgetConfig
from rltune.errors import RltuneError

PARTS = ("budget", "seed", "certify", "resources", "objective", "callbacks")


def test_each_scalar_of_the_schema_is_a_field_with_its_default():
    found = {one.key: one for one in list_fields(PARTS)}
    written = OmegaConf.load(conf_dir() / "run.yaml").budget
    for name in (one.name for one in fields(BudgetConfig)):
        assert found[f"budget.{name}"].default == ("null" if written[name] is None else str(written[name]))
    assert found["seed"].default == "0", "it is no false"
    assert found["budget.trials"].meaning == "configurations to try"
    assert [one.key for one in found.values() if not one.meaning] == []
    assert "objective.second.direction" in found
    assert "callbacks" not in found, "a list is no scalar"


def test_defaults_and_meanings_are_those_of_the_chosen_files(tmp_path, monkeypatch):
    mine = tmp_path / "conf" / "certify" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("top: 7 # mine\nseeds: 9\nepisodes: 1\nchampion_episodes: 1\n")
    monkeypatch.chdir(tmp_path)
    usual, smoke, own = (
        {one.key: one for one in list_fields(("budget", "certify"), words)}
        for words in ([], ["experiment=smoke"], ["certify=mine"])
    )
    assert (usual["certify.seeds"].default, usual["budget.trials"].default) == ("5", "24")
    assert (smoke["certify.seeds"].default, smoke["budget.trials"].default) == ("0", "2")
    assert "without being played" in smoke["certify.top"].meaning
    assert (own["certify.top"].default, own["certify.top"].meaning) == ("7", "mine")
    assert own["certify.seeds"].meaning == usual["certify.seeds"].meaning, "where the file says nothing of it"
    with pytest.raises(RltuneError, match="certify=no"):
        list_fields(("budget",), ["certify=no"])


def test_what_a_variable_holds_is_shown_to_nobody(tmp_path, monkeypatch):
    own = tmp_path / "conf" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("# @package _global_\nnotify: ${oc.env:MY_CHAT}\n")
    (own / "told.yaml").write_text("# @package _global_\nnotify: https://hooks.example.org/services/S3CRET\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_CHAT", raising=False)
    (mine,), (told,) = (list_fields(["notify"], [f"experiment={name}"]) for name in ("mine", "told"))
    assert list_fields(["notify"])[0].default == "null"
    assert mine.default == "${oc.env:MY_CHAT}"
    assert "hooks.example.org" in told.default
    assert "S3CRET" not in told.default


def test_a_broken_file_that_nobody_chose_is_passed_over(tmp_path, monkeypatch):
    broken = tmp_path / "conf" / "certify" / "broken.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("top: [1\n")
    monkeypatch.chdir(tmp_path)
    assert {one.key: one.default for one in list_fields(["certify"])}["certify.top"] == "3"


def test_only_what_takes_numbers_alone_is_a_number():
    found = dict(list_keys(("budget", "resources", "notify")))
    assert found["budget.wall_time_s"] is found["resources.gpus_per_trial"] is True
    assert found["resources.trials_per_gpu"] is found["notify"] is False, "auto is no number"
