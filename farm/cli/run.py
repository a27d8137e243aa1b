"""`farm run MODEL.onnx --on SELECTOR`: a model's outputs from a phone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import work
from farm.cli.context import JsonFlag, print_table, say, tell
from farm.core.errors import UserError
from farm.core.limits import MAX_TOP_K

if TYPE_CHECKING:
    from farm.client import Client
    from farm.client.outcomes import Outcome


class Fill(StrEnum):
    """What inputs are made of that nobody gave."""

    RANDOM = "random"
    ZEROS = "zeros"
    ONES = "ones"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    model: Annotated[Path, typer.Argument(help="An ONNX model.")],
    on: work.Selector,
    inputs: Annotated[Path | None, typer.Option("--input", help=".npz with one array per model input.")] = None,
    fill: Annotated[Fill, typer.Option(help="Of inputs that --input does not give; random is seeded.")] = Fill.RANDOM,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The .npz to write; several phones: NAME.DEVICE.npz.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=0, max=MAX_TOP_K, help="Print each output's largest elements.")] = 0,
    labels: Annotated[Path | None, typer.Option(help="Class names for --top-k, one per line.")] = None,
    target: Annotated[str, typer.Option(help="cpu, adreno or opencl.")] = "cpu",
    devices: work.Devices = "1",
    timeout: work.Timeout = None,
    priority: work.Priority = work.PRIORITY,
    deadline: work.Deadline = None,
    max_attempts: work.Attempts = work.MAX_TRIES,
    after: work.After = None,
    hold: work.Hold = False,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Compile a model, run it once on a phone, print or keep its outputs. Ctrl-C cancels.

    Exit code 1 when the phone failed, 2 for a bad model or input, 3 when no phone matches.
    """
    options = work.job_options(on, devices, timeout, priority, deadline, max_attempts, after, hold)
    work.checked(model)
    if output is not None and not output.parent.is_dir():
        raise UserError(f"cannot write {output}: there is no folder {output.parent}", hint="make it first")
    if output is not None and output.suffix != ".npz":
        raise UserError(f"{output}: outputs are written as .npz", hint=f"--output {output.with_suffix('.npz')}")
    if output is not None and (detach or hold):
        raise UserError("nobody waits for the outputs to write", hint="leave out --output, or --detach and --hold")
    if labels is not None and not top_k:
        raise UserError("--labels are for --top-k", hint="add --top-k 5")
    with work.client() as farm:
        spec = farm.run_spec(
            model, inputs=inputs, labels=labels, fill=fill.value, top_k=top_k, target=target, **options
        )
        submitted = work.carried_out(farm, spec, detach=detach or hold, json=json)
        outcomes = [farm.job(job, fetch_outputs=False) for job in submitted.ids]
        written = dict(_written(farm, outcomes, output)) if output is not None else {}

    def show(outcomes: Sequence[Outcome]) -> None:
        print_outcomes(outcomes)
        for file in written.values():
            say(f"wrote {file}")

    document = {"spec": spec.to_wire()}
    work.finish(outcomes, document, json=json, show=show, more=lambda each: {"file": written.get(each.job.id)})


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Each output, or its largest elements when they were asked for; failures on stderr."""
    print_results([each for each in outcomes if each.ok])
    work.print_failures(outcomes)


def print_results(done: Sequence[Outcome]) -> None:
    """Each output of runs that are done, or its largest elements when they were asked for."""
    ranked = [row for each in done for row in _ranked(each)]
    if ranked:
        print_table(("DEVICE", "OUTPUT", "RANK", "VALUE", "INDEX", "LABEL"), ranked)
    elif done:
        print_table(
            ("DEVICE", "OUTPUT", "SHAPE", "TYPE", "MIN", "MAX", "MEAN"),
            (
                (
                    each.device, array["name"], " x ".join(map(str, array["shape"])) or "scalar", array["dtype"],
                    *(_number(array.get(name)) for name in ("min", "max", "mean")),
                )
                for each in done
                for array in each.result["arrays"]
            ),
        )  # fmt: skip
        for each in done:
            for array in each.result["arrays"]:
                if array.get("values") is not None:
                    tell(f"{each.device} {array['name']}: {' '.join(map(_number, array['values']))}")
    filled = {(name, each.result["fill"]) for each in done for name in each.result.get("filled", ())}
    for name, fill in sorted(filled):
        say(f"input {name!r} filled: {fill}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _ranked(outcome: Outcome) -> Iterator[tuple[object, ...]]:
    top: dict[str, Any] = outcome.result.get("top_k") or {}
    for name, rows in top.items():
        for rank, row in enumerate(rows, 1):
            yield outcome.device, name, rank, f"{row['value']:.6g}", row["index"], row.get("label") or "-"


def _written(farm: Client, outcomes: Iterable[Outcome], output: Path) -> Iterator[tuple[str, str]]:
    """Write each job's outputs; yields job and file."""
    from farm.client.outcomes import outputs_of

    done = [each for each in outcomes if each.ok]
    for each in done:
        file = output if len(done) == 1 else output.with_name(f"{output.stem}.{each.device}{output.suffix}")
        farm.get_file(outputs_of(each.result), file)
        yield each.job.id, str(file)
