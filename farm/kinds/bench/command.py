"""`farm bench MODEL --on SELECTOR`: compile, run, check and time a model on every matching phone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag
from farm.cli.model_command import submit_model
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
from farm.common.durations import digits, in_one_unit, range_words, time_unit, with_unit
from farm.common.errors import ExitCode, UserError
from farm.common.files import checked_file
from farm.common.selector import natural
from farm.kinds import KINDS
from farm.kinds.bench import BenchSpec
from farm.measure.conditions import clock_factor, next_step, percent, reasons_of
from farm.model.specs import OUTPUT, RUNTIME, fields_of
from farm.programs.description import RUNTIMES
from farm.results.series import checked_against

if TYPE_CHECKING:
    from farm.client.model import Outcome, Submitted
    from farm.kinds.outcomes import BenchOutcome
    from farm.model.specs import JobSpec

TVM = "tvm"
Require = Literal["trusted", "suspect", "any"]  # the least that a verdict must be
Plot = Annotated[
    bool, typer.Option("--plot", help="Draw the course of the samples and how they spread.", rich_help_panel=OUTPUT)
]
Stats = Annotated[
    bool, typer.Option("--stats", help="Add mean, min, max, std and the raw median.", rich_help_panel=OUTPUT)
]
RequireOption = Annotated[Require, typer.Option(help="Exit with 1 when a verdict is worse.", rich_help_panel=OUTPUT)]
RequireOffload = Annotated[
    bool,
    typer.Option(
        "--require-offload",
        help="With --profile: exit with 1 when an operator runs on the CPU.",
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
    require_offload: RequireOffload = False,
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
    if require_offload and not fields["profile"]:
        raise UserError("--require-offload needs --profile", hint="add --profile, or leave out --require-offload")
    if detach and (require != "any" or require_offload):
        option = "--require-offload" if require_offload else "--require"
        raise UserError(f"{option} judges the result, and --detach does not wait for it", hint="leave out one of them")
    check_runtime_options(runtime, **{"--set": settings, "--runtime-folder": runtime_folder})
    if any(len(fields[name]) > 1 for name in ("threads", "cores")):
        sweep = KINDS["sweep"]
        submit_model(sweep, model, _fields_of_sweep(fields, runtime, sweep), wait=wait, detach=detach, json=json)
    fields = with_one_placement(fields, "farm bench")
    if runtime != TVM:
        from farm.kinds.program.command import bench_with

        bench_with(
            runtime, runtime_folder, model, {**fields, "settings": work.settings(settings)},
            require=require, plot=plot, stats=stats, why=why, wait=wait, detach=detach, json=json,
        )  # fmt: skip
    if fields["profile"] and work.is_package(model):
        raise UserError(f"{model} is a package, which holds no operators to time", hint="profile the model file")
    with work.client() as farm:
        spec = farm.spec("bench", model=model, **fields)
        finish = partial(
            finish_bench, spec=spec,
            require=require, require_offload=require_offload, json=json, plot=plot, stats=stats, why=why,
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
    require: Require, json: bool, plot: bool, stats: bool, why: bool, require_offload: bool = False,
) -> NoReturn:  # fmt: skip
    """Print the outcomes, and end the command."""
    document = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}
    show = partial(print_outcomes, plot=plot, stats=stats, why=why, spec=spec.to_wire())
    try:
        work.finish(outcomes, document, json=json, show=show)
    except typer.Exit as end:
        poor = [each.device for each in outcomes if each.ok and each.result.get("verdict") not in _ENOUGH[require]]
        kept = [line for each in outcomes if require_offload and each.ok for line in on_cpu(each.device, each.result)]
        if end.exit_code or not (poor or kept):
            raise
        for line in [f"{', '.join(poor)}: the verdict is worse than {require}"] if poor else kept:
            print_note(f"error: {line}")
        raise typer.Exit(ExitCode.FAILED) from None


def on_cpu(device: str, result: Mapping[str, Any]) -> list[str]:
    """A sentence about the operators that ran on the CPU by a result's profile; none: all ran elsewhere."""
    profile = result.get("profile") or {}
    names = [each["name"] for each in profile.get("operators", ()) if each.get("unit") == "cpu"]
    if not profile.get("operators"):
        return [f"{device}: where its operators ran is not known"]
    return [f"{device}: on the CPU ran {', '.join(names)}"] if names else []


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
    medians = in_one_unit([each["estimate"]["median_ms"] for each in ranked])
    yield from table(
        ("PHONE", "MEDIAN", "95 % RANGE", "VERDICT", *(() if why else ("WHY",))),
        [
            (
                each["device"], median, range_words(each["estimate"]), each["verdict"],
                *(() if why else (found[0].cause if found else "",)),
            )
            for each, median, found in zip(ranked, medians, reasons, strict=True)
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
    print_line(f"{result['device']}: {len(samples_ms)} samples, from the first to the last")
    print_line(f"  {plots.sparkline(samples_ms, width, marks)}")
    for line in plots.histogram(samples_ms, width, marks, height=4):
        print_line(f"  {line}")


def doubts(result: Mapping[str, Any]) -> list[str]:
    """Every reason of a result's verdict, its warm-up and its other tries."""
    certificate = result.get("certificate") or {}
    lines = fold_reasons(certificate.get("reasons", ()), why=True)
    if warmup := certificate.get("warmup"):
        lines.append(f"{warmup} of {certificate['count']} samples are left out as warm-up")
    tries = certificate.get("tries", ())
    if len(tries) > 1:
        medians = [f"{with_unit(each['estimate']['median_s'] * 1000)} ({each['verdict']})" for each in tries]
        shown = next(number for number, each in enumerate(tries, 1) if each["reported"])
        lines.append(f"measured {len(tries)} times: {', '.join(medians)}; number {shown} is shown")
    return lines


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
                    f"{each['share']:.1%}",
                )
                for each in profile["operators"]
            ],
        )  # fmt: skip
    units = ", ".join(f"{unit} {share:.1%}" for unit, share in (profile.get("units") or {}).items())
    for line in (*([f"by unit: {units}"] if units else []), *profile["notes"]):
        print_line(f"  {result['device']}: {line}")


def _digits(value: float | None, factor: float) -> str:
    return "-" if value is None else digits(value * factor)


def print_job(outcome: BenchOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the result of one bench, for `farm job show`."""
    if outcome.latency is not None:
        print_results([{**outcome.result, "device": outcome.device}], why=True, spec=outcome.spec)
