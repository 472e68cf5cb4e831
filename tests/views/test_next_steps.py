"""What to type after a sweep."""

from __future__ import annotations

import math
import sys
from contextlib import closing
from pathlib import Path

import pytest
from composing import compose
from ended import make_certification, write_sweep, write_trials

from rltune.config.validation import parse_config
from rltune.formatting import spell_command
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_folder import make_resume_command
from rltune.records import Report
from rltune.views.next_steps import describe_reproduction
from rltune.views.sweep_view import load_view
from tests.views.consoles import describe_ended


def list_steps(folder: Path, tracking_uri: str | None = None, resume: str | None = None) -> dict[str, str]:
    """What is named at the end of a sweep, by what it does."""
    section = describe_ended(folder, tracking_uri, resume)[-1]
    assert section.name == "next"
    return dict(section.facts)


def test_a_winner_is_loaded_by_its_model_or_its_sweep(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 2)
    assert 'load_policy("sweep:s")' in list_steps(folder)["use it in Python"]
    model = {"name": "m", "version": "5", "uri": "models:/m/5", "champion": False, "why": "version 4 is certified"}
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(model=model)
    default = f"sqlite:///{Path.cwd()}/mlflow.db"
    alone, elsewhere = (list_steps(folder, uri)["use it in Python"] for uri in (default, "http://127.0.0.1:5000"))
    assert alone == 'import rltune; policy = rltune.load_policy("models:/m/5")'
    assert 'set_tracking_uri("http://127.0.0.1:5000"); policy = rltune.load_policy("models:/m/5")' in elsewhere
    assert 'load_policy("sweep:s")' in list_steps(folder)["use it in Python"], "nobody said where the model is"


@pytest.mark.parametrize(("above", "seeds"), [(0.0, None), (16.5, 20), (17.5, None), (18.33, None)])
def test_more_seeds_are_suggested_where_they_may_tell_the_winner_from_the_baseline(
    tmp_path: Path, above: float, seeds: int | None
) -> None:
    steps = list_steps(write_sweep(tmp_path / "s", 3, make_certification(above)))
    command = f"{make_resume_command(tmp_path / 's')} certify.seeds={seeds}" if seeds else None
    assert steps.get("test it on more seeds") == command


def test_commands_name_the_environment_if_none_is_active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "venv").mkdir()
    for program in ("python", "mlflow"):
        (tmp_path / "venv" / program).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setattr("rltune.formatting._find_start", lambda: "python -m sweeps.")
    folder = write_sweep(tmp_path / "s", 12)
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(mlflow={"uri": f"sqlite:///{tmp_path}/mlflow.db", "experiment": "1"})
    steps = list_steps(folder, f"sqlite:///{tmp_path}/mlflow.db")
    (files,) = (section for section in describe_ended(folder) if section.name == "files")
    assert dict(files.facts)["MLflow"] == "venv/mlflow ui"
    assert steps["test the winner"] == f"venv/python -m sweeps.evaluate policy=sweep:s output_dir={tmp_path}"
    assert spell_command("show sweep=s") == "venv/python -m sweeps.show sweep=s"
    (trials,) = (section for section in describe_ended(folder) if section.name == "trials")
    assert trials.facts[0][1] == f"venv/python -m sweeps.show sweep=s output_dir={tmp_path}", "in the same form"


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_failed_sweep_names_only_commands_that_work(
    is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_trials(tmp_path / "s", [("FAIL", 1e-3, [math.nan] * 5 * is_whole)] * 3)
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(status="failed", command="rltune run algo=ppo")
        if not is_whole:
            ledger.trials.end(ledger.trials.add({"lr": 1e-3}, [1]).number, "FAIL", "", log="trials/3/failure.txt")
    steps = list_steps(folder, "sqlite:///mlflow.db")
    sweep = f"sweep=s output_dir={tmp_path}"
    whole = [spell_command(f"show {sweep}"), "rltune run algo=ppo"]
    part = ["less s/trials/3/failure.txt", spell_command(f"retry {sweep}")]
    assert [*steps.values()] == (whole if is_whole else part)


@pytest.mark.parametrize(
    ("episodes", "words", "more"),
    [
        (0, (), " +env.kwargs.max_episode_steps=6"),
        (0, ("+env.kwargs.max_episode_steps=5000",), ""),
        (3, (), ""),
    ],
)
def test_a_sweep_without_an_episode_is_typed_with_a_limit(
    episodes: int, words: tuple[str, ...], more: str, tmp_path: Path
) -> None:
    folder = write_sweep(tmp_path / "s", 0, None, "failed", *words)
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(command="rltune run algo=ppo")
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        ledger.trials.add_report(Report(number, 1000, math.nan, {"episodes": episodes, "env_steps": 1000.0}))
        ledger.trials.end(number, "FAIL", "")
    assert list_steps(folder)["correct it, then"] == f"rltune run algo=ppo{more}"


def test_the_command_for_the_winner_alone_composes_to_its_values(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s")
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(command="rltune run algo=ppo env=cartpole budget.trials=8 certify=on certify.seeds=5")
    commands = dict(describe_reproduction(load_view(folder)).facts)
    config = parse_config(compose("run", *commands["Train only the configuration of the winner"].split()[2:]))
    assert config.space["lr"] == pytest.approx(0.01)
    assert (config.budget.trials, config.certify.seeds, config.scheduler.kind) == (1, 0, "none")


@pytest.mark.parametrize(("status", "word"), [("complete", "winner"), ("interrupted", "best so far")])
def test_only_a_sweep_that_is_over_has_a_winner(tmp_path: Path, status: str, word: str) -> None:
    folder = write_sweep(tmp_path / "s", 3, None, status)
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(winner={"trial": 2, "objective": 20.0, "params": {"lr": 0.01}})
    *sections, steps = describe_ended(folder)
    (table,) = [section.table for section in sections if section.name == "trials"]
    assert table is not None
    assert table.rows[0][:2] == ("2", f"complete, {word}")
    assert f"test the {word}" in dict(steps.facts)
