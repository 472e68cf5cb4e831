"""What a Ray of our own starts with, without a Ray."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import ray.actor
from ray._private import auto_init_hook, parameter, services, state

from rltune.compat import patching
from rltune.compat.ray_start import (
    WORKER_MODULE,
    draw_actor_class_ids,
    find_worker_script,
    forbid_auto_start,
    list_private_arguments,
    start_in_own_session,
    start_without_extras,
    start_workers_by,
)

pytestmark = pytest.mark.replacement


@pytest.mark.usefixtures("off")
def test_an_untested_ray_gets_no_setting_that_would_end_it():
    assert list(list_private_arguments(["json"])) == ["_node_ip_address"]


def test_an_untested_ray_stays_on_this_machine_while_it_can(monkeypatch):
    monkeypatch.setattr(patching, "find_version", lambda library: "2.61.0")
    assert list_private_arguments() == {"_node_ip_address": "127.0.0.1"}
    monkeypatch.setattr(ray, "init", lambda **arguments: None)
    assert list_private_arguments() == {}


def test_rays_worker_is_where_we_start_it():
    assert find_worker_script().is_file()
    assert importlib.util.find_spec(WORKER_MODULE)


def test_ray_takes_its_unstable_arguments():
    source = inspect.getsource(ray.init)
    for name in list_private_arguments(["json"]):
        assert f'kwargs.pop("{name}"' in source
    raylet = Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet"
    assert b"preload_python_modules" in raylet.read_bytes()


def test_what_ray_starts_leads_a_session_of_its_own():
    with start_in_own_session():
        process = services.ConsolePopen(["sh", "-c", "cat /proc/$$/stat"], stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate()
    session = int(out.rpartition(")")[2].split()[3])
    assert session == process.pid


@pytest.mark.parametrize("dashboard", [False, True])
def test_ray_starts_without_what_a_sweep_does_not_need(dashboard):
    own = services.start_api_server
    with start_without_extras(dashboard):
        params = parameter.RayParams()
        assert (params.no_monitor, params.include_log_monitor) == (True, False)
        assert (services.start_api_server is own) is dashboard
    assert services.start_api_server is own


@pytest.mark.parametrize(("ends", "waits"), [(None, 3), (1, 1)])
def test_a_node_is_waited_for_as_long_as_its_raylet_runs(ends, waits, monkeypatch):
    tables = [[], [], [{"NodeID": "a"}]]
    known = SimpleNamespace(
        _initialize_global_state=lambda options: None, node_table=lambda: tables.pop(0), get_node=lambda name: {}
    )
    monkeypatch.setattr(state, "GlobalState", lambda: known)
    monkeypatch.setattr(services, "_get_gcs_client_options", lambda address: None)
    monkeypatch.setattr(services, "start_raylet", lambda: SimpleNamespace(process=SimpleNamespace(poll=lambda: ends)))
    with start_without_extras(dashboard=False):
        services.start_raylet()
        services.get_node("address", "a")
    assert len(tables) == 3 - waits


def test_workers_start_by_our_script_once_the_raylet_is_known(monkeypatch):
    seen = []
    monkeypatch.setattr(services, "start_raylet", lambda: SimpleNamespace(process=SimpleNamespace(pid=4711)))
    with start_workers_by("/x/entry.py", seen.append):
        assert parameter.RayParams().worker_path == "/x/entry.py"
        assert services._site_flags() == ["-S"]
        services.start_raylet()
    assert seen == [4711]


def test_actor_classes_draw_ids_of_the_operating_system():
    own = ray.actor.ActorClassID
    with draw_actor_class_ids():
        drawn = {ray.actor.ActorClassID.from_random().hex() for _ in range(3)}
    assert len(drawn) == 3
    assert ray.actor.ActorClassID is own


def test_a_process_that_only_checks_starts_no_ray(monkeypatch):
    monkeypatch.setattr(auto_init_hook, "enable_auto_connect", True)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda: pytest.fail("a Ray was started"))
    forbid_auto_start()
    auto_init_hook.auto_init_ray()
