"""`farm program`: a model under another runtime, timed by that runtime's own program or by people's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag
from farm.cli.model_command import TVM
from farm.cli.output import emit, print_line
from farm.cli.spec_options import flag_of, spec_options
from farm.common.errors import UserError
from farm.common.files import checked_file, write_durably
from farm.kinds.bench import BenchSpec
from farm.kinds.bench.command import (
    Plot,
    Require,
    RequireOffload,
    check_shown,
    finish_bench,
    offload_of,
    own_fields,
    print_results,
)
from farm.kinds.program import ProgramSpec
from farm.model.specs import fields_of
from farm.programs.description import (
    RUNTIMES,
    PackagedRuntime,
    ProgramDescription,
    builtin_description,
    check_model,
    read_description,
    with_settings,
)
from farm.programs.packing import packed, packed_file
from farm.results.series import runtime_words

if TYPE_CHECKING:
    from farm.kinds.outcomes import ProgramOutcome

FOLDERS = "FARM_RUNTIMES"  # environment variable: a folder that has one folder for each runtime, with its files
DEFAULT_FOLDERS = "~/.local/share/farm/runtimes"

app = typer.Typer(help="Time a model under another runtime, by its own program.", no_args_is_help=True)


@app.command("run")
@spec_options(ProgramSpec, devices="all", leave_out=("model",))
def run_program(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The program's description, a TOML file.")],
    fields: dict[str, Any],
    model: Annotated[Path | None, typer.Option(help="The model file, if not the description's.")] = None,
    plot: Plot = False,
    why: work.Why = False,
    require_offload: RequireOffload = "",
    wait: work.Wait = None,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Push a program to every matching phone and call it until the median of its times is known. Ctrl-C cancels.

    Exit code 1 when the program failed, hung or printed no times on a phone, 2 for a wrong description, 3 when no phone
    matches.
    """
    work.refuse_host(fields["on"], "program")
    check_shown(fields, json=json, **{"--plot": plot})
    offload = offload_of(require_offload)
    if detach and offload:
        raise UserError("--require-offload judges the result, and --detach does not wait for it", hint="leave out one")
    given = described(spec, model, fields)
    _finish(given, detach=detach, wait=wait, json=json, plot=plot, why=why, offload=offload)


def described(spec: Path, model: Path | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job that takes a described program, and its model, to phones."""
    description = read_description(checked_file(spec).read_bytes(), spec.name)
    if model is None and description.model:
        model = spec.parent / description.model
    if model is not None:
        checked_file(model)
    check_model(description, model.name if model else "")
    with_settings(description, fields["settings"])
    return {**fields, "program": packed_file(spec), "model": model, "name": model.name if model else description.name}


@app.command("show")
def show(
    runtime: Annotated[str, typer.Argument(help=f"One of {', '.join(RUNTIMES)}.")],
    json: JsonFlag = False,
) -> None:
    """Print a built-in description: what `farm bench --runtime` calls. A copy of it is a beginning for your own."""
    description, text = builtin_description(runtime)
    emit({"ok": True, "description": description.to_wire()}, text.decode().splitlines(), json=json)


@app.command("pack")
def pack(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The program's description, a TOML file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")],
    json: JsonFlag = False,
) -> None:
    """Write a description with its files as one file, for `program = FILE` in a file of `farm submit`."""
    data = packed_file(checked_file(spec))
    try:
        write_durably(output, data)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}", hint="name a file in a folder of yours") from error
    emit({"ok": True, "file": str(output), "bytes": len(data)}, [f"{output}: {len(data):,} bytes"], json=json)


@app.command("make")
def make(
    runtime: Annotated[PackagedRuntime, typer.Argument(help="The runtime, of a package of this interpreter.")],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    json: JsonFlag = False,
) -> None:
    """Make a program for virtual phones out of ONNX Runtime's or LiteRT's wheel: files and description in a folder.

    Its small runner is compiled by gcc, or by Zig where ziglang is installed. A wheel's library is for this host's ABI
    and C library, so it runs on virtual phones alone.
    """
    from farm.runtime.server import make_program

    try:
        made = make_program(runtime, folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}", hint="name a new folder in one of yours") from error
    suffix = read_description(made.read_bytes(), made.name).models[0]
    lines = [f"{made}: farm program run {made} --on android --model MODEL{suffix}"]
    emit({"ok": True, "runtime": runtime, "description": str(made)}, lines, json=json)


def packed_runtime(runtime: str, folder: Path | None, model: Path, settings: Mapping[str, str]) -> bytes | None:
    """The program of a runtime, packed; None: it is TVM, which has none.

    Args:
        runtime: its name, or a description of one's own (a .toml file).
        folder: with the program's files; None: `$FARM_RUNTIMES/NAME`, or what the description says.
        model: the model file.
        settings: of the description.
    """
    if runtime == TVM:
        return None
    own = runtime.endswith(".toml")
    if own and folder:
        raise UserError(
            f"{runtime} names its own files, not those in {folder}", hint=f"leave out the option that names {folder}"
        )
    text = checked_file(Path(runtime)).read_bytes() if own else b""
    description, text = (read_description(text, runtime), text) if own else builtin_description(runtime)
    check_model(description, model.name)
    with_settings(description, settings)
    return packed_file(Path(runtime)) if own else packed(text, description, _folder_of(description, folder))


def bench_with(runtime: str, folder: Path | None, model: Path, fields: Mapping[str, Any], **shown: Any) -> NoReturn:
    """`farm bench --runtime`: the job of a built-in description.

    Args:
        runtime: its name.
        folder: with the program's files; None: `$FARM_RUNTIMES/NAME`.
        model: the model file.
        fields: options of the bench.
        shown: how its outcomes are waited for and printed.
    """
    _finish(fields_with(runtime, folder, model, fields), **shown)


def fields_with(runtime: str, folder: Path | None, model: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the job of another runtime, by the options of a bench; arguments as of `bench_with`."""
    program = packed_runtime(runtime, folder, model, fields["settings"])
    return {**program_fields(fields, runtime), "program": program, "model": model, "name": model.name}


def program_fields(fields: Mapping[str, Any], runtime: str) -> dict[str, Any]:
    """The options of a bench as fields of a program job."""
    given, others = own_fields(fields, ProgramSpec)
    if others:
        where = f"{runtime} has" if runtime.endswith(".toml") else f"farm program show {runtime} lists"
        raise UserError(
            f"{flag_of(fields_of(BenchSpec)[others[0]])} is for TVM; {runtime} has its own settings",
            hint=f"--set NAME=VALUE; {where} them",
        )
    return given


def _folder_of(description: ProgramDescription, folder: Path | None) -> Path:
    """The folder with the program that a built-in description calls, or with one such folder for each ABI."""
    runtime, (where, _, program) = description.name, description.command[0].rpartition("/")
    found = folder or Path(os.environ.get(FOLDERS) or DEFAULT_FOLDERS).expanduser() / runtime
    if not found.is_dir():
        raise UserError(
            f"there is no folder {found} with the program of {runtime}",
            hint=f"--runtime-folder FOLDER, or {FOLDERS}; docs/programs.md says which files belong there",
        )
    if where and not any(next(found.glob(each), None) for each in (program, f"*/{program}")):
        own = next(found.glob("*.toml"), None)
        raise UserError(
            f"{found} has no {program}, the program of the runtime {runtime}",
            hint=f"to call what {own} describes, name it as the runtime, without a folder: --runtime {own}" if own
            else f"docs/programs.md says which files belong there; its command: farm program show {runtime}",
        )  # fmt: skip
    return found


def _finish(
    given: Mapping[str, Any],
    *,
    detach: bool,
    wait: str | None,
    json: bool,
    plot: bool,
    why: bool,
    stats: bool = False,
    require: Require = "any",
    offload: float | None = None,
) -> NoReturn:
    with work.client() as farm:
        spec = farm.spec("program", **given)
        finish = partial(
            finish_bench, spec=spec, require=require, offload=offload, json=json, plot=plot, stats=stats, why=why
        )
        work.submit_to_end(farm, spec, finish, detach=detach, wait=wait, json=json)


def print_job(outcome: ProgramOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the result of one program job, for `farm job show`."""
    if outcome.latency is not None:
        result = outcome.result
        settings, terms = result["certificate"].get("placement"), result["runtime"]["license"]
        print_line(", ".join(filter(None, (runtime_words(result), settings, terms))))
        print_results([{**result, "device": outcome.device}], why=True, spec=outcome.spec)
