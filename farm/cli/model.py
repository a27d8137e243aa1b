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

FileArgument = Annotated[Path, typer.Argument(help="ONNX, .pt2, .tflite, .keras, .h5, TVMScript or Relax JSON.")]


@app.command()
def show(file: FileArgument, shape: m.Shapes = None, dtype: m.Dtypes = None, json: JsonFlag = False) -> None:
    """Inputs, outputs, operators, parameters and multiply-accumulates (MACs)."""
    about = _with_model("summarise", "reading", file, shape, dtype)
    if json:
        print_json(about)
        return
    tell(f"{about['name']}: {about['format']}, sha256 {about['sha256'][:16]}")
    for what in ("inputs", "outputs"):
        tell(f"{what}: {', '.join(map(_tensor, about[what]))}")
    tell(f"parameters: {about['parameters']:,} ({about['parameters_bytes'] / 1e6:,.2f} MB)")
    tell(f"MACs: {about['macs']:,}")
    tell(f"operators: {', '.join(f'{count} {name}' for name, count in about['operators'].items())}")


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


def _tensor(fields: dict[str, Any]) -> str:
    shape = "x".join(map(str, fields["shape"])) or "scalar"
    return f"{fields['name']} {shape} {fields['dtype']}"
