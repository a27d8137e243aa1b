"""`python -m tests.house`: counts farm/, docs/ and tests/, and fails where a rule or a recorded ceiling is broken.

The exceptions stand in allowed.toml with a reason each, the ceilings in ceilings.toml.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from tests.house import rules
from tests.house.sources import importers, read_modules

if TYPE_CHECKING:
    from tests.house.sources import Module

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SIMULATION = "farm/simulation"
FOLDERS = ("tests", "benchmarks")
COUNTS = ("files", "code_lines", "classes", "protocols", "one_importer")
ENOUGH_BELOW = 0.98  # a total below this share of its ceiling: the ceiling can be lowered


def counts(modules: list[Module], lonely: set[str]) -> dict[str, int]:
    """The figures of some modules; `lonely` names the modules that one other module imports."""
    return {
        "files": len(modules),
        "code_lines": sum(each.code_lines for each in modules),
        "classes": sum(len(each.classes) for each in modules),
        "protocols": sum(each.protocols for each in modules),
        "one_importer": sum(each.name in lonely and not each.path.endswith("__init__.py") for each in modules),
    }


def report(root: Path, modules: list[Module]) -> dict[str, int]:
    """Print the tables; the totals, by their names in ceilings.toml."""
    lonely = {name for name, found in importers(modules).items() if len(found) == 1}
    print(f"{'':24}" + "".join(f"{name.replace('_', ' '):>14}" for name in COUNTS))

    def row(name: str, found: list[Module]) -> dict[str, int]:
        figures = counts(found, lonely)
        print(f"{name:24}" + "".join(f"{figures[each]:14,}" for each in COUNTS))
        return figures

    for package in sorted({each.package for each in modules}):
        row(package, [each for each in modules if each.package == package])
    row("farm", modules)
    totals = row("farm, no simulation", [each for each in modules if each.package != SIMULATION])
    duplicates = rules.duplicate_classes(modules)
    print("\nclass names that stand more than once:", len(duplicates))
    for name, paths in duplicates.items():
        print(f"  {name}: {', '.join(paths)}")
    totals["duplicate_class_names"] = len(duplicates)
    totals["words_in_docs"] = sum(len(path.read_text("utf-8").split()) for path in (root / "docs").glob("*.md"))
    for name in ("long_files", "long_functions"):
        found = list(getattr(rules, name)(modules, {}))
        totals[name] = len(found)
        print(f"\n{name.replace('_', ' ')}: {len(found)}", *found, sep="\n  ")
    print("\nwords in docs/*.md:", f"{totals['words_in_docs']:,}")
    totals |= of_tests(root)
    return totals


def of_tests(root: Path) -> dict[str, int]:
    """Print the figures of tests/ and benchmarks/ and the class names that several tests have; the figures by name."""
    texts = {path: path.read_text("utf-8") for folder in FOLDERS for path in (root / folder).rglob("*.py")}
    totals = {
        f"lines_in_{folder}": sum(text.count("\n") for path, text in texts.items() if root / folder in path.parents)
        for folder in FOLDERS
    }
    totals["setattr_in_tests"] = sum(text.count("monkeypatch.setattr(") for text in texts.values())
    files: dict[str, list[str]] = {}
    for path, text in texts.items():
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            files.setdefault(name, []).append(path.relative_to(root).as_posix())
    repeated = {name: sorted(paths) for name, paths in sorted(files.items()) if len(paths) > 1}
    totals["classes_of_several_tests"] = sum(map(len, repeated.values()))
    print("\nclass names that stand more than once in tests:", len(repeated))
    for name, paths in repeated.items():
        print(f"  {name}: {', '.join(paths)}")
    for name, figure in totals.items():
        print(f"{name.replace('_', ' ')}: {figure:,}")
    return totals


def check(
    root: Path, modules: list[Module], totals: dict[str, int], allowed: dict, ceilings: dict[str, int]
) -> list[str]:
    """Every fault, one line each; prints which ceilings can be lowered."""
    faults = [
        *rules.decision_imports(modules, allowed["decision_imports"]),
        *rules.class_names(modules, allowed["duplicate_classes"]),
        *rules.long_files(modules, allowed["long_files"]),
        *rules.long_functions(modules, allowed["long_functions"]),
        *rules.missing_documents(root, allowed["missing_documents"]),
    ]
    for name in rules.unneeded(modules, allowed):
        print(f"tests/house/allowed.toml: {name} is not needed any more")
    for name, ceiling in ceilings.items():
        if totals[name] > ceiling:
            more = f"{name}: {totals[name]:,}, more than the {ceiling:,} of tests/house/ceilings.toml"
            faults.append(f"{more}: delete as much elsewhere, or raise it there and say why in the commit")
        elif totals[name] < ceiling * ENOUGH_BELOW:
            print(f"tests/house/ceilings.toml: {name} can be lowered from {ceiling:,} to {totals[name]:,}")
    return faults


def main() -> int:
    """Exit code 1 when a rule is broken."""
    modules = read_modules(ROOT)
    totals = report(ROOT, modules)
    allowed = tomllib.loads((HERE / "allowed.toml").read_text("utf-8"))
    ceilings = tomllib.loads((HERE / "ceilings.toml").read_text("utf-8"))
    faults = check(ROOT, modules, totals, allowed, ceilings)
    for each in faults:
        print("FAILED", each)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
