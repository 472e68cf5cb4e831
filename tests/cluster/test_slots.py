"""Slots that follow a cluster: how many, what waits for what, and how many there were over the time."""

from __future__ import annotations

import re

import pytest

from rltune.cluster.resources import Machine
from rltune.cluster.slots import Slots

HEAD, NODE = Machine(0, 0), Machine(2, 0)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(Slots, "clock", staticmethod(lambda: now[0]))
    return now


def make(*nodes, limit=8, bundles=({"CPU": 1.0},)):
    return Slots(bundles, limit, nodes)


def states(held, waiting):
    return {f"h{n}": "CREATED" for n in range(held)} | {f"w{n}": "PENDING" for n in range(waiting)} | {"x": "REMOVED"}


def describe(slots, nodes, held, waiting):
    """What is said when the same was seen twice."""
    for _ in range(2):
        slots.update(nodes, states(held, waiting))
    return slots.describe_wait()


def test_slots_follow_the_copies_that_each_node_may_have():
    slots = Slots([{"CPU": 1.0}], 99, [Machine(16, 0)], per_node=2.5)
    assert slots.count == 2
    slots.update([Machine(16, 0), Machine(16, 0)], {})
    assert slots.count == 5


def test_slots_grow_with_nodes_that_join_and_shrink_with_those_lost():
    slots = make(HEAD, NODE)
    assert slots.count == 2
    slots.update([HEAD, NODE, NODE], {})
    assert slots.count == 4
    slots.update([HEAD], {})
    assert slots.count == 1, "one request for a place, which an autoscaler sees"


def test_a_sweep_takes_no_more_than_its_quota():
    slots = make(NODE, limit=3)
    slots.update([NODE, NODE, NODE], {})
    assert slots.count == 3


@pytest.mark.parametrize(
    ("nodes", "held", "waiting", "cpus"),
    [
        ([HEAD, NODE], 2, 0, None),
        ([HEAD, NODE], 0, 2, ["2"]),
        ([HEAD, NODE], 1, 1, ["1"]),
        ([HEAD], 0, 1, ["1"]),
        ([], 0, 1, ["1"]),
        ([HEAD, NODE], 2, 1, ["1"]),
    ],
)
def test_it_is_said_what_trials_wait_for(nodes, held, waiting, cpus):
    reason = describe(make(*nodes), nodes, held, waiting)
    assert bool(reason) is (cpus is not None)
    assert re.findall(r"\d+", reason) == (cpus or [])


def test_an_autoscaler_is_asked_for_all_places_at_once():
    slots = Slots([{"CPU": 1.0}], 8, [HEAD, NODE], autoscales=True)
    assert slots.count == 8
    assert "6 CPUs" in describe(slots, [HEAD, NODE], 2, 6)
    assert slots.mean() == 2, "what is not there costs nothing"


def test_gpus_that_others_hold_are_waited_for_as_well():
    slots = make(Machine(8, 1), bundles=[{"CPU": 2.0, "GPU": 0.5}, {"CPU": 1.0}])
    assert re.findall(r"[\d.]+ [CG]PU", describe(slots, [Machine(8, 1)], 0, 2)) == ["6 CPU", "1 GPU"]
    assert re.findall(r"[\d.]+ [CG]PU", describe(slots, [Machine(8, 0)], 0, 1)) == ["3 CPU", "0.5 GPU"]


def test_a_trial_that_begins_is_not_said_to_wait():
    slots = make(NODE)
    slots.update([NODE], states(0, 1))
    assert slots.describe_wait() == "", "each one waits for a moment"
    slots.update([NODE], {"another": "PENDING"})
    assert slots.describe_wait() == ""


def test_what_others_hold_does_not_count_against_the_sweep(clock):
    slots = make(NODE, NODE)
    assert slots.mean() == 4
    for _ in range(2):
        slots.update([NODE, NODE], states(1, 3))
    clock[0] = 110.0
    assert slots.mean() == 1
    slots.update([NODE, NODE], states(4, 0))
    clock[0] = 140.0
    assert slots.mean() == (10 * 1 + 30 * 4) / 40


def test_a_machine_of_ones_own_has_its_slots_all_the_time(clock):
    slots = make(Machine(3, 0))
    clock[0] = 117.3
    assert slots.mean() == 3
