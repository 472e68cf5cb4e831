"""What a person reads while a sweep runs."""

from __future__ import annotations

import io
import logging
import math
import re

import pytest
from consoles import Terminal, make_page, screen

from rltune.records import Check, Report, TrialRecord
from rltune.reporting.closing_page import TrialView
from rltune.study.sweep_folder import TOLD


def trial(number, params, state="RUNNING", best=None, reason=None, **facts):
    """A trial as the ledger has it, with its best report."""
    reports = {} if best is None else {1000: best}
    return TrialRecord(number, state, params, reports, stop_reason=reason, **facts)


def test_a_plain_stream_gets_one_line_every_fifteen_seconds(make, clock):
    console, out = make()
    console.start()
    console.show_start(trial(0, {"lr": 0.001}))
    for second in range(61):
        clock.now += 1
        console.show_steps(0, 400 * second)
        console.tick()
    lines = out.getvalue().splitlines()
    assert lines[0] == "sweep cartpole-ppo: 8 trials of up to 100k env steps, 2 at a time"
    assert [line[:7] for line in lines[1:]] == ["[00:02]", "[00:17]", "[00:32]", "[00:47]"], (
        "the first one with the first steps"
    )
    assert "\x1b" not in out.getvalue()


def test_a_plain_line_that_says_nothing_new_is_left_out(make, clock):
    console, out = make()
    console.start()
    console.show_slots(2, "waiting for 2 CPUs held by others")
    for _ in range(400):
        clock.now += 1
        console.tick()
    assert [line[:7] for line in out.getvalue().splitlines()[1:]] == ["[00:01]", "[05:01]"], "and yet it lives"


def test_a_plain_stream_has_a_line_for_each_ended_trial(make, clock):
    console, out = make()
    console.start()
    for number, (state, reason) in enumerate(
        [("COMPLETE", None), ("PRUNED", None), ("FAIL", "the pole broke at 1"), ("FAIL", "the pole broke at 2")]
    ):
        console.show_start(trial(number, {"lr": 0.1, "layers": [64] * 30}))
        console.show_end(trial(number, {"lr": 0.1}, state, 7.0, reason))
    shown = [" ".join(line.split()[:4]) for line in out.getvalue().splitlines()[1:]]
    assert shown == ["trial 0 complete 7", "trial 1 stopped 7", "trial 2 failed: the", "trial 3 failed 7"]
    assert out.getvalue().count("layers=[64,64") == 3
    assert "…" not in out.getvalue(), "a file has whole lines"


def test_steps_amid_an_iteration_are_shown_within_ten_seconds(make, clock):
    console, out = make(num_reports=20, plain_every_s=10)
    console.start()
    console.show_start(trial(0, {"lr": 0.1}))
    for second in range(12):
        clock.now += 1
        console.show_steps(0, 12 * (second + 1))
        console.tick()
    first, line = (line for line in out.getvalue().splitlines() if "running" in line)
    assert first.startswith("[00:01] 1 running")
    assert "12 env steps/s" in line
    assert "first report in about 6 min 46 s" in line
    console.show_report(Report(0, 5_000, 3.0))
    clock.now += 10
    console.tick()
    assert "first report" not in out.getvalue().splitlines()[-1]


def test_steps_that_are_taken_again_are_a_sign_of_life(make, clock):
    """After an interruption amid an iteration, in environments that cannot be kept: it begins anew."""
    console, out = make(num_reports=20)
    console.start([TrialView(0, "RUNNING", {}, [], 384)])
    console.show_start(trial(0, {}))
    for second in range(16):
        clock.now += 1
        console.show_steps(0, 5 * (second + 1))
        console.tick()
    assert "5 env steps/s" in out.getvalue()
    assert console.env_steps_per_s() == pytest.approx(5, abs=0.7)
    clock.now += 80
    console.show_steps(0, 400)
    assert console._trials[0].env_steps == 400
    assert console.env_steps_per_s() == pytest.approx(4.2, abs=0.5), "each step once"


def test_the_start_is_no_part_of_the_pace(make, clock):
    console, _ = make(num_trials=1)
    console.start()
    console.show_start(trial(0, {}))
    clock.now += 30
    for second in range(9):
        clock.now += 1
        console.show_steps(0, 1_000 * (second + 2))
        assert (console.time_left_s() is None) is (second < 8), "there is a base for it only then"
    assert console.env_steps_per_s() == pytest.approx(1_000)
    assert console.time_left_s() == pytest.approx(90)


def test_a_trial_that_begins_late_does_not_swell_the_first_pace(make, clock):
    console, _ = make(num_trials=2)
    console.start()
    console.show_start(trial(0, {}))
    clock.now += 20
    console.show_start(trial(1, {}))
    clock.now += 1e-4
    console.show_report(Report(0, 256, 3.0))
    assert console.env_steps_per_s() <= 256, "as if they had taken a second"


@pytest.mark.parametrize("resumed", [False, True])
def test_slow_first_seconds_promise_no_long_sweep(make, clock, resumed):
    """Ten seconds until a trial's worker is up and its networks are built, and a first report after them."""
    console, out = make(num_trials=1)
    console.start([TrialView(0, "RUNNING", {}, [1.0], 20_000)] if resumed else [])
    console.show_start(trial(0, {}))
    clock.now += 10
    for mark in range(5):
        console.show_report(Report(0, 25_000 + 5_000 * mark, 3.0))
        clock.now += 2.5
    told = re.findall(r"about (.*) left", out.getvalue())
    assert told == []
    console.show_report(Report(0, 50_000, 3.0))
    assert console.time_left_s() == pytest.approx(25)


def test_a_slow_sweep_says_at_once_how_long_it_takes(make, clock):
    console, out = make(num_trials=4)
    console.show_certification("0 of up to 20 runs", 20)
    console.start()
    console.show_start(trial(0, {}))
    for second in range(12):
        clock.now += 1
        console.show_steps(0, 100 * second)
        console.tick()
    (line,) = [line for line in out.getvalue().splitlines() if "this sweep takes" in line]
    assert line.startswith(
        "100 env steps/s: this sweep takes up to about 6 h 39 min; budget.env_steps=20000 would take"
    )
    assert line.endswith("certify=off about 5 h 33 min less")


def test_an_iteration_beyond_the_budget_is_told_once(make):
    console, out = make(env_steps=2_000)
    console.start()
    for number in range(2):
        console.show_start(trial(number, {}))
        console.show_report(Report(number, 2_000, 3.0, overshoot_steps=23_600))
    told = "trial 0 has taken 25.6k env steps of a budget of 2,000: one iteration takes so many"
    assert out.getvalue().count(told) == out.getvalue().count("one iteration takes") == 1


def test_a_quick_sweep_is_not_told_how_to_be_quicker(make, clock):
    console, out = make()
    console.start()
    console.show_start(trial(0, {}))
    for second in range(20):
        clock.now += 1
        console.show_steps(0, 4_000 * second)
        console.tick()
    assert "this sweep takes" not in out.getvalue()


def test_certification_has_a_time_left(make, clock):
    console, out = make(num_trials=1)
    console.start()
    console.show_certification("0 of up to 4 runs", 4)
    console.show_start(trial(0, {"lr": 0.1}))
    console.show_steps(0, 1)
    console.tick()
    clock.now += 10
    console.show_report(Report(0, 100_000, 7.0))
    assert console.time_left_s() == pytest.approx(40, abs=0.1), "while the search runs, too"
    console.show_end(trial(0, {"lr": 0.1}, "COMPLETE", 7.0))
    console.show_certification("1 of 3 runs", 2)
    console.begin_run(0, 50_000)  # of an earlier driver
    clock.now += 5
    console.show_run_steps(0, 90_000)
    assert console.time_left_s() == pytest.approx(11.8, abs=0.1)
    last = out.getvalue().splitlines()[-1]
    assert "1 complete of 1 | certifying: 1 of 3 runs done, 9,333 env steps/s, about 12 s left | best 7" in last
    console.end_run(0)
    console.show_certification("3 of 3 runs", 0)
    assert console.time_left_s() is None


def test_episodes_of_the_certification_are_in_its_time_left(make, clock):
    """A run plays when it has its steps: from the first one on it is known how long that takes."""
    console, out = make(num_trials=1)
    console.start([TrialView(0, "COMPLETE", {}, [7.0], 100_000)])
    console.show_certification("0 of 2 runs", 2)
    for number, done in enumerate(("1 of 2 runs", "2 of 2 runs")):
        console.begin_run(number, 0)
        clock.now += 10
        console.show_run_steps(number, 100_000)
        clock.now += 20
        console.tick()
        console.end_run(number)
        console.show_certification(done, 1 - number)
    lines = [line.split(" | ")[1] for line in out.getvalue().splitlines() if "playing" in line]
    assert lines[0].startswith("certifying: 0 of 2 runs done")
    assert "1 playing episodes" in lines[0]
    assert lines[-1] == "certifying: 1 of 2 runs done, 1 playing episodes"
    assert console.time_left_s() is None


@pytest.mark.parametrize("is_watched", [False, True])
def test_episodes_after_all_training_have_a_count_and_a_time_left(make, clock, is_watched):
    """As the best play when the budget of seconds is over: nothing else moves then."""
    console, out = make(Terminal() if is_watched else None, num_trials=4)
    console.start([TrialView(0, "COMPLETE", {}, [7.0], 100_000), TrialView(1, "RUNNING", {}, [3.0], 50_000)])
    console.show_episodes("the best play", 0, 200)
    assert "the best play: 0 of 200 episodes" in screen(out), "at once"
    for done in (40, 80):
        clock.now += 20
        console.show_episodes("the best play", done, 200)
    assert "the best play: 80 of 200 episodes, about 1 min 00 s left" in screen(out)
    console.show_episodes("the winner is measured", 10, 100)
    assert "the winner is measured: 10 of 100 episodes" in screen(out)
    assert "waiting for trials" not in screen(out).rpartition("the winner is measured")[2]
    console.stop()


def test_what_a_person_is_told_stands_in_the_log(make, clock, tmp_path):
    """But for the progress: there are too many lines of it, and the ledger has it."""
    handler = logging.FileHandler(tmp_path / "sweep.log")
    logging.getLogger(TOLD).addHandler(handler)
    console, _ = make(Terminal())
    console.start()
    console.show_start(trial(3, {"lr": 0.1}))
    clock.now += 60
    console.tick()
    console.show_end(trial(3, {"lr": 0.1}, "PRUNED", 41.0))
    console.note("MLflow does not answer")
    logging.getLogger(TOLD).removeHandler(handler)
    handler.close()
    assert [" ".join(line.split()) for line in (tmp_path / "sweep.log").read_text().splitlines()] == [
        "sweep cartpole-ppo: 8 trials of up to 100k env steps, 2 at a time",
        "trial 3 begins: lr=0.1",
        "trial 3 stopped 41 lr=0.1",
        "MLflow does not answer",
    ]


def test_the_plain_line_has_counts_pace_time_left_and_the_best(make, clock):
    console, out = make(num_trials=4)
    console.start()
    for number, state in enumerate(("COMPLETE", "PRUNED", "FAIL")):
        console.show_start(trial(number, {"lr": 10.0 ** -(number + 2)}))
        clock.now += 4
        console.show_report(Report(number, 20_000, 100.0 * (number + 1)))
        console.show_end(trial(number, {}, state, 100.0 * (number + 1), "the loss is not finite"))
    console.show_start(trial(3, {"lr": 0.5}))
    clock.now += 3
    console.tick()
    line = out.getvalue().splitlines()[-1]
    assert "1 running, 1 complete, 1 stopped, 1 failed of 4" in line
    assert "4,000 env steps/s" in line  # 60,000 steps in 15 s
    assert "about 28 s left" in line
    assert line.endswith("best 200 by trial 1")  # the failed trial's 300 does not count


def test_without_any_report_no_unknown_number_is_shown(make, clock):
    console, out = make()
    console.start()
    console.show_start(trial(0, {}))
    clock.now += 20
    console.tick()
    line = out.getvalue().splitlines()[-1]
    assert line.endswith("| no environment step yet | best -")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_return_is_a_dash_until_an_episode_has_ended(make, clock, value):
    console, out = make(Terminal())
    console.start()
    console.show_start(trial(0, {"lr": 0.1}))
    clock.now += 1
    console.show_report(Report(0, 5_000, value))
    assert re.search(r"0 +\S+ +5,000 +- +- +lr=0\.1", screen(out))
    assert console.best() is None


def test_running_trials_with_their_values_fit_eighty_columns(make, clock):
    console, out = make(Terminal())
    console.start()
    console.show_start(trial(0, {"lr": 0.00123, "rl_module.model_config.fcnet_hiddens": [256, 256], "x": "y" * 90}))
    console.show_start(trial(1, {"lr": 0.5}))
    clock.now += 2
    console.show_report(Report(0, 45_000, 123.456))
    shown = screen(out).splitlines()
    assert any(re.search(r"0 +\S+ +45k +123\.5 +123\.5 +lr=0\.00123", line) for line in shown)
    assert any("2 running, 0 complete of 8" in line for line in shown)
    assert any("best 123.5 by trial 0" in line for line in shown)
    assert max(map(len, shown)) <= 80


def test_the_terminal_is_redrawn_at_most_four_times_a_second(make, clock):
    console, out = make(Terminal())
    console.start()
    console.show_start(trial(0, {}))
    before = screen(out).count("running, ")
    for _ in range(100):
        clock.now += 0.01
        console.tick()
    assert 3 <= screen(out).count("running, ") - before <= 4


def test_running_trials_beyond_the_terminals_lines_are_counted(make, clock):
    console, out = make(Terminal(), slots=64, num_trials=64)
    console.start()
    for number in range(64):
        console.show_start(trial(number, {}))
    clock.now += 1
    console.tick()
    shown = screen(out)
    assert re.search(r"\.\.\. and \d\d more running", shown)
    assert "\n   63" not in shown


def test_what_the_gpus_do_stands_above_the_trials(make, clock):
    console, out = make(Terminal())
    console.start()
    console.show_start(trial(3, {"lr": 0.01}))
    console.show_gpus("GPU 0: 10.0 of 80.0 GB, 45% busy, 61 °C")
    clock.now += 1
    console.tick()
    lines = [line.rstrip() for line in screen(out).splitlines()]
    assert (
        lines.index("GPU 0: 10.0 of 80.0 GB, 45% busy, 61 °C")
        == next(number for number, line in enumerate(lines) if "env steps" in line and "progress" in line) - 1
    )


def test_trials_that_end_stay_readable_above_the_table(make):
    console, out = make(Terminal())
    console.start()
    console.show_start(trial(3, {"lr": 0.01}))
    console.show_end(trial(3, {}, "PRUNED", 41.0))
    console.note("MLflow does not answer")
    assert re.search(r"trial   3 stopped +41 +lr=0\.01", screen(out))
    console.show_start(trial(4, {"layers": [64] * 40}))
    console.show_end(trial(4, {}, "RUNNING", 5.0))
    (line,) = [line for line in screen(out).splitlines() if "interrupted" in line and line.startswith("trial")]
    assert line.rstrip().endswith("…")
    assert len(line.rstrip()) <= 80
    assert "MLflow does not answer" in screen(out)


def test_stopping_gives_the_terminal_its_cursor_back(make):
    console, out = make(Terminal())
    console.start()
    assert "\x1b[?25l" in out.getvalue()
    console.stop()
    console.stop()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_a_dumb_terminal_gets_plain_lines(make, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console, out = make(Terminal())
    console.start()
    console.show_start(trial(0, {}))
    clock.now += 16
    console.tick()
    assert "[00:16] 1 running, 0 complete of 8" in out.getvalue()
    assert "\x1b[?25l" not in out.getvalue()


def test_colours_forced_on_a_file_do_not_make_it_a_terminal(make, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    console, out = make()
    console.start()
    console.stop()
    assert "\x1b[?25l" not in out.getvalue()


def test_a_resumed_sweep_counts_all_and_measures_its_own_pace(make, clock):
    console, out = make(num_trials=4)
    console.start(
        [
            TrialView(0, "COMPLETE", {"lr": 0.1}, [490.0], 100_000),
            TrialView(1, "RUNNING", {"lr": 0.2}, [200.0], 50_000),
        ]
    )
    console.show_start(trial(1, {"lr": 0.2}))
    clock.now += 20
    console.show_report(Report(1, 60_000, 210.0))
    first, last = out.getvalue().splitlines()[0], out.getvalue().splitlines()[-1]
    assert first.endswith("; 2 begun before: 1 ended, 1 to go on")
    assert "1 running, 1 complete of 4" in last
    assert "500 env steps/s" in last
    assert "best 490 by trial 0" in last


def test_pace_forgets_what_happened_before_the_last_half_minute(make, clock):
    console, _ = make(slots=1)
    console.start()
    console.show_start(trial(0, {}))
    for step in range(1, 101):
        clock.now += 1
        console.show_report(Report(0, step * 1000 if step <= 50 else 50_000 + (step - 50) * 10, 1.0))
    assert console.env_steps_per_s() == pytest.approx(10, rel=0.05)


def test_what_trials_wait_for_is_said_until_they_run(make, clock):
    console, out = make(slots=1)
    console.start()
    console.show_slots(1, "waiting for 2 CPUs held by others")
    console.tick()
    assert "0 complete of 8 | waiting for 2 CPUs held by others | best -" in out.getvalue()
    console.show_start(trial(0, {}))
    clock.now += 16
    console.tick()
    assert "1 running, 0 complete of 8 | no environment step yet, waiting for 2 CPUs" in out.getvalue()
    console.show_slots(3, "")
    assert "trials at once: 3, 1 before" in out.getvalue()
    clock.now += 16
    console.tick()
    assert "waiting" not in out.getvalue().splitlines()[-1]


def test_time_left_learns_from_trials_that_were_stopped_early(make, clock):
    console, _ = make(num_trials=10)
    console.start()
    for number in range(5):
        console.show_start(trial(number, {}))
        clock.now += 10
        console.show_report(Report(number, 10_000, 1.0))
        console.show_end(trial(number, {}, "PRUNED", 1.0))
    assert console.time_left_s() == pytest.approx(5 * 25_000 / 1_000)  # not 5 x 100,000 steps


def test_time_left_ends_with_the_total_of_environment_steps(make, clock):
    """Of two seeds each: 20,000 steps of each are left of 70,000, failed trials' steps among those spent."""
    console, _ = make(num_trials=10, total_env_steps=140_000, replicates=2)
    console.start()
    for number in range(5):
        console.show_start(trial(number, {}))
        clock.now += 10
        console.show_report(Report(number, 10_000, 1.0))
        console.show_end(trial(number, {}, "PRUNED" if number else "FAIL", 1.0))
    assert console.time_left_s() == pytest.approx(20_000 / 1_000)
    console.show_start(trial(5, {}))  # takes all that is left, and as much as it needs
    console.show_report(Report(5, 10_000, 1.0))
    assert console.time_left_s() == pytest.approx(90_000 / 1_250)


def test_a_failure_is_told_once_per_cause_and_listed_at_the_end(make, tmp_path):
    console, out = make()
    console.start()
    for number in range(3):
        console.show_start(trial(number, {}))
        reason = f"the loss is not finite; see trials/{number}/failure.txt"
        console.show_end(trial(number, {}, "FAIL", None, f"{reason}\nTraceback ..."))
    assert out.getvalue().count("failed: the loss is not finite") == 1
    console.summary(make_page(tmp_path, status="failed"))
    assert "3 x the loss is not finite; see trials/0/failure.txt (trial 0, 1, 2)" in out.getvalue()
    assert f"see what went wrong   less {tmp_path}/trials/0/failure.txt" in out.getvalue()
    assert "compare the trials" not in out.getvalue()
    assert "Traceback" not in out.getvalue()


def test_passwords_in_addresses_are_not_shown(make, tmp_path):
    console, out = make()
    console.start()
    console.note("no answer from https://ada:lovelace@mlflow.example")
    console.summary(make_page(tmp_path, tracking_uri="https://ada:lovelace@mlflow.example"))
    assert "lovelace" not in out.getvalue()
    assert "open https://***@mlflow.example in a browser" in out.getvalue()


def test_names_in_square_brackets_are_shown_as_they_are(make):
    console, out = make()
    console.start()
    console.note("space.lr=[bold]1e-3[/bold] :smile:")
    assert "space.lr=[bold]1e-3[/bold] :smile:" in out.getvalue()


def test_a_closed_pipe_does_not_reach_the_driver(make, clock, tmp_path):
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console, _ = make(Broken())
    console.start()
    console.show_start(trial(0, {"lr": 0.1}))
    clock.now += 20
    console.show_report(Report(0, 5_000, 7.0))
    console.note("still here")
    console.summary(make_page(tmp_path))
    assert console.best() == TrialView(0, "RUNNING", {"lr": 0.1}, [7.0], 5_000)


def test_a_trial_that_diverged_is_named_and_cannot_be_the_best(make, clock):
    console, out = make()
    console.start()
    for number, diverged in enumerate((False, True)):
        console.show_start(trial(number, {}))
        console.show_report(Report(number, 1000, 10.0 * (number + 1)))
        end = trial(number, {}, "PRUNED", 10.0 * (number + 1), "non-finite numbers: loss=nan", diverged=diverged)
        console.show_end(end, "; see there")
    clock.now += 15
    console.tick()
    assert "trial 1 stopped, diverged: non-finite numbers: loss=nan; see there" in out.getvalue()
    assert "best 10 by trial 0" in out.getvalue()


def test_drawing_takes_a_twentieth_of_the_drivers_time_at_most(make, clock, monkeypatch):
    """The picture of thousands of trials takes long, and nothing is recorded meanwhile."""
    console, out = make(Terminal())
    console.start()
    console.show_start(trial(0, {}))
    draw = console._draw

    def draw_slowly():
        draw()
        clock.now += 0.1

    monkeypatch.setattr(console, "_draw", draw_slowly)
    before = screen(out).count("running, ")
    for _ in range(100):
        clock.now += 0.1
        console.tick()
    assert 4 <= screen(out).count("running, ") - before <= 6


def test_a_trial_that_breaks_a_constraint_is_not_the_best(make):
    console, out = make()
    console.start()
    checks = (Check("train_s", "< 60", 75.0, 15.0),)
    console.show_end(trial(1, {"lr": 0.1}, "COMPLETE", best=500.0, checks=checks))
    assert console.best() is None
    console.show_end(trial(2, {"lr": 0.2}, "COMPLETE", best=3.0))
    assert console.best().number == 2
    (line,) = (line for line in out.getvalue().splitlines() if "trial   1" in line)
    assert line.endswith("train_s=75, not < 60")


def test_what_breaks_a_bound_by_now_is_not_the_best(make):
    console, _ = make(num_trials=4)
    console.show_report(Report(0, 50_000, 90.0), "train_s=75, not < 60")
    console.show_report(Report(1, 50_000, 10.0))
    assert console.best().number == 1
    console.show_report(Report(0, 60_000, 90.0))
    assert console.best().number == 0


def test_a_trial_that_was_enqueued_by_hand_says_so_once(make):
    console, stream = make()
    console.start()
    for _ in range(2):  # as after it was interrupted
        console.show_start(trial(7, {"lr": 0.1}, enqueued_by="maria@host"))
    assert stream.getvalue().count("trial 7 has what maria@host enqueued") == 1
