"""Join a Ray as a sweep does, and submit a sweep as a job of one."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

from joined import SCRIPT, TESTS, clean_environment

# What a sweep does with a Ray first: join it, and keep an actor there.
JOIN = """
import sys, time
from pathlib import Path
from rltune.cluster.ray_cluster import check_address, connect_ray, prepare_environment
from rltune.config.schema import ClusterConfig
from rltune.errors import RltuneError
from rltune.cli.application.command import leave

cluster = ClusterConfig(address=None, num_cpus=1) if sys.argv[1] == "own" else ClusterConfig(address=sys.argv[1])
began = time.monotonic()
try:
    check_address(cluster)
    prepare_environment(cluster)
    import ray

    began = time.monotonic()
    with connect_ray(cluster) as nodes:
        @ray.remote(num_cpus=0)
        class Trial:
            def answer(self):
                return 42

        trial = Trial.remote()
        for _ in range(10):  # one that the cluster takes for forgotten is gone at once
            assert ray.get(trial.answer.remote()) == 42
            time.sleep(0.1)
        print(f"joined {sum(node.cpus for node in nodes):g} CPUs")
except RltuneError as error:
    Path("refused-after-s").write_text(str(time.monotonic() - began))
    leave(error)
"""


# What `ray job submit` has the head do, without the HTTP server in between, which is not in every installation of Ray.
SUBMIT = """
import asyncio, sys, ray
from pathlib import Path
from ray._private import worker
from ray.dashboard.modules.job.job_manager import JobManager

address, entrypoint, stop_when = sys.argv[1:]
ray.init(address, log_to_driver=False, logging_level="ERROR")

async def main():
    manager = JobManager(worker.global_worker.gcs_client, worker._global_node.get_logs_dir_path())
    environment = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "30"}}
    job = await manager.submit_job(entrypoint=entrypoint, submission_id="first", runtime_env=environment)
    stopped = not stop_when
    while not (status := await manager.get_job_status(job)).is_terminal():
        await asyncio.sleep(0.2)
        if not stopped and list(Path.cwd().glob(stop_when)):
            stopped = manager.stop_job(job)
    print(manager.get_job_logs(job), status)

asyncio.run(main())
"""
# A head that says it is of another version.
OTHER_VERSION = """
import sys, ray
ray.__version__ = "2.59.9"
del sys.argv[1:4]  # python -m ray.scripts.scripts
from ray.scripts.scripts import main
main()
"""


def join(address: str, home: Path, **settings: str) -> tuple[int, str, float]:
    """Join a Ray; the exit code, what was said, and the seconds until it was refused, without the imports.

    Args:
        address: Its address; ``own`` starts one.
        home: Where Ray looks for the token of who types this.
        settings: Of the environment.
    """
    words = [sys.executable, "-c", JOIN, address]
    env = clean_environment(home, settings)
    env["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parents[1])])
    done = subprocess.run(words, cwd=home, env=env, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr, read_refusal_s(home)


def read_refusal_s(home: Path) -> float:
    """How long who typed `JOIN` in this folder waited to be refused; infinite for who was not."""
    path = home / "refused-after-s"
    return float(path.read_text()) if path.exists() else math.inf


def submit_sweep(
    address: str, folder: Path, *words: str, stop_when: str = "", **settings: str
) -> subprocess.Popen[str]:
    """Submit a toy sweep named ``toy`` as a job of a Ray, and do not wait.

    Args:
        address: The Ray's.
        folder: The sweep's, and of who submits it.
        words: Of the sweep's command.
        stop_when: A pattern; the job is stopped when there is such a file in the folder.
        settings: Of the environment of who submits it.
    """
    (folder / "typed.py").write_text(SCRIPT)
    typed = [sys.executable, str(folder / "typed.py"), "run", str(folder / "outputs"), *words]
    path = os.pathsep.join([str(TESTS), str(TESTS.parents[1])])
    entrypoint = f"cd {folder} && PYTHONPATH={path} exec {shlex.join(typed)}"
    return subprocess.Popen(
        [sys.executable, "-c", SUBMIT, address, entrypoint, stop_when],
        cwd=folder,
        env=clean_environment(folder, settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
