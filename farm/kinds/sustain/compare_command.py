"""`farm compare A B --sustain 30m --on SELECTOR`: which build is faster in the first minute, and which at the end."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from farm.cli import work
from farm.cli.connection import call, show_devices
from farm.cli.output import fold_reasons, print_json, print_line, print_note, print_remarks, print_table, print_unlike
from farm.cli.output.terminal import interruptible
from farm.cli.spec_options import flag_of
from farm.common.durations import digits, in_one_unit
from farm.common.errors import ExitCode, NoPhoneError, UserError
from farm.common.selector import Selector
from farm.kinds.compare.spec import CompareSpec
from farm.kinds.sustain.spec import SustainSpec, sustained_s
from farm.measure.conditions import ratio_words
from farm.model.specs import JobSpec, fields_of

if TYPE_CHECKING:
    from farm.client import Client, Submitted
    from farm.client.model import Outcome
    from farm.kinds.sustain.compare import ComparedCourses

OF_B = ("target_b", "precision_b", "texture_b", "records_b")


def compare_sustained(
    farm: Client, models: tuple[str, str], on: str, sustain: str, fields: Mapping[str, Any], *,
    wait: str | None, detach: bool, json: bool, why: bool,
) -> NoReturn:  # fmt: skip
    """Run both builds on each matching phone, one after the other, print what B is, and end the command.

    `fields` are those of a comparison, `sustain` is a duration.

    Raises:
        UserError: an option is given that a sustained run has not, or the phones are not alike.
        NoPhoneError: no phone matches.
    """
    limit_s, sustain_s = work.wait_s(wait), sustained_s(sustain)
    sides = zip(models, sides_of(fields), strict=True)
    a, b = [farm.spec("sustain", model=model, on=on, **{**side, "sustain_s": sustain_s}) for model, side in sides]
    if (error := farm.check([(a, ""), (b, "")], must_match=True)[2]) is not None:
        raise error
    with interruptible():
        jobs = _submit(farm, a, b, _phones(on, fields["devices"]))
        submitted = [each for pair in jobs.values() for each in pair]
        if detach or a.hold:
            work.print_ids(submitted, json=json)
            raise typer.Exit
        finish = partial(_finish, specs=(a, b), min_effect=fields["min_effect"], json=json, why=why)
        work.follow(farm, submitted, quiet=json, limit_s=limit_s, finish=finish)
    finish(work.outcomes_of(farm, submitted))


def _finish(
    outcomes: Sequence[Outcome], *, specs: Iterable[JobSpec], min_effect: float, json: bool, why: bool
) -> NoReturn:
    """Print what the runs of A and B, in turns, say of each phone, and end the command."""
    found, refused = _compared_pairs(zip(outcomes[::2], outcomes[1::2], strict=True), min_effect)

    def show(ended: Sequence[Outcome]) -> None:
        print_compared(found, why=why)
        for each in refused:
            print_note(f"error: not compared: {each}")
        work.print_failures(ended)

    failed = {"ok": False} if refused else {}
    document = {"specs": [each.to_wire() for each in specs], **failed, **_document(found), "not_compared": refused}
    try:
        work.finish(outcomes, document, json=json, show=show)
    except typer.Exit as end:
        raise typer.Exit(end.exit_code or (ExitCode.FAILED if refused else ExitCode.OK)) from None


def compare_stored_runs(a: Outcome, b: Outcome, min_effect: float, *, json: bool, why: bool) -> None:
    """Compare two sustained runs that are stored.

    Raises:
        UserError: they may not be compared.
    """
    from farm.kinds.sustain.compare import compare_courses

    try:
        found = [compare_courses(a.result, b.result, min_effect)]
    except ValueError as error:
        raise UserError(str(error), hint="farm compare A B --sustain 30m --on SELECTOR") from error
    except (LookupError, TypeError, ArithmeticError) as error:  # stored by another release
        raise UserError(
            f"this farm cannot compare {a.job.id} and {b.job.id} ({type(error).__name__}: {error})",
            hint=f"as they are stored: farm job show {a.job.id} --json",
        ) from error
    if json:
        print_json({"ok": True, "a": a.job.id, "b": b.job.id, **_document(found)})
    else:
        print_compared(found, why=why)


def sides_of(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the sustained runs of A and of B, from the fields of a comparison. Pure.

    Raises:
        UserError: one is given that a sustained run has not.
    """
    own, known = fields_of(SustainSpec), fields_of(CompareSpec)
    for name, value in fields.items():
        if name not in own and name not in (*OF_B, "min_effect") and value and value != known[name].default:
            raise UserError(
                f"{flag_of(known[name])} does not go with --sustain",
                hint="farm sustain --help lists the options of a sustained run",
            )
    a = {name: value for name, value in fields.items() if name in own}
    b = {**a, "texture": fields["texture_b"], "records": fields["records_b"]}
    return a, {**b, **{name: fields[f"{name}_b"] or a[name] for name in ("target", "precision")}}


def print_compared(found: Sequence[ComparedCourses], *, why: bool) -> None:
    """A line per phone and time; below, the reasons for doubt, and what all phones say."""
    if not found:
        return
    powered = any(_watts(each, rows) for each in found for _, _, rows in each.moments)
    print_table(
        (
            "PHONE", "WHEN", "VERDICT", "B / A", "99 % RANGE", "A", "B", "A °C", "B °C",
            *(("A W", "B W") if powered else ()),
        ),
        [
            (
                each.device, when, compared.answer, ratio_words(compared.ratio),
                f"{ratio_words(compared.low)} to {ratio_words(compared.high)}",
                *in_one_unit([row["median_ms"] for row in rows]),
                *("-" if row["celsius"] is None else f"{row['celsius']:.1f}" for row in rows),
                *((_watts(each, rows) or ("-", "-")) if powered else ()),
            )
            for each in found
            for when, compared, rows in each.moments
        ],
    )  # fmt: skip
    print_remarks(
        (f"{each.device}, {when}", line)
        for each in found
        for when, compared, _ in each.moments
        for line in fold_reasons([reason.to_wire() for reason in compared.reasons], why=why)
    )
    print_remarks((each.device, note) for each in found for note in each.notes)
    print_unlike(each.unlike for each in found)
    if len(found) > 1:
        for when, compared in _together(found).items():
            print_line(f"all {len(found)} phones, {when}: {compared.sentence}")


def _watts(found: ComparedCourses, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The watts of A and of B; () unless one source measured both."""
    watts = [digits(row["busy_w"]) for row in rows if row.get("busy_w") is not None]
    return tuple(watts) if found.one_source and len(watts) == len(rows) else ()


def _together(found: Sequence[ComparedCourses]) -> dict[str, Any]:
    from farm.measure.comparison import together

    (first, *_), (end, *_) = found[0].moments
    return {first: together([each.first for each in found]), end: together([each.end for each in found])}


def _compared_pairs(pairs: Iterable[Sequence[Outcome]], min_effect: float) -> tuple[list[ComparedCourses], list[str]]:
    """The comparisons of the phones whose two runs are done, and why some of those are none."""
    from farm.kinds.sustain.compare import compare_courses

    found, refused = [], []
    for a, b in pairs:
        if not (a.ok and b.ok):
            continue
        try:
            found.append(compare_courses(a.result, b.result, min_effect))
        except ValueError as error:  # its system was updated between the two
            refused.append(f"{a.device}: {error}; the runs are jobs {a.job.id} and {b.job.id}")
    return found, refused


def _document(found: Sequence[ComparedCourses]) -> dict[str, Any]:
    if not found:
        return {"phones": []}
    first, end = _together(found).values()
    return {
        "phones": [
            {
                "device": each.device, "first": each.first.to_wire(), "end": each.end.to_wire(),
                "unlike": list(each.unlike),
            }
            for each in found
        ],
        "first": first.to_wire(),
        "end": end.to_wire(),
    }  # fmt: skip


def _phones(on: str, devices: int | str) -> list[str]:
    """The names of the phones that take part.

    Raises:
        UserError: they are not alike.
        NoPhoneError: none of those that match is in service.
    """
    from farm.kinds.sustain.compare import check_alike

    selector = Selector.parse(on)
    names = [row["name"] for row in call("status")["devices"] if row["adopted"] and row["service"] == "in"]
    rows = [row for row in show_devices(names) if selector.matches(row["labels"], row["aliases"])]
    rows = rows if devices == "all" else rows[: int(devices)]
    if not rows:
        raise NoPhoneError(f"no phone that matches {on} is in service", hint="farm status")
    check_alike(rows)
    return [row["name"] for row in rows]


def _submit(farm: Client, a: JobSpec, b: JobSpec, phones: Sequence[str]) -> dict[str, tuple[Submitted, Submitted]]:
    """The jobs of A and of B of each phone; which of them runs first is drawn. A Ctrl-C meanwhile leaves none."""
    from farm.kinds.sustain.compare import orders

    jobs: dict[str, tuple[Submitted, Submitted]] = {}
    begun: list[Submitted] = []
    try:
        for phone, b_first in orders(phones, b_first=bool(secrets.randbelow(2))).items():
            one, other = (replace(each, on=phone, devices=1) for each in ((b, a) if b_first else (a, b)))
            begun.append(first := work.submit(farm, one))
            begun.append(second := work.submit(farm, replace(other, after=(*other.after, *first.ids), hold=False)))
            jobs[phone] = (second, first) if b_first else (first, second)
    except KeyboardInterrupt:
        if begun:
            work.cancel(farm, begun)
        raise
    return jobs
