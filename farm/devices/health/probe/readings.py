"""Helpers of all sections' parsers: numbers as phones print them, units, `path=line` lists. Pure; never raises."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MIN_PLAUSIBLE_C = 5.0  # a phone in a lab; below lie fake batteries ("26" tenths) and currents in mA read as m°C
MAX_PLAUSIBLE_C = 120.0  # silicon is shut down before; above lie currents in mA
_MIN_TENTHS = 100
MAX_BATTERY_C = 90.0  # a sanity limit, not a datasheet's

# Clocks from 10 MHz to 3 GHz are believed: so a figure fits Hz, kHz or MHz, never two of them.
_MIN_CLOCK, _MAX_CLOCK = 10e6, 3e9
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)
_LEADING = re.compile(r"\s*([+-]?[0-9]{1,18})(?:\.0*)?(?![0-9.])\s*([A-Za-z%°]*)")


def integer(text: str | None) -> int | None:
    """A whole number of at most 18 digits that stands alone, or None."""
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def leading_integer(text: str | None) -> tuple[int, str] | None:
    """A whole number at the beginning, and the unit behind it in lower case ("7 %" -> 7, "%"), or None."""
    found = _LEADING.match(text or "")
    return (int(found[1]), found[2].lower()) if found and found[1].isascii() else None


def decimal(text: str) -> float | None:
    """A number such as 31.700001, or None for NaN, 1.2.3 and anything else."""
    return float(text) if _DECIMAL.fullmatch(text) else None


def clock_hz(text: str | None) -> int | None:
    """A GPU's clock in Hz from a figure in Hz, kHz or MHz, or None."""
    found = leading_integer(text)
    if found is None or found[0] <= 0:
        return None
    value, unit = found
    scales = {"mhz": (1_000_000,), "khz": (1_000,), "hz": (1,)}.get(unit, (1, 1_000, 1_000_000) if not unit else ())
    return next((value * scale for scale in scales if _MIN_CLOCK <= value * scale <= _MAX_CLOCK), None)


def celsius(value: int, divisors: Sequence[int], highest_c: float = MAX_PLAUSIBLE_C) -> float | None:
    """°C from a figure in one of these parts of a degree, or None where none of them, or more than one, makes sense.

    Where both are possible, a figure below `_MIN_TENTHS` is in degrees: a core at 55 °C, not one at 5.5 °C.
    """
    fitting = [
        value / divisor
        for divisor in divisors
        if MIN_PLAUSIBLE_C <= value / divisor <= highest_c
        and not (divisor == 10 and 1 in divisors and value < _MIN_TENTHS)
    ]
    return fitting[0] if len(fitting) == 1 else None


def files(text: str) -> dict[str, str]:
    """`path=line` lines as a mapping; the first one of a path counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        path, equals, value = line.partition("=")
        if equals and path.startswith("/"):
            found.setdefault(path, value)
    return found


def first_of(values: Iterable[str | None]) -> str:
    """The first that says something."""
    return next((value for value in values if value), "")
