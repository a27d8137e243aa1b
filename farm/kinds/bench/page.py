"""The web page of a bench: its samples over time with the temperature, and their distribution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

from farm.common.durations import digits, many
from farm.devices.health.series import SHOWN
from farm.measure.conditions import clock_factor
from farm.web.plots import (
    TABLE_ROWS,
    KindPage,
    Line,
    Mark,
    Panel,
    Plot,
    PlotSource,
    Reading,
    Table,
    bins,
    counted,
    numbers_of,
    object_of,
    quantile,
    time_words,
    unit_of,
    upper_edge,
)

TAIL = 0.995  # of a distribution is drawn; the few beyond are named in words: one outlier would flatten all the rest
NARROW = 0.6
MIN_SHARE = 0.02  # of a time, from bottom to top of a plot of times
MIN_CELSIUS = 4.0  # from bottom to top of a plot of temperatures: a tenth of a degree is no mountain
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of a bench in one try. Seconds; `start_s` counts from the first sample's try."""

    seconds: Sequence[float]
    start_s: Sequence[float]
    exact_start: bool  # False: the raw samples are gone, starts are sums
    warmup: int = 0
    outliers: frozenset[int] = frozenset()
    median_s: float | None = None  # as the clock showed it
    low_s: float | None = None
    high_s: float | None = None
    nominal_s: float | None = None  # the median at nominal speed
    correction: float = 1.0  # the factor from times by the clock to those at nominal speed
    sensor: str = ""  # of the temperatures
    celsius: Sequence[tuple[float, float]] = ()  # seconds after the start, °C

    @property
    def odd(self) -> list[int]:
        """Outliers after the warm-up."""
        return [i for i in self.outliers if self.warmup <= i < len(self.seconds)]


def bench_plots(source: PlotSource) -> list[Plot]:
    """Samples over time and their distribution."""
    taken = bench_samples(source.result, source.samples, source.readings)
    if taken is None:
        return []
    return [plot for plot in (samples_plot(taken), distribution_plot(taken)) if plot is not None]


def bench_samples(
    result: Mapping[str, Any], raw: Mapping[str, Any] | None, readings: Iterable[Reading] = ()
) -> Samples | None:
    """The samples of the reported try; None when there are none.

    Args:
        result: of a bench that is done.
        raw: the certificate's artifact with every sample of every try; None when it is gone.
        readings: the phone's temperatures from other sources than the bench itself.
    """
    certificate = object_of(result.get("certificate"))
    tries = certificate.get("tries") or ()
    reported = next((number for number, each in enumerate(tries) if each.get("reported")), 0)
    seconds = numbers_of(result.get("samples_s"))
    if not seconds or min(seconds) <= 0:
        return None
    starts = _starts(raw, reported, len(seconds))
    exact = starts is not None
    if starts is None:
        runs = float(certificate.get("number") or 1)
        starts = [0.0, *accumulate(each * runs for each in seconds[:-1])]
    about = object_of(tries[reported]) if reported < len(tries) else {}
    latency, estimate = (object_of(result.get(name)) for name in ("latency", "estimate"))
    warmup = int(certificate.get("warmup") or 0)
    odd = object_of(certificate.get("outliers")).get("indices") or ()
    conditions = object_of(certificate.get("conditions"))
    sensor, celsius = temperatures(conditions, about.get("started_at"), about.get("seconds"), readings)
    return Samples(
        seconds=seconds,
        start_s=starts,
        exact_start=exact,
        warmup=warmup,
        outliers=frozenset(int(index) for index in odd),
        median_s=_seconds(latency.get("median_ms")),
        low_s=_seconds(latency.get("low_ms")),
        high_s=_seconds(latency.get("high_ms")),
        nominal_s=_seconds(estimate.get("median_ms")),
        correction=clock_factor({"latency": latency, "estimate": estimate}),
        sensor=sensor,
        celsius=celsius,
    )


def temperatures(
    conditions: Mapping[str, Any], started_at: str | None, seconds: float | None, readings: Iterable[Reading] = ()
) -> tuple[str, list[tuple[float, float]]]:
    """Of which sensor, and temperatures by seconds since the measurement began.

    The phone's own readings where there are some in that time, else the certificate's, which are the battery's.
    """
    if started_at is None or seconds is None:
        return "", []
    began_s = datetime.fromisoformat(started_at).timestamp()
    found = [(at - began_s, celsius) for at, celsius in readings]
    within = sorted((at, celsius) for at, celsius in found if 0 <= at <= seconds)
    if len(within) >= 2:
        return SHOWN, within
    during = conditions.get("during") or ()
    moments = [conditions.get("before"), *during, conditions.get("after")]
    celsius = [object_of(each).get("temperature_c") for each in moments]
    step = seconds / (len(celsius) - 1)
    return "battery", [(number * step, float(each)) for number, each in enumerate(celsius) if each is not None]


def samples_plot(taken: Samples) -> Plot:
    """Each sample over time, the temperature under it."""
    factor, unit = unit_of(median(taken.seconds))
    top = upper_edge(taken.seconds)
    beyond = frozenset(i for i, each in enumerate(taken.seconds) if each > top)
    end_s = max([taken.start_s[-1] + taken.seconds[-1], *(at for at, _ in taken.celsius)])
    panels = [
        Panel(
            label=f"one run, {unit}",
            x=taken.start_s,
            lines=_sample_lines(taken, beyond, top, factor),
            marks=_median_marks(taken, factor),
            top=1.04 * max(top, taken.nominal_s or 0.0) / factor,
            zero=min(taken.seconds) < NARROW * top,  # else y begins below the samples, which would be one line
            least_span=MIN_SHARE * top / factor,
        )
    ]
    if taken.celsius:
        x, values = [at for at, _ in taken.celsius], [value for _, value in taken.celsius]
        heat = Line(name=taken.sensor, values=values, kind="line", tone="warm")
        panels.append(
            Panel(label=f"{taken.sensor}, °C", x=x, lines=[heat], height=130, zero=False, least_span=MIN_CELSIUS)
        )
    return Plot(
        id="samples",
        title="Samples over time",
        summary=_samples_summary(taken, end_s, len(beyond)),
        x_label="time since the measurement began, s",
        span=(min(0.0, taken.start_s[0]), end_s or 1.0),
        panels=panels,
        table=_over_time(taken, factor, unit),
    )


def _sample_lines(taken: Samples, beyond: frozenset[int], top: float, factor: float) -> list[Line]:
    """The samples as series: usual ones, warm-up, outliers, and those above the plot."""
    count = len(taken.seconds)

    def only(of: Iterable[int]) -> list[float | None]:
        chosen = frozenset(of)
        return [taken.seconds[i] / factor if i in chosen else None for i in range(count)]

    usual = [i for i in range(count) if i >= taken.warmup and i not in taken.outliers | beyond]
    lines = [Line(name="sample", values=only(usual), tone="a")]
    if taken.warmup:
        lines.append(Line(name="warm-up", values=only(set(range(min(taken.warmup, count))) - beyond), tone="quiet"))
    if drawn := frozenset(taken.odd) - beyond:
        lines.append(Line(name="outlier", values=only(drawn), tone="warn"))
    if beyond:
        edge: list[float | None] = [top / factor if i in beyond else None for i in range(count)]
        lines.append(Line(name="above the plot", values=edge, kind="beyond", tone="warn"))
    return lines


def _median_marks(taken: Samples, factor: float) -> list[Mark]:
    marks = []
    if taken.low_s is not None and taken.high_s is not None:
        marks.append(Mark(name="95 % interval", at=taken.low_s / factor, to=taken.high_s / factor, tone="band"))
    if taken.median_s is not None:
        marks.append(Mark(name="median by the clock", at=taken.median_s / factor))
    if taken.nominal_s is not None:
        marks.append(Mark(name="median at nominal speed", at=taken.nominal_s / factor, tone="b"))
    return marks


def _samples_summary(taken: Samples, end_s: float, beyond: int) -> str:
    summary = f"{many(len(taken.seconds), 'sample')} over {end_s:.1f} s"
    if taken.median_s is not None:
        summary += f", median {time_words(taken.median_s)} by the clock"
        if taken.nominal_s is not None:
            summary += f", {time_words(taken.nominal_s)} at nominal speed"
    if taken.odd:
        summary += f", {len(taken.odd)} of them outliers"
    if beyond:
        most = time_words(max(taken.seconds))
        summary += f"; {beyond} are above the plot and drawn at its upper edge, the slowest took {most}"
    if taken.celsius:
        first, last = taken.celsius[0][1], taken.celsius[-1][1]
        summary += f"; {taken.sensor} {first:.1f} °C at the beginning, {last:.1f} °C at the end"
    if not taken.exact_start:
        summary += "; when each began is estimated"
    return summary + "."


def distribution_plot(taken: Samples) -> Plot | None:
    """How often a run took how long: a histogram with quantiles. None for fewer than two samples after warm-up.

    All times are at nominal speed, as the headline, if that is known.
    """
    used = sorted(each * taken.correction for each in taken.seconds[taken.warmup :])
    corrected = taken.correction != 1.0
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
    summary = f"Half of the runs took {time_words(quantile(used, 0.25))} to {time_words(quantile(used, 0.75))}"
    summary += f", nine of ten {time_words(quantile(used, 0.05))} to {time_words(quantile(used, 0.95))}"
    if beyond:
        summary += (
            f"; {beyond} slower than {time_words(quantile(used, TAIL))} are not drawn, up to {time_words(used[-1])}"
        )
    if corrected:
        summary += f". Times are at nominal speed, as the headline: those by the clock times {taken.correction:.3f}"
    names = ["least", *(f"{share:.0%}" for share in QUANTILES), "most"]
    values = [used[0], *(quantile(used, share) for share in QUANTILES), used[-1]]
    return Plot(
        id="distribution",
        title="Distribution",
        summary=summary + ".",
        x_label=f"one run{' at nominal speed' if corrected else ''}, {unit}",
        span=(edges[0] - width / 2, edges[-1] + width / 2),
        panels=[
            Panel(label="samples", x=middles, lines=[Line(name="samples", values=counts, kind="bars")], marks=marks)
        ],
        table=Table(
            head=("quantile", f"one run, {unit}"),
            rows=[(name, digits(value / factor)) for name, value in zip(names, values, strict=True)],
        ),
    )


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


def _starts(raw: Mapping[str, Any] | None, reported: int, count: int) -> list[float] | None:
    tries = (raw or {}).get("tries")
    if not isinstance(tries, list) or reported >= len(tries):
        return None
    starts = numbers_of(object_of(tries[reported]).get("start_s"))
    return starts if len(starts) == count else None


def _seconds(ms: object) -> float | None:
    return ms / 1000 if isinstance(ms, int | float) else None


PAGE = KindPage(plots=bench_plots, samples=True, readings=True)
