"""Relax modules: the JSON of `tvm.ir.save_json`, and the farm's own file of an imported model.

The farm's file is one JSON document: what the model is called, where it came from, its inputs and outputs, the TVM
version, and the module. TVM promises no compatibility of this JSON, so another version's is refused.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import tvm
from tvm import relax
from tvm.script import ir, tirx
from tvm.script import relax as script

from farm.common.errors import ModelError
from farm.compiler.model import Array, Evaluated, ImportedModel, IRModule, SourceModel
from farm.compiler.nodes import load_nodes
from farm.compiler.relax_passes import bound, parameters, sizes_by_name
from farm.compiler.tvm_errors import end_of, first_line

KIND = "farm relax model"
VERSION = 1
SUFFIX = ".relax.json"
EXPECTED = "it needs one class under @I.ir_module, or one function under @R.function"
_ROOTS = {"I": ir, "R": script, "T": tirx, "tvm": tvm}  # `module.script()` writes their imports as comments


@dataclass(frozen=True, slots=True)
class RelaxModel(SourceModel):
    """A Relax module whose function is `main`; all parameters of `main` are inputs."""

    module: IRModule = field(repr=False)
    format: ClassVar[str] = "relax"

    def to_relax(self, shapes: Mapping[str, Sequence[int]]) -> IRModule:
        """The module itself, its open dimensions fixed.

        Raises:
            ModelError: one name stands for two sizes.
        """
        return bound(self.module, sizes_by_name(self.name, self.inputs, shapes))

    def reference(self, inputs: Mapping[str, Array]) -> Evaluated:  # noqa: ARG002 (as every SourceModel)
        """Nothing but TVM runs Relax."""
        return Evaluated(None, "nothing but TVM runs Relax")


def saved(model: ImportedModel) -> bytes:
    """The file of an imported model, which `read` takes: its shapes and types stay fixed."""
    module = tvm.ir.save_json(model.module)
    document = {
        "kind": KIND,
        "version": VERSION,
        "tvm": tvm.__version__,
        "name": model.name,
        "source": {"format": model.format, "sha256": model.sha256},
        "inputs": [spec.to_wire() for spec in model.inputs],
        "outputs": [spec.to_wire() for spec in model.outputs],
        "module_sha256": hashlib.sha256(module.encode()).hexdigest(),
        "module": module,
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def read_json(data: bytes, name: str) -> RelaxModel:
    """Read the farm's file of an imported model, or one of `tvm.ir.save_json`.

    Raises:
        ModelError: it is neither, is damaged, or another TVM version wrote it.
    """
    try:
        text = data.decode()
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{name} is JSON that is cut short or damaged", hint="copy or import it again", evidence=str(error)
        ) from error
    outputs: tuple[str, ...] = ()
    if isinstance(document, dict) and document.get("kind") == KIND:
        module, version, outputs = _checked(document, name)
    elif isinstance(document, dict) and isinstance(document.get("nodes"), list) and "root_index" in document:
        about = document.get("metadata")
        module, version = text, str(about.get("tvm_version", "unknown") if isinstance(about, dict) else "unknown")
    else:
        raise ModelError(
            f"{name} is JSON, but no Relax module", hint="tvm.ir.save_json or `farm model import` make one"
        )
    if version != tvm.__version__:
        raise ModelError(
            f"{name} was written by TVM {version}, and this toolchain has {tvm.__version__}: TVM's JSON fits only the "
            "version that wrote it",
            hint="import the original model again with this toolchain",
        )
    return relax_model(load_nodes(module, name), name, hashlib.sha256(data).hexdigest(), outputs)


def _checked(document: Mapping[str, Any], name: str) -> tuple[str, str, tuple[str, ...]]:
    try:
        version, module, wanted = document["version"], document["module"], document["module_sha256"]
        if version != VERSION:
            raise ModelError(
                f"{name} has version {version!r} of the farm's model file, and this farm knows {VERSION}",
                hint="import the original model again",
            )
        if hashlib.sha256(module.encode()).hexdigest() != wanted:
            raise ModelError(
                f"{name} is damaged: its module does not have the hash in the file", hint="import it again"
            )
        return str(module), str(document["tvm"]), tuple(str(each["name"]) for each in document["outputs"])
    except (KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise ModelError(f"{name} is no whole model file of the farm", hint="import it again") from error


def relax_model(loaded: Any, name: str, sha256: str, outputs: tuple[str, ...] = ()) -> RelaxModel:
    """The model of a module, or of one function.

    Args:
        loaded: what a file holds.
        name: of the file, for messages.
        sha256: of the file.
        outputs: their names, as far as they are known.

    Raises:
        ModelError: it is something else, has no function `main`, or is not well-formed.
    """
    if isinstance(loaded, relax.Function):
        loaded = tvm.IRModule({"main": loaded.with_attr("global_symbol", "main")})
    if not isinstance(loaded, tvm.IRModule):
        raise ModelError(f"{name} holds no module but a {type(loaded).__name__}", hint="save an IRModule")
    names = [variable.name_hint for variable in loaded.get_global_vars()]
    if "main" not in names or not isinstance(loaded["main"], relax.Function):
        raise ModelError(
            f"{name} has no Relax function 'main'", hint=f"it has {', '.join(sorted(names)) or 'no function'}"
        )
    for parameter in loaded["main"].params:
        if not isinstance(parameter.ty, relax.TensorType) or parameter.ty.shape is None:
            raise ModelError(
                f"{name}: parameter {parameter.name!r} of main is no tensor with a shape",
                hint="annotate it: R.Tensor((1, 3), dtype='float32')",
            )
    try:
        relax.analysis.well_formed(loaded)
    except Exception as error:
        raise ModelError(f"{name} is no well-formed Relax: {first_line(error)}", hint="correct the file") from error
    return RelaxModel(name, sha256, parameters(loaded["main"]), outputs, loaded)


def refuse_script(_data: bytes, name: str) -> NoReturn:
    """Raise the error of a script where a model is read: only `farm model import` runs it.

    Raises:
        ModelError: always.
    """
    output = f"{name.rpartition('.')[0] or name}.relax.json"
    raise ModelError(
        f"{name} is a Python program (TVMScript), and only farm model import runs one",
        hint=f"farm model import {name} -o {output}, then give {output}",
    )


def run_script(path: Path) -> RelaxModel:
    """Run a Python file and take the module, or else the one Relax function, that it makes.

    Raises:
        ModelError: it fails, makes none or several, or its module has a node that no model needs.
    """
    try:
        made = runpy.run_path(str(path), init_globals=_ROOTS, run_name=path.stem)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = getattr(error, "lineno", None) or next(reversed(lines), None)
        where = f" in line {line}" if line else ""
        raise ModelError(
            f"{path.name} fails{where}: {type(error).__name__}: {first_line(error)}",
            hint="correct it, and import it again",
            evidence=end_of(error),
        ) from error
    module = _only_one(path.name, made)
    text = tvm.ir.save_json(module)
    return relax_model(load_nodes(text, path.name), path.name, hashlib.sha256(text.encode()).hexdigest())


def _only_one(name: str, made: dict[str, Any]) -> Any:
    for kind in (tvm.IRModule, relax.Function):
        found = {id(value): each for each, value in made.items() if isinstance(value, kind)}
        if len(found) > 1:
            raise ModelError(f"{name} makes several models: {', '.join(sorted(found.values()))}", hint=EXPECTED)
        if found:
            return made[next(iter(found.values()))]
    raise ModelError(f"{name} makes no model", hint=EXPECTED)
