"""The web page of a sustained run: medians of each minute over time; below, the battery's temperature and the power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.common.durations import digits, format_duration
from farm.web.plots import KindPage, Line, Mark, Panel, Plot, PlotSource, Table, object_of, upper_edge

MINUTE_S = 60.0
# Panels below the medians: field, name, unit; from bottom to top at least so much: a tenth of a degree is no mountain.
BELOW = (("celsius", "battery", "°C", 4.0), ("busy_w", "power", "W", 0.5))


def sustain_plots(source: PlotSource) -> list[Plot]:
    """The course; nothing while there is no result."""
    rows = [each for each in source.result.get("buckets") or () if isinstance(each, Mapping)]
    if not rows or not all(isinstance(row.get("median_ms"), int | float) for row in rows):
        return []
    return [course_plot(rows, source.result)]


def course_plot(rows: list[Mapping[str, Any]], result: Mapping[str, Any]) -> Plot:
    """Rows of a result, at least one, as a figure."""
    minutes = [float(row["start_s"]) / MINUTE_S for row in rows]
    medians = [float(row["median_ms"]) for row in rows]
    plateau, after_s = object_of(result.get("plateau")), result.get("throttled_after_s")
    throttled = "it did not throttle" if after_s is None else f"it throttled after {format_duration(after_s)}"
    marks = [] if after_s is None else [Mark(name="throttled", at=after_s / MINUTE_S, axis="x")]
    if plateau:
        marks.append(Mark(name="plateau", at=float(plateau["median_ms"])))
    panels = [
        Panel(
            label="one run, ms", x=minutes, lines=[Line(name="median", values=medians, kind="line")],
            top=1.04 * upper_edge(medians), marks=marks,
        )
    ]  # fmt: skip
    for field, name, unit, span in BELOW:
        values = [row.get(field) for row in rows]
        if all(isinstance(each, int | float) for each in values):
            line = Line(name=name, values=[float(each or 0) for each in values], kind="line", tone="quiet")
            panels.append(Panel(label=unit, x=minutes, lines=[line], height=140, zero=False, least_span=span))
    return Plot(
        id="course",
        title="Course",
        summary=f"{digits(medians[0])} ms at first, {digits(medians[-1])} ms at the end: {throttled}.",
        x_label="minutes",
        span=(0.0, max(float(result.get("seconds") or 0) / MINUTE_S, minutes[-1])),
        panels=panels,
        table=Table(
            head=("from minute", "median, ms", "low", "high", "°C", "W", "mJ"),
            rows=[
                (
                    f"{minute:.3g}",
                    *("" if row[time] is None else digits(row[time]) for time in ("median_ms", "low_ms", "high_ms")),
                    "" if row.get("celsius") is None else f"{row['celsius']:.1f}",
                    "" if row.get("busy_w") is None else digits(row["busy_w"]),
                    "" if row.get("gross_j") is None else digits(row["gross_j"] * 1e3),
                )
                for minute, row in zip(minutes, rows, strict=True)
            ],
        ),
    )  # fmt: skip


PAGE = KindPage(plots=sustain_plots)
