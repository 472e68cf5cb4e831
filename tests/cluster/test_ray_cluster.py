"""Starting Ray, without a Ray."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import ray
from ray._private.auto_init_hook import auto_init_ray

from rltune.cluster.ray_cluster import connect_ray
from rltune.config.schema import ClusterConfig


@pytest.mark.replacement
def test_a_thread_that_needs_ray_while_it_starts_gets_this_one_and_starts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts: list[dict[str, Any]] = []
    other = threading.Thread(target=auto_init_ray)  # what ray.get and others do first

    def init(**arguments: Any) -> None:
        starts.append(arguments)
        if len(starts) == 1:
            other.start()
            other.join(0.3)
        up.set()

    up = threading.Event()
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", up.is_set)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connect_ray(ClusterConfig(num_cpus=2, num_gpus=0)) as machine:
        other.join()
    assert machine.cpus == 2
    assert [start["num_cpus"] for start in starts] == [2]


@pytest.mark.parametrize("dashboard", [False, True])
def test_ray_listens_on_this_machine_alone_and_shows_its_dashboard_only_when_asked(
    dashboard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(ray, "init", lambda **arguments: asked.update(arguments))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    chosen = {"dashboard": True} if dashboard else {}
    with connect_ray(ClusterConfig(num_cpus=2, num_gpus=0, **chosen)):
        assert asked["include_dashboard"] is dashboard
        assert {asked["dashboard_host"], asked["_node_ip_address"]} == {"127.0.0.1"}
        assert asked["address"] == "local", "or Ray would join one that RAY_ADDRESS names"
