"""Compare two stored `sustain` jobs: `farm compare JOB JOB`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from farm.cli.output import fold_reasons, print_json, print_remarks, print_table, print_unlike
from farm.common.durations import digits, format_duration, in_one_unit
from farm.common.errors import UserError
from farm.compiler.inputs import unlike_edges
from farm.compiler.model import shown
from farm.kinds.sustain import doubts, stretch_words
from farm.measure.comparison import Comparison, check_same_phone, compare_results, two_models
from farm.measure.conditions import Conditions, PhoneCondition, judge_conditions, ratio_words
from farm.measure.interval import MedianEstimate

if TYPE_CHECKING:
    from farm.client.model import Outcome

MS = 1e3
CONFIDENCE = 0.95  # of the intervals in a result
UNKNOWN_TIMES = 1e6  # the factor to each end of the interval of one sample, of which nothing is known
# Relative. What differs from run to run is in neither interval, and a smaller difference may be that.
MIN_EFFECT = 0.05
Stretch = Mapping[str, Any]  # of a result: a row of `buckets`, or the plateau
RUN_ALIKE = "run both equally long on one phone: farm sustain MODEL --for 30m --on PHONE"


@dataclass(frozen=True, slots=True)
class ComparedCourses:
    """B against A on one phone, in the first minute and at the end."""

    device: str
    first: Comparison
    end: Comparison
    begins: tuple[Stretch, Stretch]  # what was compared: of A and of B
    ends: tuple[Stretch, Stretch]
    notes: tuple[str, ...]
    unlike: tuple[str, ...]  # sentences on differences of the inputs
    bucket_s: float
    one_source: bool  # their watts are by one meter, gauge or set of rails

    @property
    def moments(self) -> tuple[tuple[str, Comparison, tuple[Stretch, Stretch]], ...]:
        """Both comparisons, in the order of time, each with the words for its moment."""
        return (f"first {stretch_words(self.bucket_s)}", self.first, self.begins), ("at the end", self.end, self.ends)


def compare_courses(a: Mapping[str, Any], b: Mapping[str, Any], min_effect: float) -> ComparedCourses:
    """B against A.

    Args:
        a: the result of a sustained run.
        b: another one's, on the same phone.
        min_effect: smaller relative differences are none; below 5 %, 5 % counts.
    """
    certificates = [each["certificate"] for each in (a, b)]
    check_same_phone(*certificates)
    if a["wanted_s"] != b["wanted_s"]:
        lengths = " and ".join(format_duration(each["wanted_s"]) for each in (a, b))
        raise ValueError(f"the two runs are not equally long: {lengths}")
    inputs = [[*map(shown, each["model"]["inputs"].values())] for each in (a, b)]
    begins, ends, end = (a["buckets"][0], b["buckets"][0]), (_end(a), _end(b)), compare_ends(a, b, min_effect)
    first = compare_results(*map(_estimate, begins), min_effect=end.min_effect)
    return ComparedCourses(
        device=certificates[0]["device"],
        first=replace(first, reasons=(*judge_conditions(_conditions(*begins)), *first.reasons)),
        end=end,
        begins=begins,
        ends=ends,
        notes=tuple(
            dict.fromkeys([*two_models(*certificates), *(each for one in certificates for each in one["notes"])])
        ),
        unlike=tuple(unlike_edges("input", *inputs)),
        bucket_s=a["bucket_s"],
        one_source=_source(certificates[0]) == _source(certificates[1]),
    )


def compare_ends(a: Mapping[str, Any], b: Mapping[str, Any], min_effect: float) -> Comparison:
    """B against A at the end, by what `course.report` gives of each; arguments as of `compare_courses`."""
    found = [doubt for name, each in (("A", a), ("B", b)) for doubt in doubts(each, name)]
    return compare_results(*map(_estimate, map(_end, (a, b))), min_effect=max(min_effect, MIN_EFFECT), doubts=found)


def _source(certificate: Mapping[str, Any]) -> tuple[str, list[str]]:
    """What measured its watts: a kind of source, and the rails that count."""
    meter = certificate.get("meter") or {}
    return meter.get("source", ""), [rail["name"] for rail in meter.get("rails", ()) if rail["counted"]]


def _end(result: Mapping[str, Any]) -> Stretch:
    """The plateau; without one the last row that is whole."""
    plateau: Stretch | None = result["plateau"]
    rows: Sequence[Stretch] = result["buckets"]
    whole = [row for row in rows if row["start_s"] + result["bucket_s"] <= result["seconds"]]
    return plateau or (whole or rows)[-1]


def _conditions(a: Stretch, b: Stretch) -> Conditions:
    """The phone at the begin of both runs."""
    before, after = (
        PhoneCondition(temperature_c=each["celsius"], throttle_status=each["throttle_status"]) for each in (a, b)
    )
    return Conditions(before, (), after)


def _estimate(row: Stretch) -> MedianEstimate:
    median_s, count = row["median_ms"] / MS, row["count"]
    low_s, high_s = median_s / UNKNOWN_TIMES, median_s * UNKNOWN_TIMES
    if count > 1:
        low_s, high_s = row["low_ms"] / MS, row["high_ms"] / MS
    return MedianEstimate(median_s, low_s, high_s, CONFIDENCE, count, count, 1)


def compare_stored_runs(a: Outcome, b: Outcome, min_effect: float, *, json: bool, why: bool) -> None:
    """Compare two sustained runs that are stored."""
    try:
        found = compare_courses(a.result, b.result, min_effect)
    except ValueError as error:
        raise UserError(str(error), hint=RUN_ALIKE) from error
    except (LookupError, TypeError, ArithmeticError) as error:  # stored by another release
        raise UserError(
            f"this farm cannot compare {a.job.id} and {b.job.id} ({type(error).__name__}: {error})",
            hint=f"as they are stored: farm job show {a.job.id} --json",
        ) from error
    if json:
        print_json(
            {
                "ok": True, "a": a.job.id, "b": b.job.id,
                "device": found.device, "first": found.first.to_wire(), "end": found.end.to_wire(),
                "unlike": list(found.unlike),
            }
        )  # fmt: skip
    else:
        print_compared(found, why=why)


def print_compared(found: ComparedCourses, *, why: bool) -> None:
    """A line for each time; below, the reasons for doubt."""
    powered = any(_watts(found, rows) for _, _, rows in found.moments)
    print_table(
        ("WHEN", "VERDICT", "B / A", "99 % RANGE", "A", "B", "A °C", "B °C", *(("A W", "B W") if powered else ())),
        [
            (
                when, compared.answer, ratio_words(compared.ratio),
                f"{ratio_words(compared.low)} to {ratio_words(compared.high)}",
                *in_one_unit([row["median_ms"] for row in rows]),
                *("-" if row["celsius"] is None else f"{row['celsius']:.1f}" for row in rows),
                *((_watts(found, rows) or ("-", "-")) if powered else ()),
            )
            for when, compared, rows in found.moments
        ],
    )  # fmt: skip
    print_remarks(
        (when, line)
        for when, compared, _ in found.moments
        for line in fold_reasons([reason.to_wire() for reason in compared.reasons], why=why)
    )
    print_remarks((found.device, note) for note in found.notes)
    print_unlike([found.unlike])


def _watts(found: ComparedCourses, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The watts of A and of B; () unless one source measured both."""
    watts = [digits(row["busy_w"]) for row in rows if row.get("busy_w") is not None]
    return tuple(watts) if found.one_source and len(watts) == len(rows) else ()
