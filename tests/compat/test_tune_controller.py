"""Tune with warm processes and lost ones, without a Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.air._internal import usage
from ray.air.execution import FixedResourceManager
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.tune.execution import tune_controller

from rltune.compat.tune_controller import adapt_tune, keep_starting_actors, survive_lost_processes

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
        assert (tune_controller.PlacementGroupResourceManager is FixedResourceManager) is one_process
        assert (tune_controller._ActorClassCache is own) is not one_process
        assert usage.tag_callbacks([]) is False
    assert tune_controller._ActorClassCache is own


@pytest.mark.parametrize(
    ("own", "has_place", "resetting", "takes"),
    [
        (None, False, False, True),
        ("mine", False, False, True),
        ("mine", True, False, False),
        ("mine", True, True, True),
    ],
)
def test_a_free_process_is_for_a_trial_whose_own_is_not_starting(own, has_place, resetting, takes, monkeypatch):
    monkeypatch.setattr(tune_controller.TuneController, "_maybe_reuse_cached_actor", lambda controller, trial: True)
    controller = SimpleNamespace(
        _trial_to_actor={"trial": own} if own else {},
        _actor_manager=SimpleNamespace(is_actor_started=lambda actor: has_place),
        _resetting_trials={"trial"} if resetting else set(),
    )
    with keep_starting_actors():
        assert tune_controller.TuneController._maybe_reuse_cached_actor(controller, "trial") is takes


def test_an_actor_class_is_made_once_and_without_an_environment():
    class Trainable:
        pass

    with adapt_tune(one_process=True):
        cache = tune_controller._ActorClassCache()
        assert cache.get(Trainable) is cache.get(Trainable)
