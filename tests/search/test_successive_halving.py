"""Which trials go on: rungs worked out by hand, and the same again from the ledger."""

from __future__ import annotations

import copy
import math
import random

import pytest
from ledger import make_ledger

from rltune.errors import ConfigError
from rltune.records import Report, TrialRecord
from rltune.search.schedulers import Stop
from rltune.search.successive_halving import SuccessiveHalving


def decide(rule, number, env_steps, objective):
    """The rung at which a trial must stop; None if it goes on."""
    decision = rule.decide(Report(number, env_steps, objective))
    return decision.env_steps if isinstance(decision, Stop) else None


@pytest.mark.parametrize(
    ("env_steps", "grace", "factor", "levels"),
    [
        (100_000, 0.1, 3, [10_000, 30_000, 90_000]),
        (100_000, 0.1, 4, [10_000, 40_000]),
        (100_000, 0.3, 3, [30_000, 90_000]),
        (4_000, 0.1, 3, [400, 1_200, 3_600]),
        (1_000_000, 0.07, 3, [70_000, 210_000, 630_000]),
        (100, 0.07, 3, [7, 21, 63]),
        (300, 1 / 3, 3, [100]),
        (1_000, 1.0, 3, []),
        (90, 0.1, 3, [9, 27, 81]),
        (55, 0.1, 2, [6, 11, 22, 44]),
    ],
)
def test_rungs_lie_at_the_grace_and_its_multiples(env_steps, grace, factor, levels):
    """Rungs lie at the grace and at its multiples below the budget."""
    assert SuccessiveHalving(env_steps, grace, factor).levels == levels


def test_no_trial_is_stopped_before_the_grace():
    made = SuccessiveHalving(1000, 0.1, 3)
    for number, objective in enumerate([50.0, 40.0, 30.0, 20.0, 10.0]):
        assert decide(made, number, 99, objective) is None


def test_the_first_trials_go_on():
    """The first trials go on since there is nothing to compare them with."""
    made = SuccessiveHalving(1000, 0.1, 3)
    assert decide(made, 0, 100, -5.0) is None
    assert decide(made, 1, 100, -9.0) is None
    assert decide(made, 2, 100, -7.0) == 100, "the third is the first to be judged"


def test_a_trial_in_the_best_third_goes_on():
    made = SuccessiveHalving(1000, 0.1, 3)
    arriving = [(10, None), (20, None), (30, None), (25, 100), (5, 100), (28, None), (29, None), (27, 100)]
    # 30 is best of three; 25 second of four; 5 last of five; 28 second of six, where two may go on; and so on
    for number, (objective, verdict) in enumerate(arriving):
        assert decide(made, number, 100, float(objective)) == verdict, number


def test_a_trial_is_judged_once_at_a_rung():
    made = SuccessiveHalving(1000, 0.1, 3)
    for number, objective in enumerate([3.0, 2.0]):
        decide(made, number, 100, objective)
    for env_steps in (150, 200, 250):
        assert decide(made, 1, env_steps, -100.0) is None, "the next rung is at 300"


def test_a_later_rung_compares_only_those_who_got_there():
    made = SuccessiveHalving(1000, 0.1, 3)
    for number in range(9):
        decide(made, number, 100, 90.0 - number)
    assert decide(made, 1, 300, 1.0) is None
    assert decide(made, 2, 300, 2.0) is None
    assert decide(made, 0, 300, 1.5) == 300
    assert decide(made, 3, 300, 3.0) is None


def test_equals_are_not_stopped_by_each_other():
    made = SuccessiveHalving(1000, 0.1, 3)
    assert [decide(made, number, 100, 8.0) for number in range(10)] == [None] * 10


def test_a_report_without_an_episode_ranks_below_every_number():
    made = SuccessiveHalving(1000, 0.1, 3)
    assert decide(made, 0, 100, -1e9) is None
    assert decide(made, 1, 100, -2e9) is None
    assert decide(made, 2, 100, math.nan) == 100
    assert decide(made, 3, 100, -3e9) == 100
    assert decide(made, 4, 100, -5.0) is None


def test_trials_without_an_episode_do_not_stop_each_other():
    """Trials of which nothing is known are not stopped among themselves."""
    made = SuccessiveHalving(1000, 0.1, 3)
    assert [decide(made, number, 100, math.nan) for number in range(6)] == [None] * 6


def test_a_larger_factor_keeps_fewer():
    lenient, strict = SuccessiveHalving(1000, 0.1, 2), SuccessiveHalving(1000, 0.1, 5)
    draw = random.Random(3)
    values = [draw.random() for _ in range(60)]
    kept = [sum(decide(r, n, 100, v) is None for n, v in enumerate(values)) for r in (lenient, strict)]
    assert kept[0] > kept[1]
    assert kept[1] >= 60 / 5 / 2


def live_sweep(seed, trials, reports_at, without_episode=0.0):
    """A sweep as it happens: trials report in turn, four at once, and the stopped ones make room."""
    draw, made = random.Random(seed), SuccessiveHalving(1000, 0.1, 3)
    waiting, running = list(range(12)), {}
    for _ in range(12):
        trials.add({}, [0])
    while waiting or running:
        while waiting and len(running) < 4:
            running[waiting.pop(0)] = list(reports_at)
        number = draw.choice(sorted(running))
        env_steps = running[number].pop(0)
        objective = math.nan if draw.random() < without_episode else draw.gauss(number % 7, 2.0)
        trials.add_report(Report(number, env_steps, objective))
        if decide(made, number, env_steps, objective) is not None:
            trials.end(number, "PRUNED", "stopped")
            del running[number]
        elif not running[number]:
            trials.end(number, "COMPLETE", "whole budget")
            del running[number]
    return made


def verdicts(made):
    """What a next trial would be told at each rung, for objectives over the whole range."""
    told = []
    for level in made.levels:
        for objective in (-100.0, *(0.5 * step for step in range(-10, 25)), math.nan):
            one = SuccessiveHalving(1000, 0.1, 3)
            one._seen = copy.deepcopy(made._seen)
            told.append(decide(one, 99, level, objective))
    return told


SWEEPS = {
    "a report at each rung": ([100, 300, 500, 900, 1000], 0.0),
    "reports between the rungs": ([70, 140, 333, 600, 950, 1000], 0.0),
    "one report over two rungs": ([350, 1000], 0.0),
    "reports without an episode": ([100, 200, 300, 500, 900, 1000], 0.4),
}


@pytest.mark.parametrize(("reports_at", "without_episode"), SWEEPS.values(), ids=SWEEPS.keys())
def test_rungs_rebuilt_from_the_ledger_decide_the_same(tmp_path, reports_at, without_episode):
    """Rungs rebuilt from the ledger decide as those that saw it happen."""
    trials = make_ledger(tmp_path).trials
    live = live_sweep(1, trials, reports_at, without_episode)
    records = trials.records()
    assert {record.state for record in records} == {"PRUNED", "COMPLETE"}
    for order in (records, records[::-1]):
        rebuilt = SuccessiveHalving(1000, 0.1, 3)
        rebuilt.replay(order)
        assert verdicts(rebuilt) == verdicts(live)


def test_a_replayed_trial_goes_on_without_being_judged_again():
    made = SuccessiveHalving(1000, 0.1, 3)
    made.replay(TrialRecord(number, "RUNNING", {}, {100: float(number), 200: float(number)}) for number in range(6))
    assert decide(made, 0, 250, -50.0) is None, "it was let through at 100, and 300 is not reached"


@pytest.mark.parametrize(
    ("args", "what", "allowed"),
    [
        ((0, 3), "scheduler.args.grace_fraction=0 ", "above 0, at most 1"),
        ((1.5, 3), "scheduler.args.grace_fraction=1.5 ", "above 0, at most 1"),
        (("soon", 3), "scheduler.args.grace_fraction=soon ", "above 0, at most 1"),
        ((math.nan, 3), "scheduler.args.grace_fraction=nan ", "above 0, at most 1"),
        ((True, 3), "scheduler.args.grace_fraction=True ", "above 0, at most 1"),
        ((0.1, 1), "scheduler.args.reduction_factor=1 ", "at least 2"),
        ((0.1, None), "scheduler.args.reduction_factor=None ", "at least 2"),
    ],
)
def test_arguments_out_of_range_are_refused(args, what, allowed):
    with pytest.raises(ConfigError) as refused:
        SuccessiveHalving(1000, *args)
    assert refused.value.what.startswith(what)
    assert refused.value.allowed == allowed
    assert refused.value.fix.startswith(what.split("=")[0])
