"""tests.house on a small tree: what it counts and what it lets pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.house import rules
from tests.house.__main__ import check, report
from tests.house.sources import importers, read_modules

if TYPE_CHECKING:
    from pathlib import Path

    from tests.house.sources import Module

RULES = ("decision_imports", "duplicate_classes", "long_files", "long_functions", "missing_documents")
FOREIGN = "design".upper()  # in capitals, this file would break the rule itself
DOCS = "docs"

MODULE = '''"""A module.

Its docstring has three lines."""
from __future__ import annotations

import os
from typing import (
    TYPE_CHECKING,
    Protocol,
)

if TYPE_CHECKING:
    import asyncio

# A comment.
LIMIT = 3  # one line of code


class Reader(Protocol):
    """Docstring."""

    size: int
    """Of an attribute."""

    def read(self) -> str:
        return """two
lines"""
'''


def tree(root: Path, **files: str) -> list[Module]:
    """A tree with these files, `__` for a slash, and its modules."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_modules(root)


def test_code_is_what_is_neither_comment_docstring_nor_import(tmp_path: Path) -> None:
    (module,) = tree(tmp_path, farm__adb__reader=MODULE)
    assert module.code_lines == 6  # LIMIT, class, size, def, and the two lines of the text
    assert (len(module.classes), module.protocols) == (1, 1)
    assert (module.name, module.package) == ("farm.adb.reader", "farm/adb")
    assert list(module.functions()) == [("Reader.read", 3)]


def test_importers_are_found_by_module_and_by_name(tmp_path: Path) -> None:
    modules = tree(
        tmp_path, farm__a="from farm import b\n", farm__b="", farm__c="def f():\n    import farm.b\n", farm__d=""
    )
    assert importers(modules) == {"farm.a": set(), "farm.b": {"farm.a", "farm.c"}, "farm.c": set(), "farm.d": set()}


def test_a_decision_module_does_no_io(tmp_path: Path) -> None:
    modules = tree(
        tmp_path,
        farm__head__queue__state="import asyncio\nfrom time import monotonic\n",
        farm__jobs__retry_policy="def f():\n    from sqlalchemy.sql import select\n",
        farm__head__queue__typed="if TYPE_CHECKING:\n    import asyncio\nelse:\n    x = 1\n",
        farm__jobs__dispatcher="import asyncio\n",
        farm__model="import os\n",  # a module named so is no folder
    )
    assert list(rules.decision_imports(modules, {})) == [
        "farm/head/queue/state.py: a decision module imports asyncio, time",
        "farm/jobs/retry_policy.py: a decision module imports sqlalchemy",
    ]
    assert len(list(rules.decision_imports(modules, {"farm/jobs/retry_policy.py": "a reason"}))) == 1


def test_a_class_name_stands_once(tmp_path: Path) -> None:
    modules = tree(tmp_path, farm__a="class Link: ...\n", farm__b="def f():\n    class Link: ...\n")
    assert list(rules.class_names(modules, {})) == ["class Link stands more than once: farm/a.py, farm/b.py"]
    assert list(rules.class_names(modules, {"Link": "a reason"})) == []


def test_long_files_and_functions_are_found(tmp_path: Path) -> None:
    text = "def f():\n" + "    pass\n" * 60 + "\n" * 540
    modules = tree(tmp_path, farm__a=text)
    assert list(rules.long_files(modules, {})) == ["farm/a.py: 601 lines, at most 600"]
    assert list(rules.long_functions(modules, {})) == ["farm/a.py:f: a function of 61 lines, at most 60"]
    assert list(rules.long_functions(modules, {"farm/a.py:f": "a reason"})) == []


def test_an_exception_that_nothing_needs_is_named(tmp_path: Path) -> None:
    modules = tree(tmp_path, farm__a="def f():\n" + "    pass\n" * 60)
    allowed = {name: {} for name in RULES} | {"long_functions": {"farm/a.py:f": "why", "farm/a.py:g": "why"}}
    assert list(rules.unneeded(modules, allowed)) == ["farm/a.py:g"]


def test_a_document_that_is_missing_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "here.md").write_text(
        "[a](here.md#b) [b](https://x.org/y.md) [c](gone.md)\n```\na[0](dev)\n```\n"
    )
    tree(tmp_path, farm__a=f'"""As {DOCS}/here.md and {DOCS}/lost.md say ({FOREIGN} D1)."""\n')
    assert list(rules.missing_documents(tmp_path, {})) == [
        f"{DOCS}/here.md:1: refers to gone.md, which is not in the repository",
        f"farm/a.py:1: refers to {FOREIGN}, which is not in the repository",
        f"farm/a.py:1: refers to {DOCS}/lost.md, which is not in the repository",
    ]
    assert len(list(rules.missing_documents(tmp_path, {"farm/a.py": "a reason"}))) == 1


def test_a_total_above_its_ceiling_fails_and_one_well_below_is_told(tmp_path: Path, capsys) -> None:
    modules = tree(tmp_path, farm__a="X = 1\n", farm__simulation__b="Y = 1\n")
    totals = report(tmp_path, modules)
    assert (totals["files"], totals["code_lines"]) == (1, 1)
    faults = check(tmp_path, modules, totals, {name: {} for name in RULES}, {"files": 0, "code_lines": 5})
    [fault] = faults
    assert fault.startswith(
        "files: 1, more than the 0 of tests/house/ceilings.toml: delete as much elsewhere, or raise"
    )
    assert "code_lines can be lowered from 5 to 1" in capsys.readouterr().out
