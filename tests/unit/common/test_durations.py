"""Durations and times as people write them."""

import contextlib
import math
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farm.common.durations import BadTimeError, digits, format_duration, parse_duration, parse_since, parse_when


@pytest.fixture(params=["UTC", "Europe/Berlin", "Asia/Kolkata"])
def zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


NOW = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)  # Berlin: 00:30 of the day at which summer time begins


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), (" 2H ", 7200), ("1h30m", 5400), ("1h 30m", 5400), ("1.5h", 5400), ("7d", 604800),
     ("1w", 604800), ("0.5s", 0.5), ("30", 30), ("1.5", 1.5), (".5", 0.5), ("1e2", 100)],
)  # fmt: skip
def test_a_duration(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "1e999", "m", "-5m", "0s", "1y", "1e9h", "9999999d", "30m!", "٣m", "1h" * 99]
)
def test_what_is_no_duration_is_said_in_one_line(text):
    with pytest.raises(BadTimeError) as caught:
        parse_duration(text)
    assert "\n" not in caught.value.message
    assert "30m" in caught.value.hint


def test_a_time_with_its_zone_and_from_now_on():
    assert parse_when("2026-05-01T14:00Z", NOW) == datetime(2026, 5, 1, 14, tzinfo=UTC)
    assert parse_when("2026-05-01T14:00+02:00", NOW) == datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert parse_when("+30m", NOW) == NOW + timedelta(minutes=30)
    assert parse_when("now", NOW) == NOW


def test_local_times(zone):
    wanted = parse_when("2026-05-01T14:00", NOW)
    assert (wanted.hour, wanted.utcoffset() is not None) == (14, True)
    for text in ("14:00", "9:15", "23:59:59"):
        coming, past = parse_when(text, NOW), parse_since(text, NOW)
        assert coming.strftime("%H:%M:%S").startswith(text.zfill(5))
        assert NOW <= coming <= NOW + timedelta(hours=24)
        assert NOW - timedelta(hours=24) <= past <= NOW


def test_a_look_back():
    assert parse_since("7d", NOW) == NOW - timedelta(days=7)
    assert parse_since("2026-03-01T00:00Z", NOW) == datetime(2026, 3, 1, tzinfo=UTC)
    assert parse_since("now", NOW) == NOW
    assert parse_since("90", NOW) == NOW - timedelta(seconds=90)
    assert parse_since("20260301", NOW).date() == parse_since("2026-03-01", NOW).date()


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "25:00", "14:61", "+soon", "2026-13-01", "99999-01-01", "30m", "30", "-30m"]
)
def test_what_is_no_time_is_said_in_one_line(text):
    with pytest.raises(BadTimeError) as caught:
        parse_when(text, NOW)
    assert "\n" not in caught.value.message
    assert caught.value.hint


@given(st.text(max_size=30))
@example("0001-01-01T00:00")  # a local time without UTC, on some hosts
def test_any_text_is_a_time_or_one_error(text):
    for parse in (parse_when, parse_since):
        with contextlib.suppress(BadTimeError):
            assert parse(text, NOW).tzinfo is not None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (45, "45s"), (750, "12m 30s"), (3600, "1h"), (7500, "2h 5m"), (273600, "3d 4h"), (86405, "1d")],
)
def test_a_duration_for_people(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.07607, "0.07607"), (0.076324, "0.07632"), (1.5, "1.500"), (12.345, "12.35"), (12345.6, "12346"), (0, "0"),
        (3e-6, "0.000003000"), (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_a_measured_time_has_four_digits_however_small(value, said):
    assert digits(value) == said
