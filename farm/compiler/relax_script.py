"""TVMScript: a Python program. It runs where its user calls `farm model import`, and nowhere else."""

from __future__ import annotations

import hashlib
import runpy
import traceback
from pathlib import Path
from typing import Any, NoReturn

import tvm
from tvm import relax
from tvm.script import ir, tirx
from tvm.script import relax as script

from farm.common.errors import ModelError
from farm.compiler.nodes import load_nodes
from farm.compiler.relax_model import RelaxModel, relax_model
from farm.compiler.tvm_errors import end_of, first_line

EXPECTED = "it needs one class under @I.ir_module, or one function under @R.function"
_ROOTS = {"I": ir, "R": script, "T": tirx, "tvm": tvm}  # `module.script()` writes their imports as comments


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
