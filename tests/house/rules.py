"""The rules of the source tree. A rule yields one line per fault; `allowed` holds the exceptions with their reasons."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.house.sources import Module

DECISION_FOLDERS = {"lifecycle", "queue", "allocator", "measure", "model"}
DECISION_ENDINGS = ("_policy.py", "_rules.py", "/wire.py")
IO = {"asyncio", "socket", "os", "time", "subprocess", "sqlalchemy"}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

_TEXTS = {".md", ".py", ".toml", ".sh"}
_NOT_OURS = {"build", "dist", "node_modules"}
_LINK = re.compile(r"\]\(([\w./-]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"`[^`]*`")
_DOCUMENT = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md\b")
_FOREIGN = re.compile(r"\bDESIGN\b|\bFACTS(?:-\w+|\.md| §)|\bSTYLE\.md\b|\.\./shared\b")


def decisions(modules: list[Module]) -> list[Module]:
    """The modules that decide and must not act: found by their folder or their name."""
    return [
        each
        for each in modules
        if DECISION_FOLDERS & set(each.path.split("/")[1:-1]) or each.path.endswith(DECISION_ENDINGS)
    ]


def decision_imports(modules: list[Module], allowed: Mapping[str, str]) -> Iterator[str]:
    """A decision module does no I/O and reads no clock."""
    for module in decisions(modules):
        found = IO & {name.split(".")[0] for name in module.imports_at_run_time}
        if found and module.path not in allowed:
            yield f"{module.path}: a decision module imports {', '.join(sorted(found))}"


def duplicate_classes(modules: list[Module]) -> dict[str, list[str]]:
    """Each class name that stands more than once, with its files."""
    files: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for each in module.classes:
            files[each.name].append(module.path)
    return {name: paths for name, paths in sorted(files.items()) if len(paths) > 1}


def class_names(modules: list[Module], allowed: Mapping[str, str]) -> Iterator[str]:
    """A class name stands once."""
    for name, paths in duplicate_classes(modules).items():
        if name not in allowed:
            yield f"class {name} stands more than once: {', '.join(paths)}"


def long_files(modules: list[Module], allowed: Mapping[str, str]) -> Iterator[str]:
    """A file has at most 600 lines."""
    for module in modules:
        if module.lines > MAX_FILE_LINES and module.path not in allowed:
            yield f"{module.path}: {module.lines} lines, at most {MAX_FILE_LINES}"


def long_functions(modules: list[Module], allowed: Mapping[str, str]) -> Iterator[str]:
    """A function has at most 60 lines."""
    for module in modules:
        for name, lines in module.functions():
            if lines > MAX_FUNCTION_LINES and f"{module.path}:{name}" not in allowed:
                yield f"{module.path}:{name}: a function of {lines} lines, at most {MAX_FUNCTION_LINES}"


def unneeded(modules: list[Module], allowed: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The exceptions that nothing needs any more."""
    yield from allowed["duplicate_classes"].keys() - duplicate_classes(modules).keys()
    for name, rule in (
        ("decision_imports", decision_imports),
        ("long_files", long_files),
        ("long_functions", long_functions),
    ):
        yield from allowed[name].keys() - {fault.split(": ")[0] for fault in rule(modules, {})}


def missing_documents(root: Path, allowed: Mapping[str, str]) -> Iterator[str]:
    """What a text refers to is in the clone."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        skipped = any(part in _NOT_OURS or part.startswith(".") for part in name.parts[:-1])
        if path.suffix not in _TEXTS or skipped or not path.is_file() or name.as_posix() in allowed:
            continue
        in_code = False
        for at, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            in_code ^= line.lstrip().startswith("```")
            missing = _FOREIGN.findall(line)
            missing += [each for each in _DOCUMENT.findall(line) if not (root / each).exists()]
            if path.suffix == ".md" and not in_code:
                missing += [each for each in _LINK.findall(_CODE.sub("", line)) if not (path.parent / each).exists()]
            yield from (f"{name.as_posix()}:{at}: refers to {each}, which is not in the repository" for each in missing)
