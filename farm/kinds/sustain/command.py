"""`farm sustain MODEL --for 30m --on SELECTOR`: how fast a model stays when it runs without a pause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from farm.cli.model_command import model_command
from farm.cli.output import plots, print_line, print_remarks, print_table, terminal
from farm.common.durations import digits, format_duration, in_one_unit, range_words
from farm.kinds.sustain import MINUTE_S, SustainSpec, form_words, stretch_words

if TYPE_CHECKING:
    from farm.kinds.outcomes import SustainOutcome

COURSE_COLUMNS = 60
MJ = 1e3


def print_results(results: Sequence[Mapping[str, Any]]) -> None:
    """A line per phone, its course, and the ranking of several phones in the first minute and in the last one."""
    powered = any(row.get("busy_w") for result in results for row in result["buckets"])
    rows = [row for result in results for row in (result["fresh"], result["plateau"])]
    medians = in_one_unit([row and row["median_ms"] for row in rows])
    print_table(
        (
            "PHONE", "SOC", "FRESH", "PLATEAU", "95 % RANGE", "SLOWDOWN", "THROTTLED", "BATTERY",
            *(("POWER", "WITH IDLE") if powered else ()),
        ),
        [
            (*_row(result, *medians[2 * at : 2 * at + 2]), *(_power(result["plateau"] or {}) if powered else ()))
            for at, result in enumerate(results)
        ],
        spare=("SOC", "BATTERY"),
    )  # fmt: skip
    print_remarks((result["device"], line) for result in results for line in remarks(result))
    for result in results:
        course_ms = [row["median_ms"] for row in result["buckets"]]
        course = plots.sparkline(course_ms, COURSE_COLUMNS, terminal.glyphs())
        lowest, highest = in_one_unit([min(course_ms), max(course_ms)], aligned=False)
        each = stretch_words(result["bucket_s"])
        print_line(f"  {result['device']}: {course} median of each {each}, {lowest} to {highest}")
    for line in ranking(results):
        print_line(f"  {line}")


sustain = model_command(
    SustainSpec,
    "Run a model on every matching phone without a pause: medians per minute, when it throttles, where it stays."
    " A phone whose battery becomes too hot ends early, with the result so far.",
    one_placement=True,
)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Sentences about one result."""
    lines = []
    if result["stopped"]:
        lines.append(f"ended after {format_duration(result['seconds'])}: {result['stopped']}")
    if form := form_words(result):
        lines.append(form)
    if result["plateau"] is None:
        lines.append("no plateau: its speed still changed at the end")
    return [*lines, *result["certificate"]["notes"]]


def ranking(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which phone is the fastest in the first minute, and which at the end; nothing about a single one."""
    if len(results) < 2:
        return []
    moments = ((f"first {stretch_words(results[0]['bucket_s'])}", 0), ("at the end", -1))
    return [f"{when}: {_ranked(results, place)}" for when, place in moments]


def _ranked(results: Sequence[Mapping[str, Any]], place: int) -> str:
    medians = sorted((result["buckets"][place]["median_ms"], result["device"]) for result in results)
    words = in_one_unit([median_ms for median_ms, _ in medians], aligned=False)
    return ", ".join(f"{n}. {device} {word}" for n, (_, device), word in zip(count(1), medians, words, strict=False))


def _row(result: Mapping[str, Any], fresh: str, plateau: str) -> tuple[object, ...]:
    after_s = result["throttled_after_s"]
    first, last = (result["buckets"][place]["celsius"] for place in (0, -1))
    return (
        result["device"],
        result["soc"] or "-",
        fresh,
        plateau,
        range_words(result["plateau"] or {}),
        "-" if result["slowdown"] is None else f"{result['slowdown']:.2f}x",  # none in results of former releases
        "-" if after_s is None else format_duration(after_s),
        "-" if first is None or last is None else f"{first:.0f} to {last:.0f} °C",
    )


def _power(row: Mapping[str, Any]) -> tuple[str, str]:
    """Watts and millijoules in a row of `buckets` or in the plateau; results of former releases have neither."""
    watts, joules = row.get("busy_w"), row.get("gross_j")
    return "-" if watts is None else f"{digits(watts)} W", "-" if joules is None else f"{digits(joules * MJ)} mJ"


def print_job(outcome: SustainOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the result of one job with each minute, for `farm job show`."""
    if not outcome.buckets:
        return
    print_results([{**outcome.result, "device": outcome.device}])
    powered = any(row.get("busy_w") for row in outcome.buckets)
    print_table(
        (
            "FROM", "MEDIAN", "95 % RANGE", "BATTERY", "THERMAL STATUS",
            *(("POWER", "WITH IDLE") if powered else ()),
        ),
        [
            (
                format_duration(row["start_s"]) if outcome.result["bucket_s"] == MINUTE_S else f"{row['start_s']:g} s",
                median,
                range_words(row),
                "-" if row["celsius"] is None else f"{row['celsius']:.1f} °C",
                "-" if row["throttle_status"] is None else row["throttle_status"],
                *(_power(row) if powered else ()),
            )
            for row, median in zip(
                outcome.buckets, in_one_unit([row["median_ms"] for row in outcome.buckets]), strict=True
            )
        ],
    )  # fmt: skip
