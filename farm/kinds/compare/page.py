"""The web page of a comparison: A and B in the turns they were timed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from farm.common.durations import digits
from farm.web.plots import (
    KindPage,
    Line,
    Mark,
    Panel,
    Plot,
    PlotSource,
    Table,
    evenly,
    numbers_of,
    object_of,
    unit_of,
    upper_edge,
)


def compare_plots(source: PlotSource) -> list[Plot]:
    """A and B in turns; nothing when the raw samples are gone."""
    compared, raw = object_of(source.result.get("comparison")), source.samples
    if raw is None or not all(isinstance(compared.get(name), int | float) for name in ("ratio", "low", "high")):
        return []
    a, b = (numbers_of(raw.get(f"{side}_s")) or _blocks(raw.get(side)) for side in "ab")
    if not a or not b or min(*a, *b) <= 0:
        return []
    medians = [object_of(object_of(source.result.get(side)).get("latency")).get("median_ms") for side in "ab"]
    plot = compare_plot(a, b, compared, medians)
    return [] if plot is None else [plot]


def compare_plot(
    a_s: Sequence[float], b_s: Sequence[float], compared: Mapping[str, Any], medians_ms: Sequence[float | None] = ()
) -> Plot | None:
    """A and B in the turns they were timed in, and the ratio of each pair with the interval of all. None: no pairs.

    `medians_ms`: of A and of B; None where it is not known.
    """
    pairs = list(zip(a_s, b_s, strict=False))
    if not pairs:
        return None
    factor, unit = unit_of(median([*a_s, *b_s]))
    x = [float(number + 1) for number in range(len(pairs))]
    ratios = [b / a for a, b in pairs]
    top, top_ratio = upper_edge([*a_s, *b_s]) / factor, upper_edge(ratios)
    low, high, ratio = float(compared["low"]), float(compared["high"]), float(compared["ratio"])
    rows = [(i, *pairs[i], ratios[i]) for i in evenly(len(pairs))]
    return Plot(
        id="turns",
        title="In turns",
        summary=f"{len(pairs)} pairs: B took {ratio:.4f} times as long as A "
        f"({float(compared.get('confidence', 0.99)):.0%} interval {low:.4f} to {high:.4f}).",
        x_label="pair",
        span=(0.0, len(pairs) + 1.0),
        panels=[
            Panel(
                label=f"one run, {unit}",
                x=x,
                lines=[
                    *_below("A", [a / factor for a, _ in pairs], top, "a"),
                    *_below("B", [b / factor for _, b in pairs], top, "b"),
                ],
                top=1.04 * top,
                marks=[
                    Mark(name=f"median of {side}", at=ms / 1e3 / factor, tone=side.lower())
                    for side, ms in zip("AB", medians_ms, strict=False)
                    if ms is not None
                ],
            ),
            Panel(
                label="B / A",
                x=x,
                lines=_below("B / A", ratios, top_ratio, "quiet"),
                top=1.04 * max(top_ratio, high),
                marks=[
                    Mark(name="interval", at=low, to=high, tone="band"),
                    Mark(name="ratio", at=ratio),
                    Mark(name="the same", at=1.0, tone="quiet"),
                ],
                height=170,
                zero=False,
            ),
        ],
        table=Table(
            head=("pair", f"A, {unit}", f"B, {unit}", "B / A"),
            rows=[(str(i + 1), digits(a / factor), digits(b / factor), f"{r:.4f}") for i, a, b, r in rows],
        ),
    )


def _below(name: str, values: Sequence[float], top: float, tone: str) -> list[Line]:
    """A series up to `top`; larger values are drawn at that edge."""
    lines = [Line(name=name, values=[value if value <= top else None for value in values], tone=tone)]
    if max(values) > top:
        edge = [None if value <= top else top for value in values]
        lines.append(Line(name=f"{name}, above the plot", values=edge, kind="beyond", tone=tone))
    return lines


def _blocks(value: object) -> list[float]:
    """The median of each block, of two bundles in turns."""
    blocks = value if isinstance(value, list) else []
    samples = [sorted(numbers_of(object_of(each).get("samples_s"))) for each in blocks]
    return [each[len(each) // 2] for each in samples if each]


PAGE = KindPage(plots=compare_plots, samples=True)
