"""`farm compare JOB JOB` of two sustained runs: which build is faster in the first minute, and which at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farm.cli.output import fold_reasons, print_json, print_remarks, print_table, print_unlike
from farm.common.durations import digits, in_one_unit
from farm.common.errors import UserError
from farm.measure.conditions import ratio_words

if TYPE_CHECKING:
    from farm.client.model import Outcome
    from farm.kinds.sustain.compare import ComparedCourses

RUN_ALIKE = "run both equally long on one phone: farm sustain MODEL --for 30m --on PHONE"


def compare_stored_runs(a: Outcome, b: Outcome, min_effect: float, *, json: bool, why: bool) -> None:
    """Compare two sustained runs that are stored.

    Raises:
        UserError: they may not be compared.
    """
    from farm.kinds.sustain.compare import compare_courses

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
