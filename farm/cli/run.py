"""`farm run MODEL.onnx --on SELECTOR`: a model's outputs from a phone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from farm.cli import complete, given, work
from farm.cli import model_options as m
from farm.cli.context import JsonFlag, print_json, print_table, say, tell, write_file
from farm.cli.local import cache_folder, scratch_folder, with_tvm
from farm.core.errors import UserError
from farm.core.limits import MAX_TOP_K
from farm.core.selector import HOST

if TYPE_CHECKING:
    from farm.client import Client
    from farm.client.outcomes import Outcome


class Fill(StrEnum):
    """What inputs are made of that nobody gave."""

    RANDOM = "random"
    ZEROS = "zeros"
    ONES = "ones"


def run(
    model: Annotated[Path, typer.Argument(help="A model file, or a package (.farm.tar).")],
    on: Annotated[
        str,
        typer.Option(
            help="Which phones: label=value[,...] or an alias. `host`: this machine, without a daemon.",
            autocompletion=complete.selectors,
        ),
    ],
    inputs: Annotated[Path | None, typer.Option("--input", help=".npz with one array per model input.")] = None,
    fill: Annotated[Fill, typer.Option(help="Of inputs that --input does not give; random is seeded.")] = Fill.RANDOM,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The .npz to write; several phones: NAME.DEVICE.npz.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=0, max=MAX_TOP_K, help="Print each output's largest elements.")] = 0,
    labels: Annotated[Path | None, typer.Option(help="Class names for --top-k, one per line.")] = None,
    target: m.Target = "cpu",
    precision: m.PrecisionOption = m.Precision.FLOAT32,
    shape: m.Shapes = None,
    dtype: m.Dtypes = None,
    records: m.Records = None,
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
    """Compile a model, run it once on a phone or on this machine, print or keep its outputs. Ctrl-C cancels.

    Exit code 1 when the phone failed, 2 for a bad model or input, 3 when no phone matches.
    """
    options = work.job_options(on, devices, timeout, priority, deadline, max_attempts, after, hold)
    work.checked(model)
    if devices == "1":
        given.writable(output)
    elif output is not None and not output.parent.is_dir():
        raise UserError(f"cannot write {output}: there is no folder {output.parent}", hint="make it first")
    if output is not None and output.suffix != ".npz":
        raise UserError(f"{output}: outputs are written as .npz", hint=f"--output {output.with_suffix('.npz')}")
    if output is not None and (detach or hold):
        raise UserError("nobody waits for the outputs to write", hint="leave out --output, or --detach and --hold")
    if labels is not None and not top_k:
        raise UserError("--labels are for --top-k", hint="add --top-k 5")
    compiled = m.model_options(target, precision, shape, dtype, records)
    if on == HOST:
        given.nothing_is_queued(options | {"detach": detach})
        files = {"inputs": inputs, "labels": labels, "records": records, "outputs": output}
        _run_here(model, compiled | {"fill": fill.value, "top_k": top_k}, files, json=json)
        return
    with work.client() as farm:
        spec = farm.run_spec(model, inputs=inputs, labels=labels, fill=fill.value, top_k=top_k, **compiled, **options)
        submitted = work.carried_out(farm, spec, detach=detach or hold, json=json)
        outcomes = [farm.job(job, fetch_outputs=False) for job in submitted.ids]
        written = dict(_written(farm, outcomes, output)) if output is not None else {}

    def show(outcomes: Sequence[Outcome]) -> None:
        print_outcomes(outcomes)
        for file in written.values():
            say(f"wrote {file}")

    document = {"spec": spec.to_wire()}
    work.finish(outcomes, document, json=json, show=show, more=lambda each: {"file": written.get(each.job.id)})


class _Ran(Protocol):
    @property
    def device(self) -> str: ...
    @property
    def result(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _HereOutcome:
    """What a run on this machine gave, as `print_results` takes it."""

    result: dict[str, Any]
    device: str = HOST


def _run_here(model: Path, options: dict[str, Any], files: Mapping[str, Path | None], *, json: bool) -> None:
    with scratch_folder() as scratch:
        outputs = Path(scratch) / "outputs.npz"
        paths = {name: str(path) if path is not None else None for name, path in files.items()}
        request = {
            **options, **paths, "model": str(model), "outputs": str(outputs), "cache": str(cache_folder()),
            "target": None if options["target"] == "cpu" else options["target"],
        }  # fmt: skip
        result = with_tvm("run", f"running {model.name} on this machine", request, Path(scratch))
        wanted = files["outputs"]
        if wanted is not None:
            write_file(wanted, outputs.read_bytes())
    if json:
        print_json({"ok": True, "results": [{**result, "device": HOST, "file": paths["outputs"]}]})
        return
    print_results([_HereOutcome(result)])
    error = result["max_abs_error"]
    by = result["numerics"]["reference"]
    say(f"numbers checked against {by}, max error {error:.1e}" if error is not None else result["numerics"]["note"])
    for note in result["notes"]:
        say(f"tuning records: {note}")
    if wanted is not None:
        say(f"wrote {wanted}")


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Each output, or its largest elements when they were asked for; failures on stderr."""
    print_results([each for each in outcomes if each.ok])
    work.print_failures(outcomes)


def print_results(done: Sequence[_Ran]) -> None:
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


def _ranked(outcome: _Ran) -> Iterator[tuple[object, ...]]:
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
