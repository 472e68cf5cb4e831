"""Logins are taken out of all that is written or shown, whatever signs a password holds."""

from __future__ import annotations

import copy
import io
import json
from urllib.parse import quote

import pytest
import yaml
from composing import compose

from rltune.cli.run import spell_run
from rltune.config.settings_file import format_settings, redact_config
from rltune.config.uris import conceal_setting, holds_plain_login, holds_secret, refuse_typed_secrets, resolve_uri
from rltune.config.validation import parse_config
from rltune.errors import ConfigError
from rltune.secrets import conceal, redact, reveal
from rltune.views.console import Console

SIGNS = ["/", "@", ":", " ", "'", '"', "\\", "#", "%", "?", "&", "\\@/", ": #", "%40"]
PASSWORDS = [f"left{sign}right" for sign in SIGNS]


def address(password: str) -> str:
    return f"postgresql+psycopg://me:{password}@db.example:5432/rl"


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_of_any_signs_is_not_in_the_settings(password, composed_run):
    composed_run["study"]["storage"] = address(password)
    composed_run["tracking"]["uri"] = f"https://me:{password}@mlflow.example/path"
    text = format_settings(redact_config(parse_config(composed_run)))
    assert "left" not in text
    assert "right" not in text
    kept = yaml.safe_load(text)
    assert kept["study"]["storage"] == "postgresql+psycopg://***@db.example:5432/rl"
    assert kept["tracking"]["uri"] == "https://***@mlflow.example/path"
    assert redact(text) == text, "MLflow's copy keeps its digest"


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_of_any_signs_is_not_in_the_command(password):
    command = spell_run([f"study.storage='{address(password)}'", "seed=1"])
    assert "left" not in command
    assert "right" not in command
    assert command.endswith("***@db.example:5432/rl'\"'\"'' seed=1")


@pytest.mark.parametrize("password", [word for word in PASSWORDS if " " not in word])
def test_a_password_of_any_signs_is_in_no_sentence(password):
    note = f"no answer from {address(password)}, ask me@db.example"
    out = io.StringIO()
    Console(out).note(note)
    for text in (redact(note), out.getvalue()):
        assert "left" not in text
        assert "right" not in text
        assert "***@db.example:5432/rl," in text
        assert "me@db.example" in text.replace("***@db.example", "")


@pytest.mark.parametrize("password", PASSWORDS)
def test_pieces_of_a_password_are_in_no_error(password):
    conceal(address(password))
    shown = redact(
        f"host 'right@db.example' not found; {password!r} refused; {json.dumps(password)}; {quote(password)}"
    )
    assert "left" not in shown
    assert "right" not in shown


def test_a_password_that_is_a_word_spoils_no_longer_word():
    conceal("postgresql+psycopg://postgres:postgres@127.0.0.1/rl")
    assert redact("postgresql 'postgres'") == "postgresql '***'"


def test_a_login_in_any_other_setting_is_refused(composed_run):
    composed_run["env"]["kwargs"] = {"source": {"urls": ["s3://key:left/right@bucket"]}}
    with pytest.raises(ConfigError, match=r"env.kwargs.source.urls\[0\]=s3://\*\*\*@bucket") as refused:
        parse_config(composed_run)
    assert "right" not in refused.value.pretty()
    assert "study.storage, tracking.uri" in refused.value.allowed


@pytest.mark.parametrize(
    "value",
    [
        "postgresql+psycopg://postgres@db.example/rl",
        "postgresql+psycopg://db.example:5432/rl",
        "http://127.0.0.1:5000",
        "sqlite:////home/me/mlflow.db",
        "models:/cartpole-ppo@champion",
    ],
)
def test_an_address_without_a_password_stays_readable(value):
    assert conceal(value) == redact(value) == value


def test_a_login_in_the_environment_is_written_nowhere(monkeypatch):
    word = "${oc.env:RLTUNE_STORAGE}"
    monkeypatch.setenv("RLTUNE_STORAGE", address("le/ft right"))
    config = parse_config(compose("run", f"study.storage={word}"))
    assert reveal(config.study.storage) == address("le/ft right")
    assert word in spell_run([f"study.storage={word}"])
    for text in (format_settings(redact_config(config)), spell_run([f"study.storage={word}"])):
        assert "ft right" not in text


@pytest.fixture
def composed_run(composed):
    return copy.deepcopy(composed)


def test_a_tracking_uri_is_made_absolute(tmp_path, monkeypatch):
    """Trials run in another folder than the one in which the command was typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_uri(None) == f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_uri("sqlite:///mine.db") == f"sqlite:///{tmp_path}/mine.db"
    assert resolve_uri("sqlite:////shared/mine.db") == "sqlite:////shared/mine.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example")
    assert resolve_uri(None) == "http://mlflow.example"
    assert resolve_uri("sqlite:///mine.db") == f"sqlite:///{tmp_path}/mine.db", "what is given wins"


@pytest.mark.parametrize(
    ("value", "is_plain"),
    [
        ("http://me:secret@host/x", True),
        ("https://host/x?api_key=abc", True),
        ("https://host/x?keyframe=3", False),
        ("http://host:80/a@b", False),
        ("s3://bucket/a:b@c", False),
    ],
)
def test_a_setting_is_refused_for_a_plain_login_alone(value: str, is_plain: bool) -> None:
    assert holds_plain_login(value) == is_plain


@pytest.mark.parametrize(
    ("key", "value", "is_secret"),
    [
        ("notify", "https://hooks.slack.example/services/T0/s3cret", True),
        ("notify", "https://host/?sig=s3cret", True),
        ("notify", "https://host/", False),
        ("notify", "https://host/${oc.env:PATH_OF_HOOK}", False),
        ("notify", "${oc.env:RLTUNE_NOTIFY}", False),
        ("notify", "${oc.env:RLTUNE_NOTIFY,https://hooks.slack.example/services/T0/s3cret}", True),
        ("study.storage", "postgresql+psycopg://me:${oc.env:PASSWORD,s3cret}@host/rl", True),
        ("study.storage", "${oc.env:RLTUNE_STORAGE,null}", False),
        ("notify", "curl https://me:s3cret@host/x", True),
        ("tracking.uri", "http://me:s3 cret@host/", True),
        ("tracking.uri", "http://me:${oc.env:PASSWORD}@host/", False),
        ("study.storage", "postgresql+psycopg://me@host/rl", False),
        ("study.storage", "postgresql+psycopg://me@host/rl?password=s3cret", True),
        ("env.kwargs.level", "a:b@c", False),
        ("env.kwargs.url", "http://me:s3cret@host/", True),
    ],
)
def test_what_holds_a_secret_is_one_question(key: str, value: str, is_secret: bool) -> None:
    assert holds_secret(key, value) == is_secret
    for word in (f"{key}={value}", f"++{key}='{value}'"):
        if not is_secret:
            refuse_typed_secrets([word])
            continue
        with pytest.raises(ConfigError) as refused:
            refuse_typed_secrets([word])
        assert refused.value.key == key
        assert "s3cret" not in str(refused.value)
        assert "oc.env:" in refused.value.fix


def test_a_colon_in_any_other_setting_hides_no_word() -> None:
    word = "env.kwargs.data=s3://bucket/v1:training@latest"
    assert spell_run([word]).endswith(word)
    assert redact("training") == "training"


def test_the_words_of_a_secret_path_stay_readable() -> None:
    conceal_setting("notify", "https://ci.example/hooks/sweeps")
    assert redact("sweeps and hooks, max retries of /hooks/sweeps") == "sweeps and hooks, max retries of ***"


def test_a_login_in_a_word_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_typed_secrets(["--tracking.uri", "http://me:s3 cret@host/"])
    assert refused.value.key == "http://***@host/"
    assert "s3 cret" not in str(refused.value)
