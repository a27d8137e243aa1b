"""`farm model` and `farm compile`: look at a model file, import it, compile it into a package that runs anywhere.

Neither needs a daemon, but for `farm compile --on`, which asks it for the phones' target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from farm.cli import complete, work
from farm.cli.connection import JsonFlag, call, show_devices
from farm.cli.local import cache_folder, scratch_folder, with_tvm
from farm.cli.output import emit, print_line, print_note, write_file
from farm.cli.output.terminal import elapsed
from farm.common.errors import NoPhoneError, UserError
from farm.common.files import check_writable, checked_file, short_hash
from farm.model.identity import target_typed

app = typer.Typer(help="Model files: what is in one, import it into TVM, networks to try (no daemon needed).")

FileArgument = Annotated[Path, typer.Argument(help="ONNX, .pt2, .tflite, .keras, .h5, TVMScript, Relax JSON.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="An input's shape, NAME:[1,3,224,224]. Repeatable.", metavar="SHAPE")
]
Dtypes = Annotated[
    list[str] | None, typer.Option("--dtype", help="An input's type, NAME:float16. Repeatable.", metavar="DTYPE")
]


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A model file of any format, or a package.")],
    shape: Shapes = None,
    dtype: Dtypes = None,
    json: JsonFlag = False,
) -> None:
    """Inputs, outputs, operators, parameters and multiply-accumulates (MACs)."""
    if work.is_package(checked_file(file)):
        _show_package(file, json=json)
        return
    about = _with_model("summarise", "reading", file, shape, dtype)
    emit(about, _model_lines(about), json=json)


def _model_lines(about: dict[str, Any]) -> Iterator[str]:
    yield f"{about['name']}: {about['format']}, sha256 {short_hash(about['sha256'])}"
    if about["data_files"]:
        files = (f"{file} ({size:,} bytes)" for file, size in about["data_files"].items())
        yield f"tensors in other files, which go with it: {', '.join(files)}"
    for what in ("inputs", "outputs"):
        yield f"{what}: {', '.join(map(_tensor, about[what]))}"
    if about["parameters"] is not None:
        yield f"parameters: {about['parameters']:,} ({about['parameters_bytes'] / 1e6:,.2f} MB)"
    if about["macs"] is not None:
        yield f"MACs: {about['macs']:,}"
    if about["operators"] is not None:
        yield f"operators: {', '.join(f'{count} {name}' for name, count in about['operators'].items())}"
    yield from (f"note: {note}" for note in about["notes"])
    if about["open"]:
        yield f"shapes are open; for the rest, and to compile, give them: {' '.join(about['open'])}"


@app.command(name="import")
def import_(
    file: FileArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it, for example net.relax.json.")],
    shape: Shapes = None,
    dtype: Dtypes = None,
    json: JsonFlag = False,
) -> None:
    """Convert a model to Relax and keep it; commands take the file as a model, with this version of TVM only."""
    check_writable(output)
    made = _with_model("import", "importing", file, shape, dtype, output=str(output.resolve()))
    emit({**made, "file": str(output)}, f"wrote {output}: {made['bytes']:,} bytes for TVM {made['tvm']}", json=json)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="mobilenet_v2, resnet18, resnet50, small_cnn or one_conv.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it, for example net.onnx.")],
) -> None:
    """Write a network of the zoo as ONNX: seeded weights, the same bytes every time."""
    from farm.zoo import onnx_bytes

    check_writable(output)
    data = onnx_bytes(name)
    write_file(output, data)
    print_line(f"wrote {output}: {len(data):,} bytes")


def _with_model(
    do: str, doing: str, file: Path, shapes: list[str] | None, dtypes: list[str] | None, **more: Any
) -> dict[str, Any]:
    from farm.compiler.shape_option import parse_dtypes, parse_shapes

    request = {
        "model": str(checked_file(file)),
        "shapes": parse_shapes(shapes or ()),
        "dtypes": parse_dtypes(dtypes or ()),
        **more,
    }
    with scratch_folder() as scratch:
        return with_tvm(do, f"{doing} {file.name}", request, Path(scratch))


def _show_package(file: Path, *, json: bool) -> None:
    """A package's manifest; the whole file is read and its hashes are checked."""
    from farm.compiler.package import read_package

    package = read_package(file)
    made = package.manifest
    kind = {"kind": "package", "tuned": package.tuned, "with_model": package.model is not None}
    inputs, outputs = ([each.to_wire() for each in some] for some in (made.inputs, made.outputs))
    tensors = {"inputs": inputs, "outputs": outputs}
    lines = [
        f"{made.name}: a package, of {made.source_format}, sha256 {short_hash(made.source_sha256)}",
        *(f"{what}: {', '.join(map(_tensor, some))}" for what, some in tensors.items()),
        f"target: {made.target_name or 'of its own'}, runs on {made.device}: {target_typed(made.target)}",
        f"machine: {made.abi}, {made.platform}",
        f"precision: {made.precision}",
        f"tuned: {'yes, its records are inside' if package.tuned else 'no'}",
        f"model file inside: {'yes' if package.model is not None else 'no, so only its own inputs can be checked'}",
        f"made: {made.created:%Y-%m-%d %H:%M} UTC by farm {made.farm}, TVM {made.tvm}, linker {made.linker}",
        f"numbers checked against: {made.reference_by}",
    ]
    emit({**kind, **asdict(made), **tensors}, lines, json=json)


def _tensor(fields: dict[str, Any]) -> str:
    if "shape" not in fields:
        return str(fields["name"])
    sizes = fields["shape"]
    if not all(isinstance(size, int) for size in sizes):
        return f"{fields['name']} [{', '.join(map(str, sizes))}] {fields['dtype']}"
    shape = "x".join(map(str, sizes)) or "scalar"
    return f"{fields['name']} {shape} {fields['dtype']}"


def compile_model(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    target: Annotated[
        str | None,
        typer.Option(
            help="host, rpi4, rk3399, android-arm64 ...; a TVM tag; a dict as JSON; with --on a phone's: cpu, adreno."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Compile for the phones that this selects; the daemon knows them.", autocompletion=complete.selectors
        ),
    ] = None,
    precision: Annotated[
        Literal["float32", "float16", "float16_acc32"], typer.Option(help="The type in which the model computes.")
    ] = "float32",
    texture: Annotated[
        bool, typer.Option("--texture", help="Keep tensors in OpenCL images (textures) where that is right.")
    ] = False,
    shape: Shapes = None,
    dtype: Dtypes = None,
    records: Annotated[Path | None, typer.Option(help="Tuning records to compile with: a .tar or a folder.")] = None,
    with_model: Annotated[
        bool | None,
        typer.Option("--with-model/--without-model", help="Put the model file inside; by default up to 64 MB."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The package; MODEL.farm.tar here by default.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compile a model into a package, which `farm run` and `farm bench` take in place of a model.

    Exit code 2 for a bad model, a target that TVM does not take, or one that it would do wrongly.
    """
    checked_file(model)
    if target is None and on is None:
        raise UserError("no target is given", hint="--target NAME, or --on SELECTOR")
    path = output or Path(f"{model.stem}.farm.tar")
    work.check_package_path(path)
    chosen: Any = target if on is None else _target_of_phones(on, "cpu" if target is None else target)
    with elapsed(f"compiling {model.name}"):
        made = _with_model(
            "compile", "compiling", model, shape, dtype,
            precision=precision, texture=texture, records=str(records) if records else None, target=chosen,
            target_name=target or "cpu", with_model=with_model, output=str(path.resolve()), cache=str(cache_folder()),
        )  # fmt: skip
    emit(made, str(path), json=json)
    if not json:
        print_note(f"compiled in {made['seconds']:.1f} s by TVM {made['tvm']} for {target_typed(made['target'])}")
        for note in made["notes"]:
            print_note(f"tuning records: {note}")
        if made["textures"] is not None:
            from farm.compiler.texture.scopes import report_from_wire

            for sentence in report_from_wire(made["textures"]).sentences():
                print_note(sentence)


def _target_of_phones(on: str, name: str) -> object:
    """The target that all adopted phones of a selector share.

    Raises:
        NoPhoneError: none matches.
        UserError: they need different code.
    """
    from farm.devices.identity.targets import target_on

    found = call("device.list", selector=on)["devices"]
    matching = show_devices(each["name"] for each in found if each["adopted"])
    if not matching:
        raise NoPhoneError(f"no phone matches {on}", hint="farm device list")
    targets = {each["name"]: target_on(name, each["targets"], each["name"]) for each in matching}
    first = next(iter(targets))
    other = next((phone for phone, target in targets.items() if target != targets[first]), None)
    if other is not None:
        raise UserError(f"{first} and {other} need different code for {name}", hint="one package each: --on name=...")
    return targets[first]
