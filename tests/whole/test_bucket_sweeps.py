"""Sweeps that keep their checkpoints in a bucket, over HTTP: what one machine leaves, another one finds."""

from __future__ import annotations

import io
import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import postgres
import pytest
from checkpoints import make_sweep
from joined import finish, start_sweep, sweep
from toy import HURRY

from rltune.algorithms.restore import load_algorithm
from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import find_store, open_store
from rltune.config.settings_file import read_identity
from rltune.driver.run import resume_sweep
from rltune.driver.starting import check_request
from rltune.errors import PolicyError, RltuneError, StudyError
from rltune.ledger.ledger import Ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.policies.policy import load_policy
from rltune.views.description import summarize_all
from rltune.views.tables import list_sweeps, read_sweep, read_sweeps, show_sweep

SOME = ("budget.trials=3", "tracking=off", "certify=on", "certify.seeds=2", "certify.top=1")


def test_a_finished_sweep_is_shown_and_extended_elsewhere(
    toy_run: Callable[..., Any], s3: str, tmp_path: Path, stream: io.StringIO
) -> None:
    outcome = toy_run("name=moved", f"storage={s3!r}", *SOME)
    assert outcome.exit_code == 0
    assert "study.storage=postgresql" in stream.getvalue()
    shutil.rmtree(outcome.folder)  # its machine is gone
    other = str(tmp_path / "other")
    shown = io.StringIO()
    list_sweeps(summarize_all(read_sweeps(ref := SweepRef(output_dir=other, storage=s3))), ref.root, shown)
    show_sweep(read_sweep(SweepRef("moved", other, s3)), shown)
    assert "moved" in shown.getvalue()
    assert "certified" in shown.getvalue()
    again = resume_sweep(
        SweepRef("moved", other, s3), changes={"budget": {"trials": 4}}, stream=stream, trainable=_toy()
    )
    assert (again.exit_code, again.trials["total"], again.trials["interrupted"]) == (0, 4, 0)


def _toy() -> type:
    from toy import ToyTrial

    return ToyTrial


@pytest.mark.nightly
@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
@pytest.mark.parametrize("verb", ["resume", "run"])
def test_a_killed_driver_loses_nothing_but_its_machine(
    verb: str, tmp_path: Path, s3: str, postgres_server: str
) -> None:
    s3 = s3.replace("/runs", f"/killed-{verb}")
    words = [f"storage={s3!r}", "cluster.address=null", "budget.trials=4", "+space.seconds=0.2", "resume=auto"]
    words += ["checkpoint.every_s=1", "scheduler=none"]
    url = postgres.database(postgres_server, f"killed-{verb}")
    typed = start_sweep("run", tmp_path, *words, "study.storage=${oc.env:LEDGER}", LEDGER=url)
    store = open_store(tmp_path, make_address(s3, "toy"))
    deadline = time.monotonic() + 120
    while not any("best-" in name for name in store.list()) and time.monotonic() < deadline:
        assert typed.poll() is None, finish(typed)
        time.sleep(0.2)
    typed.send_signal(signal.SIGKILL)
    finish(typed)
    shutil.rmtree(tmp_path / "outputs")
    assert postgres.HALVES[0] not in (store.read("config.yaml") or b"").decode()
    env = {"LEDGER": url, HURRY: "1"}
    if verb == "run":  # the same command again
        code, out = sweep("run", tmp_path, *words, "study.storage=${oc.env:LEDGER}", **env)
    else:
        code, out = sweep("resume", tmp_path, f"storage={s3}", "study.storage=${oc.env:LEDGER}", **env)
    assert code == 0, out
    ledger = Ledger(url, "toy")
    records = ledger.trials.records()
    ledger.close()
    assert [record.state for record in records] == ["COMPLETE"] * 4
    assert all(list(record.reports) == list(range(100, 2001, 100)) for record in records), "each report once"
    assert "its checkpoint" not in out, "nothing was damaged"
    names = store.list()
    assert all(f"{record.checkpoint.path}/manifest.json" in names for record in records if record.checkpoint)


def test_a_ledger_that_is_a_file_elsewhere_is_not_begun_anew(
    tmp_path: Path, s3: str, toy_run: Callable[..., Any]
) -> None:
    outcome = toy_run("name=elsewhere", f"storage={s3!r}", "budget.trials=1", "tracking=off")
    store = find_store(read_identity(outcome.folder))
    begun, stored = (store.read("drivers.txt") or b"").splitlines()
    assert stored.startswith(begun)
    store.write("drivers.txt", begun)  # as while it runs
    with pytest.raises(StudyError, match="sweep=elsewhere") as refused:
        resume_sweep(SweepRef("elsewhere", tmp_path / "other", s3), trainable=_toy())
    assert refused.value.exit_code == 75, "its driver may end"
    with pytest.raises(StudyError, match="name=elsewhere"):
        toy_run("name=elsewhere", f"storage={s3!r}", f"output_dir={tmp_path / 'third'}")
    with pytest.raises(StudyError, match="=elsewhere"):
        toy_run("name=elsewhere", f"storage={s3!r}", f"output_dir={tmp_path / 'third'}", "resume=auto")
    more = ("budget.trials=2", "resume=auto", "take_over=true", "tracking=off")
    taken = toy_run("name=elsewhere", f"storage={s3!r}", f"output_dir={tmp_path / 'third'}", *more)
    assert (taken.exit_code, taken.trials["total"]) == (0, 2)
    assert (store.read("drivers.txt") or b"").endswith(b" stored\n")


def test_a_policy_loads_on_a_machine_that_has_nothing_of_it(
    checkpoint: Path, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "mine" / "stored", tmp_path / "other"
    folder.parent.mkdir()
    make_sweep(folder, checkpoint, remote_storage=s3)
    (folder / "summary.json").write_text(json.dumps({"winner": {"checkpoint": "trials/2/first/best-000000002048"}}))
    store = open_store(folder, make_address(s3, "stored"))
    store.publish([path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()])
    winner = load_policy("sweep:stored", output_dir=other, storage=s3)
    assert winner.info["trial"] == 2
    assert winner.is_trusted(), "the mark came with it"
    assert load_policy("sweep:stored/1", output_dir=other).info["trial"] == 1, "the folder knows where it came from"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody"))
    with pytest.raises(PolicyError):
        load_algorithm("sweep:stored/3", output_dir=other)
    store.write("trials/3/first/best-000000002048/policy/policy.json", b"{}")
    shutil.rmtree(other / "stored" / "trials" / "3")
    with pytest.raises(RltuneError, match="is gone"):
        load_policy("sweep:stored/3", output_dir=other)


def test_the_check_before_several_jobs_lets_auto_go_on_with_a_stored_sweep(
    request_of: Callable[..., Any], s3: str
) -> None:
    open_store("", make_address(s3, "begun")).write("config.yaml", b"name: begun")
    words = ("name=begun", f"storage={s3!r}")
    with pytest.raises(StudyError, match="name=begun"):
        check_request(request_of(*words))
    assert check_request(request_of(*words, "resume=auto")).name == "begun"


def test_a_sweep_of_somebody_else_needs_trust(
    toy_run: Callable[..., Any], s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = toy_run("name=theirs", f"storage={s3!r}", "budget.trials=1", "tracking=off")
    assert outcome.exit_code == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody"))
    ref, changes = SweepRef("theirs", tmp_path / "other", s3), {"budget": {"trials": 2}}
    with pytest.raises(StudyError, match="sweep=theirs"):
        resume_sweep(ref, changes=changes, trainable=_toy())
    again = resume_sweep(ref, changes=changes, trainable=_toy(), trust=True)
    assert again.trials["total"] == 2


def test_a_wrong_bucket_is_answered_before_anything_is_made(
    toy_run: Callable[..., Any], s3: str, tmp_path: Path
) -> None:
    for storage in (s3.replace("sweeps", "strange", 1), "ftp://x/y"):
        with pytest.raises(RltuneError) as refused:
            toy_run(f"storage={storage!r}")
        assert (refused.value.key, refused.value.exit_code) == ("storage", 2)
    assert not (tmp_path / "outputs").exists()
