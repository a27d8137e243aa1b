"""Values as people read them: filters of the templates. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import dropwhile
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from farm.core.durations import digits, format_duration
from farm.core.series import LINE_EVERY_S

SPARK_WIDTH, SPARK_HEIGHT = 96, 24
SPARK_SPAN_C = 8.0  # at least so many degrees from bottom to top: noise is no mountain
_TIME = Markup('<time datetime="{}">{} UTC</time>')
_SPARK = Markup(
    '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img">'
    '<title>{}</title><polyline points="{}"/></svg>'
)
# One tone for each thing that people tell apart at a glance; the word stands beside the colour.
TONES = {
    "ready": "good",
    "busy": "busy",
    "cooling": "warm",
    "quarantined": "bad",
    "recovering": "warn",
    "unauthorized": "warn",
    "offline": "warn",
    "gone": "off",
    "draining": "hold",
    "maintenance": "hold",
}

# Fields of verbs that the page's forms have by another name than their own.
FIELDS = {
    "device": "Phone",
    "of_kind": "Kind",
    "reason": "What is wrong with it",
    "rename": "Name",
}


def field(name: str) -> str:
    """A verb's field as people read it in a form."""
    return FIELDS.get(name, name.replace("_", " ").capitalize())


def tone(state: str) -> str:
    """The colour class of a device's state."""
    return TONES.get(state.partition(",")[0], "going")


def celsius(value: float | None) -> str:
    """A temperature."""
    return "-" if value is None else f"{value:.1f} °C"


def percent(value: int | None) -> str:
    """A share."""
    return "-" if value is None else f"{value} %"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return "-"
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return f"{count:.0f} bytes"


def duration(seconds: float | None) -> str:
    """A span of time."""
    return "-" if seconds is None else format_duration(seconds)


def moment(at: str | datetime | None) -> Markup:
    """A point in time as the browser's own clock shows it; UTC without scripts."""
    if not at:
        return Markup("-")
    when = datetime.fromisoformat(at) if isinstance(at, str) else at
    return _TIME.format(when.isoformat(), f"{when:%Y-%m-%d %H:%M:%S}")


def segment(text: str) -> str:
    """Text as one segment of a path in a link."""
    return quote(text, safe="")


def coded(text: str) -> Markup:
    """A sentence with what stands in `backticks` as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one without its other: no code
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def spark(values: Sequence[float | None]) -> Markup:
    """A line of the latest temperatures, °C, oldest first, as wide as there are any; its title says their span."""
    line = list(dropwhile(lambda value: value is None, values))
    known = [value for value in line if value is not None]
    points, said = "", "temperature over time: not known yet"
    if len(known) > 1:
        low, high = min(known), max(known)
        said = f"temperature of the last {format_duration(len(line) * LINE_EVERY_S)}: {low:.1f} to {high:.1f} °C"
        span, step = max(high - low, SPARK_SPAN_C), SPARK_WIDTH / (len(line) - 1)
        bottom = (low + high - span) / 2
        points = " ".join(
            f"{number * step:.1f},{(SPARK_HEIGHT - 2) * (1 - (value - bottom) / span) + 1:.1f}"
            for number, value in enumerate(line)
            if value is not None
        )
    return _SPARK.format(SPARK_WIDTH, SPARK_HEIGHT, said, points)


FILTERS: dict[str, Callable[..., Any]] = {
    "tone": tone,
    "celsius": celsius,
    "percent": percent,
    "size": size,
    "duration": duration,
    "digits": digits,
    "moment": moment,
    "segment": segment,
    "spark": spark,
    "coded": coded,
}
