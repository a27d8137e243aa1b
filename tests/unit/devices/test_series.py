"""Readings over time: an hour as they came, a day at five minutes, in bounded memory."""

from farm.devices.health.series import (
    COARSE_EVERY_S,
    COARSE_ROWS,
    FINE_ROWS,
    LINE_EVERY_S,
    LINE_POINTS,
    MAX_COLUMNS,
    SHOWN,
    Quantity,
    ReadingSeries,
    columns_of,
)
from farm.model.health import Battery, ClusterReading, GpuReading, Health, SensorGroup, Temperature

HOT, PERCENT = (Quantity.TEMPERATURE, SHOWN), (Quantity.BATTERY, "battery")
BEGIN_S = 1_800_000_000.0 // COARSE_EVERY_S * COARSE_EVERY_S


def test_what_is_kept_of_a_probe():
    health = Health(
        battery=Battery(percent=80, celsius=31.5),
        temperatures=(
            Temperature("cpu0", 50.0, SensorGroup.CPU, "zone0"),
            Temperature("cpu1", 61.0, SensorGroup.CPU, "zone1"),
            Temperature("skin", 36.0, SensorGroup.SKIN, "zone2"),
        ),
        cpu=(
            ClusterReading((0, 1, 2, 3), khz=1_800_000),
            ClusterReading((4, 5), khz=None),
            ClusterReading((7,), khz=3_000_000),
        ),
        gpu=GpuReading(clock_hz=680_000_000),
    )
    assert columns_of(health, 36.0) == {
        (Quantity.TEMPERATURE, SHOWN): 36.0,
        (Quantity.BATTERY, "battery"): 80.0,
        (Quantity.TEMPERATURE, "battery"): 31.5,
        (Quantity.CLOCK, "cpu 0-3"): 1800.0,
        (Quantity.CLOCK, "cpu 7"): 3000.0,
        (Quantity.CLOCK, "gpu"): 680.0,
        (Quantity.TEMPERATURE, "cpu"): 61.0,
        (Quantity.TEMPERATURE, "skin"): 36.0,
    }
    assert columns_of(Health(), None) == {}


def test_the_last_hour_is_as_it_came():
    series = ReadingSeries()
    for step in range(5):
        series.add(BEGIN_S + 10 * step, {HOT: 30.0 + step})
    at, columns = series.read(BEGIN_S + 20)
    assert at == [BEGIN_S + 20, BEGIN_S + 30, BEGIN_S + 40]
    assert columns == {HOT: [32.0, 33.0, 34.0]}


def test_a_day_is_kept_at_five_minutes_and_no_more():
    series = ReadingSeries()
    steps = int(30 * 3600 / 10)
    for step in range(steps):
        series.add(BEGIN_S + 10 * step, {HOT: 30.0 + step % 30, PERCENT: 50.0 + step % 30})
    at, columns = series.read(0.0)
    assert at == sorted(at)
    assert FINE_ROWS < len(at) <= FINE_ROWS + COARSE_ROWS
    assert at[-1] - at[0] >= 24 * 3600.0 - COARSE_EVERY_S
    assert columns[HOT][0] == 59.0  # the hottest of its five minutes
    assert columns[PERCENT][0] == 64.5  # their mean
    assert columns[HOT][-1] == 30.0 + (steps - 1) % 30


def test_nothing_is_told_of_the_time_before_the_first_probe():
    series = ReadingSeries()
    first_s = BEGIN_S + 0.7 * COARSE_EVERY_S
    for step in range(FINE_ROWS + 100):  # the first is in the five-minute rows only
        series.add(first_s + 10 * step, {HOT: 30.0})
    assert series.read(0.0)[0][0] == first_s


def test_a_column_that_comes_later_has_gaps_before_and_after():
    series = ReadingSeries()
    series.add(BEGIN_S, {HOT: 30.0})
    series.add(BEGIN_S + 10, {HOT: 31.0, PERCENT: 80.0})
    series.add(BEGIN_S + 20, {HOT: 32.0})
    assert series.read(0.0)[1][PERCENT] == [None, 80.0, None]


def test_a_phone_with_ever_new_sensors_fills_no_memory():
    series = ReadingSeries()
    for step in range(200):
        series.add(BEGIN_S + 10 * step, {(Quantity.TEMPERATURE, f"sensor {step}"): 30.0})
    assert len(series.read(0.0)[1]) <= MAX_COLUMNS * 2
    assert len(series._fine.columns) == len(series._coarse.columns) == MAX_COLUMNS


def test_the_line_of_the_wall():
    series = ReadingSeries()
    now_s = BEGIN_S + 3600.0
    for at_s, value in (
        (BEGIN_S - 1, 99.0), (BEGIN_S + LINE_EVERY_S, 30.0), (BEGIN_S + LINE_EVERY_S + 10, 30.54), (now_s, 41.0),
    ):  # fmt: skip
        series.add(at_s, {HOT: value})
        series.add(at_s, {PERCENT: 1.0})
    line = series.line(now_s)
    assert len(line) == LINE_POINTS
    assert {place: value for place, value in enumerate(line) if value is not None} == {0: 30.5, LINE_POINTS - 1: 41.0}
    assert series.line(now_s + 2 * 3600.0) == [None] * LINE_POINTS
    assert ReadingSeries().line(now_s) == [None] * LINE_POINTS


def test_a_long_line_takes_no_more_memory():
    series = ReadingSeries()
    for step in range(1000):
        series.add(BEGIN_S + LINE_EVERY_S * step, {HOT: float(step)})
    assert series.line(BEGIN_S + LINE_EVERY_S * 999) == [float(step) for step in range(1000 - LINE_POINTS, 1000)]
