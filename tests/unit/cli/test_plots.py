"""Pictures in characters: what they show, in both alphabets."""

import math

import pytest

from farm.cli.output import plots
from farm.cli.output.terminal import ASCII, UNICODE, glyphs_for, locale_is_plain


def test_a_sparkline_goes_from_the_least_to_the_largest():
    assert plots.sparkline([1, 2, 3, 9, 4, 2], 10, UNICODE) == "▁▂▃█▄▂"
    assert plots.sparkline([1, 2, 3, 9, 4, 2], 10, ASCII) == "_.-#=."
    assert plots.sparkline([1, 1, 9, 9], 2, UNICODE) == "▁█"
    assert plots.sparkline([5, 5], 4, UNICODE) == "▄▄"
    assert plots.sparkline([math.nan], 4, UNICODE) == plots.sparkline([], 4, UNICODE) == ""


@pytest.mark.parametrize(("part", "shown"), [(0, "...."), (0.5, "##.."), (1, "####"), (7, "####"), (math.nan, "....")])
def test_a_bar_is_never_longer_than_its_whole(part, shown):
    assert plots.bar(part, 4, ASCII) == shown


def test_counts_leave_nothing_out():
    found, low, high = plots.counts([1.0, 2.0, 2.0, 5.0, math.inf], 4)
    assert (found, low, high) == ([1, 2, 0, 1], 1.0, 5.0)
    assert plots.counts([3.0, 3.0], 2)[0] == [2, 0]


def test_a_histogram_stands_on_its_scale():
    assert plots.histogram([1.0] * 8 + [2.0] * 4 + [3.0], 12, UNICODE, height=2) == ["█", "█   █  ▂", "1   3 ms"]
    assert plots.histogram([1.0] * 8 + [2.0] * 4 + [3.0], 12, ASCII, height=2) == ["#", "#   #  .", "1   3 ms"]
    assert plots.histogram([], 12, UNICODE) == []


def test_an_interval_lies_where_its_scale_says():
    assert plots.interval(1.0, 1.5, 2.0, (0.0, 4.0), 8, ASCII) == "  -o-"
    assert plots.interval(1.0, 1.0, 1.0, (1.0, 1.0), 8, ASCII) == "o"


def test_a_curve_falls_in_steps_and_ends_where_the_search_is():
    assert plots.curve([(0, 12.0), (10, 8.0), (20, 4.0)], 30, 40, 24, 3, ASCII) == [
        "12 -----",
        "        -----",
        " 4           ------",
        "   0                  40",
    ]
    assert plots.curve([(0, 9.0), (10, 1.0)], 20, 20, 22, 4, UNICODE)[1] == "           │"
    assert plots.curve([], 0, 10, 40, 5, ASCII) == []
    assert plots.curve([(1, 2.0)], 1, 5, 10, 5, ASCII) == []


def test_ascii_where_the_encoding_or_the_locale_has_no_more():
    assert glyphs_for("utf-8") is UNICODE
    assert glyphs_for("ascii") is glyphs_for("latin-1") is glyphs_for("no such") is ASCII
    assert locale_is_plain({"LANG": "C"})
    assert locale_is_plain({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"})
    assert locale_is_plain({"LANG": "de_DE.ISO-8859-1"})
    assert not locale_is_plain({"LANG": "C.UTF-8"})
    assert not locale_is_plain({"LANG": "de_DE.utf8"})
    assert not locale_is_plain({})
