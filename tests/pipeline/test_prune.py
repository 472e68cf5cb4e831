"""What ``sweeps.prune`` would free, what it keeps, and that it deletes nothing before it is told to."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest
from ledger import add_reports, make_ledger

from rltune.certification.result import Certification, Configuration, SeedResult
from rltune.errors import StudyError
from rltune.pipeline.prune import prune_sweeps
from rltune.records import CheckpointRecord
from rltune.study.checkpoints import write_checkpoint
from rltune.study.storage import open_ledger
from rltune.study.sweep_folder import lock_sweep

BYTES = 500_000  # of one checkpoint
TRIALS = {0: ("COMPLETE", 10.0), 1: ("COMPLETE", 30.0), 2: ("PRUNED", 40.0), 3: ("FAIL", 50.0), 4: ("RUNNING", 20.0)}


def write(sweep: Path, place: str, kind: str, env_steps: int) -> CheckpointRecord:
    state = {"env_steps": env_steps, "objective": 1.0}
    return write_checkpoint(sweep, place, kind, state, lambda to: (to / "policy").write_bytes(b"0" * BYTES))


def a_sweep(root: Path, name: str = "one", status: str = "interrupted", top: int = 1) -> Path:
    """Five trials with two best and one latest checkpoint each; trial 0 has won."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"format: 3\nstudy: {{storage: null}}\ncertify: {{top: {top}}}\n")
    with closing(make_ledger(folder, name)) as ledger:
        for number, (state, best) in TRIALS.items():
            ledger.trials.add({}, [number])
            write(folder, f"trials/{number}", "best", 100)
            add_reports(ledger, number, {200: best})
            ledger.trials.change(number, checkpoint=write(folder, f"trials/{number}", "best", 200))
            ledger.trials.change(number, latest=write(folder, f"trials/{number}", "latest", 300))
            if state != "RUNNING":
                ledger.trials.end(number, state, "done")
        ledger.change_sweep(status=status, winner={"checkpoint": "trials/0/best-000000000200"})
    write(folder, "certify/0", "best", 200)
    return folder


def there(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for shelf in ("trials", "certify") for path in folder.glob(f"{shelf}/*/*-*")}


def said(root: Path, sweep: str = "all", sure: bool = False) -> str:
    stream = io.StringIO()
    prune_sweeps(sweep, str(root), sure, stream)
    return stream.getvalue()


KEPT = {
    "trials/0/best-000000000200",  # the winner's
    "trials/1/best-000000000200",  # the best that ran to its end, which an extended sweep would certify
    *(f"trials/4/{name}" for name in ("best-000000000100", "best-000000000200", "latest-000000000300")),
}


def test_nothing_is_deleted_before_it_was_said_what(tmp_path: Path) -> None:
    folder = a_sweep(tmp_path)
    before = there(folder)
    text = said(tmp_path)
    assert there(folder) == before
    assert "5.0 MB" in text  # ten of sixteen
    assert f"python -m sweeps.prune sweep=all delete=true output_dir={tmp_path}" in text


def test_what_an_extension_would_choose_from_is_kept(tmp_path: Path) -> None:
    folder = a_sweep(tmp_path, status="complete", top=3)
    said(tmp_path, sure=True)
    kept = {place for place in there(folder) if not place.startswith("trials/4/")}
    assert kept == {f"trials/{number}/best-000000000200" for number in (0, 1, 2)}


def test_winners_unfinished_trials_and_a_certification_under_way_keep_their_checkpoints(tmp_path: Path) -> None:
    folder = a_sweep(tmp_path)
    (folder / "trials" / "3" / "failure.txt").write_text("why")
    assert "freed 5.0 MB" in said(tmp_path, "one", sure=True)
    assert there(folder) == KEPT | {"certify/0/best-000000000200"}
    assert (folder / "trials" / "3" / "failure.txt").is_file()
    assert "nothing to free" in said(tmp_path)


def test_a_certification_that_has_ended_keeps_each_configurations_best_run(tmp_path: Path) -> None:
    folder = a_sweep(tmp_path, status="complete")
    results = []
    for number, mean in ((1, 5.0), (2, 7.0)):
        record = write(folder, f"certify/{number}", "best", 200)
        results.append(SeedResult(number, mean, (mean,), record.path))
    baseline = Configuration("baseline", None, {}, None, tuple(results))
    found = Certification((1, 2), 1, 300, (baseline,), "baseline", ())
    with closing(open_ledger(folder)) as ledger:
        ledger.change_sweep(certification=found.to_dict())
    said(tmp_path, sure=True)
    assert there(folder) == KEPT | {"certify/2/best-000000000200"}


def test_a_running_sweep_and_an_unreadable_one_are_named_and_left_alone(tmp_path: Path) -> None:
    running, broken = a_sweep(tmp_path, "running"), a_sweep(tmp_path, "broken")
    (broken / "ledger.db").unlink()
    before = there(running), there(broken)
    with lock_sweep(running) as ours:
        assert ours
        text = said(tmp_path, sure=True)
    assert (there(running), there(broken)) == before
    assert "it is running" in text
    assert "unreadable" in text


def test_an_unknown_sweep_is_answered_with_the_nearest(tmp_path: Path) -> None:
    a_sweep(tmp_path)
    with pytest.raises(StudyError, match="no such sweep") as refused:
        prune_sweeps("onee", str(tmp_path), sure=True)
    assert "one" in refused.value.pretty()


def test_a_folder_without_sweeps_says_so(tmp_path: Path) -> None:
    assert "no sweeps in" in said(tmp_path)
