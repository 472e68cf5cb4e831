"""Slots that follow a cluster: how many, what waits for what, and how many there were over the time."""

from __future__ import annotations

import math
import random
import re

import pytest

from rltune.cluster.resources import GRAIN, Machine, Share
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
        ([HEAD], 0, 1, []),
        ([], 0, 1, []),
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


def test_a_larger_trial_takes_the_place_of_others_while_it_runs():
    share = Share(1.0, 0.25, 0)
    slots = make(Machine(16, 2), bundles=share.bundles)
    assert slots.count == 8
    slots.hold("trial 3", share.larger.bundles)
    assert slots.count == 7, "itself, and six beside it"
    slots.update([Machine(16, 1)], {})
    assert slots.count == 3
    slots.release("trial 3")
    assert slots.count == 4
    slots.hold("trial 4", None)
    assert slots.count == 4, "a trial like all others"


class Cards:
    """The GPUs of some nodes, filled as Ray fills them: in ten thousandths, wherever there is room."""

    def __init__(self, random_, nodes):
        self.random, self.held = random_, [[{} for _ in range(int(node.gpus))] for node in nodes]

    def place(self, trial, gpus):
        """Return whether there was room; one of several places is taken, whichever."""
        num_gpus = math.ceil(gpus)
        units = int(gpus / num_gpus * GRAIN)
        for cards in self.random.sample(self.held, len(self.held)):
            able = [card for card in cards if sum(card.values()) + units <= GRAIN]
            if len(able) >= num_gpus:
                for card in self.random.sample(able, num_gpus):
                    card[trial] = units
                return True
        return False

    def end(self, trial):
        for card in self.list():
            card.pop(trial, None)

    def list(self):
        return [card for cards in self.held for card in cards]


@pytest.mark.parametrize("case", range(200))
def test_no_card_ever_holds_more_trials_than_fit(case):
    """Nodes come and go, trials end and outgrow their share; each draw has its own cards and fraction."""
    drawn = random.Random(case)
    nodes = [Machine(1000, drawn.randint(1, 4)) for _ in range(drawn.randint(1, 3))]
    fractions = [1 / drawn.randint(1, 16), round(drawn.uniform(0.05, 1), 3), 1.0]
    share = Share(1.0, drawn.choice(fractions), 0)
    slots, cards = make(*nodes, limit=1000, bundles=share.bundles), Cards(drawn, nodes)
    assert slots.count == sum(int(node.gpus) for node in nodes) * (GRAIN // int(share.gpus * GRAIN))
    live, waiting, started = set(), set(), 0
    for _ in range(120):
        if len(live) < slots.count:
            started += 1
            live.add(started)
            placed = cards.place(started, share.gpus)
            assert placed or waiting or slots._larger, "what is let run has a place, unless a larger one is in the way"
            waiting |= set() if placed else {started}
        elif drawn.random() < 0.7 or not live:
            ended = drawn.choice(sorted(live - waiting) or [0])
            cards.end(ended)
            slots.release(ended)
            live.discard(ended)
            if ended and share.larger and drawn.random() < 0.2:  # it is tried once more
                live.add(-ended)
                waiting.add(-ended)
                slots.hold(-ended, share.larger.bundles)
        elif drawn.random() < 0.5 and len(nodes) > 1:
            gone = drawn.randrange(len(nodes))
            nodes = [node for index, node in enumerate(nodes) if index != gone]
            for trial in {trial for card in cards.held.pop(gone) for trial in card}:
                slots.release(trial)
                live.discard(trial)
            slots.update(nodes, {})
        else:
            nodes = [*nodes, Machine(1000, drawn.randint(1, 4))]
            cards.held.append([{} for _ in range(int(nodes[-1].gpus))])
            slots.update(nodes, {})
        for trial in sorted(waiting):  # a larger one first: its number is negative
            if cards.place(trial, share.larger.gpus if trial < 0 else share.gpus):
                waiting.discard(trial)
        assert all(sum(card.values()) <= GRAIN for card in cards.list())
        assert len(cards.list()) == sum(int(node.gpus) for node in nodes)
    assert started > 2, "trials came and went"
