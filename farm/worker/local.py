"""Work of `farm` commands that needs TVM and no daemon: `python -m farm.worker.local REQUEST.json REPLY.json`.

A process of its own: the command imports no TVM, and when TVM crashes the command says so in one line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from farm.common.errors import Code, FarmError, ModelError, UserError, error_to_wire
from farm.common.selector import HOST
from farm.compiler.build import SMALL_BYTES, BuildRequest, build, make_package
from farm.compiler.compile import Recipe
from farm.compiler.inputs import open_shapes
from farm.compiler.load import file_bytes, import_model, outline, read, summarise
from farm.compiler.model import format_of
from farm.compiler.onnx_data import in_parts, model_bytes
from farm.compiler.package import foreign_error, is_package
from farm.compiler.reference import flatten
from farm.compiler.relax_model import run_script, saved
from farm.compiler.targets import (
    OWN_TEXTURES,
    TargetRefusedError,
    check_here,
    check_target,
    device_of,
    host_target,
    is_texture,
    target_from,
    unpack_records,
)
from farm.compiler.tvm_errors import end_of, first_line
from farm.devices.identity.targets import ADRENO_TAGS, target_here
from farm.worker.outputs import check_labels, output_fields, read_labels, save_arrays


def compile_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a model file into a package."""
    target = _target(request)
    path = Path(request["model"])
    data = model_bytes(path)
    if is_package(data):
        raise UserError(f"{path} is a package already", hint="give the model file that it was made from")
    if is_texture(target):
        raise TargetRefusedError(
            f"TVM {tvm.__version__} is known to generate wrong code for textures, and only a phone can tell whether "
            "it did so here",
            hint=OWN_TEXTURES,
        )
    records, notes = _records(request, target)
    started_s = time.monotonic()
    model = import_model(read(data, path.name), request["shapes"], request["dtypes"])
    with_model = request["with_model"] if request["with_model"] is not None else len(data) <= SMALL_BYTES
    package, made = make_package(
        model,
        Recipe(target, request["precision"], records, request["texture"]),
        Path(request["cache"]),
        target_name=request["target_name"],
        source=data if with_model else None,
    )
    _write(Path(request["output"]), package)
    return {
        "file": request["output"],
        "bytes": len(package),
        "seconds": time.monotonic() - started_s,
        "target": target,
        "device": device_of(target),
        "tvm": tvm.__version__,
        "with_model": with_model,
        "notes": notes,
        "textures": made.textures.to_wire() if made.textures is not None else None,
    }


def run_here(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model file or a package once on this machine; returns the report of `farm run` about a phone."""
    path = Path(request["model"])
    target = _target(request)
    check_here(target)
    labels = read_labels(file_bytes(Path(request["labels"]))) if request["labels"] else ()
    records, notes = _records(request, target)
    wanted = BuildRequest(
        recipe=Recipe(target, request["precision"], records, request["texture"]),
        shapes=request["shapes"],
        dtypes=request["dtypes"],
        npz=file_bytes(Path(request["inputs"])) if request["inputs"] else None,
        fill=request["fill"],
    )
    try:
        built = build(model_bytes(path), path.name, wanted, Path(request["cache"]))
    except UserError as error:
        if error.code != Code.PACKAGE_FOREIGN:
            raise
        hint = "compile its model for this machine: farm compile MODEL --target host"
        raise foreign_error(f"{path.name}: {error.message}", hint=hint) from error
    if labels:
        check_labels(labels, built.outputs)
    device = tvm.runtime.device(built.device, 0)
    started_s = time.monotonic()
    try:
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(built.compiled.library)), device)
        loaded_s = time.monotonic()
        outputs = flatten(machine["main"](*(tvm.runtime.tensor(array, device) for array in built.inputs.values())))
        device.sync()
    except Exception as error:
        raise ModelError(
            f"{built.name} failed on this host: {first_line(error)}", Code.HOST_RUN_FAILED, evidence=end_of(error)
        ) from error
    ran_s = time.monotonic()
    save_arrays(Path(request["outputs"]), built.output_names, outputs)
    return {
        **built.judged(outputs),
        **built.about(),
        **output_fields(built, outputs, request["fill"], request["top_k"], labels),
        "timings": {"load_s": loaded_s - started_s, "run_s": ran_s - loaded_s},
        "target": HOST if request["target"] is None else request["target"],
        "versions": {"tvm": tvm.__version__},
        "notes": notes,
    }


def summarise_model(request: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a model file; while its shapes are open, the part known without them."""
    path = Path(request["model"])
    parts = in_parts(path)
    source = read(file_bytes(path) if parts is None else parts.whole(), path.name)
    data = {"data_files": {} if parts is None else parts.files}
    if missing := open_shapes(source, request["shapes"]):
        return outline(source, missing) | data
    return summarise(import_model(source, request["shapes"], request["dtypes"])) | data


def import_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write a model as the farm's file of an imported model. TVMScript is run: it is a program of who asks."""
    path = Path(request["model"])
    data = model_bytes(path)
    source = run_script(path) if format_of(data, path.name) == "script" else read(data, path.name)
    data = saved(import_model(source, request["shapes"], request["dtypes"]))
    _write(Path(request["output"]), data)
    return {"bytes": len(data), "tvm": tvm.__version__}


WORK = {
    "compile": compile_to, "run": run_here, "summarise": summarise_model, "import": import_to,
}  # fmt: skip


def main(request: Path, reply: Path) -> None:
    """Perform the request; the reply is its result or its error."""
    asked = json.loads(request.read_text())
    try:
        answer: dict[str, Any] = {"result": WORK[asked["do"]](asked)}
    except FarmError as error:
        answer = {"error": error_to_wire(error)}
    reply.write_text(json.dumps(answer, default=str))


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        hint = "name a file in a folder of yours"
        raise UserError(f"cannot write {path}: {error.strerror}", hint=hint) from error


def _target(request: Mapping[str, Any]) -> Any:
    """The target that a request names: a phone's as a dict, or by its name; without one, this host's."""
    given = request["target"]
    if isinstance(given, Mapping):
        return dict(given)
    if given == "adreno-clml":  # first of all: if this TVM has no CLML, no other command line helps
        check_target(target_from({"tag": ADRENO_TAGS[given]}))
    return target_here(HOST if given is None else given, host_target)


def _records(request: Mapping[str, Any], target: object) -> tuple[Path | None, tuple[str, ...]]:
    """The folder with the records for the target, and notes on the others."""
    if not request["records"]:
        return None, ()
    folder = Path(request["scratch"]) / "records"
    return folder, unpack_records(Path(request["records"]), target, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
