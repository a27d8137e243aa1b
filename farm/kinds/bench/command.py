"""`farm bench MODEL --on SELECTOR`: compile, run, check and time a model on every matching phone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag
from farm.cli.model_command import TVM, submit_model
from farm.cli.output import (
    fold_reasons,
    paragraph,
    plots,
    print_line,
    print_note,
    print_remarks,
    print_table,
    table,
    terminal,
)
from farm.cli.spec_options import flag_of, spec_options, with_one_placement
from farm.common.durations import digits, in_one_unit, many, range_words, time_unit, with_unit
from farm.common.errors import ExitCode, UserError
from farm.common.files import checked_file
from farm.common.selector import natural
from farm.kinds import KINDS
from farm.kinds.bench import BenchSpec
from farm.measure.conditions import clock_factor, next_step, percent, reasons_of
from farm.model.specs import OUTPUT, RUNTIME, exclusive, fields_of
from farm.programs.description import RUNTIMES
from farm.results.series import checked_against

if TYPE_CHECKING:
    from farm.client.model import Outcome, Submitted
    from farm.kinds.outcomes import BenchOutcome
    from farm.model.specs import JobSpec

AMOUNT_COLUMNS = 20
MIN_PART = 0.01  # of all amounts; smaller ones are not shown
Require = Literal["trusted", "suspect", "any"]  # the least that a verdict must be
Plot = Annotated[
    bool, typer.Option("--plot", help="Draw the course of the samples and how they spread.", rich_help_panel=OUTPUT)
]
Stats = Annotated[
    bool, typer.Option("--stats", help="Add mean, min, max, std and the raw median.", rich_help_panel=OUTPUT)
]
RequireOption = Annotated[Require, typer.Option(help="Exit with 1 when a verdict is worse.", rich_help_panel=OUTPUT)]
RequireOffload = Annotated[
    str,
    typer.Option(
        metavar="PERCENT",
        help="Exit with 1 when less of the work ran off the CPU: 100%.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Runtime = Annotated[
    str, typer.Option(help=f"tvm, {', '.join(RUNTIMES)}, or a program's SPEC.toml.", rich_help_panel=RUNTIME)
]
RuntimeFolder = Annotated[
    Path | None,
    typer.Option(
        "--runtime-folder",
        help="The folder with that program's files; else $FARM_RUNTIMES/NAME.",
        show_default=False,
        rich_help_panel=RUNTIME,
    ),
]
ProgramSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of that program. Repeatable.", rich_help_panel=RUNTIME),
]
_ENOUGH: dict[Require, tuple[str, ...]] = {
    "trusted": ("trusted",),
    "suspect": ("trusted", "suspect"),
    "any": ("trusted", "suspect", "rejected"),
}
PLOT_COLUMNS = 72


@spec_options(BenchSpec, devices="all")
def bench(
    model: Annotated[Path, typer.Argument(help="A model file, or a package (.farm.tar).")],
    fields: dict[str, Any],
    plot: Plot = False,
    stats: Stats = False,
    why: work.Why = False,
    require: RequireOption = "any",
    require_offload: RequireOffload = "",
    runtime: Runtime = TVM,
    runtime_folder: RuntimeFolder = None,
    settings: ProgramSettings = None,
    wait: work.Wait = None,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Compile a model, send it to every matching phone, check its numbers and time it. Ctrl-C cancels.

    Exit code 1 when a phone failed, computed wrong numbers or measured worse than --require, 2 for a bad model or
    input, 3 when no phone matches.
    """
    checked_file(model)
    work.refuse_host(fields["on"], "bench")
    check_shown(fields, json=json, **{"--plot": plot, "--stats": stats})
    offload = offload_of(require_offload)
    judges = "--require-offload" if offload else "--require" if require != "any" else ""
    if detach and judges:
        raise UserError(f"{judges} judges the result, and --detach does not wait for it", hint="leave out one of them")
    check_runtime_options(runtime, **{"--set": settings, "--runtime-folder": runtime_folder})
    if any(len(fields[name]) > 1 for name in ("threads", "cores")):
        if judges:
            raise UserError(f"{judges} judges one result, not several --threads or --cores", hint="leave out one")
        sweep = KINDS["sweep"]
        submit_model(sweep, model, _fields_of_sweep(fields, runtime, sweep), wait=wait, detach=detach, json=json)
    fields = with_one_placement(fields, "farm bench")
    if runtime != TVM:
        from farm.kinds.program.command import bench_with

        bench_with(
            runtime, runtime_folder, model, {**fields, "settings": work.settings(settings)},
            require=require, offload=offload, plot=plot, stats=stats, why=why, wait=wait, detach=detach, json=json,
        )  # fmt: skip
    if fields["profile"] and work.is_package(model):
        raise UserError(f"{model} is a package, which holds no operators to time", hint="profile the model file")
    with work.client() as farm:
        spec = farm.spec("bench", model=model, **fields)
        finish = partial(
            finish_bench, spec=spec,
            require=require, offload=offload, json=json, plot=plot, stats=stats, why=why,
        )  # fmt: skip
        work.submit_to_end(farm, spec, finish, detach=detach, wait=wait, json=json)


def _fields_of_sweep(fields: Mapping[str, Any], runtime: str, spec: type[JobSpec]) -> dict[str, Any]:
    """The options of a bench as fields of the sweep that several --threads or --cores make of it."""
    asked = "several --threads or --cores"
    if runtime != TVM:
        raise UserError(
            f"{asked} are for TVM, not for {runtime}", hint="give one value of each, or leave out --runtime"
        )
    given, others = own_fields(fields, spec)
    if others:
        raise UserError(
            f"{flag_of(fields_of(BenchSpec)[others[0]])} does not go with {asked}",
            hint=f"farm {spec.kind} --help lists its options",
        )
    return given


def check_shown(fields: Mapping[str, Any], *, json: bool, **shown: bool) -> None:
    """Refuse limits beside --repeat, which takes exactly so many samples, and what --json does not print.

    Raises:
        UserError: one of them is given.
    """
    if fields["repeat"]:
        limits = {
            "--measure": fields["measure_s"] != fields_of(BenchSpec)["measure_s"].default,
            "--remeasure": fields["remeasure"] > 1,
        }
        if flag := next(filter(limits.get, limits), None):
            raise exclusive("--repeat", flag)
    if json and (flag := next(filter(shown.get, shown), None)):
        raise exclusive(flag, "--json")


def check_runtime_options(runtime: str, **given: object) -> None:
    """Refuse options of another runtime's program, by their flags, where TVM is the runtime."""
    flag = next((name for name, value in given.items() if value), None)
    if runtime == TVM and flag:
        raise UserError(
            f"{flag} is for another runtime's program, and none is named",
            hint=f"add --runtime{'-b' * flag.endswith('-b')} {'|'.join(RUNTIMES)}, or leave out {flag}",
        )


def own_fields(fields: Mapping[str, Any], spec: type[JobSpec]) -> tuple[dict[str, Any], list[str]]:
    """The options of a bench as fields of another kind; and the names of given ones that this kind has not. Pure.

    An option at the bench's default gets the other kind's default.
    """
    own, bench = fields_of(spec), fields_of(BenchSpec)
    others = [name for name, value in fields.items() if name not in own and value and value != bench[name].default]
    given = {
        name: own[name].default if name in bench and value == bench[name].default else value
        for name, value in fields.items()
        if name in own
    }
    return given, others


def finish_bench(
    submitted: Submitted, outcomes: Sequence[Outcome], *, spec: JobSpec,
    require: Require, json: bool, plot: bool, stats: bool, why: bool, offload: float | None = None,
) -> NoReturn:  # fmt: skip
    """Print the outcomes, and end the command."""
    document = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}
    show = partial(print_outcomes, plot=plot, stats=stats, why=why, spec=spec.to_wire())
    try:
        work.finish(outcomes, document, json=json, show=show)
    except typer.Exit as end:
        poor = [each.device for each in outcomes if each.ok and each.result.get("verdict") not in _ENOUGH[require]]
        kept = [
            f"{each.device}: {lack}"
            for each in outcomes
            if offload and each.ok and (lack := on_cpu(each.result, offload))
        ]
        if end.exit_code or not (poor or kept):
            raise
        for line in [f"{', '.join(poor)}: the verdict is worse than {require}"] if poor else kept:
            print_note(f"error: {line}")
        raise typer.Exit(ExitCode.FAILED) from None


def offload_of(text: str) -> float | None:
    """The part of the work that --require-offload asks for, above 0 to 1; None: it is not given.

    Raises:
        UserError: it is no percentage.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?) ?%?", text.strip())
    percentage = float(found[1]) if found else 0.0
    if percentage > 100:
        raise UserError(f"--require-offload: {percentage:.15g} % is more than 100 %", hint="--require-offload 100%")
    if text and not percentage:
        raise UserError(f"--require-offload {text[:40]!r} is no percentage above 0", hint="--require-offload 100%")
    return percentage / 100 if text else None


def on_cpu(result: Mapping[str, Any], wanted: float) -> str:
    """A sentence about a result of whose work less than a part was done by no CPU; "": there was as much."""
    ran_on = result.get("ran_on") or {}
    offloaded = ran_on.get("offloaded")
    if offloaded is None:
        known = f"how much of its work ran on {ran_on['words']}" if ran_on else "where its work ran"
        return f"{known} is not known"
    if offloaded >= wanted:
        return ""
    operators = (result.get("profile") or {}).get("operators", ())
    names = ", ".join(each["name"] for each in operators if each.get("unit") == "cpu")
    about = f"on the CPU ran {names}" if names else f"it ran on {ran_on['words']}"
    return f"{math.floor(offloaded * 1000) / 10:g} % was offloaded of {wanted * 100:g} %; {about}"


def print_outcomes(
    outcomes: Sequence[Outcome],
    *,
    plot: bool = False,
    stats: bool = False,
    why: bool = False,
    spec: Mapping[str, Any] | None = None,
) -> None:
    """Latencies per phone; each reason for failures once, on stderr."""
    done = [work.outcome_json(each) for each in outcomes if each.ok]
    print_results(done, why=why, spec=spec)
    if stats and done:
        print_stats(done)
    for result in done if plot else ():
        print_plot(result)
    work.print_failures(outcomes)


def print_results(
    results: Sequence[Mapping[str, Any]], *, why: bool = False, spec: Mapping[str, Any] | None = None
) -> None:
    """Print `result_lines`; with `why` every reason, and the profiles of operators."""
    for line in result_lines(results, why=why, spec=spec):
        print_line(line)
    if why:
        print_remarks((result["device"], line) for result in results for line in doubts(result))
    for result in results:
        if result.get("profile"):
            print_line()
            print_profile(result)


def result_lines(
    results: Sequence[Mapping[str, Any]], *,
    why: bool = False, spec: Mapping[str, Any] | None = None, width: int | None = None,
) -> Iterator[str]:  # fmt: skip
    """A line per phone, the fastest first: median at nominal speed, range, verdict, cause. Below, the next step.

    Args:
        results: of benches, with their `device`.
        why: whether every reason follows, so that rows have none.
        spec: of their jobs, as JSON; None: not known.
        width: of lines; None: the terminal's.
    """
    if not results:
        return
    ranked = sorted(results, key=lambda each: (each["estimate"]["median_ms"], natural(each["device"])))
    reasons = [reasons_of((each.get("certificate") or {}).get("reasons", ())) for each in ranked]
    tails = ("p90_ms", "p99_ms") if why and any("p90_ms" in each["estimate"] for each in ranked) else ()
    times = in_one_unit([each["estimate"].get(name) for each in ranked for name in ("median_ms", *tails)])
    wide = 1 + len(tails)
    yield from table(
        ("PHONE", "MEDIAN", "95 % RANGE", *(("P90", "P99") if tails else ()), "VERDICT", *(() if why else ("WHY",))),
        [
            (
                each["device"], times[at * wide], range_words(each["estimate"]),
                *times[at * wide + 1 : at * wide + wide], each["verdict"],
                *(() if why else (found[0].cause if found else "",)),
            )
            for at, (each, found) in enumerate(zip(ranked, reasons, strict=True))
        ],
        width=width,
        below="WHY",
    )  # fmt: skip
    given = spec or {}
    goal = given.get("half_width")
    first = next((each for each in reasons if each), [])
    yield from paragraph(
        (
            f"{sum(each['verdict'] == 'trusted' for each in ranked)} of {len(ranked)} trusted"
            + (f" (goal ±{percent(goal)})." if goal else "."),
            _sentence(next_step(first[0], given)) if first else "",
            "" if why or not any(len(each) > 1 or any(one.evidence for one in each) for each in reasons)
            else "Every reason: --why",
        )
    )  # fmt: skip
    yield from paragraph((_numbers_checked(ranked), *notes_of(ranked)))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _numbers_checked(results: Sequence[Mapping[str, Any]]) -> str:
    errors = [each["max_abs_error"] for each in results if each.get("max_abs_error") is not None]
    if not errors:
        return ""
    some = f" on {len(errors)} of {len(results)} phones" if len(errors) < len(results) else ""
    return f"Outputs match {checked_against(results[0])}{some} ({max(errors):.0e})."


def notes_of(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each note once, with the phones that it is about unless these are all."""
    devices: dict[str, list[str]] = {}
    for each in results:
        for note in (each.get("certificate") or {}).get("notes", ()):
            devices.setdefault(note, []).append(each["device"])
    for note, names in devices.items():
        yield _sentence(note if len(names) == len(results) else f"{', '.join(sorted(names, key=natural))}: {note}")


def print_stats(results: Sequence[Mapping[str, Any]]) -> None:
    """What the samples are like, warm-up left out: at nominal speed and in its unit, but RAW, as measured."""
    print_line()
    names = ("mean", "min", "max", "std")
    ranked = sorted(results, key=lambda each: each["estimate"]["median_ms"])
    unit, scale = time_unit(ranked[0]["estimate"]["median_ms"])
    print_table(
        ("PHONE", f"RAW {unit}", f"MEDIAN {unit}", *(f"{name.upper()} {unit}" for name in names), "SAMPLES", "TARGET"),
        [
            (
                each["device"], digits(each["latency"]["median_ms"] * scale),
                digits(each["estimate"]["median_ms"] * scale),
                *(_digits(each["latency"].get(f"{name}_ms"), scale * clock_factor(each)) for name in names),
                each["latency"]["count"], each.get("target", "-"),
            )
            for each in ranked
        ],
    )  # fmt: skip
    print_line("RAW: the median as measured. The others: at nominal speed, without warm-up.")


def print_plot(result: Mapping[str, Any]) -> None:
    """A result's samples in the order they were taken, and how often which time occurred; at nominal speed."""
    samples_ms = [float(seconds) * 1e3 * clock_factor(result) for seconds in result.get("samples_s", ())]
    width, marks = min(PLOT_COLUMNS, terminal.columns() - 4), terminal.glyphs()
    if not samples_ms:
        return
    print_line()
    print_line(f"{result['device']}: {many(len(samples_ms), 'sample')}, from the first to the last")
    print_line(f"  {plots.sparkline(samples_ms, width, marks)}")
    for line in plots.histogram(samples_ms, width, marks, height=4):
        print_line(f"  {line}")


def doubts(result: Mapping[str, Any]) -> list[str]:
    """Every reason of a result's verdict, by how much it may be off for what, its warm-up and its other tries."""
    certificate = result.get("certificate") or {}
    lines = fold_reasons(certificate.get("reasons", ()), why=True)
    width = (certificate.get("estimate") or {}).get("half_width")
    lines += amount_lines(certificate.get("amounts") or (), width, terminal.glyphs())
    if warmup := certificate.get("warmup"):
        lines.append(f"{warmup} of {certificate['count']} samples are left out as warm-up")
    tries = certificate.get("tries", ())
    if len(tries) > 1:
        medians = [f"{with_unit(each['estimate']['median_s'] * 1000)} ({each['verdict']})" for each in tries]
        shown = next(number for number, each in enumerate(tries, 1) if each["reported"])
        lines.append(f"measured {len(tries)} times: {', '.join(medians)}; number {shown} is shown")
    return lines


def amount_lines(amounts: Sequence[Mapping[str, Any]], half_width: float | None, marks: terminal.Glyphs) -> list[str]:
    """The parts of an interval's relative half width, each with a bar, the largest first.

    `amounts` add up on the log scale; `half_width`, where known, is what they make of the interval.
    """
    total = sum(each["amount"] for each in amounts)
    shown = [each for each in amounts if each["amount"] > MIN_PART * total]
    whole = half_width or total
    return [f"±{percent(whole)} consists of:"] * bool(shown) + [
        f"  {plots.bar(part, AMOUNT_COLUMNS, marks)} ±{percent(part * whole)}: {each['cause']}"
        for each in shown
        for part in [each["amount"] / total]
    ]


def print_profile(result: Mapping[str, Any]) -> None:
    """The time of each operator, the largest first, and the share of each unit."""
    profile = result["profile"]
    if profile["operators"]:
        print_line(f"{result['device']}: operators in the model's own run")
        print_table(
            ("OPERATOR", "UNIT", "CALLS", "ms EACH", "ms IN ALL", "SHARE"),
            [
                (
                    each["name"], each["unit"], each["calls"], digits(each["each_ms"]), digits(each["total_ms"]),
                    f"{100 * each['share']:.1f} %",
                )
                for each in profile["operators"]
            ],
        )  # fmt: skip
    units = ", ".join(f"{unit} {100 * share:.1f} %" for unit, share in (profile.get("units") or {}).items())
    for line in (*([f"by unit: {units}"] if units else []), *profile["notes"]):
        print_line(f"  {result['device']}: {line}")


def _digits(value: float | None, factor: float) -> str:
    return "-" if value is None else digits(value * factor)


def print_job(outcome: BenchOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the result of one bench, for `farm job show`."""
    if outcome.latency is not None:
        print_results([{**outcome.result, "device": outcome.device}], why=True, spec=outcome.spec)
