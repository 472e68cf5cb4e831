"""Tune with warm processes and lost ones, without a Ray."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import ray
from ray.air._internal import usage
from ray.air.execution import ResourceRequest
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.tune.execution import tune_controller

from rltune.cluster.resources import Machine, count_slots
from rltune.compat.tune_controller import (
    adapt_tune,
    end_processes_first,
    kill_late_processes,
    log_raylet,
    make_resource_manager,
    survive_lost_processes,
)

pytestmark = pytest.mark.replacement


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("too much"), RayActorError),
        (RayActorError(error_msg="died"), RayActorError),
        (RayTaskError("f", "trace", ValueError()), RayTaskError),
        (ValueError("ours"), ValueError),
    ],
)
def test_any_error_of_rays_is_one_that_tune_knows(error, kind, monkeypatch):
    seen = []
    monkeypatch.setattr(
        RayActorManager, "_actor_task_failed", lambda manager, tracked_actor_task, exception: seen.append(exception)
    )
    with survive_lost_processes():
        RayActorManager._actor_task_failed(None, tracked_actor_task=None, exception=error)
    assert type(seen[0]) is kind
    assert str(error) in str(seen[0])


@pytest.mark.parametrize("one_process", [False, True])
def test_warm_processes_are_for_trials_of_one_process(one_process):
    own = tune_controller._ActorClassCache
    with adapt_tune(one_process):
        assert (tune_controller.PlacementGroupResourceManager is make_resource_manager) is one_process
        assert (tune_controller._ActorClassCache is own) is not one_process
        assert usage.tag_callbacks([]) is False
    assert tune_controller._ActorClassCache is own


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("fraction", [*[1 / trials for trials in range(1, 17)], 1 / 88, 0.01, 0.1667, 0.29, 0.57])
def test_tune_begins_as_many_fractions_of_a_gpu_as_are_counted(fraction, gpus, monkeypatch):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 999.0, "GPU": float(gpus)})
    for function in ("ray.get_runtime_context", "ray.util.get_current_placement_group"):
        monkeypatch.setattr(function, lambda: None)  # Either starts a Ray.
    manager, request = make_resource_manager(), ResourceRequest([{"CPU": 1, "GPU": fraction}])
    counted = count_slots([{"CPU": 1, "GPU": fraction}], [Machine(999, gpus)], 999)
    for _ in range(counted):
        manager.request_resources(request)
        assert manager.acquire_resources(request)


class Trial:
    """What ending a trial needs of Tune's trial."""

    RUNNING = "RUNNING"

    def __init__(self, status, process):
        self.status, self.temporary_state = status, SimpleNamespace(ray_actor=process)


class Controller:
    """What ending a trial needs of Tune's controller."""

    def __init__(self, processes):
        self._trial_to_actor, self.calls = processes, []

    def _schedule_trial_task(self, trial, method, *, on_result, on_error):
        self.calls.append((method, on_result, on_error))


@pytest.mark.parametrize("how", ["answers", "dies"])
def test_a_trial_ends_when_its_process_has_ended(how, monkeypatch):
    ended, killed = [], []
    monkeypatch.setattr(tune_controller.TuneController, "stop_trial", lambda controller, trial: ended.append(trial))
    monkeypatch.setattr(ray, "kill", killed.append)
    trial = Trial("RUNNING", "process")
    controller = Controller({trial: "process"})
    with end_processes_first():
        tune_controller.TuneController.stop_trial(controller, trial)
        ((method, on_result, on_error),) = controller.calls
        assert (method, ended, killed) == ("leave", [], [])
        if how == "answers":
            on_result(trial, None)
        else:
            trial.temporary_state.ray_actor = None
            on_error(trial, RayActorError(error_msg="died"))
    assert ended == [trial]
    assert killed == (["process"] if how == "answers" else [])


@pytest.mark.parametrize("is_urgent", [False, True])
def test_after_a_signal_no_late_process_is_waited_for(is_urgent, monkeypatch):
    killed, cleaned = [], []
    monkeypatch.setattr(tune_controller.TuneController, "_cleanup_trials", cleaned.append)
    controller = Controller({})
    controller._stopping_actors = {"process": 0.0}
    controller._actor_manager = SimpleNamespace(remove_actor=lambda actor, kill: killed.append(actor))
    with kill_late_processes(lambda: is_urgent):
        tune_controller.TuneController._cleanup_trials(controller)
    assert cleaned == [controller]
    assert killed == (["process"] if is_urgent else [])


def test_what_the_raylet_says_is_logged(capsys, monkeypatch):
    lines = []
    monkeypatch.setattr(logging.getLogger("ray.tune"), "warning", lambda text, *parts: lines.append(text % parts))
    with log_raylet():
        ray._private.worker.print_to_stdstream({"lines": ["died"], "pid": "raylet", "is_err": False}, False)
    assert lines == ["(raylet) died"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("status", ["RUNNING", "PENDING"])
def test_a_trial_without_a_process_ends_at_once(status, monkeypatch):
    ended = []
    monkeypatch.setattr(tune_controller.TuneController, "stop_trial", lambda controller, trial: ended.append(trial))
    with end_processes_first():
        tune_controller.TuneController.stop_trial(Controller({}), trial := Trial(status, None))
    assert ended == [trial]


def test_an_actor_class_is_made_once_and_without_an_environment():
    class Trainable:
        pass

    with adapt_tune(one_process=True):
        cache = tune_controller._ActorClassCache()
        assert cache.get(Trainable) is cache.get(Trainable)
