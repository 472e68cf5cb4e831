"""A sweep's name, a trial's number or a folder leads to its checkpoint, or to what is missing."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3

import pytest
from checkpoints import OBSERVATIONS, make_sweep, relabel
from composing import compose

from rltune.config.settings_file import redact_config, write_settings
from rltune.config.validation import parse_config
from rltune.errors import PolicyError
from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.policies import mlflow_artifacts
from rltune.policies.policy import load_playable, load_policy
from rltune.policies.uri import Source, keep_with_run, locate_trusted_algorithm


def test_a_damaged_summary_is_named(outputs, tmp_path):
    shutil.copytree(outputs / "cartpole-done", tmp_path / "torn")
    (tmp_path / "torn" / "summary.json").write_text('{"winner": {"tri')
    with pytest.raises(PolicyError, match=r"summary\.json"):
        load_policy("sweep:torn", output_dir=tmp_path)


@pytest.mark.parametrize(
    ("uri", "trial"),
    [
        ("sweep:cartpole-done", 2),
        ("sweep:latest", 2),
        ("sweep:cartpole-done/1", 1),
        ("sweep:cartpole-stopped", 1),  # the best that ran to its end, not the pruned one above it
        ("sweep:cartpole-stopped/3", 3),
    ],
)
def test_a_sweep_address_finds_winner_and_trial(outputs, actions, uri, trial):
    policy = load_policy(uri, output_dir=outputs)
    assert policy.info["trial"] == trial
    assert (policy.act(OBSERVATIONS) == actions).all()


@pytest.mark.parametrize(("kind", "trial"), [("trials", 1), ("certify", 2)])
def test_a_sweep_that_goes_on_has_its_present_best_policy(outputs, tmp_path, kind, trial):
    sweep, best = tmp_path / "again", "2/first/best-000000002048"
    shutil.copytree(outputs / "cartpole-done", sweep)
    if kind == "certify":
        shutil.copytree(sweep / "trials" / best, sweep / kind / best)
    winner = {"trial": 2, "params": {}, "objective": 90.0, "checkpoint": f"{kind}/{best}"}
    (sweep / "summary.json").write_text(json.dumps({"winner": winner}))
    with contextlib.closing(open_ledger(sweep)) as ledger:
        ledger.change_sweep(status="interrupted", winner=winner)
        assert load_policy("sweep:again", output_dir=tmp_path).info["trial"] == 2
        with take_lease(ledger):
            shutil.rmtree(sweep / "trials" / "2")  # As a later report of the trial has the store do.
            assert load_policy("sweep:again", output_dir=tmp_path).info["trial"] == trial
        assert load_policy("sweep:again", output_dir=tmp_path).info["trial"] == trial, "its driver was killed"


def test_a_winner_whose_files_are_gone_suggests_another_trial(outputs, tmp_path):
    shutil.copytree(outputs / "cartpole-done", tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone" / "trials" / "2")
    with pytest.raises(PolicyError) as caught:
        load_policy("sweep:gone", output_dir=tmp_path)
    assert caught.value.fix == "policy=sweep:gone/<trial>"


def test_a_sweeps_name_or_folder_suggests_the_sweep(outputs):
    for uri, fix in (
        ("cartpole-done", "policy=sweep:cartpole-done"),
        ("cartpole-done/1", "policy=sweep:cartpole-done/1"),
        (f"{outputs}/cartpole-done", f"policy=sweep:cartpole-done output_dir={outputs}"),
        ("elsewhere", "policy=sweep:latest"),
    ):
        with pytest.raises(PolicyError) as caught:
            load_policy(uri, output_dir=outputs)
        assert caught.value.fix == fix


REFUSED = [
    ("sweep:cartpole-dne", "cartpole-done"),
    ("sweep:cartpole-done/0", "1, 2, 3"),
    ("sweep:cartpole-done/99", "1, 2, 3"),
    ("sweep:cartpole-done/best", "number"),
    ("s3://bucket/policy", "models:/<name>@champion"),
    ("nowhere/at/all", "sweep:<name or latest>"),
]


@pytest.mark.parametrize(("uri", "allowed"), REFUSED)
def test_an_address_without_a_policy_is_refused_in_three_parts(outputs, uri, allowed):
    with pytest.raises(PolicyError) as caught:
        load_policy(uri, output_dir=outputs)
    assert caught.value.key == "policy"
    assert allowed in caught.value.allowed
    assert caught.value.fix


def test_a_changed_checkpoint_is_taken_only_with_trust(outputs, tmp_path):
    shutil.copytree(outputs / "cartpole-done", tmp_path / "changed")
    relabel(tmp_path / "changed" / "trials" / "1" / "first" / "best-000000002048" / "policy", 1234)
    with pytest.raises(PolicyError) as refused:
        load_policy("sweep:changed/1", output_dir=tmp_path)
    assert refused.value.exit_code == 2
    assert load_policy("sweep:changed/1", output_dir=tmp_path, trust=True).info["trial"] == 1234


def test_a_network_without_a_bundle_says_why_and_what_else_works(tmp_path):
    (tmp_path / "policy-missing.txt").write_text("a bundle cannot express the layer TorchLSTMEncoder\n")
    with pytest.raises(PolicyError, match="TorchLSTMEncoder") as caught:
        load_policy(tmp_path)
    assert "load_algorithm" in caught.value.fix
    assert "sweeps.evaluate" in caught.value.fix
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm" / "rllib_checkpoint.json").write_text("{}")
    with pytest.raises(PolicyError, match=str(tmp_path)):
        load_playable(Source(str(tmp_path)))  # RLlib's parts would run code
    with pytest.raises(PolicyError, match=r"policy-missing\.json"):
        load_playable(Source(str(tmp_path), trust=True))


def test_a_checkpoint_is_trusted_where_its_sweep_is_ones_own(tmp_path, monkeypatch):
    """Who unpacks an archive owns its files, whoever made them: the mark of the sweep's folder tells."""
    checkpoint = tmp_path / "mine" / "trials" / "7" / "first" / "best-1"
    (checkpoint / "algorithm").mkdir(parents=True)
    (checkpoint / "algorithm" / "rllib_checkpoint.json").write_text("{}")
    write_settings(tmp_path / "mine", redact_config(parse_config(compose("run"))))
    shutil.copytree(tmp_path / "mine", tmp_path / "moved")
    for path in (checkpoint, tmp_path / "moved" / "trials" / "7" / "first" / "best-1"):
        with locate_trusted_algorithm(Source(str(path))) as folder:
            assert folder == path / "algorithm"
    shutil.copytree(checkpoint, tmp_path / "alone")
    settings = tmp_path / "moved" / "config.yaml"
    settings.write_text(settings.read_text().replace("CartPole-v1", "evil:CartPole-v1"))
    foreign = [tmp_path / "alone", tmp_path / "moved" / "trials" / "7" / "first" / "best-1"]
    for path in foreign:
        with pytest.raises(PolicyError) as refused, locate_trusted_algorithm(Source(str(path))):
            pass
        assert (refused.value.key, "trust=True" in refused.value.fix) == ("policy", True)
        with locate_trusted_algorithm(Source(str(path), trust=True)):
            pass
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody"))
    with pytest.raises(PolicyError), locate_trusted_algorithm(Source(str(checkpoint))):
        pass


def test_a_ledger_outside_the_sweeps_folder_is_found_too(checkpoint, tmp_path):
    make_sweep(tmp_path / "shared", checkpoint, f"sqlite:///{tmp_path}/of-several-sweeps.db")
    assert load_policy("sweep:shared/3", output_dir=tmp_path).info["trial"] == 3
    assert load_policy("sweep:shared", output_dir=tmp_path).info["trial"] == 1


def test_a_ledger_behind_a_login_says_what_to_write_instead(tmp_path):
    (tmp_path / "far").mkdir()
    settings = "{format: 12, study: {storage: 'postgresql+psycopg://***@db.example/rl'}}"
    (tmp_path / "far" / "config.yaml").write_text(settings)
    with pytest.raises(PolicyError) as refused:
        load_policy("sweep:far/7", output_dir=tmp_path)
    assert "policy=sweep:far/7: study.storage=postgresql+psycopg://***@db.example/rl" in refused.value.what
    assert "PGPASSWORD" in refused.value.allowed
    assert "add study.storage=..." in refused.value.fix
    assert f"policy={tmp_path / 'far'}/trials/" in refused.value.fix


def test_a_ledger_behind_a_login_is_read_by_its_whole_address(checkpoint, tmp_path):
    elsewhere = f"sqlite:///{tmp_path}/of-several-sweeps.db"
    make_sweep(tmp_path / "far", checkpoint, elsewhere)
    kept = (tmp_path / "far" / "config.yaml").read_text()
    (tmp_path / "far" / "config.yaml").write_text(kept.replace(elsewhere, "postgresql+psycopg://***@db.example/rl"))
    assert load_policy("sweep:far/3", output_dir=tmp_path, ledger_url=elsewhere).info["trial"] == 3
    assert load_playable(Source("sweep:far", SweepRef(output_dir=tmp_path, ledger_url=elsewhere))).info["trial"] == 1


def test_a_trial_of_another_format_is_refused_its_winner_taken(outputs, tmp_path):
    shutil.copytree(outputs / "cartpole-done", tmp_path / "old")
    (tmp_path / "old" / "config.yaml").write_text("study: {storage: null}")
    with contextlib.closing(sqlite3.connect(tmp_path / "old" / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE sweeps SET format = 99")
    assert load_policy("sweep:old", output_dir=tmp_path).info["trial"] == 2
    with pytest.raises(PolicyError, match="format 99") as refused:
        load_policy("sweep:old/1", output_dir=tmp_path)
    assert f"policy={tmp_path / 'old'}/trials/" in refused.value.fix


def test_a_sweep_without_its_ledger_still_gives_its_winner(outputs, tmp_path):
    shutil.copytree(outputs / "cartpole-done", tmp_path / "lost")
    (tmp_path / "lost" / "ledger.db").unlink()
    assert load_policy("sweep:lost", output_dir=tmp_path).info["trial"] == 2
    with pytest.raises(PolicyError, match=r"policy=sweep:lost/1: .*ledger\.db") as refused:
        load_policy("sweep:lost/1", output_dir=tmp_path)
    assert f"policy={tmp_path / 'lost'}/trials/" in refused.value.fix


@pytest.mark.parametrize(
    ("uri", "run"),
    [("sweep:cartpole-done", "run-2"), ("sweep:cartpole-done/3", "run-3"), ("sweep:cartpole-done/0", None)],
)
def test_films_go_to_the_run_that_the_ledger_names(outputs, tmp_path, uri, run, monkeypatch):
    uploads = []
    monkeypatch.setattr(mlflow_artifacts, "upload_folder", lambda *given: uploads.append(given) or True)
    assert keep_with_run(Source(uri, SweepRef(output_dir=outputs)), tmp_path, "videos") == run
    assert uploads == ([(run, tmp_path, "videos")] if run else [])
