"""What is typed after a command without config groups: its values, and what is answered to wrong ones."""

from __future__ import annotations

import pytest

from rltune.cli.application.command import RequestConfig
from rltune.cli.policies import ExportConfig
from rltune.cli.reading import CompareConfig
from rltune.cli.requests import EnqueueConfig, RetryConfig, StopConfig
from rltune.cli.run import ResumeConfig
from rltune.cli.service import ServeConfig
from rltune.compose.command_settings import list_command_keys, read_command_settings
from rltune.errors import RltuneError

SCHEMAS = {
    "show": RequestConfig,
    "stop": StopConfig,
    "serve": ServeConfig,
    "retry": RetryConfig,
    "export": ExportConfig,
    "resume": ResumeConfig,
    "compare": CompareConfig,
    "enqueue": EnqueueConfig,
}


def read(command: str, *words: str) -> object:
    return read_command_settings(command, SCHEMAS[command], words)


def refuse(command: str, *words: str) -> RltuneError:
    with pytest.raises(RltuneError) as refused:
        read(command, *words)
    return refused.value


@pytest.mark.parametrize(
    ("command", "word", "value"),
    [
        ("show", "sweep=1.10", "1.10"),
        ("show", "sweep=007", "007"),
        ("show", "+sweep=mine", "mine"),
        ("show", "sweep=", ""),
        ("show", "storage=null", None),
        ("show", "storage='s3://b/p?endpoint_override=http://m:9'", "s3://b/p?endpoint_override=http://m:9"),
        ("show", "study.storage=postgresql+psycopg://db/rl#x: [", "postgresql+psycopg://db/rl#x: ["),
        ("show", "study.storage=${oc.env:ADDRESS}", "sqlite:///x.db"),
        ("export", "policy=models:/a-b@champion", "models:/a-b@champion"),
        ("resume", "notify=curl -d @- 'http://x/y'", "curl -d @- 'http://x/y'"),
        ("resume", "tracking.kinds=[mlflow,mine:Log]", ["mlflow", "mine:Log"]),
        ("resume", "budget.trials=1e3", 1000),
        ("retry", "trials=[3,5]", [3, 5]),
        ("stop", "wait=false", False),
        ("compare", "sweeps=[a,b-2]", ["a", "b-2"]),
        ("enqueue", "space.lr=1e-3", 1e-3),
        ("enqueue", "space.net=[64,64]", [64, 64]),
    ],
)
def test_a_word_sets_its_value(command: str, word: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDRESS", "sqlite:///x.db")
    settings: object = read(command, *(["policy=x"] if command == "export" else []), word)
    for part in word.lstrip("+").partition("=")[0].split("."):
        settings = settings[part] if isinstance(settings, dict) else getattr(settings, part)
    assert settings == value


def test_defaults_are_those_of_the_commands_file() -> None:
    settings = read("stop")
    assert isinstance(settings, StopConfig)
    assert (settings.sweep, settings.wait, settings.study.storage) == ("latest", True, None)
    assert list_command_keys("stop")[:2] == ["sweep", "output_dir"]


@pytest.mark.parametrize(
    ("command", "word", "key", "allowed", "fix"),
    [
        ("show", "swep=toy", "swep", "one of: output_dir", "sweep=toy"),
        ("show", "study.storag=x", "study.storag", "one of: storage", "study.storage=x"),
        ("show", "study=x", "study", "study.storage", "show --help"),
        ("show", "hydra.run.dir=x", "hydra.run.dir", "one of: output_dir", "show --help"),
        ("show", "a..b=1", "a..b", "one of", "show --help"),
        ("show", "=1", "", "one of", "show --help"),
        ("show", "~sweep=toy", "~sweep", "one of", ""),
        ("show", "study.storage=${oc.env:NOT_SET}", "study.storage", "${oc.env:NAME}", "show --help"),
        ("show", "study.storage=${oc.env", "study.storage", "${oc.env:NAME}", "show --help"),
        ("show", "-m", "-m", "json=true and --help", "show --help"),
        ("show", "--cfg", "--cfg", "json=true and --help", "show --help"),
        ("show", "--sweep=toy", "--sweep", "settings as key=value", "show sweep=toy"),
        ("stop", "wait=maybe", "wait", "true or false", "wait=True"),
        ("stop", "wait=", "wait", "true or false", "wait=True"),
        ("serve", "port=http", "port", "a whole number, from 0 to 65535", "port=8288"),
        ("serve", "port=99999", "port", "from 0 to 65535", "port=8288"),
        ("serve", "width=1,2", "width", "a whole number, at least 1", "width=1"),
        ("serve", "width=!!int x", "width", "a whole number, at least 1", "width=1"),
        ("retry", "trials=3", "trials", "a list, such as", "trials=[3]"),
        ("retry", "trials=[3", "trials", "a list, such as", "retry --help"),
        ("enqueue", "space=3", "space", "{name: value}", "enqueue --help"),
        ("export", "format=onxx", "format", "one of: onnx, torch", "format=onnx"),
        ("resume", "budget.trails=10", "budget.trails", "one of: total_env_steps", "budget.trials=10"),
        ("resume", "~space.lr", "~space.lr", "key=value", "resume --help"),
    ],
)
def test_a_wrong_word_is_answered_in_three_parts(command: str, word: str, key: str, allowed: str, fix: str) -> None:
    error = refuse(command, *(["policy=x"] if command == "export" else []), word)
    assert (error.key, error.exit_code) == (key, 2)
    assert error.allowed.startswith(allowed) or allowed in error.allowed
    assert error.fix.endswith(fix)


def test_a_setting_without_a_default_has_to_be_typed() -> None:
    error = refuse("export")
    assert error.what.startswith("policy")
    assert "policy=sweep:latest" in error.fix


def test_what_a_sweep_keeps_is_told_from_what_may_change() -> None:
    for key, value in (("budget.env_steps", "10"), ("algo", "ppo")):
        error = refuse("resume", f"{key}={value}")
        assert error.key == key
        assert f"{key}={value}" in error.fix
        assert "run" in error.fix


def test_a_name_without_its_key_gets_the_key() -> None:
    for command, key in (("show", "sweep"), ("export", "policy"), ("compare", "sweeps")):
        assert refuse(command, "first").fix.endswith(f"{command} {key}=first")
