"""Numbers, durations and values as a person reads them."""

from __future__ import annotations

import math

import pytest

from rltune.formatting import (
    classify_failure,
    first_line,
    fit_words,
    format_clock,
    format_count,
    format_difference,
    format_duration,
    format_number,
    format_objective,
    format_params,
    format_value,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00012345, "1.23e-4"),
        (1e-4, "1e-4"),
        (0.012345, "0.0123"),
        (3.0, "3"),
        (0.99, "0.99"),
        (0.99873, "0.9987"),
        (12345.6, "12346"),
        (2.5e7, "2.5e7"),
        (-0.5, "-0.5"),
        (0.0, "0"),
        (1, "1"),
        (True, "true"),
        (None, "null"),
        ("relu", "relu"),
        ([64, 64], "[64,64]"),
    ],
)
def test_sampled_values_are_as_short_as_they_are_typed(value, text):
    assert format_value(value) == text


def test_numbers_are_written_for_people():
    assert format_params({"lr": 3e-4, "num_epochs": 8}) == "lr=3e-4 num_epochs=8"
    assert [format_count(n) for n in (0, 950, 9_999, 45_210, 999_700, 1_234_567)] == [
        "0", "950", "9,999", "45.2k", "1M", "1.23M",
    ]  # fmt: skip
    assert [format_objective(x) for x in (-157.34, 500.0, 9535.4, 0.00012, None)] == [
        "-157.3", "500", "9,535", "1.2e-4", "-",
    ]  # fmt: skip
    assert [format_duration(s) for s in (0.4, 59.6, 185, 4320)] == [
        "0 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 12 min",
    ]


def test_discounts_keep_their_distance_from_one():
    """0.999 and 0.9995 are as different as 0.9 and 0.95."""
    assert [format_value(value) for value in (0.95, 0.999, 0.9995, 1 - 1e-7)] == [
        "0.95",
        "0.999",
        "0.9995",
        "0.9999999",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (292_321_428_571_428_718_592_917_504.0, "2.92e26"),
        (-2.5e300, "-2.5e300"),
        (1.7976931348623157e308, "1.8e308"),
        (1_234_567.0, "1.23e6"),
        (999_999.7, "1,000,000"),
        (999_999.4, "999,999"),
        (-123_456.7, "-123,457"),
        (999.97, "1,000"),
        (999.9, "999.9"),
        (2.5e-7, "2.5e-7"),
        (-1e-300, "-1e-300"),
        (5e-324, "4.94e-324"),
        (-0.0, "0"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "-"),
        (10**30, "1e30"),
    ],
)
def test_returns_of_any_size_are_short(value, text):
    assert format_objective(value) == text


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("exponent", range(-320, 308, 7))
def test_a_shown_number_is_never_another_number(exponent, sign):
    """It is the number itself, rounded to three digits, and no longer than ten characters."""
    for mantissa in (1.0, 3.456789, 9.994, 9.996, 9.99951):
        value = sign * float(f"{mantissa}e{exponent}")
        for text in (format_objective(value), format_value(value)):
            assert float(text.replace(",", "")) == pytest.approx(value, rel=6e-3, abs=1e-323)
            assert len(text) <= 10
    for count in (exponent + 0.7 for exponent in range(1, 10_000, 97)):
        assert abs(float(format_count(count).replace(",", "").replace("k", "e3")) - count) <= 5e-3 * count + 0.5


def test_a_line_is_shortened_by_whole_words():
    line = "lr=0.000123 gamma=0.99 12,345"
    for width in range(len(line) + 2):
        short = fit_words(line, width)
        assert len(short) <= width
        assert short == line or set(short.split()) <= {*line.split(), "…"}
    assert fit_words(line, 25) == "lr=0.000123 gamma=0.99 …"


def test_a_number_that_is_none_is_still_written():
    assert format_objective(math.nan) == "-"
    assert format_objective(0.0) == "0"
    assert format_value(math.inf) == "inf"
    assert format_value(1 - 1e-13) == "0.9999999999999"
    assert format_value([1e-4, [True, None]]) == "[1e-4,[true,null]]"


def test_a_clock_shows_hours_only_when_there_are_some():
    assert [format_clock(seconds) for seconds in (0, 135.9, 3599, 3735)] == ["00:00", "02:15", "59:59", "1:02:15"]


def test_a_reason_is_shown_by_its_first_line():
    assert first_line("\n ValueError: x \nTraceback ...") == "ValueError: x"
    assert first_line(None) == first_line(" \n ") != ""


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        ("no progress for 3 s; see /s/trials/1/stalled.txt", "no progress for 3 s; see /s/trials/22/stalled.txt", True),
        ("ValueError: angle -0.25 in <Pole at 0x7f3a10>", "ValueError: angle 1e-05 in <Pole at 0x7f3abc>", True),
        ("ValueError: the pole broke", "ValueError: the cart broke", False),
    ],
)
def test_failures_that_differ_in_their_numbers_alone_are_of_one_kind(first, second, alike):
    assert (classify_failure(first) == classify_failure(second)) is alike


def test_one_thing_is_no_plural():
    assert [format_number(number, "slot") for number in (0, 1, 1.5, 24)] == [
        "0 slots",
        "1 slot",
        "1.5 slots",
        "24 slots",
    ]


@pytest.mark.parametrize(("difference", "text"), [(17.8, "+17.8"), (-3.0, "-3"), (0.0, "0"), (None, "-")])
def test_a_difference_has_its_sign(difference, text):
    assert format_difference(difference) == text
