"""What result plots show: plain numbers for static/plots.js, and the same as a sentence and a table. Pure.

A plot is one or several panels under each other on one axis of x. Times are drawn in the unit that suits their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from farm.core.durations import digits
from farm.web.plot_parts import Line, Mark, Panel, Plot, Table, bins, counted, quantile, time_words, unit_of

TABLE_ROWS = 16
TAIL = 0.995  # of a distribution is drawn; the few beyond are told in words: one outlier would flatten all the rest
NARROW = 0.6
LEAST_SHARE = 0.02  # of a time, from bottom to top of a plot of times
LEAST_CELSIUS = 4.0  # from bottom to top of a plot of temperatures: a tenth of a degree is no mountain
CROWDED = 2.0  # samples further above the 95 % quantile than so many times are drawn at the upper edge
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What a bench took in one try. Seconds; `start_s` counts from the first sample's try."""

    seconds: Sequence[float]
    start_s: Sequence[float]
    exact_start: bool  # False: the raw samples are gone, starts are sums
    warmup: int = 0
    outliers: frozenset[int] = frozenset()
    median_s: float | None = None  # as the clock showed it
    low_s: float | None = None
    high_s: float | None = None
    sensor: str = ""  # of the temperatures
    celsius: Sequence[tuple[float, float]] = field(default_factory=tuple)  # seconds after the start, °C


def samples_plot(taken: Samples) -> Plot:
    """Each sample over time, the temperature under it."""
    factor, unit = unit_of(median(taken.seconds))
    count = len(taken.seconds)

    def only(of: Iterable[int]) -> list[float | None]:
        chosen = frozenset(of)
        return [taken.seconds[i] / factor if i in chosen else None for i in range(count)]

    top = _top(taken.seconds)
    beyond = frozenset(i for i, each in enumerate(taken.seconds) if each > top)
    wide = min(taken.seconds) < NARROW * top  # else y begins below the samples, which would be one line
    usual = [i for i in range(count) if i >= taken.warmup and i not in taken.outliers | beyond]
    lines = [Line(name="sample", values=only(usual), tone="a")]
    if taken.warmup:
        lines.append(Line(name="warm-up", values=only(set(range(min(taken.warmup, count))) - beyond), tone="quiet"))
    odd = [i for i in taken.outliers if taken.warmup <= i < count]
    if drawn := frozenset(odd) - beyond:
        lines.append(Line(name="outlier", values=only(drawn), tone="warn"))
    if beyond:
        edge: list[float | None] = [top / factor if i in beyond else None for i in range(count)]
        lines.append(Line(name="above the plot", values=edge, kind="beyond", tone="warn"))
    marks = []
    if taken.low_s is not None and taken.high_s is not None:
        low, high = taken.low_s / factor, taken.high_s / factor
        marks.append(Mark(name="95 % interval", at=low, to=high, tone="band"))
    if taken.median_s is not None:
        marks.append(Mark(name="median", at=taken.median_s / factor))
    end_s = max([taken.start_s[-1] + taken.seconds[-1], *(at for at, _ in taken.celsius)])
    panels = [
        Panel(
            label=f"one run, {unit}",
            x=taken.start_s,
            lines=lines,
            marks=marks,
            top=1.04 * top / factor,
            zero=wide,
            least_span=LEAST_SHARE * top / factor,
        )
    ]
    said = f"{count} samples over {end_s:.1f} s"
    if taken.median_s is not None:
        said += f", median {time_words(taken.median_s)} by the clock"
    if odd:
        said += f", {len(odd)} of them outliers"
    if beyond:
        most = time_words(max(taken.seconds))
        said += f"; {len(beyond)} are above the plot and drawn at its upper edge, the slowest took {most}"
    if taken.celsius:
        x, values = [at for at, _ in taken.celsius], [value for _, value in taken.celsius]
        heat = Line(name=taken.sensor, values=values, kind="line", tone="warm")
        panels.append(
            Panel(label=f"{taken.sensor}, °C", x=x, lines=[heat], height=130, zero=False, least_span=LEAST_CELSIUS)
        )
        said += f"; {taken.sensor} {values[0]:.1f} °C at the beginning, {values[-1]:.1f} °C at the end"
    if not taken.exact_start:
        said += "; when each began is estimated"
    return Plot(
        id="samples",
        title="Samples over time",
        said=said + ".",
        x_label="time since the measurement began, s",
        span=(min(0.0, taken.start_s[0]), end_s or 1.0),
        panels=panels,
        table=_over_time(taken, factor, unit),
    )


def distribution_plot(taken: Samples) -> Plot | None:
    """How often a run took how long: a histogram with quantiles. None for fewer than two samples after warm-up."""
    used = sorted(taken.seconds[taken.warmup :])
    if len(used) < 2:
        return None
    factor, unit = unit_of(quantile(used, 0.5))
    shown = [value / factor for value in used if value <= quantile(used, TAIL)] or [value / factor for value in used]
    edges = bins(shown)
    counts = counted(shown, edges)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    width = edges[1] - edges[0]
    marks = [
        Mark(name="median" if share == 0.5 else f"{share:.0%}", axis="x", at=quantile(used, share) / factor,
             tone="mark" if share == 0.5 else "quiet")
        for share in QUANTILES
    ]  # fmt: skip
    beyond = len(used) - len(shown)
    said = f"Half of the runs took {time_words(quantile(used, 0.25))} to {time_words(quantile(used, 0.75))}"
    said += f", nine of ten {time_words(quantile(used, 0.05))} to {time_words(quantile(used, 0.95))}"
    if beyond:
        said += f"; {beyond} slower than {time_words(quantile(used, TAIL))} are not drawn, up to {time_words(used[-1])}"
    names = ["least", *(f"{share:.0%}" for share in QUANTILES), "most"]
    values = [used[0], *(quantile(used, share) for share in QUANTILES), used[-1]]
    return Plot(
        id="distribution",
        title="Distribution",
        said=said + ".",
        x_label=f"one run, {unit}",
        span=(edges[0] - width / 2, edges[-1] + width / 2),
        panels=[
            Panel(
                label="samples",
                x=middles,
                lines=[Line(name="samples", values=counts, kind="bars")],
                marks=marks,
            )
        ],
        table=Table(
            head=("quantile", f"one run, {unit}"),
            rows=[(name, digits(value / factor)) for name, value in zip(names, values, strict=True)],
        ),
    )


def tuning_plot(
    curve: Sequence[Sequence[float]], trials: int, search_s: float | None, wanted: int | None = None
) -> Plot | None:
    """The estimated latency of the model, best so far, and the trials made, over the search's time.

    Args:
        curve: trial, seconds of search, estimated latency in seconds, whenever it became better.
        trials: made so far.
        search_s: spent so far; None: not known.
        wanted: trials in all; None: not known.
    """
    points = [(float(trial), float(at), float(best)) for trial, at, best in curve]
    if not points:
        return None
    factor, unit = unit_of(points[-1][2])
    end_s = max([search_s or 0.0, points[-1][1]])
    x = [at for _, at, _ in points]
    best: list[float | None] = [value / factor for _, _, value in points]
    made: list[float | None] = [trial for trial, _, _ in points]
    if end_s > x[-1]:
        x, best, made = [*x, end_s], [*best, best[-1]], [*made, float(trials)]
    first, last = points[0][2], points[-1][2]
    said = f"The estimate fell from {time_words(first)} to {time_words(last)} ({first / last:.2f} times) in {trials} "
    said += f"trials; it became better last at trial {points[-1][0]:.0f} after {points[-1][1]:.0f} s."
    marks = [] if wanted is None else [Mark(name="wanted", at=float(wanted), tone="quiet")]
    rows = [points[i] for i in _evenly(len(points), TABLE_ROWS)]
    return Plot(
        id="tuning",
        title="Tuning curve",
        said=said,
        x_label="time of the search, s",
        span=(0.0, end_s or 1.0),
        panels=[
            Panel(
                label=f"estimate, {unit}",
                x=x,
                lines=[Line(name="best so far", values=best, kind="steps")],
            ),
            Panel(
                label="trials",
                x=[0.0, *x],
                lines=[Line(name="trials", values=[0.0, *made], kind="line", tone="b")],
                marks=marks,
                height=130,
            ),
        ],
        table=Table(
            head=("trial", "after, s", f"estimate, {unit}"),
            rows=[(f"{trial:.0f}", f"{at:.1f}", digits(value / factor)) for trial, at, value in rows],
        ),
    )


def compare_plot(a_s: Sequence[float], b_s: Sequence[float], compared: Mapping[str, Any]) -> Plot | None:
    """A and B in the turns they were timed in, and the ratio of each pair with the interval of all. None: no pairs."""
    pairs = list(zip(a_s, b_s, strict=False))
    if not pairs:
        return None
    factor, unit = unit_of(median([*a_s, *b_s]))
    x = [float(number + 1) for number in range(len(pairs))]
    ratios = [b / a for a, b in pairs]
    top, top_ratio = _top([*a_s, *b_s]) / factor, _top(ratios)
    low, high, ratio = float(compared["low"]), float(compared["high"]), float(compared["ratio"])
    rows = [(i, *pairs[i], ratios[i]) for i in _evenly(len(pairs), TABLE_ROWS)]
    return Plot(
        id="turns",
        title="In turns",
        said=f"{len(pairs)} pairs: B took {ratio:.4f} times as long as A "
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


def history_plot(points: Sequence[tuple[float, float, float, str]]) -> Plot | None:
    """Results of one model on one phone in order: medians with their intervals. None for fewer than two.

    Args:
        points: median, low and high in seconds, verdict; oldest first.
    """
    if len(points) < 2:
        return None
    factor, unit = unit_of(median([point[0] for point in points]))
    x = [float(number + 1) for number in range(len(points))]

    def of(place: int, *, trusted: bool | None = None) -> list[float | None]:
        return [
            float(point[place]) / factor if trusted is None or (point[3] == "trusted") is trusted else None
            for point in points
        ]

    return Plot(
        id="history",
        title="Medians in the order they were measured",
        said=f"{len(points)} results, the newest {time_words(points[-1][0])}, the first {time_words(points[0][0])}.",
        x_label="result, oldest first",
        span=(0.0, len(points) + 1.0),
        panels=[
            Panel(
                label=f"median, {unit}",
                x=x,
                lines=[
                    Line(name="trusted", values=of(0, trusted=True), tone="a"),
                    Line(name="suspect or rejected", values=of(0, trusted=False), tone="warn"),
                    Line(name="interval, high", values=of(2), kind="high", tone="quiet"),
                    Line(name="interval, low", values=of(1), kind="low", tone="quiet"),
                ],
            )
        ],
        table=Table(
            head=("result", f"median, {unit}", f"interval, {unit}", "verdict"),
            rows=[
                (str(n + 1), digits(m / factor), f"{digits(low / factor)} to {digits(high / factor)}", verdict)
                for n, (m, low, high, verdict) in enumerate(points)
            ],
        ),
    )


def _top(seconds: Sequence[float]) -> float:
    """Up to where samples are drawn, seconds."""
    usual = quantile(sorted(seconds), 0.95)
    return max(seconds) if max(seconds) <= CROWDED * usual else 1.5 * usual


def _below(name: str, values: Sequence[float], top: float, tone: str) -> list[Line]:
    """A series up to `top`, and what is above it at that edge."""
    lines = [Line(name=name, values=[value if value <= top else None for value in values], tone=tone)]
    if max(values) > top:
        edge = [None if value <= top else top for value in values]
        lines.append(Line(name=f"{name}, above the plot", values=edge, kind="beyond", tone=tone))
    return lines


def _over_time(taken: Samples, factor: float, unit: str) -> Table:
    """Samples in as many equal parts as a table has rows."""
    count = len(taken.seconds)
    parts = min(TABLE_ROWS, count)
    rows = []
    for part in range(parts):
        some = range(part * count // parts, (part + 1) * count // parts)
        values = [taken.seconds[i] / factor for i in some]
        rows.append(
            (
                f"{taken.start_s[some[0]]:.2f} to {taken.start_s[some[-1]]:.2f}",
                str(len(values)),
                f"{min(values):.4g}",
                f"{median(values):.4g}",
                f"{max(values):.4g}",
            )
        )
    return Table(head=("time, s", "samples", f"least, {unit}", f"median, {unit}", f"most, {unit}"), rows=rows)


def _evenly(count: int, most: int) -> list[int]:
    """At most so many places of a list: the first, the last, and evenly many between."""
    if count <= most:
        return list(range(count))
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]
