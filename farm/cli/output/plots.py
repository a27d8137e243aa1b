"""Pictures of numbers: in characters (sparklines, histograms, intervals, a falling curve); a tuning curve as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from html import escape

from farm.cli.output.terminal import Glyphs
from farm.common.durations import time_unit

NARROW = 16  # columns: no curve fits into fewer
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 40, 60
TICKS = 5
FONT = 'font-family="sans-serif" font-size="12"'
UPWARDS = f'transform="rotate(-90 18 {HEIGHT / 2})"'


def sparkline(values: Sequence[float], width: int, marks: Glyphs) -> str:
    """The course of values in one line, from the smallest to the largest of them; of more than `width`, means."""
    shown = [value for value in values if math.isfinite(value)]
    if not shown or width < 1:
        return ""
    if len(shown) > width:
        edges = [round(index * len(shown) / width) for index in range(width + 1)]
        shown = [math.fsum(shown[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(shown), max(shown)
    top = len(marks.steps) - 1
    if high == low:
        return marks.steps[top // 2] * len(shown)
    return "".join(marks.steps[round((value - low) / (high - low) * top)] for value in shown)


def bar(part: float, width: int, marks: Glyphs) -> str:
    """How much of a whole, as a bar of `width` cells."""
    done = min(width, max(0, math.floor(part * width + 1e-9))) if math.isfinite(part) else 0
    return marks.full * done + marks.rest * (width - done)


def counts(values: Iterable[float], bins: int) -> tuple[list[int], float, float]:
    """How many values fall into each of `bins` equal parts between the least and the largest; then those two.

    All in the first part where all values are one.
    """
    finite = [value for value in values if math.isfinite(value)]
    found = [0] * bins
    if not finite:
        return found, math.nan, math.nan
    low, high = min(finite), max(finite)
    width = (high - low) / bins or 1.0
    for value in finite:
        found[min(bins - 1, int((value - low) / width))] += 1
    return found, low, high


def histogram(values: Sequence[float], width: int, marks: Glyphs, *, height: int = 3) -> list[str]:
    """A histogram of milliseconds in upright bars, and below them the least and the largest; empty without values."""
    bins = max(1, min(width, max(8, round(2 * math.sqrt(len(values))))))
    found, low, high = counts(values, bins)
    most = max(found)
    if not most:
        return []
    levels, steps = height * len(marks.steps), len(marks.steps)
    cell = max(1, width // bins)
    tall = [0 if not count else max(1, round(count / most * levels)) for count in found]
    lines = []
    for row in range(height - 1, -1, -1):
        filled = (min(steps, max(0, each - row * steps)) for each in tall)
        lines.append("".join((marks.steps[level - 1] if level else " ") * cell for level in filled).rstrip())
    unit, scale = time_unit(low)
    left, right = f"{low * scale:.4g}", f"{high * scale:.4g} {unit}"
    lines.append(left + " " * max(1, bins * cell - len(left) - len(right)) + right)
    return [line for line in lines if line]


def interval(low: float, middle: float, high: float, scale: tuple[float, float], width: int, marks: Glyphs) -> str:
    """An interval and its middle value, on a scale from left to right."""
    span = (scale[1] - scale[0]) or 1.0

    def place(value: float) -> int:
        return min(width - 1, max(0, int((value - scale[0]) / span * width)))

    left, right, at = place(low), place(high), place(middle)
    text = " " * left + marks.line * (right - left + 1)
    return text[:at] + marks.middle + text[at + 1 :]


def curve(
    points: Sequence[tuple[float, float]], until: float, last_x: float, width: int, height: int, marks: Glyphs
) -> list[str]:
    """A quantity that falls in steps, best so far over trials, with its axis; each point holds until the next.

    Args:
        points: (x, y), ordered by x; y above 0.
        until: how far the last one holds.
        last_x: where the axis ends.
        width: columns in all.
        height: rows of the picture; one more is the axis.
        marks: the characters.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite or width < NARROW or height < 2:
        return []
    least, most = min(y for _, y in finite), max(y for _, y in finite)
    labels = [f"{most:.4g}", *[""] * (height - 2), f"{least:.4g}"]
    margin = max(map(len, labels)) + 1
    cells, end = width - margin, max(last_x, until, finite[-1][0], 1.0)

    def column_of(x: float) -> int:
        return min(cells - 1, max(0, math.ceil(x / end * cells) - 1))

    rows = [[" "] * cells for _ in range(height)]
    before: int | None = None
    for column in range(column_of(finite[0][0]), column_of(max(until, finite[-1][0])) + 1):
        reached = [y for x, y in finite if column_of(x) <= column]
        row = height - 1 - round((reached[-1] - least) / ((most - least) or 1.0) * (height - 1))
        for between in range(min(row, before) + 1, max(row, before)) if before is not None else ():
            rows[between][column] = marks.rise
        rows[row][column] = marks.line
        before = row
    lines = [f"{head:>{margin - 1}} {''.join(row)}".rstrip() for head, row in zip(labels, rows, strict=True)]
    right = f"{end:.0f}"
    return [*lines, " " * margin + "0" + " " * max(1, cells - 1 - len(right)) + right]


def svg(curve: Sequence[Sequence[float]], trials: int, title: str) -> str:
    """The picture of a curve of [trial, seconds, estimated latency in seconds], drawn on to the last trial.

    Latency falls in steps: a point holds until the next one. Times in milliseconds, from 0.
    """
    points = [(float(point[0]), point[2] * 1e3) for point in curve]
    most_x = max([float(trials), 1.0, *(x for x, _ in points)])
    most_y = max((y for _, y in points), default=1.0) * 1.05

    def at(x: float, y: float) -> tuple[float, float]:
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + x / most_x * across, TOP + (1 - y / most_y) * down

    lines = []
    for tick in range(TICKS + 1):
        x, y = most_x * tick / TICKS, most_y * tick / TICKS
        (across, _), (_, down) = at(x, 0), at(0, y)
        lines += [
            f'<line x1="{LEFT}" y1="{down:.1f}" x2="{WIDTH - RIGHT}" y2="{down:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{down + 4:.1f}" text-anchor="end">{y:.4g}</text>',
            f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:.0f}</text>',
        ]
    path = ""
    for number, (x, y) in enumerate(points):
        across, down = at(x, y)
        path += f"M{across:.1f},{down:.1f}" if number == 0 else f"H{across:.1f}V{down:.1f}"
    if points:
        path += f"H{at(most_x, 0)[0]:.1f}"
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" {FONT}>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{middle}" y="24" text-anchor="middle" font-size="15">{escape(title)}</text>',
            *lines,
            f'<path d="{path}" fill="none" stroke="#0a62a9" stroke-width="2"/>',
            f'<text x="{middle}" y="{HEIGHT - 16}" text-anchor="middle">trial</text>',
            f'<text x="18" y="{HEIGHT / 2}" text-anchor="middle" {UPWARDS}>estimated latency, ms</text>',
            "</svg>",
            "",
        ]
    )
