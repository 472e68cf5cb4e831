"""Why a trial went wrong: in the words of whoever knew it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError, RayTaskError

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import open_store
from rltune.compat.tune_controller import adapt_tune
from rltune.driver.tune.failures import explain_death, explain_report, read_last_error, write_failure
from rltune.errors import Cause
from rltune.secrets import conceal
from rltune.trial.supervisor import STACK_FILE, Supervisor
from rltune.trial.trainable import describe_failure

DIED = """Traceback (most recent call last):
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
	class_name: ArrayEnvRunner
	pid: 4711
"""
WRITTEN = """Worker exception caught during `apply()`: the pole broke
Traceback (most recent call last):
  File "stumbling.py", line 16, in step
    raise ValueError("the pole broke")
ValueError: the pole broke
"""


def describe(reason: str, trace: str, cause: Cause = Cause.ENVIRONMENT) -> dict[str, str]:
    return {"failed": reason, "traceback": trace, "cause": cause.value}


@pytest.mark.parametrize("after", ["", "\nDuring handling of the above exception, another one:\nRuntimeError\n"])
def test_a_trial_whose_env_runner_died_fails_with_what_its_environment_raised(after, tmp_path, monkeypatch):
    (tmp_path / "worker-ff-01000000-4711.err").write_text(WRITTEN + after)
    monkeypatch.setattr("rltune.driver.tune.failures.find_logs", lambda: tmp_path)
    failure = explain_report(describe("ActorDiedError: The actor died unexpectedly", DIED, Cause.LOST_PROCESS))
    assert failure.reason.endswith(WRITTEN.splitlines()[-1])
    assert failure.counts_against_trial
    written = write_failure(open_store(tmp_path), "trials/3", failure)
    assert "stumbling.py" in (tmp_path / written["log"]).read_text()


def test_without_its_log_an_env_runners_death_is_told_as_ray_tells_it(tmp_path, monkeypatch):
    monkeypatch.setattr("rltune.driver.tune.failures.find_logs", lambda: tmp_path)
    for raised, trace, cause in (("it died", DIED, Cause.LOST_PROCESS), ("no", "pid: 1", Cause.UNKNOWN)):
        failure = explain_report(describe(raised, trace, cause))
        assert (failure.reason, failure.counts_against_trial) == (raised, cause is Cause.UNKNOWN)


def test_what_ray_wraps_is_told_as_it_was_raised():
    error = ValueError("a network of size 0")
    wrapped = RayTaskError("learn", "Traceback ...", error).as_instanceof_cause()
    assert describe_failure(wrapped, 0, Path())["failed"] == f"ValueError: {error}"


@pytest.mark.parametrize(
    ("error", "reason", "counts"),
    [
        (OutOfMemoryError("1 worker(s) were killed due to the node running low on memory."), "out of memory", True),
        (NodeDiedError("its machine is gone"), "NodeDiedError: its machine is gone", False),
    ],
)
def test_a_process_that_ray_ended_costs_no_sweep(error, reason, counts, tmp_path, monkeypatch):
    monkeypatch.setattr("rltune.driver.tune.failures.find_logs", lambda: None)
    errors = []
    actor = SimpleNamespace(actor_id=1, _on_error=lambda _, exception: errors.append(exception))
    manager = SimpleNamespace(_failed_actor_ids=set(), _cleanup_actor=lambda tracked_actor: None)
    task = SimpleNamespace(_tracked_actor=actor, _on_error=None)
    with adapt_tune(one_process=False):
        RayActorManager._actor_task_failed(manager, tracked_actor_task=task, exception=error)  # as Ray calls it
    assert isinstance(errors[0], RayActorError)
    failure = explain_death(open_store(tmp_path), "trials/0", str(errors[0]))
    assert (failure.reason, failure.counts_against_trial) == (f"worker died: {reason}", counts)


def test_the_last_of_a_trials_errors_is_the_one_that_counts(tmp_path):
    (tmp_path / "error.txt").write_text("Failure # 1 (occurred at noon)\nfirst\nFailure # 2 (occurred later)\nsecond\n")
    assert read_last_error(str(tmp_path / "error.txt")) == "second\n"
    assert read_last_error(str(tmp_path / "none.txt")) == read_last_error(None) == ""


def test_a_death_that_ray_only_guesses_about_is_not_called_out_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("rltune.driver.tune.failures.find_logs", lambda: None)
    guess = "Worker exit detail: End of file. Some common causes include: (1) the process was killed by the OOM killer"
    death = explain_death(open_store(tmp_path), "trials/0", f"The actor died unexpectedly.\n\tpid: 1\n{guess}\n")
    assert "common causes" in death.reason
    assert "memory" not in death.reason


@pytest.mark.fast
def test_a_crash_is_said_in_our_words_and_rays_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("rltune.driver.tune.failures.find_logs", lambda: None)
    text = (
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. "
        "End of file. Some common causes include: (1) the process was killed by the OOM killer. If the process;"
    )
    death = explain_death(open_store(tmp_path), "trials/0", text)
    assert death.cause is Cause.LOST_PROCESS
    assert "connection error" not in death.reason
    assert death.trace == text


def test_a_process_that_ran_to_its_end_has_not_hung(tmp_path, monkeypatch):
    """While a process runs, its file has its first line."""
    monkeypatch.setattr("rltune.driver.tune.failures.find_logs", lambda: None)
    (tmp_path / "trials" / "7").mkdir(parents=True)
    stack = tmp_path / "trials" / "7" / STACK_FILE
    stack.write_text("no progress for 5 s\n")
    assert explain_death(open_store(tmp_path), "trials/7", "Worker exit detail: x").cause is Cause.LOST_PROCESS
    stack.write_text("no progress for 5 s\nThread 0x1\n")
    failure = explain_death(open_store(tmp_path), "trials/7", "Worker exit detail: x")
    assert (failure.cause, STACK_FILE in failure.reason) == (Cause.STALLED, True)


def test_a_failures_file_and_reason_hold_no_login(tmp_path):
    conceal("postgresql+psycopg://me:open/sesame@db/rl")
    failure = explain_report(describe("ValueError: host 'sesame@db'", "os.environ['S'] = 'me:open/sesame@db'"))
    kept = write_failure(open_store(tmp_path), "trials/7", failure)
    written = (tmp_path / kept["log"]).read_text()
    assert "sesame" not in failure.reason + kept["traceback"] + written
    assert "'***@db'" in written


def test_a_death_that_is_tried_again_leaves_no_file(tmp_path):
    death = explain_death(open_store(tmp_path), "trials/7", "Worker exit detail: SIGKILL")
    assert death.reason.endswith("SIGKILL")
    assert "detail" not in death.reason
    assert not death.counts_against_trial
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_hung_workers_stack_comes_through_the_store(tmp_path, s3):
    address = make_address(s3, "hung")
    worker, driver = open_store(tmp_path / "worker", address), open_store(tmp_path / "driver", address)
    ended = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rltune.trial.supervisor.os._exit", lambda code: ended.set())
        supervisor = Supervisor(worker, "hung", "trials/3", 0.1, lambda: 0)
        with supervisor.watch():
            assert ended.wait(60)
        supervisor.close()
    death = explain_death(driver, "trials/3", "the actor died")
    assert "0.1 s" in death.reason
    assert STACK_FILE in death.reason
    assert "test_failures.py" in death.trace, "where its threads were"
