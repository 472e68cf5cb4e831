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


def begin(make, trials=1, stream=None, **settings):
    """A console on which some trials have begun, and its stream."""
    console, out = make(stream, **settings)
    console.start()
    for number in range(trials):
        console.show_start(trial(number, {"lr": 0.1}))
    return console, out


def test_the_table_on_a_terminal(make, clock, golden):
    console, out = make(Terminal(), num_trials=12)
    console.start([TrialView(0, "COMPLETE", {"lr": 0.1}, [490.0], 100_000)])
    for number in range(1, 4):
        console.show_start(trial(number, {"lr": 10.0**-number, "layers": [256, 256]}, enqueued_by="maria@host"))
    clock.now += 10
    console.show_report(Report(1, 45_000, 123.456))
    console.show_report(Report(2, 20_000, math.nan))
    console.show_end(trial(3, {}, "FAIL", None, "the loss is not finite\nTraceback ..."))
    console.show_slots(3, "")
    console.note("MLflow does not answer")
    clock.now += 5
    console.tick()
    golden("console", screen(out)[screen(out).rindex("\n2 running") :].lstrip())


def test_a_plain_stream_gets_one_line_every_fifteen_seconds(make, clock):
    console, out = begin(make)
    for second in range(61):
        clock.now += 1
        console.show_steps(0, 400 * second)
        console.tick()
    times = [line[:7] for line in out.getvalue().splitlines() if line.startswith("[")]
    assert times == ["[00:02]", "[00:17]", "[00:32]", "[00:47]"], "the first line comes with the first steps"
    assert "\x1b" not in out.getvalue()


def test_a_plain_line_that_says_nothing_new_is_left_out(make, clock):
    console, out = begin(make, trials=0)
    console.show_slots(2, "waiting for 2 CPUs held by others")
    for _ in range(400):
        clock.now += 1
        console.tick()
    assert [line[:7] for line in out.getvalue().splitlines()[1:]] == ["[00:01]", "[05:01]"]


def test_each_ended_trial_has_one_whole_line_in_a_file(make):
    console, out = make()
    console.start()
    for number, state in enumerate(("COMPLETE", "PRUNED", "RUNNING")):
        console.show_start(trial(number, {"lr": 0.1, "layers": [64] * 30}))
        console.show_end(trial(number, {}, state, 7.0))
    lines = [line.split() for line in out.getvalue().splitlines()[1:]]
    assert [line[1:4] for line in lines] == [["0", "complete", "7"], ["1", "stopped", "7"], ["2", "interrupted", "7"]]
    assert "…" not in out.getvalue()


def test_steps_that_are_taken_again_count_in_the_pace(make, clock):
    """After an interruption amid an iteration, in environments that cannot be kept: it begins anew."""
    console, _ = make(num_reports=20)
    console.start([TrialView(0, "RUNNING", {}, [], 384)])
    console.show_start(trial(0, {}))
    for second in range(16):
        clock.now += 1
        console.show_steps(0, 5 * (second + 1))
    assert console.env_steps_per_s() == pytest.approx(5, abs=0.7)
    console.show_steps(0, 400)
    assert console._trials[0].env_steps == 400


def test_the_start_is_no_part_of_the_pace(make, clock):
    console, _ = begin(make, num_trials=1)
    clock.now += 30
    for second in range(9):
        clock.now += 1
        console.show_steps(0, 1_000 * (second + 2))
        assert (console.time_left_s() is None) is (second < 8), "the first steps do not tell a pace"
    assert console.env_steps_per_s() == pytest.approx(1_000)


def test_pace_forgets_what_happened_before_the_last_half_minute(make, clock):
    console, _ = begin(make, slots=1)
    for step in range(1, 101):
        clock.now += 1
        console.show_report(Report(0, step * 1000 if step <= 50 else 50_000 + (step - 50) * 10, 1.0))
    assert console.env_steps_per_s() == pytest.approx(10, rel=0.05)


def test_the_time_left_is_the_work_left_at_the_pace_so_far(make, clock):
    console, _ = make(num_trials=10)
    console.start()
    estimates = []
    for number in range(5):
        console.show_start(trial(number, {}))
        clock.now += 10
        console.show_report(Report(number, 10_000, 1.0))
        console.show_end(trial(number, {}, "PRUNED", 1.0))
        estimates.append(console.time_left_s())
    assert estimates[0] is None
    assert estimates[1:] == sorted(estimates[1:], reverse=True)
    assert estimates[-1] < 5 * 100, "stopped trials are expected to go on being stopped"


def test_the_total_of_environment_steps_bounds_the_time_left(make, clock):
    left = []
    for total in (None, 140_000):
        console, _ = make(num_trials=10, total_env_steps=total, replicates=2)
        console.start()
        for number in range(5):
            console.show_start(trial(number, {}))
            clock.now += 10
            console.show_report(Report(number, 10_000, 1.0))
            console.show_end(trial(number, {}, "PRUNED" if number else "FAIL", 1.0))
        left.append(console.time_left_s())
    assert left[1] < left[0]


def test_the_time_left_includes_certification_and_its_episodes(make, clock):
    console, _ = begin(make, num_trials=1)
    console.show_steps(0, 1)
    clock.now += 10
    console.show_report(Report(0, 90_000, 7.0))
    search_s = console.time_left_s()
    console.show_certification("0 of 2 runs", 2)
    assert console.time_left_s() > search_s
    console.show_end(trial(0, {}, "COMPLETE", 7.0))
    console.begin_run(0, 0)
    clock.now += 10
    console.show_run_steps(0, 100_000)
    train_s = console.time_left_s()
    clock.now += 20
    console.end_run(0)
    console.show_certification("1 of 2 runs", 1)
    assert console.time_left_s() > train_s / 2, "how long a run's episodes take is known from the first run on"
    console.show_certification("2 of 2 runs", 0)
    assert console.time_left_s() is None


@pytest.mark.parametrize(("steps_per_s", "lines"), [(100, 1), (4_000, 0)])
def test_only_a_slow_sweep_says_how_to_be_quicker(make, clock, steps_per_s, lines):
    console, out = begin(make, num_trials=4)
    for second in range(20):
        clock.now += 1
        console.show_steps(0, steps_per_s * second)
        console.tick()
    assert out.getvalue().count("budget.env_steps=20000") == lines


def test_an_iteration_beyond_the_budget_is_reported_once(make):
    console, out = begin(make, trials=2, env_steps=2_000)
    for number in range(2):
        console.show_report(Report(number, 2_000, 3.0, overshoot_steps=23_600))
    assert out.getvalue().count("25.6k") == 1


@pytest.mark.parametrize("is_watched", [False, True])
def test_episodes_after_all_training_are_counted(make, clock, is_watched):
    """As the best play when the budget of seconds is over: nothing else moves then."""
    console, out = make(Terminal() if is_watched else None, num_trials=4)
    console.start([TrialView(0, "COMPLETE", {}, [7.0], 100_000), TrialView(1, "RUNNING", {}, [3.0], 50_000)])
    for done in (0, 40, 80):
        console.show_episodes("the best play", done, 200)
        clock.now += 20
        console.tick()
        assert f"{done} of 200 episodes" in screen(out)
    console.stop()


def test_the_log_has_all_lines_but_those_of_the_progress(make, clock, tmp_path):
    handler = logging.FileHandler(tmp_path / "sweep.log")
    logging.getLogger(TOLD).addHandler(handler)
    console, out = begin(make)
    clock.now += 60
    console.tick()
    console.show_end(trial(0, {"lr": 0.1}, "PRUNED", 41.0))
    console.note("a note")
    logging.getLogger(TOLD).removeHandler(handler)
    handler.close()
    logged = (tmp_path / "sweep.log").read_text().splitlines()
    printed = out.getvalue().splitlines()
    assert [line for line in printed if line not in logged] == [line for line in printed if line.startswith("[")] != []
    assert "a note" in logged


def test_only_trials_that_can_win_are_the_best(make):
    console, _ = make()
    console.start()
    for number, value in enumerate((math.nan, math.inf)):
        console.show_report(Report(number, 5_000, value))
    assert console.best() is None, "no episode has ended"
    console.show_end(trial(2, {}, "FAIL", 500.0, "the loss is not finite"))
    console.show_end(trial(3, {}, "PRUNED", 400.0, "non-finite numbers", diverged=True))
    console.show_end(trial(4, {}, "COMPLETE", 300.0, checks=(Check("train_s", "< 60", 75.0, 15.0),)))
    assert console.best() is None
    console.show_report(Report(5, 50_000, 90.0), "train_s=75, not < 60")
    console.show_report(Report(6, 50_000, 10.0))
    assert console.best().number == 6
    console.show_report(Report(5, 60_000, 90.0))
    assert console.best().number == 5


def test_lines_with_long_values_fit_eighty_columns(make, clock):
    console, out = make(Terminal())
    console.start()
    values = {"lr": 0.00123, "rl_module.model_config.fcnet_hiddens": [256, 256], "x": "y" * 90}
    console.show_start(trial(0, values))
    clock.now += 2
    console.show_report(Report(0, 45_000, 123.456))
    console.show_end(trial(0, values, "RUNNING", 5.0))
    assert max(len(line.rstrip()) for line in screen(out).splitlines()) == 80
    assert "…" in screen(out)


@pytest.mark.parametrize(("draw_s", "tick_s", "pictures"), [(0.0, 0.01, 4), (0.1, 0.1, 6)])
def test_drawing_takes_little_of_the_drivers_time(make, clock, monkeypatch, draw_s, tick_s, pictures):
    """Four pictures a second at most, and a twentieth of the time where a picture takes long."""
    console, out = begin(make, stream=Terminal())
    draw = console._draw

    def draw_slowly():
        draw()
        clock.now += draw_s

    monkeypatch.setattr(console, "_draw", draw_slowly)
    before = screen(out).count("running, ")
    for _ in range(100):
        clock.now += tick_s
        console.tick()
    assert pictures - 2 <= screen(out).count("running, ") - before <= pictures


def test_running_trials_beyond_the_terminals_lines_are_counted(make, clock):
    console, out = begin(make, trials=64, stream=Terminal(), slots=64, num_trials=64)
    clock.now += 1
    console.tick()
    assert re.search(r"and \d\d more", screen(out))
    assert "\n   63" not in screen(out)


def test_stopping_gives_the_terminal_its_cursor_back(make):
    console, out = begin(make, stream=Terminal())
    assert "\x1b[?25l" in out.getvalue()
    console.stop()
    console.stop()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


@pytest.mark.parametrize(("name", "value", "stream"), [("TERM", "dumb", Terminal), ("FORCE_COLOR", "1", io.StringIO)])
def test_what_is_no_real_terminal_gets_plain_lines(make, clock, monkeypatch, name, value, stream):
    monkeypatch.setenv(name, value)
    console, out = begin(make, stream=stream())
    clock.now += 16
    console.tick()
    assert "[00:16]" in out.getvalue()
    assert "\x1b[?25l" not in out.getvalue()


def test_a_resumed_sweep_counts_all_trials(make, clock):
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
    line = out.getvalue().splitlines()[-1]
    assert "1 running" in line
    assert "1 complete" in line
    assert " 4" in line
    assert console.env_steps_per_s() == pytest.approx(500), "of this session alone"
    assert console.best().number == 0


def test_what_trials_wait_for_is_printed_until_they_run(make, clock):
    console, out = begin(make, slots=1)
    for wait, slots in (("2 CPUs held by others", 1), ("", 3)):
        console.show_slots(slots, wait)
        clock.now += 16
        console.tick()
        assert ("2 CPUs" in out.getvalue().splitlines()[-1]) is bool(wait)


def test_a_failure_is_printed_once_per_cause(make, tmp_path):
    console, out = begin(make, trials=3)
    for number in range(3):
        reason = f"infinite-loss; see trials/{number}/failure.txt"
        console.show_end(trial(number, {}, "FAIL", None, f"{reason}\nTraceback ..."))
    assert out.getvalue().count("infinite-loss") == 1
    console.summary(make_page(tmp_path, status="failed"))
    assert f"less {tmp_path}/trials/0/failure.txt" in out.getvalue()
    assert "Traceback" not in out.getvalue()


def test_passwords_are_hidden_and_brackets_are_kept(make, tmp_path):
    console, out = begin(make)
    console.note("no answer from https://ada:lovelace@mlflow.example: [bold]1e-3[/bold] :smile:")
    console.summary(make_page(tmp_path, tracking_uri="https://ada:lovelace@mlflow.example"))
    assert "lovelace" not in out.getvalue()
    assert out.getvalue().count("https://***@mlflow.example") == 3
    assert "[bold]1e-3[/bold] :smile:" in out.getvalue()


def test_a_closed_pipe_does_not_reach_the_driver(make, clock, tmp_path):
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console, _ = begin(make, stream=Broken())
    clock.now += 20
    console.show_report(Report(0, 5_000, 7.0))
    console.note("a note")
    console.summary(make_page(tmp_path))
    assert console.best() == TrialView(0, "RUNNING", {"lr": 0.1}, [7.0], 5_000)


def test_who_enqueued_a_trial_is_named_once(make):
    console, out = make()
    console.start()
    for _ in range(2):  # As after an interruption.
        console.show_start(trial(7, {"lr": 0.1}, enqueued_by="maria@host"))
    assert out.getvalue().count("maria@host") == 1
