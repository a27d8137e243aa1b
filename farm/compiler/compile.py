"""ONNX to a shared library for a phone, through Relax. Results are kept by the hash of everything that shapes them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.relax.frontend.onnx import from_onnx

from farm.bundle.abi import Abi, Platform
from farm.compiler.link import exporter, find_linker
from farm.compiler.onnx_model import OnnxModel
from farm.compiler.tvm_errors import first_line
from farm.core.errors import ModelError, UserError

LIBRARY = "model.so"
RECIPE = 1  # raise it when this module compiles differently: older cached libraries are then not used
UNUSED_S = 7 * 24 * 3600.0  # what is in the cache and nobody wanted for a week is deleted

_ABIS = {
    "aarch64": Abi.ARM64, "arm64": Abi.ARM64, "arm": Abi.ARMV7, "armv7a": Abi.ARMV7, "x86_64": Abi.X86_64,
    "i686": Abi.X86, "riscv64": Abi.RISCV64,
}  # fmt: skip


class CompileError(ModelError):
    """TVM cannot compile the model for that target."""

    code = "compile"


class TargetError(UserError):
    """TVM does not know that target."""

    code = "bad_target"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A library ready to upload."""

    library: Path
    key: str  # hash of everything that shaped it
    sha256: str  # of the library itself
    seconds: float  # compiling and linking when it was made
    cached: bool
    linker: str


def target_from(value: object) -> Any:
    """The TVM target for a tag or a dict as DeviceIdentity.targets has them.

    Raises:
        TargetError: TVM refuses it.
    """
    try:
        if isinstance(value, Mapping):
            fields = dict(value)
            host = fields.pop("host", None)
            tag = fields.pop("tag", None)
            target = tvm.target.Target(tag if tag and not fields else ({"tag": tag} if tag else {}) | fields)
            return tvm.target.Target(target, host=tvm.target.Target(dict(host))) if host else target
        return tvm.target.Target(str(value))
    except Exception as error:  # TVM raises its own kinds, and plain ValueError, TypeError, RuntimeError
        raise TargetError(f"TVM does not take the target {value!r}: {first_line(error)}") from error


def to_relax(model: OnnxModel, shapes: Mapping[str, list[int]]) -> Any:
    """The model as a Relax module with these input shapes; its weights are constants.

    Raises:
        ModelError: an operator is not supported, or a node cannot be converted; both are named.
    """
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")  # about renamed inputs; they are fed by position
            return from_onnx(model.proto, shape_dict=dict(shapes), keep_params_in_input=False)
    except tvm.error.OpNotImplemented as error:
        raise ModelError(_unsupported(model, str(error)), hint="rewrite or re-export the model without it") from error
    except Exception as error:
        node = _node_in(error)
        where = f" at {node}" if node else ""
        raise ModelError(
            f"{model.name}: TVM cannot convert it{where}: {first_line(error)}",
            hint="rewrite that node, or export the model with fixed shapes and constants",
        ) from error


def compile_for(module: Any, target: object, name: str) -> Any:
    """Compile a Relax module; the executable can be exported.

    Raises:
        TargetError: TVM does not know the target.
        CompileError: TVM fails.
    """
    tvm_target = target_from(target)
    try:
        return tvm.compile(module, target=tvm_target)
    except Exception as error:
        raise CompileError(
            f"{name}: TVM cannot compile it for {tvm_target.kind.name}: {first_line(error)}",
            evidence=str(error)[-2000:],
        ) from error


def compile_library(model: OnnxModel, shapes: Mapping[str, list[int]], target: object, cache: Path) -> Compiled:
    """The shared library of `model` for `target`, from `cache` or made now. Two workers never make the same one twice.

    Raises:
        ModelError: the model cannot be converted or compiled.
        NoLinkerError: the host cannot link for that target.
    """
    abi, platform = abi_of(target)
    linker = find_linker(abi, platform)
    recipe = [RECIPE, model.sha256, shapes, target, tvm.__version__, linker.name]
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    folder = cache / key
    with _locked(cache / f"{key}.lock"):
        cached = (folder / "made.json").is_file()
        if not cached:
            _make(model, shapes, target, folder, abi, platform)
        made = json.loads((folder / "made.json").read_text())
        os.utime(folder)
    _drop_unused(cache)
    return Compiled(folder / LIBRARY, key, made["sha256"], made["seconds"], cached, made["linker"])


def abi_of(target: object) -> tuple[Abi, Platform]:
    """For which machine and platform a target's CPU code is.

    Raises:
        TargetError: no such phone exists.
    """
    tvm_target = target_from(target)
    host = tvm_target.host or tvm_target
    triple = str(host.attrs.get("mtriple", ""))
    abi = _ABIS.get(triple.partition("-")[0])
    if abi is None:
        raise TargetError(f"the farm cannot link for {triple or 'a target without mtriple'}")
    return abi, Platform.ANDROID if "android" in triple else Platform.LINUX


def _make(
    model: OnnxModel, shapes: Mapping[str, list[int]], target: object, folder: Path, abi: Abi, platform: Platform
) -> None:
    started_s = time.monotonic()
    fcompile = exporter(abi, platform)
    executable = compile_for(to_relax(model, shapes), target, model.name)
    partial = folder.with_suffix(f".{os.getpid()}")
    partial.mkdir()
    try:
        executable.export_library(str(partial / LIBRARY), fcompile=fcompile)
        made = {
            "sha256": hashlib.sha256((partial / LIBRARY).read_bytes()).hexdigest(),
            "seconds": time.monotonic() - started_s,
            "linker": find_linker(abi, platform).name,
        }
        (partial / "made.json").write_text(json.dumps(made))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed by the kernel however this process ends
        yield


def _drop_unused(cache: Path) -> None:
    """Delete what nobody wanted for a week: libraries, references, locks, and what killed workers left half done."""
    oldest_s = time.time() - UNUSED_S
    for path in cache.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another worker was faster
            if path.stat().st_mtime >= oldest_s:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _unsupported(model: OnnxModel, text: str) -> str:
    """TVM lists operator types only; say where the first of each is."""
    kinds = [kind.strip() for kind in text.splitlines()[0].rpartition(":")[2].split(",") if kind.strip()]
    places = []
    for kind in sorted(kinds):
        node = next((node for node in model.proto.graph.node if node.op_type == kind), None)
        places.append(f"{kind} (node {_node_name(node)})" if node is not None else kind)
    return f"{model.name}: TVM's ONNX front end does not support {', '.join(places) or 'one of its operators'}"


def _node_in(error: BaseException) -> str:
    """The ONNX node at which the front end failed; it only prints it, so take it from the failing frame."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "_construct_nodes" and "node" in trace.tb_frame.f_locals:
            node = trace.tb_frame.f_locals["node"]
            found = f"{node.op_type} (node {_node_name(node)})"
        trace = trace.tb_next
    return found


def _node_name(node: Any) -> str:
    return repr(node.name) if node.name else f"that makes {node.output[0]!r}"
