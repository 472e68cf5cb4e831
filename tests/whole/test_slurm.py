"""The recipe for Slurm on a real Slurm of two nodes: submitted, requeued in the middle, whole at its end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from joined import clean_environment
from whole_sweep import list_missing

from tests.whole import slurm
from tests.whole.recipes import DEPLOY

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())]

TRIALS = 2
WORDS = (
    "algo=ppo", "env=cartpole", f"budget.trials={TRIALS}", "budget.env_steps=12000", "certify=off", "report=false",
    "scheduler=none",
)  # fmt: skip
START_S, END_S = 300.0, 500.0


def test_a_requeued_job_goes_on_with_its_sweep(tmp_path: Path) -> None:
    env = clean_environment(tmp_path, {"VENV": sys.prefix})
    with slurm.slurm("n1", "n2", folder=tmp_path, **env) as cluster:
        job = cluster.run("sbatch", "--parsable", "--cpus-per-task=1", str(DEPLOY / "slurm.sbatch"), *WORDS).strip()
        sweep, log = tmp_path / "outputs" / f"slurm-{job}", tmp_path / f"rltune-{job}.log"
        deadline = time.monotonic() + START_S
        while not list(sweep.glob("trials/*/*/best-*")):  # a report has come
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        assert not (sweep / "summary.json").exists()
        cluster.run("scontrol", "requeue", job)
        cluster.wait(job, lambda state: state["JobState"] == "PENDING", START_S)
        cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm would wait two minutes
        ended = cluster.wait(job, lambda state: state["JobState"] in ("COMPLETED", "FAILED"), END_S)
    out = log.read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), out
    assert out.count("Running command on head node") == 2
    assert list_missing(sweep, f"sqlite:///{tmp_path / 'mlflow.db'}", TRIALS) == []
