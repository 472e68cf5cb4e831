"""A sweep's settings on disk: read back as they were, and known when they are damaged."""

from __future__ import annotations

import pytest
from composing import change_setting
from omegaconf import OmegaConf

from rltune.config.settings_file import (
    FORMAT,
    OLDEST_FORMAT,
    SweepIdentity,
    format_settings,
    load_settings,
    read_identity,
    read_settings,
    redact_config,
    require_own_sweep,
    write_settings,
)
from rltune.config.validation import parse_config
from rltune.errors import StudyError
from rltune.secrets import reveal


def test_settings_read_back_as_the_same_request(composed, tmp_path):
    """What is kept in a sweeps folder reads back as the same request."""
    config = parse_config(composed)
    write_settings(tmp_path, redact_config(config))
    assert parse_config(read_settings(tmp_path)) == config


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_sweeps_addresses_are_read_from_its_settings(is_fast, composed, tmp_path):
    """In a file as rltune writes it, only their sections are read."""
    wide = "s3://bucket/a prefix with blanks that is longer than a line of YAML may be, which is eighty characters"
    database, server = "postgresql+psycopg://me:s3cret@db.example/rl", "http://mlflow.example:5000"
    for key, value in (("storage", wide), ("study.storage", database), ("tracking.uri", server), ("name", "1e3")):
        composed = change_setting(composed, key, value)
    write_settings(tmp_path, redact_config(parse_config(composed)))
    if not is_fast:
        path = tmp_path / "config.yaml"
        path.write_text("# by hand\n" + path.read_text())
    hidden = "postgresql+psycopg://***@db.example/rl"
    assert read_identity(tmp_path) == SweepIdentity(tmp_path, "1e3", wide, hidden, server)


def test_a_sweep_without_a_name_has_that_of_its_folder(tmp_path):
    (tmp_path / "config.yaml").write_text(f"format: {FORMAT}\nseed: 1\n")
    assert read_identity(tmp_path) == SweepIdentity(tmp_path, tmp_path.name)


def test_a_password_is_not_written_with_the_settings(composed):
    """A password in an address is not written with the settings."""
    raw = change_setting(composed, "study.storage", "postgresql+psycopg://me:s3cret@db.example/rl")
    raw = change_setting(raw, "tracking.uri", "http://me:s3cret@mlflow.example:5000")
    kept = format_settings(redact_config(parse_config(raw)))
    assert "s3cret" not in kept
    assert "db.example" in kept
    assert "mlflow.example" in kept


@pytest.mark.parametrize(
    ("notify", "kept"),
    [
        ("https://hooks.slack.example/services/T0/s3cret", "https://hooks.slack.example/***"),
        ("https://s3cret@host:8080/x", "https://host:8080/***"),
        ("https://host?sig=s3cret", "https://host/***"),
        ("https://me:left/right@host/x", "***"),
        ("curl -u me:s3cret https://host", "***"),
        ("https://host:8080/", "https://host:8080/"),
    ],
)
def test_of_notify_nothing_is_kept_that_may_be_secret(notify, kept, composed):
    config = parse_config(change_setting(composed, "notify", notify))
    text = format_settings(redact_config(config))
    assert OmegaConf.create(text).notify == kept
    assert reveal(config.notify) == notify, "the driver has it whole"
    again = OmegaConf.create(text)
    del again["format"]
    assert OmegaConf.create(format_settings(redact_config(parse_config(again)))).notify == kept


def test_variables_in_an_environments_arguments_stay_names(composed, monkeypatch):
    monkeypatch.delenv("API_KEY", raising=False)  # Who reads another person's sweep does not have it.
    raw = change_setting(composed, "env.kwargs.api_key", "${oc.env:API_KEY}")
    raw = change_setting(raw, "env.kwargs.steps", "${budget.env_steps}")
    searched = {"kwargs": {"api_key": ["choice", "${oc.env:API_KEY}", "none"]}}
    raw = change_setting(raw, "space.env", searched)
    raw = change_setting(raw, "env.kwargs.escaped", "\\${oc.env:API_KEY}")
    config = parse_config(raw)
    variable = "${oc.env:API_KEY}"
    assert config.env.kwargs == {"api_key": variable, "escaped": variable, "steps": config.budget.env_steps}
    assert config.space["env"] == searched
    kept = OmegaConf.to_container(OmegaConf.create(format_settings(redact_config(config))))
    assert kept["env"]["kwargs"] == config.env.kwargs
    assert kept["space"]["env"] == searched
    del kept["format"]
    assert parse_config(OmegaConf.create(kept)) == config


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: text.rindex("# sha256")],  # all settings there, the last ones of their section maybe not
        lambda text: "".join(text.splitlines(keepends=True)[:-4]),
        lambda text: text.replace("trials: 48", "trials: 94"),
        lambda text: "",
        lambda text: "\0" * len(text),
    ],
    ids=["no digest", "cut short", "one digit", "emptied", "zeroed"],
)
def test_damaged_settings_are_refused_and_a_copy_is_taken(damage, composed, tmp_path):
    """Damaged settings are refused by a resume and a copy can take their place."""
    config = parse_config(composed)
    write_settings(tmp_path, redact_config(config))
    path = tmp_path / "config.yaml"
    whole = path.read_text()
    assert parse_config(read_settings(tmp_path, for_resume=True)) == config
    path.write_text(damage(whole))
    with pytest.raises(StudyError, match=r"config\.yaml"):
        read_settings(tmp_path, for_resume=True)
    path.write_text(format_settings(redact_config(config)))  # what MLflow and the study keep
    assert parse_config(read_settings(tmp_path, for_resume=True)) == config


@pytest.mark.parametrize("form", [None, OLDEST_FORMAT - 1, FORMAT + 1])
@pytest.mark.parametrize("for_resume", [False, True])
def test_another_format_is_refused_in_three_parts(form, for_resume, composed, tmp_path):
    text = format_settings(redact_config(parse_config(composed)))
    (tmp_path / "config.yaml").write_text(text.replace(f"format: {FORMAT}\n", f"format: {form}\n" if form else ""))
    with pytest.raises(StudyError, match=f"format {form}") as refused:
        read_settings(tmp_path, for_resume=for_resume)
    assert f"{FORMAT}" in refused.value.allowed
    assert refused.value.fix


def test_settings_that_a_person_changed_on_purpose_are_taken(composed, tmp_path):
    text = format_settings(redact_config(parse_config(composed))).replace("trials: 48", "trials: 94")
    (tmp_path / "config.yaml").write_text(text[: text.rindex("# sha256")] + "# sha256: any\n")
    assert read_settings(tmp_path, for_resume=True)["budget"]["trials"] == 94


def test_what_a_person_writes_is_read_as_numbers_and_text():
    text = "a: 1e-3\nb: 1.5e+4\nc: 0.5\nd: 7\ne: '1e-3'\nf: ${oc.env:NAME}\ng: 1e\nh: .5e1\n"
    assert [*load_settings(text).values()] == [1e-3, 1.5e4, 0.5, 7, "1e-3", "${oc.env:NAME}", "1e", 5.0]
    written = {"name": "1e-3", "date": "2026-11-25", "flag": "yes", "lr": 1e-3, "steps": 1e5, "none": None}
    assert load_settings(OmegaConf.to_yaml(written)) == written


def test_settings_that_somebody_else_wrote_are_not_ones_own(composed, tmp_path):
    """They name modules, which a resume imports."""
    write_settings(tmp_path, redact_config(parse_config(composed)))
    require_own_sweep(tmp_path, "resume it")
    kept = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(kept.replace("CartPole-v1", "evil:CartPole-v1"))
    with pytest.raises(StudyError, match="sweep=") as refused:
        require_own_sweep(tmp_path, "resume it")
    assert "trust=true" in refused.value.fix
