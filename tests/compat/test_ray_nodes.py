"""Where Ray's processes are."""

from __future__ import annotations

import pytest
import ray

from rltune.compat.ray_nodes import find_draining_nodes, find_node_of


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
