"""Where Ray's processes are, and what its raylets say."""

from __future__ import annotations

import logging

import pytest
import ray
from ray._private import worker

from rltune.compat.ray_nodes import find_draining_nodes, find_node_of, log_raylet_messages


class Actor:
    def work(self) -> str:
        return ray.get_runtime_context().get_node_id()


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.replacement
def test_an_actors_node_is_found_while_it_lives_and_after():
    actor = ray.remote(Actor).remote()
    number = actor._actor_id.hex()
    node = ray.get(actor.work.remote())
    assert find_node_of(actor) == find_node_of(number) == node
    ray.kill(actor)
    assert find_node_of(number) == node
    assert find_node_of(None) is None
    assert find_node_of("0a" * 16) is None


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.replacement
def test_no_node_had_notice_to_go():
    assert find_draining_nodes() == set()


@pytest.mark.usefixtures("off")
def test_the_plain_path_knows_nothing():
    assert find_node_of("0a" * 16) is None
    assert find_draining_nodes() == set()


@pytest.mark.replacement
def test_what_raylets_say_goes_into_the_log(capsys, caplog):
    message = {"lines": ["The node ab has been marked dead"], "pid": "raylet", "is_err": False}
    with log_raylet_messages(), caplog.at_level(logging.WARNING, "rltune"):
        worker.print_to_stdstream(message, ignore_prefix=False)
    assert capsys.readouterr().out == ""
    assert "raylet: The node ab has been marked dead" in caplog.text
