"""`farm model ...`: look at a model file, import it into TVM, write a network of the zoo. No daemon is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import given, work
from farm.cli import model_options as m
from farm.cli.context import JsonFlag, print_json, tell, write_file
from farm.cli.local import scratch_folder, with_tvm

app = typer.Typer(help="Model files: what is in one, import it into TVM, networks to try (no daemon needed).")

FileArgument = Annotated[Path, typer.Argument(help="ONNX, .pt2, .tflite, .keras, .h5, TVMScript, Relax JSON.")]


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A model file of any format, or a package.")],
    shape: m.Shapes = None,
    dtype: m.Dtypes = None,
    json: JsonFlag = False,
) -> None:
    """Inputs, outputs, operators, parameters and multiply-accumulates (MACs)."""
    if given.is_package(work.checked(file)):
        _show_package(file, json=json)
        return
    about = _with_model("summarise", "reading", file, shape, dtype)
    if json:
        print_json(about)
        return
    tell(f"{about['name']}: {about['format']}, sha256 {about['sha256'][:16]}")
    for what in ("inputs", "outputs"):
        tell(f"{what}: {', '.join(map(_tensor, about[what]))}")
    if about["parameters"] is not None:
        tell(f"parameters: {about['parameters']:,} ({about['parameters_bytes'] / 1e6:,.2f} MB)")
    if about["macs"] is not None:
        tell(f"MACs: {about['macs']:,}")
    if about["operators"] is not None:
        tell(f"operators: {', '.join(f'{count} {name}' for name, count in about['operators'].items())}")
    if about["open"]:
        tell(f"shapes are open; for the rest, and to compile, give them: {' '.join(about['open'])}")


@app.command(name="import")
def import_(
    file: FileArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it, for example net.relax.json.")],
    shape: m.Shapes = None,
    dtype: m.Dtypes = None,
) -> None:
    """Convert a model to Relax and keep it; commands take the file as a model, with this version of TVM only."""
    given.writable(output)
    made = _with_model("import", "importing", file, shape, dtype, output=str(output.resolve()))
    tell(f"wrote {output}: {made['bytes']:,} bytes for TVM {made['tvm']}")


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="mobilenet_v2, resnet18, resnet50, small_cnn or one_conv.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it, for example net.onnx.")],
) -> None:
    """Write a network of the zoo as ONNX: seeded weights, the same bytes every time."""
    from farm.zoo.catalogue import onnx_bytes

    given.writable(output)
    data = onnx_bytes(name)
    write_file(output, data)
    tell(f"wrote {output}: {len(data):,} bytes")


def _with_model(
    do: str, doing: str, file: Path, shapes: list[str] | None, dtypes: list[str] | None, **more: str
) -> dict[str, Any]:
    from farm.core.shape_option import parse_dtypes, parse_shapes

    request = {
        "model": str(work.checked(file)),
        "shapes": parse_shapes(shapes or ()),
        "dtypes": parse_dtypes(dtypes or ()),
        **more,
    }
    with scratch_folder() as scratch:
        return with_tvm(do, f"{doing} {file.name}", request, Path(scratch))


def _show_package(file: Path, *, json: bool) -> None:
    """What a package says of itself; all of it is read and its hashes are checked."""
    from dataclasses import asdict

    from farm.compiler.package import read_package

    package = read_package(file)
    made = package.manifest
    if json:
        print_json({"kind": "package", "tuned": package.tuned, "with_model": package.model is not None, **asdict(made)})
        return
    tell(f"{made.name}: a package, of {made.source_format}, sha256 {made.source_sha256[:16]}")
    for what, tensors in (("inputs", made.inputs), ("outputs", made.outputs)):
        tell(f"{what}: {', '.join(_tensor(asdict(each)) for each in tensors)}")
    tell(f"target: {made.target_name or 'of its own'}, runs on {made.device}: {made.target}")
    tell(f"machine: {made.abi}, {made.platform}")
    tell(f"precision: {made.precision}")
    tell(f"tuned: {'yes, its records are inside' if package.tuned else 'no'}")
    tell(f"model file inside: {'yes' if package.model is not None else 'no, so only its own inputs can be checked'}")
    tell(f"made: {made.created:%Y-%m-%d %H:%M} UTC by farm {made.farm}, TVM {made.tvm}, linker {made.linker}")
    tell(f"numbers checked against: {made.reference_by}")


def _tensor(fields: dict[str, Any]) -> str:
    if "shape" not in fields:
        return str(fields["name"])
    sizes = fields["shape"]
    if not all(isinstance(size, int) for size in sizes):
        return f"{fields['name']} [{', '.join(map(str, sizes))}] {fields['dtype']}"
    shape = "x".join(map(str, sizes)) or "scalar"
    return f"{fields['name']} {shape} {fields['dtype']}"
