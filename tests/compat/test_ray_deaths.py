"""What Ray says of processes that died, word for word: `explain_ray_death` reads it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from ray.exceptions import RayError

from rltune.driver.tune.failures import CRASHED, explain_ray_death
from rltune.errors import Cause

# What a Ray of its own says of an actor that it ends: with almost no memory allowed, or on a node that is taken away.
ENDED_BY_RAY = """
import sys, time
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError

if sys.argv[1] == "memory":
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False,
             _system_config={"memory_usage_threshold": 0.001, "memory_monitor_refresh_ms": 100})
else:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)

@ray.remote(num_cpus=1)
class Worker:
    def work(self, duration_s):
        time.sleep(duration_s)

worker = Worker.remote()
if sys.argv[1] == "node":
    ray.get(worker.work.remote(0))
answer = worker.work.remote(90)
if sys.argv[1] == "node":
    cluster.remove_node(node, allow_graceful=False)
deadline = time.monotonic() + 90
while time.monotonic() < deadline:
    try:
        ray.get(answer)
    except RayError as error:
        print("SAID", repr(f"{type(error).__name__}: {error}"), flush=True)
        if sys.argv[1] == "memory" or "unavailable" not in str(error):
            break
    time.sleep(1)
    answer = worker.work.remote(0)
"""


class Worker:
    """A process that ends as a test says."""

    def die(self, how: str) -> None:
        """Die."""
        if how == "segfault":
            ctypes.string_at(0)
        elif how.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, how))
            time.sleep(60)
        elif how == "sys.exit(3)":
            sys.exit(3)
        else:
            os._exit(3)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("segfault", CRASHED),
        ("SIGKILL", CRASHED),
        ("os._exit(3)", CRASHED),
        ("sys.exit(3)", "exit code 3"),
        ("SIGTERM", "SIGTERM"),
    ],
)
def test_a_process_that_ends_in_any_way_is_a_lost_one(how: str, reason: str) -> None:
    worker = ray.remote(Worker).options(num_cpus=0).remote()
    with pytest.raises(RayError) as died:
        ray.get(worker.die.remote(how), timeout=60)
    cause, explained = explain_ray_death(str(died.value))
    assert (cause, reason in explained) == (Cause.LOST_PROCESS, True), str(died.value)


@pytest.mark.nightly  # Each starts a Ray of its own, and a lost node is noticed late.
@pytest.mark.slow
@pytest.mark.parametrize(("what", "cause"), [("memory", Cause.OUT_OF_MEMORY), ("node", Cause.LOST_NODE)])
def test_what_ray_ends_itself_is_not_a_lost_process(what: str, cause: Cause, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDED_BY_RAY, what]
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    said = [line for line in ended.stdout.splitlines() if line.startswith("SAID ")]
    assert said, ended.stderr[-2000:]
    for line in said:
        assert explain_ray_death(line)[0] is cause, line
