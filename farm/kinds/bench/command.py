"""`farm bench MODEL --on SELECTOR`: compile, run, check and time a model on every matching phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag
from farm.cli.output import fold_reasons, plots, print_line, print_note, print_remarks, print_table, terminal
from farm.cli.spec_options import spec_options
from farm.common.durations import digits
from farm.common.errors import ExitCode, UserError
from farm.common.files import checked_file
from farm.kinds.bench.spec import BenchSpec

if TYPE_CHECKING:
    from farm.client.model import Outcome
    from farm.kinds.bench.outcome import BenchOutcome


Require = Literal["trusted", "suspect", "any"]  # the least that a verdict must be
_ENOUGH: dict[Require, tuple[str, ...]] = {
    "trusted": ("trusted",),
    "suspect": ("trusted", "suspect"),
    "any": ("trusted", "suspect", "rejected"),
}


PLOT_COLUMNS = 72
SMALL_CORRECTION = 0.01  # to nominal speed; the median by the clock is shown only beside a larger one


@spec_options(BenchSpec, devices="all")
def bench(
    model: Annotated[Path, typer.Argument(help="A model file, or a package (.farm.tar).")],
    fields: dict[str, Any],
    plot: Annotated[bool, typer.Option("--plot", help="Draw the course of the samples and how they spread.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Add mean, median, max, min and std by the clock.")] = False,
    why: work.Why = False,
    require: Annotated[Require, typer.Option(help="Exit with 1 when a verdict is worse.")] = "any",
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
    if fields["profile"] and work.is_package(model):
        raise UserError(f"{model} is a package, which holds no operators to time", hint="profile the model file")
    with work.client() as farm:
        spec = farm.bench_spec(model, **fields)
        submitted, outcomes = work.submit_and_wait(farm, spec, detach=detach or fields["hold"], wait=wait, json=json)
    document = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}
    try:
        work.finish(outcomes, document, json=json, show=partial(print_outcomes, plot=plot, stats=stats, why=why))
    except typer.Exit as end:
        poor = [each.device for each in outcomes if each.ok and each.result.get("verdict") not in _ENOUGH[require]]
        if end.exit_code or not poor:
            raise
        print_note(f"error: {', '.join(poor)}: the verdict is worse than {require}")
        raise typer.Exit(ExitCode.FAILED) from None


def print_outcomes(outcomes: Sequence[Outcome], *, plot: bool = False, stats: bool = False, why: bool = False) -> None:
    """Latencies per phone in milliseconds; each reason for failures once, on stderr."""
    done = [work.outcome_json(each) for each in outcomes if each.ok]
    print_results(done, why=why)
    if stats and done:
        print_stats(done)
    for result in done if plot else ():
        print_plot(result)
    work.print_failures(outcomes)


def print_results(results: Sequence[Mapping[str, Any]], *, why: bool = False) -> None:
    """A line per phone: the median at its nominal speed, its interval and its verdict; below, the verdict's reasons."""
    if not results:
        return
    corrected = [result["device"] for result in results if _is_corrected(result)]
    seen = ("AS SEEN ms",) if corrected else ()
    print_table(
        ("DEVICE", "SOC", "TARGET", "MEDIAN ms", "95% INTERVAL", "SPREAD", *seen, "SAMPLES", "VERDICT", "MAX ERROR"),
        [_row(result, as_seen=bool(corrected)) for result in results],
    )
    if corrected:
        print_line(
            f"  {', '.join(corrected)}: not at nominal speed while measured. Median, interval and spread (smallest to "
            "largest sample) are given at nominal speed; AS SEEN is the median by the clock"
        )
    print_remarks((result["device"], line) for result in results for line in doubts(result, why=why))
    print_remarks(
        (result["device"], note) for result in results for note in (result.get("certificate") or {}).get("notes", ())
    )
    for result in results:
        if result.get("profile"):
            print_line()
            print_profile(result)


def print_stats(results: Sequence[Mapping[str, Any]]) -> None:
    """Samples by the clock, warm-up left out, as TVM's tutorials summarise them."""
    print_line()
    names = ("mean", "median", "max", "min", "std")
    print_table(
        ("DEVICE", *(f"{name.upper()} ms" for name in names), "SAMPLES"),
        [
            (each["device"], *(digits(each["latency"][f"{name}_ms"]) for name in names), each["latency"]["count"])
            for each in results
        ],
    )
    print_line("  by the clock, warm-up left out; the median above is at nominal speed")


def print_plot(result: Mapping[str, Any]) -> None:
    """A result's samples in the order they were taken, and how often which time occurred; as the clock showed them."""
    samples_ms = [float(seconds) * 1e3 for seconds in result.get("samples_s", ())]
    width, marks = min(PLOT_COLUMNS, terminal.columns() - 4), terminal.glyphs()
    if not samples_ms:
        return
    print_line()
    print_line(f"{result['device']}: {len(samples_ms)} samples, from the first to the last")
    print_line(f"  {plots.sparkline(samples_ms, width, marks)}")
    for line in plots.histogram(samples_ms, width, marks, height=4):
        print_line(f"  {line}")


def doubts(result: Mapping[str, Any], *, why: bool) -> list[str]:
    """The reasons of a result's verdict and, with `why`, its other tries."""
    certificate = result.get("certificate") or {}
    lines = fold_reasons(certificate.get("reasons", ()), why=why)
    if warmup := certificate.get("warmup"):
        lines.append(f"{warmup} of {certificate['count']} samples are left out as warm-up")
    tries = certificate.get("tries", ())
    if why and len(tries) > 1:
        tries_ms = [f"{digits(each['estimate']['median_s'] * 1000)} ms ({each['verdict']})" for each in tries]
        shown = next(number for number, each in enumerate(tries, 1) if each["reported"])
        lines.append(f"measured {len(tries)} times: {', '.join(tries_ms)}; number {shown} is shown")
    return lines


def print_profile(result: Mapping[str, Any]) -> None:
    """The time of each operator, the largest first."""
    profile = result["profile"]
    if profile["operators"]:
        print_line(f"{result['device']}: each operator timed by itself")
        print_table(
            ("OPERATOR", "CALLS", "ms EACH", "ms IN ALL", "SHARE"),
            [
                (
                    each["name"],
                    each["calls"],
                    digits(each["each_ms"]),
                    digits(each["total_ms"]),
                    f"{each['share']:.1%}",
                )
                for each in profile["operators"]
            ],
        )
    for line in profile["notes"]:
        print_line(f"  {result['device']}: {line}")


def _row(result: Mapping[str, Any], *, as_seen: bool) -> tuple[object, ...]:
    latency, estimate = result["latency"], result["estimate"]
    error = result.get("max_abs_error")
    return (
        result["device"],
        (result["soc"] or "-") + (" (virtual)" if result["identity"].get("virtual") else ""),
        result["target"],
        digits(estimate["median_ms"]),
        f"{digits(estimate['low_ms'])} .. {digits(estimate['high_ms'])}",
        f"{digits(estimate['min_ms'])} .. {digits(estimate['max_ms'])}",
        *((digits(latency["median_ms"]),) if as_seen else ()),
        latency["count"],
        result["verdict"],
        "-" if error is None else f"{error:.1e}",
    )


def _factor(result: Mapping[str, Any]) -> float:
    """The factor from measured times to times at nominal speed."""
    return float(result["estimate"]["median_ms"] / result["latency"]["median_ms"])


def _is_corrected(result: Mapping[str, Any]) -> bool:
    return abs(_factor(result) - 1) > SMALL_CORRECTION


def print_job(outcome: BenchOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the result of one bench, for `farm job show`."""
    if outcome.latency is not None:
        print_results([{**outcome.result, "device": outcome.device}], why=True)
