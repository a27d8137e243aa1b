"""Durations, times, counts and intervals as people write them: `90`, `1h30m`, `7d`; `2026-05-01T14:00`, `+30m`.

Standard library only: the thin commands use it. Times without a zone are this host's local time.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any

from farm.common.errors import UserError

UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MAX_S = 3660 * UNIT_S["d"]  # ten years: beyond it it is a mistake, and dates run out of range
OLD_READING_S = 300.0  # phones are probed more often: an older reading is of one that is away or does not answer
DURATION_HINT = "seconds, or a number and a unit: 90, 90s, 30m, 2h, 1h30m, 7d, 1w"
WHEN_HINT = "2026-05-01T14:00 (local time), 2026-05-01T14:00Z, 14:00, +30m or now"

_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = r"(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"  # as Python writes numbers
_DURATION = re.compile(rf"(?:{_PART.pattern}\s*)+|{_SECONDS}")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


class BadTimeError(UserError):
    """That is no duration or time."""

    code = "bad_time"

    def is_of(self, text: str) -> bool:
        """Whether `text` caused it."""
        return any(self.message.startswith(f"{each[:40]!r} is ") for each in (text, text.removeprefix("+")))


def reading_age(seconds: float | None) -> str:
    """How old readings are, `2h 5m`; "" for those of the last minutes, or none."""
    return format_duration(seconds) if seconds is not None and seconds > OLD_READING_S else ""


def many(count: int, what: str, form: str = "") -> str:
    """A number of things: `1 record`, `2 records`; `form`: of the number, "," for `2,000 records`."""
    return f"{count:{form}} {what}{'s' * (count != 1)}"


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Seconds of `90`, `90s`, `30m`, `1h30m`, `1.5h`, `7d`; more than 0; with `zero` also 0.

    Raises:
        BadTimeError: it is none, or longer than ten years.
    """
    given = text.strip().lower()
    if not given.isascii() or len(given) > 64 or not _DURATION.fullmatch(given):
        raise BadTimeError(f"{text[:40]!r} is no duration", hint=DURATION_HINT)
    parts = _PART.findall(given) or [(given, "s")]
    seconds = math.fsum(float(number) * UNIT_S[unit] for number, unit in parts)
    if seconds > MAX_S or not (seconds or zero):
        what = "no time at all" if seconds == 0 else "longer than ten years"
        raise BadTimeError(f"{text[:40]!r} is {what}", hint=DURATION_HINT)
    return seconds


def within(flag: str, text: str, seconds: float, least_s: float, most_s: float) -> float:
    """The seconds that `text` means, as the value of an option.

    Raises:
        UserError: they are not within its bounds.
    """
    if not least_s <= seconds <= most_s:
        raise UserError(f"{flag} {text} is out of range", hint=f"{least_s:g}s to {format_duration(most_s)}")
    return seconds


def parse_when(text: str, now: datetime) -> datetime:
    """The moment `text` names, with its zone: ISO 8601, `now`, `+30m`, or `14:00` for the next time it is that.

    Args:
        text: what a person wrote.
        now: timezone-aware.

    Raises:
        BadTimeError: it names none.
    """
    given = text.strip()
    if given.lower() == "now":
        return now
    if given.startswith("+"):
        return now + timedelta(seconds=parse_duration(given[1:]))
    if _CLOCK.fullmatch(given):
        return _clock_time(given, now, later=True)
    return _date(given, text)


def parse_since(text: str, now: datetime) -> datetime:
    """The moment a look back begins: `7d` is seven days ago, `14:00` the last time it was that, else as `parse_when`.

    Raises:
        BadTimeError: it names none.
    """
    given = text.strip()
    if _CLOCK.fullmatch(given):
        return _clock_time(given, now, later=False)
    if given.lower() == "now":
        return now
    try:  # before durations: 20260501 is a date, and no number of seconds
        return _date(given, text, hint="how long ago (7d, 2h) or a time: 2026-05-01, 2026-05-01T14:00, 14:00")
    except BadTimeError:
        if not _DURATION.fullmatch(given.lower()):
            raise
    return now - timedelta(seconds=parse_duration(given))


def digits(value: float) -> str:
    """A measured time with four significant digits, in plain notation: 0.07607, 1.500, 12.35, 12346."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


MIN_MS = 0.1  # shorter times are shown in microseconds
NO_INTERVAL = "one sample: no interval"


def interval_words(found: Mapping[str, Any], unit: str = "ms", factor: float = 1.0, between: str = "..") -> str:
    """`0.91 .. 0.93`: `factor` times the fields `low_ms` and `high_ms` (`unit`); `-` of one sample, which has none."""
    low, high = found.get(f"low_{unit}"), found.get(f"high_{unit}")
    return "-" if found.get("count") == 1 else ends_words(low, high, factor, between)


def ends_words(low: float | None, high: float | None, factor: float = 1.0, between: str = "..") -> str:
    """The ends of an interval, as `interval_words` has them; `-` where one is missing."""
    return "-" if low is None or high is None else f"{digits(low * factor)} {between} {digits(high * factor)}"


def range_words(found: Mapping[str, Any], unit: str = "ms", middle: str = "") -> str:
    """An interval relative to its middle: `-15 %, +30 %`, `±0.7 %`; `-` of one sample, which has none.

    Args:
        found: has `low_ms` and `high_ms`, both of `unit`.
        unit: of the fields.
        middle: the field with the middle; "": `median_ms`.
    """
    low, high, center = (found.get(name) for name in (f"low_{unit}", f"high_{unit}", middle or f"median_{unit}"))
    return "-" if found.get("count") == 1 else relative_range(center, low, high)


def relative_range(center: float | None, low: float | None, high: float | None) -> str:
    """An interval relative to its middle, as `range_words` has it; `-` where one of them is missing."""
    if low is None or high is None or not center:
        return "-"
    down, up = (f"{100 * abs(end / center - 1):#.2g}".rstrip(".") for end in (low, high))
    down, up = (f"{float(each):.0f}" if "e" in each else each for each in (down, up))
    return f"±{up} %" if down == up else f"-{down} %, +{up} %"


def in_one_unit(values_ms: Sequence[float | None], *, aligned: bool = True) -> list[str]:
    """Times in the unit that the shortest time needs: `0.1623 ms`, `76.07 µs`; `-` for None.

    `aligned`: they stand in a column.
    """
    shortest_ms = min((each for each in values_ms if each is not None), default=0.0)
    unit, scale = time_unit(shortest_ms)
    words = ["-" if each is None else f"{digits(each * scale)} {unit}" for each in values_ms]
    return [each.rjust(max(map(len, words))) if aligned and each != "-" else each for each in words]


def with_unit(value_ms: float) -> str:
    """A time with the unit that it needs: `1.204 s`, `0.1623 ms`, `76.07 µs`."""
    unit, scale = time_unit(value_ms)
    return f"{digits(value_ms * scale)} {unit}"


def time_unit(shortest_ms: float) -> tuple[str, float]:
    """The unit for times whose shortest is `shortest_ms`, and the factor from milliseconds to it."""
    return ("s", 1e-3) if shortest_ms >= 1e3 else ("ms", 1.0) if shortest_ms >= MIN_MS else ("µs", 1e3)


def is_number(value: object) -> bool:
    """Whether a value out of JSON is a number, and a float can hold it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < sys.float_info.max


def format_duration(seconds: float) -> str:
    """`45s`, `12m 30s`, `2h 5m`, `3d 4h`: the two largest units."""
    if not math.isfinite(seconds):
        return f"{seconds}"
    left = max(0, round(seconds))
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    parts = [f"{amount}{unit}" for amount, unit in zip((days, hours, minutes, left), "dhms", strict=True)]
    first = next((index for index, part in enumerate(parts) if part[0] != "0"), 3)
    return " ".join(part for part in parts[first : first + 2] if part[0] != "0") or "0s"


def _clock_time(given: str, now: datetime, *, later: bool) -> datetime:
    try:
        at = time.fromisoformat(given.zfill(5) if given.count(":") == 1 else given.zfill(8))
    except ValueError as error:
        raise BadTimeError(f"{given!r} is no time of day", hint=WHEN_HINT) from error
    today = now.astimezone().date()
    # Zone by zone: a day at which clocks change is not 24 hours long.
    for days in (0, 1) if later else (0, -1):
        moment = datetime.combine(today + timedelta(days=days), at).astimezone()
        if (moment >= now) if later else (moment <= now):
            return moment
    raise AssertionError("one of today and its neighbour lies on the wanted side")


def _date(given: str, text: str, hint: str = WHEN_HINT) -> datetime:
    try:
        # Before the year 1970 and after 9998 a local time may have no UTC.
        moment = datetime.fromisoformat(given)
        return moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise BadTimeError(f"{text[:40]!r} is no time", hint=hint) from error


_MAX_DOUBLINGS = 30  # any limit is reached by then, and a float overflows at 1024


@dataclass(frozen=True, slots=True)
class BackOff:
    """`first_s`, twice that, ... at most `limit_s`."""

    first_s: float
    limit_s: float

    def delay_s(self, failures: int) -> float:
        """The delay after that many failures in a row (at least one)."""
        return min(self.limit_s, self.first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))


def took(began: str | None, ended: str | None) -> str:
    """How long something lasted; "" while it does, or if it did not begin."""
    if not began or not ended:
        return ""
    seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)
