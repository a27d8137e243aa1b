"""Power rails in traces that Perfetto's own protos make."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.measure.rails import UptimeClock, period_of, read_rails, readings_of
from tests.support.rail_traces import NAMES, UPTIME_S, pb2, steady, trace


def test_rails_are_read_as_perfetto_writes_them():
    rails = read_rails(trace(steady((2.0, 0.5, 0.9, 3.0, 0.0))))
    assert [(rail.name, rail.subsystem) for rail in rails] == list(NAMES)
    assert [rail.counted for rail in rails] == [True, True, False, False, True]
    assert [rail.watts() for rail in rails] == pytest.approx([2.0, 0.5, 0.9, 3.0, 0.0])
    assert rails[0].counts[0] == (UPTIME_S - 4, 10**12)


def test_readings_are_means_between_counts_by_this_hosts_clock():
    counts = [(1000, [0]), (1250, [500_000]), (1250, [500_000]), (2250, [1_500_000])]
    (rail,) = read_rails(trace(counts, NAMES[:1]))
    clock = UptimeClock((1e9, 0.0), (1e9 + 1.001, 1.0))  # this host's runs faster
    first, second = readings_of(rail, clock)
    assert (first.watts, second.watts) == pytest.approx((2.0, 1.0))
    assert first.at_s - 1e9 == pytest.approx(1.25 * 1.001)
    assert second.at_s - 1e9 == pytest.approx(2.25 * 1.001)


def test_a_rail_goes_on_counting_between_two_traces():
    first = read_rails(trace([(1000, [0]), (1250, [500_000])], NAMES[:1]))
    (rail,) = read_rails(trace([(2250, [1_500_000]), (2500, [1_600_000])], NAMES[:1]), first)
    found = readings_of(rail, UptimeClock((0.0, 0.0), (1.0, 1.0)))
    assert [each.at_s for each in found] == pytest.approx([2.25, 2.5])
    assert [each.watts for each in found] == pytest.approx([1.0, 0.4])
    assert {each.rail for each in found} == {NAMES[0][0]}
    with pytest.raises(ValueError, match="went back"):
        read_rails(trace([(3000, [1])], NAMES[:1]), [rail])


def test_the_period_is_that_of_the_counts_and_not_of_the_polls():
    counts = steady((1.0, 0.5, 0.9, 2.0, 0.1))
    assert period_of(trace(counts), UPTIME_S) == pytest.approx(0.25)
    doubled = [(at_ms - at_ms % 500, energies) for at_ms, energies in counts]
    slow = [(at_ms, doubled[place - place % 2][1]) for place, (at_ms, _) in enumerate(doubled)]
    assert period_of(trace(slow), UPTIME_S) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (b"", "its perfetto names none"),
        (pb2.Trace(packet=[pb2.TracePacket(timestamp=1)]).SerializeToString(), "its perfetto names none"),
        (b"[100.1] perfetto_cmd.cc:700 Connected", "its perfetto printed no trace"),
        (trace(steady((1.0, 0.5, 0.9, 2.0, 0.1)))[:-3], "its perfetto printed no trace"),
        (
            trace(steady((1.0,)), (("VSYS_PWR_DISPLAY", "Display"),)),
            "none is known as one of CPU, .*: VSYS_PWR_DISPLAY",
        ),
        (trace(steady((1.0,), polls=3), NAMES[:1]), "S2M_VDD_CPUCL2 was counted 4 times in a few seconds"),
        (trace(steady((1.0,), begun_ms=1000), NAMES[:1]), "their time is 4995 s from the phone's uptime"),
        (trace(steady((0.0,)), NAMES[:1]), "they add up to 0 W, which is no phone's power"),
        (trace(steady((40.0,)), NAMES[:1]), "they add up to 40 W, which is no phone's power"),
        (trace([(1000, [5]), (1250, [4])], NAMES[:1]), "the counter of S2M_VDD_CPUCL2 went back"),
        (trace([(1000, [5]), (750, [6])], NAMES[:1]), "the counter of S2M_VDD_CPUCL2 went back"),
        (trace([(1 << 44, [5])], NAMES[:1]), "the counter of S2M_VDD_CPUCL2 shows 5 µJ at"),
    ],
)
def test_rails_that_do_not_serve_are_told_why(made, why):
    found = period_of(made, UPTIME_S)
    assert isinstance(found, str)
    assert re.match(why, found), found


def test_a_rail_without_a_descriptor_is_left_out():
    assert [rail.name for rail in read_rails(trace(steady((1.0, 0.5)), NAMES[:1]))] == ["S2M_VDD_CPUCL2"]


def test_rails_of_one_name_or_none_are_told_apart_and_too_many_left_out():
    named = [("CPU", ""), ("CPU", ""), ("", ""), ("\x1b[31m", "")]
    assert [rail.name for rail in read_rails(trace(steady((1.0,)), named))] == ["CPU", "CPU 1", "rail 2", "?[31m"]
    assert len(read_rails(trace(steady((1.0,)), [("CPU", "")] * 300))) == 256


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_a_period_or_a_reason(data):
    assert isinstance(period_of(data, UPTIME_S), float | str)


@given(st.integers(0, 2000), st.integers(0, 255))
def test_a_changed_byte_is_a_period_or_a_reason(place, byte):
    made = bytearray(trace(steady((1.0, 0.5, 0.9, 2.0, 0.1))))
    made[place % len(made)] = byte
    assert isinstance(period_of(bytes(made), UPTIME_S), float | str)
