"""TVMScript read with care.

TVM's parser evaluates the expressions in a script with Python's `eval`, so a file could run any code while it is only
read. Here it cannot: before TVM sees the text, `farm.compiler.script_check` refuses whatever is not on its lists; the
parser gets no Python builtins but harmless ones; `metadata = tvm.ir.load_json("...")` is read here, by type of node.
"""

from __future__ import annotations

import ast
import contextlib
import threading
import typing
from collections.abc import Iterator
from typing import Any

from tvm.relax.script.parser import entry
from tvm.script import from_source

from farm.compiler.relax_nodes import load_nodes
from farm.compiler.script_check import BUILTINS, METADATA, ROOTS, check, is_arithmetic, refused
from farm.compiler.tvm_errors import end_of, first_line
from farm.core.errors import ModelError

_PARSING = threading.Lock()  # the parser is changed while it works


def parse(text: str, name: str) -> Any:
    """The IRModule or function in TVMScript's text; `name` is for messages.

    Raises:
        ModelError: it is no TVMScript, or has something else in it; the line is named.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" in line {line}" if line else ""
        raise ModelError(f"{name} is no TVMScript: it is no valid Python{where}", evidence=str(error)) from error
    try:
        check(tree, name)
    except RecursionError as error:
        raise ModelError(f"{name} is no TVMScript: it is nested too deeply") from error
    known: dict[str, Any] = {**ROOTS, "TypeVar": typing.TypeVar, "__builtins__": dict(BUILTINS)}
    lines = text.splitlines()
    for statement in tree.body:
        kept = isinstance(statement, ast.ClassDef | ast.FunctionDef)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            kept = not _is_metadata(statement)
            if not kept:
                known[METADATA] = load_nodes(statement.value.args[0].value, f"{name}: metadata")  # type: ignore[attr-defined]  # `check` saw to it
        if not kept:  # TVM's parser takes neither imports nor docstrings
            for line in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                lines[line] = ""
    try:
        with _PARSING, _shapes_are_arithmetic(name):
            return from_source("\n".join(lines) + "\n", extra_vars=known)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name}: TVM cannot parse it as TVMScript: {first_line(error)}",
            hint="print it with IRModule.script(show_meta=True)",
            evidence=end_of(error),
        ) from error


def _is_metadata(statement: ast.Assign) -> bool:
    return isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == METADATA


@contextlib.contextmanager
def _shapes_are_arithmetic(name: str) -> Iterator[None]:
    """TVM evaluates a dimension that is a string, `R.Tensor(("2 * n",))`, as Python: let it be arithmetic."""
    before = entry._eval_shape  # noqa: SLF001 (TVM has no other door to it)

    def careful(dimension: Any, names: Any) -> Any:
        if isinstance(dimension, str) and not is_arithmetic(dimension):
            raise refused(name, None, f"the dimension {dimension[:60]!r} is no arithmetic")
        return before(dimension, names)

    entry._eval_shape = careful  # noqa: SLF001
    try:
        yield
    finally:
        entry._eval_shape = before  # noqa: SLF001
