"""The modules of a source tree: their lines, classes, functions and imports, read from the syntax tree."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Module:
    """One Python file of the tree."""

    path: str  # below the root, with slashes
    text: str

    @property
    def name(self) -> str:
        """Its dotted name; a package's own name for its __init__."""
        return self.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    @property
    def package(self) -> str:
        """The folder directly below farm/ that holds it; farm itself for the modules in farm/."""
        return "/".join(self.path.split("/")[:2]) if self.path.count("/") > 1 else self.path.split("/")[0]

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """All lines of the file."""
        return self.text.count("\n")

    @cached_property
    def code_lines(self) -> int:
        """Lines that are neither blank nor only a comment, a docstring or an import."""
        code = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NOT_CODE:
                code |= set(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_docstring(node):
                code -= _lines(node)
            elif _is_type_checking(node):
                code.discard(node.lineno)
        return len(code)

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """Every class, also a class in a class or a function."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @property
    def protocols(self) -> int:
        """How many of its classes are Protocols."""
        return sum(any(_last_name(base) == "Protocol" for base in each.bases) for each in self.classes)

    def functions(self) -> Iterator[tuple[str, int]]:
        """Each function or method: its qualified name and its lines, docstring included, decorators apart."""
        yield from _functions(self.tree, "")

    @cached_property
    def imports(self) -> set[str]:
        """Every dotted name it imports, `from a import b` as a and a.b, also inside functions and for type checks."""
        return _imported(ast.walk(self.tree))

    @cached_property
    def imports_at_run_time(self) -> set[str]:
        """The same without what stands under `if TYPE_CHECKING`."""
        return _imported(_walk_run_time(self.tree))


def read_modules(root: Path, folder: str = "farm") -> list[Module]:
    """Every Python file of root/folder, by path."""
    paths = sorted((root / folder).rglob("*.py"))
    return [Module(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in paths]


def importers(modules: list[Module]) -> dict[str, set[str]]:
    """Of each module, the other modules that import it."""
    names = {module.name for module in modules}
    found: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        for name in module.imports & names - {module.name}:
            found[name].add(module.name)
    return found


def _lines(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    """A text that stands alone: the docstring of a module, class or function, or of the attribute above it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_type_checking(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING"


def _last_name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                yield name[:-1], len(_lines(child))
        yield from _functions(child, name)


def _imported(nodes: Iterator[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _walk_run_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if _is_type_checking(child):
            for other in child.orelse:
                yield other
                yield from _walk_run_time(other)
        else:
            yield from _walk_run_time(child)
