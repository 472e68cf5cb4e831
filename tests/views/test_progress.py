"""What is said of a running sweep, by its views."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from rltune.records import CERTIFY, RETRY, TRIALS
from rltune.views.progress import describe_progress, render_live_table
from rltune.views.sweep_view import Episodes, SweepView


def test_each_ended_trial_is_one_line(draw):
    sweep = draw()
    for number in range(3):
        sweep.begin({"lr": 0.1, "layers": [64] * 30})
        sweep.report(number, 1000, 7.0)
    sweep.draw()
    for number, state in enumerate(("COMPLETE", "PRUNED", "RUNNING")):
        sweep.end(number, state)
    sweep.draw()
    lines = [line.split() for line in sweep.printed[1:]]
    assert [line[1:4] for line in lines] == [["0", "complete", "7"], ["1", "stopped", "7"], ["2", "interrupted", "7"]]
    sweep.draw()
    assert len(sweep.printed) == 4, "nothing has happened since"


@pytest.mark.parametrize("width", [30, 40, 50, 60, 80, 200])
def test_a_narrow_live_table_cuts_no_number(draw, width):
    sweep = draw()
    for number in range(12):
        sweep.begin({"lr": 0.000123456, "gamma": 0.9987})
        sweep.report(number, 35_000, -292_321.0 if number else 2.92e26)
    sweep.draw()
    assert sweep.view

    def words(columns):
        out = Console(file=io.StringIO(), width=columns)
        out.print(render_live_table(sweep.view, 40, columns))
        return {word for word in out.file.getvalue().split() if any(map(str.isdigit, word))}

    assert words(width) <= words(300)
    assert {"35k", "2.92e26", "-292,321"} <= words(width)


def test_a_trial_that_is_tried_again_ends_twice(draw):
    sweep = draw()
    sweep.begin()
    sweep.end(0, "FAIL", "it broke")
    sweep.draw()
    sweep.ledger.add_request(RETRY, {TRIALS: [0], CERTIFY: []}, "maria@host")
    sweep.ledger.reopen_failed(sweep.ledger.read_requests()[0])
    sweep.ledger.trials.start(0)
    sweep.end(0, "FAIL", "it broke once more")
    sweep.draw()
    assert sum("broke" in line for line in sweep.printed) == 1, "as it had ended before it was shown"


def test_each_failure_is_named_with_its_log(draw):
    sweep = draw()
    for _ in range(2):
        sweep.begin()
    sweep.draw()
    for number in range(2):
        sweep.end(number, "FAIL", f"loss {number} is infinite\nTraceback ...", log=f"trials/{number}/failure.txt")
    sweep.draw()
    lines = [line for line in sweep.printed if "infinite" in line]
    assert [line.split()[:3] for line in lines] == [["trial", "0", "failed:"], ["trial", "1", "failed:"]]
    assert all(line.endswith(f"sweep-0/trials/{number}/failure.txt") for number, line in enumerate(lines))


def test_who_enqueued_a_trial_is_named_once(draw):
    sweep = draw()
    sweep.draw()
    request = sweep.ledger.add_request("enqueue", {"lr": 0.1}, "maria@host")
    sweep.ledger.trials.add({"lr": 0.1}, [1], request=request)
    sweep.draw()
    sweep.end(0, "RUNNING")
    sweep.draw()
    assert sum("maria@host" in line for line in sweep.printed) == 1


@pytest.mark.parametrize(("state", "words"), [("COMPLETE", "5 (1 of up to 10 runs)"), ("FAIL", "it broke")])
def test_a_certifications_run_is_one_line(draw, state, words):
    sweep = draw(settings={"certify": {"seeds": 3, "top": 2}})
    sweep.begin(kind=CERTIFY, key="k", of_trial=4, seed_index=2)
    sweep.draw()
    sweep.end(0, state, "it broke\nat line 1", CERTIFY, returns=(4.0, 6.0))
    sweep.draw()
    assert "seed 3 of trial 4" in sweep.printed[-1]
    assert sweep.printed[-1].endswith(words)


def test_runs_that_end_together_are_counted_one_by_one(draw):
    sweep = draw(settings={"certify": {"seeds": 2, "top": 1}})
    for seed_index in range(2):
        sweep.begin(kind=CERTIFY, key=f"k{seed_index}", of_trial=4, seed_index=seed_index)
    sweep.draw()
    for number in (1, 0):
        sweep.end(number, "COMPLETE", kind=CERTIFY, returns=(5.0,))
    sweep.draw()
    ends = ["certified seed 2 of trial 4: 5 (1 of up to 6 runs)", "certified seed 1 of trial 4: 5 (2 of up to 6 runs)"]
    assert sweep.printed[1:] == ends


def test_more_or_fewer_slots_are_one_line(draw):
    sweep = draw()
    for slots in (2, 4, 4):
        sweep.draw(slots=slots)
    assert [line.split()[3] for line in sweep.printed[1:]] == ["4,"]


def test_a_resumed_sweep_counts_all_trials(draw):
    sweep = draw(trials=4)
    for number, objective in enumerate((490.0, 200.0)):
        sweep.begin()
        sweep.report(number, 50_000, objective)
    sweep.end(0, "COMPLETE")
    sweep.end(1, "RUNNING")
    view = sweep.draw()
    assert "2 begun so far: 1 ended, 1 unfinished" in sweep.printed[0]
    assert describe_progress(view)[0] == "1 complete, 1 interrupted of 4"
    sweep.ledger.trials.start(1)
    sweep.draw(20.0)
    sweep.report(1, 60_000, 210.0)
    view = sweep.draw()
    assert describe_progress(view)[0] == "1 running, 1 complete of 4"
    assert view.pace.env_steps == 10_000, "of this session alone"


def test_only_trials_that_can_win_are_the_best(draw):
    sweep = draw(settings={"constraints": {"train_s": "< 60"}})
    for objective in (math.nan, math.inf):
        sweep.report(sweep.begin(), 5_000, objective)
    assert sweep.draw().best is None, "no episode has ended"
    ends = ((500.0, "FAIL", {}), (400.0, "PRUNED", {"diverged": True}), (300.0, "COMPLETE", {}))
    for objective, state, facts in ends:
        number = sweep.begin(train_s=75.0)
        sweep.report(number, 100_000, objective)
        sweep.end(number, state, "it broke", **facts)
    view = sweep.draw()
    assert describe_progress(view)[2] == "best -"
    sweep.report(sweep.begin(), 50_000, 10.0)
    assert describe_progress(sweep.draw())[2] == "best 10 by trial 5"


def test_what_trials_wait_for_is_part_of_the_pace(draw):
    sweep = draw()
    assert describe_progress(sweep.draw(wait="waiting for 2 CPUs"))[1] == "waiting for 2 CPUs"
    sweep.begin()
    assert describe_progress(sweep.draw())[1].endswith("waiting for 2 CPUs")
    assert "CPUs" not in describe_progress(sweep.draw(wait=""))[1]


def test_episodes_after_all_training_are_counted(draw):
    sweep = draw()
    for done in (0, 40):
        view = sweep.draw(20.0, episodes=Episodes("the best play", done, 200))
        assert f"{done} of 200 episodes" in describe_progress(view)[1]


def test_a_certification_is_the_progress_once_trials_have_ended(draw):
    sweep = draw(trials=1, settings={"certify": {"seeds": 2, "top": 1}})
    sweep.begin()
    sweep.report(0, 100_000, 5.0)
    assert "certifying" not in describe_progress(sweep.draw())[1]
    sweep.end(0, "COMPLETE")
    sweep.begin(kind=CERTIFY, key="k", seed_index=0)
    assert describe_progress(sweep.draw())[1].startswith("certifying: 0 of 2 runs")
    sweep.begin(kind=CERTIFY, key="k", seed_index=1)
    for run, playing in ((0, "1 run playing"), (1, "2 runs playing")):
        sweep.report(run, 100_000, 5.0, kind=CERTIFY)
        assert playing in (pace := describe_progress(sweep.draw())[1])
        assert ("env step" in pace) == (run == 0), "as the episodes take none"


def test_a_view_of_a_sweep_without_settings_can_be_described(draw):
    """Its driver has made the ledger and has not begun."""
    sweep = draw()
    sweep.ledger.change_sweep(config=None, status=None)
    assert describe_progress(SweepView.read(sweep.ledger))[0] == "0 complete of 0"
