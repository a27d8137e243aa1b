"""`farm run MODEL.onnx --on SELECTOR`: a model's outputs from a phone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from farm.cli import complete, work
from farm.cli.connection import JsonFlag
from farm.cli.local import cache_folder, scratch_folder, with_tvm
from farm.cli.output import print_json, print_line, print_note, print_table, write_file
from farm.cli.quality import print_found_loss, print_quality
from farm.cli.spec_options import spec_options
from farm.common.durations import many
from farm.common.errors import UserError
from farm.common.files import check_writable, checked_file
from farm.common.selector import HOST
from farm.kinds.run import RunSpec
from farm.model.specs import OUTPUT, check_quality
from farm.results.series import checked_against

SUFFIX = ".farm.tar"  # of packages: `farm.compiler.package`, which is slow to import

if TYPE_CHECKING:
    from farm.client import Client
    from farm.client.model import Outcome, Submitted
    from farm.kinds.outcomes import RunOutcome
    from farm.model.specs import JobSpec


@spec_options(RunSpec)
def run(
    model: Annotated[Path, typer.Argument(help="A model file, or a package (.farm.tar).")],
    on: Annotated[
        str,
        typer.Option(
            help="Which phones: label=value[,...] or an alias. `host`: this machine, without a daemon.",
            autocompletion=complete.selectors,
        ),
    ],
    fields: dict[str, Any],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The .npz to write (--locate: .farm.tar); several phones: NAME.DEVICE.npz.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    wait: work.Wait = None,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Compile a model, run it once on a phone or on this machine, print or keep its outputs. Ctrl-C cancels.

    With --quality it runs on many labelled inputs, and how right it is is printed.

    Exit code 1 when the phone failed, 2 for a bad model or input, 3 when no phone matches.
    """
    checked_file(model)
    if output is not None and fields["devices"] == 1:
        check_writable(output)
    elif output is not None and not output.parent.is_dir():
        raise UserError(f"cannot write {output}: there is no folder {output.parent}", hint="make it first")
    if output is not None:
        _check_output(output, locates=fields["locate"])
    if output is not None and (detach or fields["hold"]):
        raise UserError("--output needs a command that waits", hint="leave out --output, or --detach and --hold")
    if fields["labels"] is not None and not fields["top_k"]:
        raise UserError("--labels are for --top-k", hint="add --top-k 5")
    check_quality(fields["quality"], fields["metric"], {})
    if on == HOST and fields["quality"] is not None:
        raise UserError("--quality is for phones", hint="leave out --quality, or name phones: --on android")
    if fields["locate"]:
        _check_locate(model, on)
    if on == HOST:
        work.refuse_queue_options(fields | {"detach": detach, "wait": wait})
        files = {**{name: fields[name] for name in ("inputs", "labels", "records")}, "outputs": output}
        compiled = {
            name: fields[name] for name in ("target", "precision", "texture", "shapes", "dtypes", "fill", "top_k")
        }
        _run_here(model, compiled, files, json=json)
        return
    with work.client() as farm:
        spec = farm.spec("run", model=model, on=on, **fields)
        if fields["quality"] is not None:
            print_found_loss(fields["quality"], fields["metric"])
        finish = partial(_finish, farm, spec=spec, output=output, json=json)
        work.submit_to_end(farm, spec, finish, detach=detach, wait=wait, json=json)


def _check_output(output: Path, *, locates: bool) -> None:
    suffix, what = (SUFFIX, "a package is") if locates else (".npz", "outputs are")
    if not output.name.endswith(suffix):
        raise UserError(f"{output}: {what} written as {suffix}", hint=f"-o {output.with_suffix('')}{suffix}")


def _check_locate(model: Path, on: str) -> None:
    if on == HOST:
        raise UserError("--locate compares a phone with this host", hint="--on PHONE")
    if work.is_package(model):
        raise UserError(f"{model} is a package, compiled already", hint="give the model file that it was made from")


def _finish(
    farm: Client, _submitted: Submitted, outcomes: Sequence[Outcome], *, spec: JobSpec, output: Path | None, json: bool
) -> NoReturn:
    written = dict(_written(farm, outcomes, output)) if output is not None else {}

    def show(outcomes: Sequence[Outcome]) -> None:
        print_outcomes(outcomes)
        for file in written.values():
            print_note(f"wrote {file}")

    document = {"spec": spec.to_wire()}
    work.finish(outcomes, document, json=json, show=show, more=lambda each: {"file": written.get(each.job.id)})


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
    print_results([{**result, "device": HOST}])
    for note in result["notes"]:
        print_note(f"tuning records: {note}")
    if wanted is not None:
        print_note(f"wrote {wanted}")


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Each output, or its largest elements when they were asked for; failures on stderr."""
    print_results([work.outcome_json(each) for each in outcomes if each.ok])
    work.print_failures(outcomes)


def print_results(results: Sequence[Mapping[str, Any]]) -> None:
    """Each output of runs that are done, or its largest elements when they were asked for; with their `device`.

    Of runs with labelled inputs, how right they are; of jobs that locate, what they found.
    """
    for each in results:
        for line in located_lines(each):
            print_line(f"{each['device']}: {line}")
    results = [each for each in results if not each.get("located")]
    ranked = [row for each in results for row in _ranked(each)]
    if results and all(each.get("quality") for each in results):
        print_quality(results)
    elif ranked:
        print_table(("PHONE", "OUTPUT", "RANK", "VALUE", "INDEX", "LABEL"), ranked)
    elif results:
        print_table(
            ("PHONE", "OUTPUT", "SHAPE", "TYPE", "MIN", "MAX", "MEAN"),
            (
                (
                    each["device"], array["name"], " x ".join(map(str, array["shape"])) or "scalar", array["dtype"],
                    *(_number(array.get(name)) for name in ("min", "max", "mean")),
                )
                for each in results
                for array in each["arrays"]
            ),
        )  # fmt: skip
        for each in results:
            for array in each["arrays"]:
                if array.get("values") is not None:
                    print_line(f"{each['device']} {array['name']}: {' '.join(map(_number, array['values']))}")
    for each in results:
        for array in each["arrays"]:
            if words := _not_finite(array):
                print_line(f"{each['device']} {array['name']}: {words}")
    for numbers, names in _numbers(results).items():
        print_note(f"{', '.join(names)}: {numbers}")
    filled = {(name, each["fill"]) for each in results for name in each.get("filled", ())}
    for name, fill in sorted(filled):
        print_note(f"input {name!r} filled: {fill}")


def located_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What a job that locates found, in sentences."""
    found = result.get("located")
    if not found:
        return
    if found["operator"]:
        problem = f": {found['problem']}" if found["problem"] else ""
        yield f"the first wrong operator is {found['operator']}{problem}"
    if found["kernel"]:
        yield f"its kernel is {found['kernel']}, its output {found['tensor']}"
    yield f"{'to blame is the ' + found['blame'] + ': ' if found['blame'] else ''}{found['reason']}"
    operators = f", {found['operators']} operators" if found["operators"] else ""
    yield f"{many(found['uploads'], 'upload')}{operators}"


def _numbers(results: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Each sentence on how far results are from what, and its phones."""
    found: dict[str, list[str]] = {}
    for each in results:
        numerics, error = each.get("numerics") or {}, each.get("max_abs_error")
        why = f": {note}" if (note := numerics.get("note")) else ""
        off = (numerics.get("against_reference") or {}).get("problem") or f"{error or 0.0:.1e}"
        if error is not None or note:
            words = str(note) if error is None else f"outputs match {checked_against(each)} ({off}){why}"
            found.setdefault(words, []).append(each["device"])
    return found


def _not_finite(array: Mapping[str, Any]) -> str:
    """How many numbers of an output are NaN or infinite; empty: none."""
    counts = ((array.get("nan"), "NaN"), (array.get("inf"), "infinite"))
    found = [f"{count} {name}" for count, name in counts if count]
    return f"{' and '.join(found)} of {prod(array['shape'])} numbers" if found else ""


def _number(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def _ranked(result: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for name, rows in (result.get("top_k") or {}).items():
        for rank, row in enumerate(rows, 1):
            yield result["device"], name, rank, f"{row['value']:.6g}", row["index"], row.get("label") or "-"


def _written(farm: Client, outcomes: Iterable[Outcome], output: Path) -> Iterator[tuple[str, str]]:
    """Write each job's outputs; yields job and file."""
    done = [(each, sha256) for each in outcomes if each.ok and (sha256 := each.file or each.result.get("package"))]
    suffix = SUFFIX if output.name.endswith(SUFFIX) else output.suffix
    for each, sha256 in done:
        name = f"{output.name.removesuffix(suffix)}.{each.device}{suffix}"
        file = output if len(done) == 1 else output.with_name(name)
        farm.get_file(sha256, file)
        yield each.job.id, str(file)


def print_job(outcome: RunOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the result of one run, for `farm job show`."""
    print_results([work.outcome_json(outcome)])
    if not outcome.located:
        print_line(f"outputs: farm job output {outcome.job.id} -o FILE.npz")
    elif outcome.result.get("package"):
        print_line(f"a package that shows it: farm job output {outcome.job.id} -o case{SUFFIX}")
