"""`farm bench MODEL --on SELECTOR`: compile, run, check and time a model on every matching phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import given, plots, terminal, work
from farm.cli import model_options as m
from farm.cli.context import JsonFlag, print_table, say, tell
from farm.core.durations import digits
from farm.core.errors import ExitCode, UserError
from farm.core.limits import MAX_NUMBER, MAX_REPEAT

if TYPE_CHECKING:
    from farm.client.outcomes import Outcome


class Require(StrEnum):
    """The least that a verdict must be."""

    TRUSTED = "trusted"
    SUSPECT = "suspect"
    ANY = "any"


_ENOUGH = {
    Require.TRUSTED: ("trusted",),
    Require.SUSPECT: ("trusted", "suspect"),
    Require.ANY: ("trusted", "suspect", "rejected"),
}


PLOT_COLUMNS = 72
SMALL_CORRECTION = 0.01  # to nominal speed; the median by the clock is shown only beside a larger one


def bench(
    model: Annotated[Path, typer.Argument(help="A model file, or a package (.farm.tar).")],
    on: work.Selector,
    half_width: Annotated[
        float, typer.Option(min=0.0005, max=0.5, help="Sample until the median is known to +- this part of it.")
    ] = 0.01,
    measure_s: Annotated[float, typer.Option("--measure", min=0.1, max=3600, help="But no longer, seconds.")] = 30.0,
    remeasure: Annotated[int, typer.Option(min=0, max=5, help="Again so often while the result is not trusted.")] = 1,
    repeat: Annotated[
        int | None, typer.Option(min=1, max=MAX_REPEAT, help="Exactly so many samples instead.", show_default=False)
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_NUMBER, help="Runs averaged into one sample; else as many as last 10 ms."),
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the course of the samples and how they spread.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Also time each operator by itself.")] = False,
    quiet_hub: work.QuietHub = False,
    quiesce: work.Quiesce = None,
    require: Annotated[Require, typer.Option(help="Exit with 1 when a verdict is worse.")] = Require.ANY,
    target: m.Target = "cpu",
    precision: m.PrecisionOption = m.Precision.FLOAT32,
    shape: m.Shapes = None,
    dtype: m.Dtypes = None,
    records: m.Records = None,
    inputs: Annotated[
        Path | None, typer.Option("--input", help=".npz with one array per model input; seeded random otherwise.")
    ] = None,
    devices: work.Devices = "all",
    timeout: work.Timeout = None,
    priority: work.Priority = work.PRIORITY,
    deadline: work.Deadline = None,
    max_attempts: work.Attempts = work.MAX_TRIES,
    after: work.After = None,
    hold: work.Hold = False,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Compile a model, send it to every matching phone, check its numbers and time it. Ctrl-C cancels.

    Exit code 1 when a phone failed, computed wrong numbers or measured worse than --require, 2 for a bad model or
    input, 3 when no phone matches.
    """
    options = work.job_options(on, devices, timeout, priority, deadline, max_attempts, after, hold)
    options |= m.model_options(target, precision, shape, dtype, records)
    measuring = {"half_width": half_width, "measure_s": measure_s, "remeasure": remeasure, "profile": profile}
    options |= {"quiet_hub": quiet_hub, "quiesce": quiesce}
    work.checked(model)
    given.phones_only(on, "bench")
    if profile and given.is_package(model):
        raise UserError(f"{model} is a package, which holds no operators to time", hint="profile the model file")
    with work.client() as farm:
        spec = farm.bench_spec(model, inputs=inputs, repeat=repeat, number=number, **measuring, **options)  # type: ignore[arg-type]
        submitted = work.carried_out(farm, spec, detach=detach or hold, json=json)
        outcomes = farm.wait(submitted)
    document = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}
    try:
        work.finish(outcomes, document, json=json, show=partial(print_outcomes, plot=plot))
    except typer.Exit as end:
        poor = [each.device for each in outcomes if each.ok and each.result.get("verdict") not in _ENOUGH[require]]
        if end.exit_code or not poor:
            raise
        say(f"error: {', '.join(poor)}: the verdict is worse than {require}")
        raise typer.Exit(ExitCode.FAILED) from None


def print_outcomes(outcomes: Sequence[Outcome], *, plot: bool = False) -> None:
    """Latencies per phone in milliseconds; each reason for failures once, on stderr."""
    done = [work.outcome_json(each) for each in outcomes if each.ok]
    print_results(done)
    for result in done if plot else ():
        print_plot(result)
    work.print_failures(outcomes)


def print_results(results: Sequence[Mapping[str, Any]]) -> None:
    """A line per phone: the median at its nominal speed, how sure, and whether to rely on it; below, why not."""
    if not results:
        return
    corrected = [result["device"] for result in results if _is_corrected(result)]
    seen = ("AS SEEN ms",) if corrected else ()
    print_table(
        ("DEVICE", "SOC", "TARGET", "MEDIAN ms", "95% INTERVAL", "SPREAD", *seen, "SAMPLES", "VERDICT", "MAX ERROR"),
        [_row(result, as_seen=bool(corrected)) for result in results],
    )
    if corrected:
        tell(
            f"  {', '.join(corrected)}: not at nominal speed while measured. Median, interval and spread (smallest to "
            "largest sample) are given at nominal speed; AS SEEN is the median by the clock"
        )
    for result in results:
        for line in remarks(result):
            tell(f"  {result['device']}: {line}")
    for result in results:
        if result.get("profile"):
            tell()
            print_profile(result)


def print_plot(result: Mapping[str, Any]) -> None:
    """A result's samples in the order they were taken, and how often which time occurred; as the clock showed them."""
    samples_ms = [float(seconds) * 1e3 for seconds in result.get("samples_s", ())]
    width, marks = min(PLOT_COLUMNS, terminal.columns() - 4), terminal.glyphs()
    if not samples_ms:
        return
    tell()
    tell(f"{result['device']}: {len(samples_ms)} samples, from the first to the last")
    tell(f"  {plots.sparkline(samples_ms, width, marks)}")
    for line in plots.histogram(samples_ms, width, marks, height=4):
        tell(f"  {line}")


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Why a result is not trusted, what was tried, and what else must be known about it."""
    certificate = result.get("certificate") or {}
    lines = [reason["sentence"] for reason in certificate.get("reasons", ())]
    tries = certificate.get("tries", ())
    if len(tries) > 1:
        told = [f"{digits(each['estimate']['median_s'] * 1000)} ms ({each['verdict']})" for each in tries]
        shown = next(number for number, each in enumerate(tries, 1) if each["reported"])
        lines.append(f"measured {len(tries)} times: {', '.join(told)}; number {shown} is shown")
    return [*lines, *certificate.get("notes", ())]


def print_profile(result: Mapping[str, Any]) -> None:
    """The time of each operator, the largest first."""
    profile = result["profile"]
    if profile["operators"]:
        tell(f"{result['device']}: each operator timed by itself")
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
        tell(f"  {result['device']}: {line}")


def _row(result: Mapping[str, Any], *, as_seen: bool) -> tuple[object, ...]:
    latency, estimate = result["latency"], result["estimate"]
    factor = _factor(result)
    error = result.get("max_abs_error")
    return (
        result["device"],
        (result["soc"] or "-") + (" (virtual)" if result["identity"].get("virtual") else ""),
        result["target"],
        digits(estimate["median_ms"]),
        f"{digits(estimate['low_ms'])} .. {digits(estimate['high_ms'])}",
        f"{digits(latency['min_ms'] * factor)} .. {digits(latency['max_ms'] * factor)}",
        *((digits(latency["median_ms"]),) if as_seen else ()),
        latency["count"],
        result["verdict"],
        "-" if error is None else f"{error:.1e}",
    )


def _factor(result: Mapping[str, Any]) -> float:
    """What times as seen are multiplied with to be at nominal speed."""
    return float(result["estimate"]["median_ms"] / result["latency"]["median_ms"])


def _is_corrected(result: Mapping[str, Any]) -> bool:
    return abs(_factor(result) - 1) > SMALL_CORRECTION
