"""Starting Ray, without a Ray."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import ray
from ray._private.auto_init_hook import auto_init_ray

from rltune.cluster.ray_cluster import check_address, connect_ray
from rltune.cluster.resources import Machine
from rltune.config.schema import ClusterConfig
from rltune.errors import ResourceError


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
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "ab12", "Alive": True, "Resources": {"CPU": 2.0}}])
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connect_ray(ClusterConfig(num_cpus=2, num_gpus=0)) as nodes:
        other.join()
    assert nodes == (Machine(2, 0),)
    assert [start["num_cpus"] for start in starts] == [2]


@pytest.mark.parametrize("dashboard", [False, True])
def test_ray_listens_on_this_machine_alone_and_shows_its_dashboard_only_when_asked(
    dashboard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(ray, "init", lambda **arguments: asked.update(arguments))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    chosen = {"dashboard": True} if dashboard else {}
    with connect_ray(ClusterConfig(num_cpus=2, num_gpus=0, **chosen)):
        assert asked["include_dashboard"] is dashboard
        assert {asked["dashboard_host"], asked["_node_ip_address"]} == {"127.0.0.1"}
        assert asked["address"] == "local", "or Ray would join one that RAY_ADDRESS names"


@pytest.mark.parametrize(
    ("address", "named", "what", "fix"),
    [
        (
            "ray://head:10001",
            "",
            "cluster.address=ray://head:10001: a sweep",
            "ray job submit --address http://head:8265 ",
        ),
        (
            "auto",
            "ray://head:10001",
            "RAY_ADDRESS=ray://head:10001: a sweep",
            "ray job submit --address http://head:8265 ",
        ),
        (
            "auto",
            "http://10.0.0.1:8265",
            "RAY_ADDRESS=http://10.0.0.1:8265: a",
            "ray job submit --address http://10.0.0.1:",
        ),
        ("head", "", "cluster.address=head: no address", "cluster.address=head:6379"),
        ("local", "", "cluster.address=local: no address", "cluster.address=local:6379"),
        ("", "", "cluster.address=: no address", "cluster.address=head:6379"),
    ],
)
def test_an_address_by_which_no_sweep_joins_is_refused(
    address: str, named: str, what: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(ResourceError) as refused:
        check_address(ClusterConfig(address=address))
    assert refused.value.what.startswith(what)
    assert "host:port of the cluster's head" in refused.value.allowed
    assert refused.value.fix.startswith(fix)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("auto", ""),
        ("auto", "auto"),
        ("auto", "10.0.0.1:6379"),
        ("head:6379", "ray://head:10001"),
        (None, "ray://head:1"),
    ],
)
def test_an_address_that_may_be_a_rays_is_tried(
    address: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", named)
    check_address(ClusterConfig(address=address))
