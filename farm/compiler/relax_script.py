"""TVMScript read with care.

TVM's parser evaluates the expressions in a script with Python's `eval`, so a file could run any code while it is only
read. Here it cannot: before TVM sees the text,

- the file must be nothing but imports of tvm.script (which are skipped), `n = TypeVar("n")`,
  `metadata = tvm.ir.load_json("...")`, and one module or function in TVMScript;
- names from the script's own modules are looked up: what is no part of TVMScript is refused;
- attributes that lead into Python's insides are refused, and so are generators;

and the parser gets no Python builtins but harmless ones.
"""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import tvm
from tvm.script import from_source
from tvm.script.parser import ir, relax, tirx

from farm.compiler.tvm_errors import first_line
from farm.core.errors import ModelError

# What evaluates without doing anything. `range` is T's loops' and Python's.
_BUILTINS: Mapping[str, Any] = {
    each.__name__: each for each in (range, len, int, float, bool, str, tuple, list, min, max, abs, sum)
}  # fmt: skip
_IMPORTS = ("tvm", "tvm.script", "typing", "__future__")
# Of the roots, but no part of the language: Python code, programs for a compiler, the parser itself.
_NO_PART = ("pyfunc", "call_py_func", "call_kernel", "parse", "from_source", "scan_macro")
_PRIVATE = ("_", "gi_", "f_", "cr_", "ag_", "tb_", "co_")  # frames lead from any generator to any module
_NO_NODES = (ast.GeneratorExp, ast.Yield, ast.YieldFrom, ast.Await)
_MODULES = ("tvm.relax.op",)  # what `R.nn` and its like are
_LOAD_JSON = "tvm.ir.load_json"
_ROOTS: Mapping[str, Any] = {"I": ir, "R": relax, "T": tirx}


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
    lines = text.splitlines()
    for statement in tree.body:
        _check_top(statement, name)
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Expr):  # TVM's parser does not take them
            for line in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                lines[line] = ""
    if not any(isinstance(statement, ast.ClassDef | ast.FunctionDef) for statement in tree.body):
        raise _refused(name, None, "it has no module or function", "TVMScript begins with @I.ir_module or @R.function")
    _check_names(tree, name)
    known = {
        **_ROOTS,
        "TypeVar": typing.TypeVar,
        "tvm": types.SimpleNamespace(ir=types.SimpleNamespace(load_json=tvm.ir.load_json)),
        "__builtins__": dict(_BUILTINS),
    }
    try:
        return from_source("\n".join(lines) + "\n", extra_vars=known)
    except Exception as error:
        raise ModelError(
            f"{name}: TVM cannot parse it as TVMScript: {first_line(error)}",
            hint="print it with IRModule.script(show_meta=True)",
            evidence=str(error)[-2000:],
        ) from error


def _check_top(statement: ast.stmt, name: str) -> None:
    match statement:
        case ast.Import(names=names) if all(each.name in _IMPORTS for each in names):
            return
        case ast.ImportFrom(module=module) if module in _IMPORTS:
            return
        case ast.ClassDef(bases=[], keywords=[]) | ast.FunctionDef():
            return
        case ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Name(id="TypeVar"))):
            return
        case ast.Assign(targets=[ast.Name(id="metadata")], value=ast.Call(func=func, args=[ast.Constant()])) if (
            ast.unparse(func) == _LOAD_JSON
        ):
            return
        case ast.Expr(value=ast.Constant(value=str())):  # a docstring
            return
    raise _refused(name, statement, f"`{ast.unparse(statement).splitlines()[0][:60]}` is no TVMScript", "")


def _check_names(tree: ast.Module, name: str) -> None:
    whole = {id(inner) for chain in _chains(tree) for inner in ast.walk(chain) if inner is not chain}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in tree.body:
            raise _refused(name, node, "an import inside a function", "")
        if isinstance(node, _NO_NODES):
            raise _refused(name, node, "generators and coroutines are no TVMScript", "")
        if isinstance(node, ast.Attribute) and node.attr.startswith(_PRIVATE):
            raise _refused(name, node, f"`.{node.attr}` is private to Python", "")
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            raise _refused(name, node, f"`{node.id}` is private to Python", "")
        if isinstance(node, ast.Name) and node.id in {*_ROOTS, "tvm"} and id(node) not in whole:
            raise _refused(name, node, f"`{node.id}` alone is no TVMScript", "")
    for chain in _chains(tree):
        _check_chain(chain, name)


def _chains(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Outermost attributes of the script's own modules, such as `R.nn.conv2d`."""
    inner: set[int] = set()
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Attribute):
                inner.add(id(node.value))
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if id(node) not in inner and isinstance(root, ast.Name) and root.id in {*_ROOTS, "tvm"}:
                yield node


def _check_chain(chain: ast.Attribute, name: str) -> None:
    said = ast.unparse(chain)
    root, *parts = said.split(".")
    if root == "tvm":
        if said != _LOAD_JSON:
            raise _refused(name, chain, f"`{said}` is no TVMScript", "")
        return
    found: Any = _ROOTS[root]
    for part in parts:
        if part in _NO_PART:
            raise _refused(name, chain, f"`{said}` is Python, and not run here", "write it in Relax or TensorIR")
        found = getattr(found, part, None)
        if found is None:
            raise _refused(name, chain, f"TVMScript has no `{said}`", "was it written for another version of TVM?")
        if isinstance(found, types.ModuleType) and not found.__name__.startswith(_MODULES):
            raise _refused(name, chain, f"`{said}` is no TVMScript", "")
    module = getattr(found, "__module__", None)
    if isinstance(found, types.ModuleType) or (isinstance(module, str) and not module.startswith("tvm")):
        raise _refused(name, chain, f"`{said}` is no TVMScript", "")


def _refused(name: str, node: ast.AST | None, why: str, hint: str) -> ModelError:
    where = f", line {node.lineno}" if isinstance(node, ast.stmt | ast.expr) else ""
    return ModelError(f"{name}{where}: {why}", hint=hint or "only TVMScript is read; other Python is not run")
