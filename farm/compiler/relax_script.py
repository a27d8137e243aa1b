"""TVMScript read with care.

TVM's parser evaluates the expressions in a script with Python's `eval`, so a file could run any code while it is only
read. Here it cannot: before TVM sees the text, `_check` refuses whatever is not on the lists below; the parser gets no
Python builtins but harmless ones; `metadata = tvm.ir.load_json("...")` is read here, by type of node.

What is allowed, so that evaluating it does nothing but build:

- The file is imports (skipped), `n = TypeVar("n")`, `metadata = tvm.ir.load_json("...")`, one module or functions.
- Statements and expressions of the kinds below. No comprehensions, f-strings or generators.
- A name is one that the script binds, one of `_ROOTS`, or a harmless builtin. Names with a meaning are never bound
  anew.
- What is called begins at R, T or I and is part of the language; or is a harmless builtin, a function of the script, or
  one of the methods of buffers. Values are not called, and have no attributes but those of buffers.
- `metadata` occurs as `metadata["kind"][number]` alone.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import resource
import threading
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tvm.ir import Expr
from tvm.relax.script.parser import entry
from tvm.script import from_source
from tvm.script.parser import ir, relax, tirx

from farm.common.errors import ModelError
from farm.compiler.nodes import load_nodes
from farm.compiler.tvm_errors import end_of, first_line

MAX_MEMORY_BYTES = 1 << 30  # to parse a script, beside what its characters need
MEMORY_PER_CHARACTER = 1000
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
        _check(tree, name)
    except RecursionError as error:
        raise ModelError(f"{name} is no TVMScript: it is nested too deeply") from error
    known: dict[str, Any] = {**_ROOTS, "TypeVar": typing.TypeVar, "__builtins__": dict(_BUILTINS)}
    lines = text.splitlines()
    for statement in tree.body:
        kept = isinstance(statement, ast.ClassDef | ast.FunctionDef)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            kept = not _is_metadata(statement)
            if not kept:
                known[_METADATA] = load_nodes(statement.value.args[0].value, f"{name}: metadata")  # type: ignore[attr-defined]  # `_check` saw to it
        if not kept:  # TVM's parser takes neither imports nor docstrings
            for line in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                lines[line] = ""
    try:
        with _PARSING, _shapes_are_arithmetic(name), _no_endless_values(), _limited_memory(len(text)):
            return from_source("\n".join(lines) + "\n", extra_vars=known)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name}: TVM cannot parse it as TVMScript: {first_line(error)}",
            hint="print it with IRModule.script(show_meta=True)",
            evidence=end_of(error),
        ) from error


@contextlib.contextmanager
def _limited_memory(characters: int) -> Iterator[None]:
    """Let the kernel refuse numbers and lists without a limit, such as `1 << 40000000000` and `[0] * 9**10`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    most = used + MAX_MEMORY_BYTES + MEMORY_PER_CHARACTER * characters
    bounds = [each for each in (soft, hard, most) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _is_metadata(statement: ast.Assign) -> bool:
    return isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == _METADATA


@contextlib.contextmanager
def _shapes_are_arithmetic(name: str) -> Iterator[None]:
    """TVM evaluates a dimension that is a string, `R.Tensor(("2 * n",))`, as Python: let it be arithmetic."""
    before = entry._eval_shape  # noqa: SLF001 (TVM has no other way to it)

    def careful(dimension: Any, names: Any) -> Any:
        if isinstance(dimension, str) and not _is_arithmetic(dimension):
            raise _refused(name, None, f"the dimension {dimension[:60]!r} is no arithmetic")
        return before(dimension, names)

    entry._eval_shape = careful  # noqa: SLF001
    try:
        yield
    finally:
        entry._eval_shape = before  # noqa: SLF001


@contextlib.contextmanager
def _no_endless_values() -> Iterator[None]:
    """Python goes through whatever has `[index]` until that raises, and an expression of TVM's never does."""

    def items(value: Any) -> Iterator[Any]:
        if type(value).__getitem__ is Expr.__getitem__:
            raise TypeError("a value of the model has no known number of parts")
        for index in itertools.count():
            try:
                part = value[index]
            except IndexError:
                return
            yield part

    Expr.__iter__ = items
    try:
        yield
    finally:
        del Expr.__iter__


_ROOTS: Final[Mapping[str, Any]] = {"I": ir, "R": relax, "T": tirx}
_METADATA: Final = "metadata"
# What evaluates without doing anything. `range` is T's loops' and Python's.
_BUILTINS: Final[Mapping[str, Any]] = {
    each.__name__: each for each in (range, len, int, float, bool, str, tuple, list, min, max, abs, sum)
}  # fmt: skip
_IMPORTS = ("tvm", "tvm.script", "tvm.tirx.layout", "typing", "__future__")
_TYPE_VARIABLE, _LOAD_JSON = "TypeVar", "tvm.ir.load_json"
_RESERVED = frozenset({*_ROOTS, *_BUILTINS, _METADATA, _TYPE_VARIABLE, "tvm"})
_DECORATORS = {"I.ir_module": ast.ClassDef, "R.function": ast.FunctionDef, "T.prim_func": ast.FunctionDef}
# Where the names of the language are defined. Not: the parser, GPU programs in other languages.
_LANGUAGE = (
    "tvm.ir.expr", "tvm.ir.type", "tvm.ir.prim", "tvm.relax.distributed.global_info", "tvm.relax.expr", "tvm.relax.op",
    "tvm.relax.script.builder.ir", "tvm.relax.script.parser.entry", "tvm.runtime._tensor",
    "tvm.script.ir_builder.ir.ir", "tvm.script.parser.ir.entry", "tvm.tirx.expr", "tvm.tirx.op",
    "tvm.tirx.script.builder.ir", "tvm.tirx.script.parser.entry",
)  # fmt: skip
_OPERATORS = "tvm.relax.op."  # modules below R, such as R.nn
# Of these modules, but no TVMScript to read: they call what they are given, run Python, or make a target (the farm's).
_NO_PART = (
    "ExternFunc", "buffer_proxy", "call_kernel", "call_py_func", "constexpr", "emit_te", "inline", "jit",
    "lookup_vdevice", "macro", "pyfunc", "rewriter", "target", "to_vdevice", "vdevice",
)  # fmt: skip
_AXIS = frozenset({"remap", "spatial", "reduce", "scan", "opaque", "S", "R"})  # T.axis.NAME
_KEYWORD_OF_HOST = "derive_func"  # of R.Callable: the name of a function of TVM's that shape inference calls
_PLAIN_OF_CALLABLE = 3  # its positional arguments before that
_BUFFER_FIELDS = frozenset({"data", "dtype", "elem_offset", "shape", "strides"})
_BUFFER_METHODS = frozenset({"access_ptr", "astype", "vload", "vstore"})
_STATEMENTS = (
    ast.ClassDef, ast.FunctionDef, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.While, ast.If,
    ast.With, ast.Assert, ast.Expr, ast.Pass, ast.Break, ast.Continue,
)  # fmt: skip
_EXPRESSIONS = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Dict, ast.Compare, ast.Call, ast.Constant, ast.Attribute,
    ast.Subscript, ast.Starred, ast.Name, ast.List, ast.Tuple, ast.Slice, ast.Lambda,
)  # fmt: skip
_OPERATIONS = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv,
    ast.Mod, ast.USub,
)  # fmt: skip


def _check(tree: ast.Module, name: str) -> None:
    """Refuse a file that has more in it than TVMScript; `name` is for messages.

    Raises:
        ModelError: it has; the line is named.
    """
    for statement in tree.body:
        _check_top(statement, name)
    programs = [each for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef)]
    if not programs:
        raise _refused(name, None, "it has no module or function", "TVMScript begins with @I.ir_module or @R.function")
    checker = _checker(tree, name)
    for program in programs:
        checker.statement(program)


def _is_arithmetic(text: str) -> bool:
    """Whether a string is sums and products of names and integers."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(
        isinstance(node, _ARITHMETIC)
        and not (isinstance(node, ast.Constant) and type(node.value) is not int)
        and not (isinstance(node, ast.Name) and node.id in _RESERVED)
        for node in nodes
    )


def _refused(name: str, node: ast.AST | None, why: str, hint: str = "") -> ModelError:
    """The error for text that is no TVMScript, with its line."""
    line = getattr(node, "lineno", None)
    where = f", line {line}" if line else ""
    return ModelError(f"{name}{where}: {why}", hint=hint or "only TVMScript is read; other Python is not run")


def _check_top(statement: ast.stmt, name: str) -> None:
    match statement:
        case ast.Import(names=names) if all(each.name in _IMPORTS for each in names):
            return
        case ast.ImportFrom(module=module) if module in _IMPORTS:
            return
        case ast.ClassDef() | ast.FunctionDef():
            return
        case ast.Assign(
            targets=[ast.Name(id=bound)],
            value=ast.Call(func=ast.Name(id="TypeVar"), args=[ast.Constant(value=str(variable))], keywords=[]),
        ) if bound == variable:
            return
        case ast.Assign(
            targets=[ast.Name(id="metadata")],
            value=ast.Call(func=func, args=[ast.Constant(value=str())], keywords=[]),
        ) if ast.unparse(func) == _LOAD_JSON:
            return
        case ast.Expr(value=ast.Constant(value=str())):  # a docstring
            return
    raise _refused(name, statement, f"`{ast.unparse(statement).splitlines()[0][:60]}` is no TVMScript")


def _checker(tree: ast.Module, name: str) -> _Checker:
    values: set[str] = set()
    functions: set[str] = set()
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    aliases: set[str] = set()
    of_alias: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=alias) as target], value=ast.Name(id=module)) if module in classes:
                aliases.add(alias)
                of_alias.add(id(target))
    top = {id(inner) for each in tree.body if isinstance(each, ast.Assign) for inner in ast.walk(each)}
    for node in ast.walk(tree):
        given = ""
        if isinstance(node, ast.FunctionDef):
            functions.add(given := node.name)
        elif isinstance(node, ast.ClassDef):
            given = node.name
        elif isinstance(node, ast.arg):
            values.add(given := node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in of_alias:
            values.add(given := node.id)
        if given.startswith("__") or (given in _RESERVED and id(node) not in top):
            raise _refused(name, node, f"`{given}` has a meaning of its own and cannot be bound")
    twice = (functions & (classes | aliases)) | (values & (functions | classes | aliases)) | (classes & aliases)
    if twice:
        raise _refused(name, None, f"`{min(twice)}` is bound to more than one kind of thing")
    return _Checker(name, frozenset(values - {_METADATA}), frozenset(functions), frozenset(classes | aliases))


@dataclass(frozen=True, slots=True)
class _Checker:
    """Walks statements and expressions; a form on no list is refused."""

    name: str  # of the script's file
    # The names that the script binds, by what may be done with them.
    values: frozenset[str]
    functions: frozenset[str]  # of the script: may be called
    modules: frozenset[str]  # the class, and `cls` where it stands for it: have functions

    def statement(self, node: ast.stmt) -> None:
        if not isinstance(node, _STATEMENTS):
            raise self._refused(node, f"`{ast.unparse(node).splitlines()[0][:60]}` is no TVMScript")
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            self._program(node)
            return
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._target(target)
        self._children(node)

    def _program(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        if len(node.decorator_list) != 1:
            raise self._refused(node, f"{node.name} needs one decorator, of TVMScript's")
        decorator = node.decorator_list[0]
        options = decorator.keywords if isinstance(decorator, ast.Call) and not decorator.args else []
        named = ast.unparse(decorator.func if isinstance(decorator, ast.Call) and not decorator.args else decorator)
        if _DECORATORS.get(named) is not type(node) or not all(isinstance(o.value, ast.Constant) for o in options):
            raise self._refused(decorator, f"`@{ast.unparse(decorator)[:60]}` is no TVMScript")
        if isinstance(node, ast.ClassDef):
            if node.bases or node.keywords:
                raise self._refused(node, f"{node.name} has base classes: Python is not run here")
        else:
            self._parameters(node)
            for each in (*(arg.annotation for arg in node.args.args), node.returns):
                if each is not None:
                    self._expression(each)
        for statement in node.body:
            self.statement(statement)

    def _parameters(self, node: ast.FunctionDef | ast.Lambda) -> None:
        plain = ast.arguments([], node.args.args, None, [], [], None, [])
        if ast.dump(node.args) != ast.dump(plain):
            raise self._refused(node, f"`{ast.unparse(node.args)[:60]}` are no parameters of TVMScript's")

    def _target(self, node: ast.expr) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            for each in node.elts:
                self._target(each)
        elif isinstance(node, ast.Starred):
            self._target(node.value)
        elif not isinstance(node, ast.Name | ast.Subscript):
            raise self._refused(node, f"`{ast.unparse(node)[:60]}` cannot be assigned to")

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.statement(child)
            elif isinstance(child, ast.expr):
                self._expression(child)
            elif isinstance(child, ast.keyword | ast.withitem):
                self._children(child)
            elif not isinstance(child, _OPERATIONS) or isinstance(child, ast.Pow):  # 9 ** 9 ** 9 ** 9 never ends
                raise self._refused(node, f"`{ast.unparse(node)[:60]}` is no TVMScript")

    def _expression(self, node: ast.expr) -> None:
        if not isinstance(node, _EXPRESSIONS):
            raise self._refused(node, f"`{ast.unparse(node)[:60]}` is no TVMScript")
        match node:
            case ast.Name(id=name):
                self._value(node, name)
            case ast.Attribute():
                self._attribute(node)
            case ast.Lambda(body=body):  # of T.index_map
                self._parameters(node)
                self._expression(body)
            case ast.Call(func=func):
                self._callee(func)
                for argument in (*node.args, *(each.value for each in node.keywords)):
                    self._expression(argument)
                self._no_function_of_host(node)
            case ast.Subscript(value=ast.Subscript(value=ast.Name(id="metadata"), slice=kind), slice=number):
                if not (isinstance(kind, ast.Constant) and isinstance(number, ast.Constant)):
                    raise self._refused(node, 'metadata is read as metadata["kind"][number] only')
            case _:
                self._children(node)

    def _no_function_of_host(self, node: ast.Call) -> None:
        named = any(each.arg in (None, _KEYWORD_OF_HOST) for each in node.keywords)
        kind = isinstance(node.func, ast.Attribute) and node.func.attr == "Callable"
        spread = len(node.args) > _PLAIN_OF_CALLABLE or any(isinstance(each, ast.Starred) for each in node.args)
        if named or (kind and spread):
            raise self._refused(node, "arguments that name functions of the host, or are not named, are refused")

    def _value(self, node: ast.expr, name: str) -> None:
        if name in self.values or name in self.functions or name in self.modules or name in _BUILTINS:
            return
        known = name in (*_ROOTS, "tvm", _METADATA, _TYPE_VARIABLE)
        raise self._refused(node, f"`{name}` alone is no TVMScript" if known else f"`{name}` is not defined in it")

    def _callee(self, node: ast.expr) -> None:
        match node:
            case ast.Name(id=name) if name in _BUILTINS or name in self.functions:
                return
            case ast.Attribute(value=ast.Name(id=owner), attr=method) if (
                owner in self.values and method in _BUFFER_METHODS
            ):
                return
            case ast.Attribute() if self._root(node) in {*_ROOTS, *self.modules}:
                self._attribute(node)
                return
        raise self._refused(node, f"`{ast.unparse(node)[:60]}` is called, and is no function of TVMScript's")

    def _attribute(self, node: ast.Attribute) -> None:
        root = self._root(node)
        if not isinstance(node.ctx, ast.Load):
            raise self._refused(node, f"`{ast.unparse(node)[:60]}` cannot be assigned to")
        if root in _ROOTS:
            self._of_language(node)
            return
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr):
                if owner in self.modules and attr in self.functions:
                    return
                if owner in self.values and attr in _BUFFER_FIELDS:
                    return
        raise self._refused(node, f"`{ast.unparse(node)[:60]}`: values have no `.{node.attr}` in TVMScript")

    def _of_language(self, node: ast.Attribute) -> None:
        name = ast.unparse(node)
        root, *parts = name.split(".")
        found: Any = _ROOTS[root]
        if name in _DECORATORS:
            raise self._refused(node, f"`{name}` stands above a function or a class only")
        if root == "T" and len(parts) == 2 and parts[0] == "axis" and parts[1] in _AXIS:
            return
        for depth, part in enumerate(parts):
            if part in _NO_PART:
                raise self._refused(node, f"`{name}` is no model's, and not read here", "write it in Relax or TensorIR")
            if part.startswith("_"):
                raise self._refused(node, f"`.{part}` is private to Python")
            found = getattr(found, part, None)
            if found is None:
                raise self._refused(node, f"TVMScript has no `{name}`", "was it written for another version of TVM?")
            inside = isinstance(found, types.ModuleType) and found.__name__.startswith(_OPERATORS)
            if depth + 1 < len(parts) and not inside:
                raise self._refused(node, f"`{name}` is no TVMScript")
        module = getattr(found, "__module__", None)
        if isinstance(found, types.ModuleType) or not isinstance(module, str) or not _is_language(module):
            raise self._refused(node, f"`{name}` is no TVMScript")

    def _root(self, node: ast.expr) -> str:
        while isinstance(node, ast.Attribute):
            node = node.value
        return node.id if isinstance(node, ast.Name) else ""

    def _refused(self, node: ast.AST, why: str, hint: str = "") -> ModelError:
        return _refused(self.name, node, why, hint)


def _is_language(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in _LANGUAGE)
