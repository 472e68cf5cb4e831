"""Every stopping rule of conf/scheduler, as its file describes it: the same questions to each."""

from __future__ import annotations

import math
import random

import pytest
from omegaconf import OmegaConf
from toy import ToyTrial, make_task

from rltune.compose.composing import conf_dir
from rltune.records import Direction, Report, TrialRecord
from rltune.search.schedulers import GO_ON, GoOn, Stop, build_stopping_rule, replay_reports
from rltune.trial.metrics import make_report

FILES = {path.stem: path for path in sorted((conf_dir() / "scheduler").glob("*.yaml"))}
BUDGET, REPORTS = 1000, 20
STEPS = range(BUDGET // REPORTS, BUDGET + 1, BUDGET // REPORTS)


@pytest.fixture(params=FILES, name="build")
def build_from_file(request):
    """Builds the rule of a file."""
    settings = OmegaConf.to_container(OmegaConf.load(FILES[request.param]))

    def build(env_steps=BUDGET, direction=Direction.MAX):
        return build_stopping_rule(settings["kind"], settings.get("args", {}), env_steps, direction)

    return build


def run(rule, curves, slots=4, seed=0, come=None):
    """Run trials as a sweep does, some at once, in an order drawn by chance; return what the ledger has by then.

    Args:
        rule: Decides.
        curves: Objective by environment step, by number.
        slots: Trials at once.
        seed: Of the order.
        come: Takes in each report and what it led to.
    """
    draw, waiting, running, records = random.Random(seed), list(curves), {}, {}
    while waiting or running:
        while waiting and len(running) < slots:
            number = waiting.pop(0)
            running[number], records[number] = list(curves[number].items()), TrialRecord(number, "RUNNING", {}, {})
        number = draw.choice(sorted(running))
        env_steps, objective = running[number].pop(0)
        records[number].reports[env_steps] = objective
        decision = rule.decide(report := Report(number, env_steps, objective))
        assert isinstance(decision, GoOn | Stop)
        if come is not None:
            come.append((report, decision))
        if isinstance(decision, Stop):
            assert 0 < decision.env_steps <= env_steps
        if decision != GO_ON or not running[number]:
            del running[number]
    return list(records.values())


def climb(rate):
    return {env_steps: rate * env_steps / BUDGET for env_steps in STEPS}


def wander(seed, without_episode=0.0):
    """Noisy curves, in part without an episode."""
    draw = random.Random(seed)
    return {
        number: {
            env_steps: math.nan if draw.random() < without_episode else draw.gauss(number % 7, 2.0)
            for env_steps in STEPS
        }
        for number in range(24)
    }


def is_whole(record):
    return max(record.reports) == BUDGET


def test_the_first_comment_says_where_the_rule_is_from():
    for path in FILES.values():
        assert path.read_text().startswith("# "), path.name


def test_a_trial_alone_goes_on(build):
    (record,) = run(build(), {0: {env_steps: -1.0 * env_steps for env_steps in STEPS}})
    assert is_whole(record)


def test_the_best_trial_is_never_stopped(build):
    for seed in range(5):
        rates = random.Random(seed).sample(range(1, 25), 24)
        records = run(build(), {number: climb(rate) for number, rate in enumerate(rates)}, seed=seed)
        assert is_whole(records[rates.index(24)])


@pytest.mark.parametrize("without_episode", [0.0, 0.4])
def test_costs_are_stopped_as_their_negatives_are(build, without_episode):
    for seed in range(3):
        curves, maximized, minimized = wander(seed, without_episode), [], []
        costs = {number: {step: -value for step, value in curve.items()} for number, curve in curves.items()}
        run(build(), curves, seed=seed, come=maximized)
        run(build(direction=Direction.MIN), costs, seed=seed, come=minimized)
        assert [decision for _, decision in minimized] == [decision for _, decision in maximized]


def test_equal_trials_do_not_stop_each_other(build):
    assert all(map(is_whole, run(build(), {number: climb(5.0) for number in range(12)})))


def test_trials_without_an_episode_do_not_stop_each_other(build):
    silent = dict.fromkeys(STEPS, math.nan)
    assert all(map(is_whole, run(build(), dict.fromkeys(range(12), silent))))


def test_a_trial_is_not_stopped_before_its_first_episode(build):
    """A policy that survives for half of the budget is the best of all, and the last to have a return."""
    survivor = {env_steps: math.nan if env_steps < BUDGET / 2 else 1e6 for env_steps in STEPS}
    curves = {number: climb(24.0 - number) for number in range(12)} | {12: survivor}
    *_, last = run(build(), curves, slots=1)
    assert is_whole(last)


@pytest.mark.parametrize("is_silent_before", [True, False])
@pytest.mark.parametrize("direction", Direction)
def test_late_scores_judge_nobody_at_earlier_marks(build, direction, is_silent_before):
    """Their first score, at 60%, is what the others would have by then, and better than all scores before."""

    def decide_others(num_late):
        rule = build(direction=direction)
        for number in range(100, 100 + num_late):
            for mark in STEPS:
                if is_silent_before and mark < 0.6 * BUDGET:
                    rule.decide(Report(number, mark, math.nan))
                elif mark >= 0.6 * BUDGET:
                    rule.decide(Report(number, mark, direction.sign * 5.0 * mark))
        earlier, come = [mark for mark in STEPS if mark < 0.6 * BUDGET], []
        run(rule, {n: {mark: direction.sign * (5.0 * mark - n % 5) for mark in earlier} for n in range(24)}, come=come)
        return come

    assert decide_others(9) == decide_others(0)


def test_a_rule_that_stops_any_stops_the_worst_of_many(build):
    records = run(build(), {number: climb(24.0 - number) for number in range(24)}, slots=1)
    stopped = [record.number for record in records if not is_whole(record)]
    assert not stopped or (23 in stopped and 0 not in stopped)


@pytest.mark.parametrize("without_episode", [0.0, 0.4])
def test_a_rule_rebuilt_from_the_ledger_decides_the_same(build, without_episode):
    """A driver is killed after each report: the next one knows every verdict, the last report's too."""
    for seed in range(3):
        live, come = build(), []
        run(live, wander(seed, without_episode), seed=seed, come=come)
        for killed_after in range(1, len(come) + 1, 29):
            decisions = replay_reports(build(), [report for report, _ in come[:killed_after]])
            assert decisions == {report.number: decision for report, decision in come[:killed_after]}
        replay_reports(rebuilt := build(), [report for report, _ in come])
        more = {number + 100: curve for number, curve in wander(seed + 50, without_episode).items()}
        assert run(live, more, seed=seed) == run(rebuilt, more, seed=seed)


def test_steps_that_are_trained_again_are_not_judged_again(build):
    """After a failure a trial goes on from its last checkpoint."""
    rule, come = build(), []
    run(rule, {number: climb(24.0 - number) for number in range(12)}, come=come)
    assert {rule.decide(report) for report, _ in come} == {GO_ON}


def report_by_batch(folder, number, batch):
    """What a trial of this batch hands to its driver, in order: the worker's own reports over a curve of its own."""
    params = {"quality": -1.0 * number, "batch": batch}
    task = make_task(folder, number=number, params=params, env_steps=20_000, reports=20, checkpoint_every_s=1e9)
    trial = ToyTrial(task)
    while True:
        result = trial.step()
        yield make_report(result | {"number": number})
        if result["done"]:
            return trial.stop()


def test_batches_of_all_sizes_are_judged_at_the_same_marks(build, tmp_path):
    """Trials of 512 and of 4,096 steps an iteration: each verdict falls at a mark, with what was known there."""
    rule, seen, stops = build(20_000), {}, {}
    running = {number: report_by_batch(tmp_path, number, 4096 if number % 2 else 512) for number in range(16)}
    while running:
        for number, reports in list(running.items()):
            report = next(reports, None)
            decision = rule.decide(report) if report else None
            seen.setdefault(number, []).append(report)
            if decision != GO_ON:
                stops[number] = decision
                del running[number]
    marks = list(range(1000, 20_001, 1000))
    for number, reports in seen.items():
        kept = [report.nominal_steps for report in reports if report]
        assert kept == marks[: len(kept)], "no mark is passed over"
        assert stops[number] is None or stops[number] == Stop(kept[-1])
        assert all(0 <= report.overshoot_steps < 4096 for report in reports if report)


def test_steps_off_the_marks_are_taken(build):
    for batch in (1, 37, 256, 999, 1000, 5000):
        curves = {number: {n * batch: 1.0 * number for n in range(1, BUDGET // batch + 2)} for number in range(8)}
        run(build(), curves)


def test_a_tiny_budget_is_taken(build):
    for env_steps in (1, 2, 3):
        run(build(env_steps), {number: {n + 1: 1.0 for n in range(env_steps)} for number in range(6)})
