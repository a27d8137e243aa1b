"""`farm bench MODEL.onnx --on SELECTOR`: compile, run, check and time a model on every matching phone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import work
from farm.cli.context import JsonFlag, print_table
from farm.core.limits import MAX_NUMBER, MAX_REPEAT

if TYPE_CHECKING:
    from farm.client.outcomes import Outcome


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    model: Annotated[Path, typer.Argument(help="An ONNX model.")],
    on: work.Selector,
    repeat: Annotated[int, typer.Option(min=1, max=MAX_REPEAT, help="How many timed samples per phone.")] = 20,
    number: Annotated[int, typer.Option(min=1, max=MAX_NUMBER, help="Runs averaged into one sample.")] = 5,
    target: Annotated[str, typer.Option(help="cpu, adreno or opencl.")] = "cpu",
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

    Exit code 1 when a phone failed or computed wrong numbers, 2 for a bad model or input, 3 when no phone matches.
    """  # fmt: skip
    options = work.job_options(on, devices, timeout, priority, deadline, max_attempts, after, hold)
    work.checked(model)
    with work.client() as farm:
        spec = farm.bench_spec(model, inputs=inputs, repeat=repeat, number=number, target=target, **options)
        submitted = work.carried_out(farm, spec, detach=detach or hold, json=json)
        outcomes = farm.wait(submitted)
    document = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}
    work.finish(outcomes, document, json=json, show=print_outcomes)


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Latencies per phone in milliseconds; each reason for failures once, on stderr."""
    print_results([work.outcome_json(each) for each in outcomes if each.ok])
    work.print_failures(outcomes)


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """Latencies per phone in milliseconds."""
    if not results:
        return
    print_table(
        ("DEVICE", "SOC", "TARGET", "MIN ms", "MEDIAN", "MEAN", "MAX", "STD", "95% OF MEDIAN", "MAX ERROR"),
        (
            (
                result["device"],
                (result["soc"] or "-") + (" (virtual)" if result["identity"].get("virtual") else ""),
                result["target"],
                *(f"{result['latency'][key]:.3f}" for key in ("min_ms", "median_ms", "mean_ms", "max_ms", "std_ms")),
                f"{result['latency']['low_ms']:.3f} .. {result['latency']['high_ms']:.3f}",
                f"{result['max_abs_error']:.1e}",
            )
            for result in results
        ),
    )
