"""`farm bench MODEL.onnx --on SELECTOR`: compile, run, check and time a model on every matching phone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli.context import JsonFlag, connect, print_json, print_table, say
from farm.core.errors import ExitCode, UserError
from farm.core.limits import MAX_NUMBER, MAX_REPEAT, MAX_TIMEOUT_S


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    model: Annotated[Path, typer.Argument(help="An ONNX model.")],
    on: Annotated[str, typer.Option("--on", help="Which phones: label=value[,label=value...] or an alias.")],
    repeat: Annotated[int, typer.Option(min=1, max=MAX_REPEAT, help="How many timed samples per phone.")] = 20,
    number: Annotated[int, typer.Option(min=1, max=MAX_NUMBER, help="Runs averaged into one sample.")] = 5,
    target: Annotated[str, typer.Option(help="cpu, adreno or opencl.")] = "cpu",
    inputs: Annotated[
        Path | None, typer.Option("--input", help=".npz with one array per model input; seeded random otherwise.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="At most so many phones; every matching one by default.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1.0, max=MAX_TIMEOUT_S, help="Seconds for one phone, all steps.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compile a model, send it to every matching phone, check its numbers and time it.

    Exit code 1 when a phone failed or computed wrong numbers, 2 for a bad model or input, 3 when no phone matches.
    """  # fmt: skip
    for path in (model, inputs):
        if path is not None and not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise UserError(f"{path} {what}", hint="give the path of a file")
    with connect() as client:
        fields: dict[str, object] = {
            "model": client.put_artifact(model),
            "name": model.name,
            "selector": on,
            "repeat": repeat,
            "number": number,
            "target": target,
            "inputs": client.put_artifact(inputs) if inputs else None,
            "devices": devices,
            "timeout_s": timeout,
        }
        results: dict[str, Any] = {}
        for message in client.stream("bench", **fields):
            if "results" in message:
                results = message
            elif not json:
                say(f"{message['device']}: {message['step']}")
    if json:
        print_json(results)
    else:
        print_results(results["results"])
    raise typer.Exit(exit_code(results["results"]))


def exit_code(results: list[dict[str, Any]]) -> int:
    """0 when every phone did its part; when none did, all for one reason, that reason's code (2: bad input); else 1."""
    codes = {ExitCode.OK if result["ok"] else result["error"]["exit"] for result in results}
    return codes.pop() if len(codes) == 1 else ExitCode.FAILED


def print_results(results: list[dict[str, Any]]) -> None:
    """Latencies per phone in milliseconds; below, each reason for failures once."""
    done = [result for result in results if result["ok"]]
    if done:
        print_table(
            ("DEVICE", "SOC", "TARGET", "MIN ms", "MEDIAN", "MEAN", "MAX", "STD", "95% OF MEDIAN", "MAX ERROR"),
            (
                (
                    result["device"],
                    (result["soc"] or "-") + (" (virtual)" if result["identity"].get("virtual") else ""),
                    result["target"],
                    *(
                        f"{result['latency'][key]:.3f}"
                        for key in ("min_ms", "median_ms", "mean_ms", "max_ms", "std_ms")
                    ),
                    f"{result['latency']['low_ms']:.3f} .. {result['latency']['high_ms']:.3f}",
                    f"{result['max_abs_error']:.1e}",
                )
                for result in done
            ),
        )
    failures: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if not result["ok"]:
            error = result["error"]
            failures.setdefault((error["message"], error["hint"]), []).append(result["device"])
    for (message, hint), devices in failures.items():
        say(f"error: {', '.join(devices)}: {message}")
        if hint:
            say(f"  hint: {hint}")
