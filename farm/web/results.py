"""What a job's result has for plots and tables. Results are JSON of any release: what lacks is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import accumulate
from typing import Any

from farm.core.series import SHOWN
from farm.web.plot_parts import Plot
from farm.web.plots import Samples, compare_plot, distribution_plot, samples_plot, tuning_plot

Reading = tuple[float, float]  # seconds since 1970, °C


def bench_plots(
    result: Mapping[str, Any], raw: Mapping[str, Any] | None, readings: Iterable[Reading] = ()
) -> list[Plot]:
    """Samples over time and their distribution.

    Args:
        result: of a bench that is done.
        raw: the certificate's artifact with every sample of every try; None when it is gone.
        readings: the phone's temperatures from other sources than the bench itself.
    """
    taken = bench_samples(result, raw, readings)
    if taken is None:
        return []
    return [plot for plot in (samples_plot(taken), distribution_plot(taken)) if plot is not None]


def bench_samples(
    result: Mapping[str, Any], raw: Mapping[str, Any] | None, readings: Iterable[Reading] = ()
) -> Samples | None:
    """The samples of the reported try; None when there are none."""
    certificate = _mapping(result.get("certificate"))
    tries = certificate.get("tries") or ()
    reported = next((number for number, each in enumerate(tries) if each.get("reported")), 0)
    seconds = _numbers(result.get("samples_s"))
    if not seconds or min(seconds) <= 0:
        return None
    starts = _starts(raw, reported, len(seconds))
    exact = starts is not None
    if starts is None:
        runs = float(certificate.get("number") or 1)
        starts = [0.0, *accumulate(each * runs for each in seconds[:-1])]
    about = _mapping(tries[reported]) if reported < len(tries) else {}
    latency = _mapping(result.get("latency"))
    warmup = int(certificate.get("warmup") or 0)
    odd = _mapping(certificate.get("outliers")).get("indices") or ()
    conditions = _mapping(certificate.get("conditions"))
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
    told = [_mapping(each).get("temperature_c") for each in moments]
    step = seconds / (len(told) - 1)
    return "battery", [(number * step, float(each)) for number, each in enumerate(told) if each is not None]


def compare_plots(result: Mapping[str, Any], raw: Mapping[str, Any] | None) -> list[Plot]:
    """A and B in turns; nothing when the raw samples are gone."""
    compared = _mapping(result.get("comparison"))
    if raw is None or not all(isinstance(compared.get(name), int | float) for name in ("ratio", "low", "high")):
        return []
    a, b = (_numbers(raw.get(f"{side}_s")) or _blocks(raw.get(side)) for side in "ab")
    if not a or not b or min(*a, *b) <= 0:
        return []
    plot = compare_plot(a, b, compared)
    return [] if plot is None else [plot]


def tune_plots(shown: Mapping[str, Any]) -> list[Plot]:
    """The tuning curve: of the result, or of the search that goes on."""
    result, progress = _mapping(shown.get("result")), _mapping(shown.get("progress"))
    if result.get("curve"):
        plot = tuning_plot(result["curve"], result["trials"], result.get("search_s"), result.get("wanted_trials"))
    else:
        standing = _mapping(progress.get("tuning"))
        plot = tuning_plot(
            progress.get("curve") or (), standing.get("trials") or 0, standing.get("spent_s"), standing.get("wanted")
        )
    return [] if plot is None else [plot]


def raw_of(shown: Mapping[str, Any]) -> str:
    """The artifact with the raw samples of a job; "" when it has none."""
    certificate = _mapping(_mapping(shown.get("result")).get("certificate"))
    return str(certificate.get("raw") or "")


def _starts(raw: Mapping[str, Any] | None, reported: int, count: int) -> list[float] | None:
    tries = (raw or {}).get("tries")
    if not isinstance(tries, list) or reported >= len(tries):
        return None
    starts = _numbers(_mapping(tries[reported]).get("start_s"))
    return starts if len(starts) == count else None


def _blocks(value: object) -> list[float]:
    """The median of each block, of two bundles in turns."""
    blocks = value if isinstance(value, list) else []
    samples = [sorted(_numbers(_mapping(each).get("samples_s"))) for each in blocks]
    return [each[len(each) // 2] for each in samples if each]


def _numbers(value: object) -> list[float]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, int | float) for each in value):
        return []
    return [float(each) for each in value]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _seconds(ms: object) -> float | None:
    return ms / 1000 if isinstance(ms, int | float) else None
