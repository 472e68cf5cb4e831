"""Registering with Ray while it starts, without a Ray."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import ray
from ray._private.auto_init_hook import auto_init_lock, wrap_auto_init
from ray.tune import registry

from rltune.compat.ray_registry import wait_for_ray

pytestmark = pytest.mark.replacement


def test_what_a_thread_registers_while_ray_starts_arrives_once_and_neither_fails(monkeypatch):
    monkeypatch.setattr(registry._Registry, "register", registry._Registry.register)  # put back afterwards
    sent, failed, up, begun = [], [], threading.Event(), threading.Event()

    def register():
        begun.set()
        try:
            one.register(registry.ENV_CREATOR, "late", 1)
        except RuntimeError as error:
            failed.append(error)

    def has_store():
        begun.set()
        return True

    monkeypatch.setattr(ray, "is_initialized", up.is_set)
    job = SimpleNamespace(get_job_id=lambda: "01")
    monkeypatch.setattr(ray, "get_runtime_context", wrap_auto_init(lambda: job))
    monkeypatch.setattr(registry, "_internal_kv_initialized", has_store)
    monkeypatch.setattr(registry, "_internal_kv_put", lambda key, value, overwrite: sent.append(key.decode()))
    one = registry._Registry()
    one._to_flush[registry.ENV_CREATOR, "early"] = b"0"
    wait_for_ray()
    wait_for_ray()  # a second sweep of the same process
    other = threading.Thread(target=register)
    with auto_init_lock:  # as `rltune.cluster.ray_cluster` starts Ray
        other.start()
        begun.wait()
        other.join(0.3)
        up.set()
        one.flush_values()  # Ray's last step
    other.join(10)
    assert not other.is_alive(), "nobody waits for ever"
    assert failed == []
    assert sorted(key.rpartition("/")[2] for key in sent) == ["early", "late"]
