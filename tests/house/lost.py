"""What a change of the tests lost: `python -m tests.house.lost BEFORE AFTER`, of `make coverage` or `make mutants`.

Prints what each package had and has, and each line, branch or mutant that is lost; then the exit code is 1.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def covered(text: str) -> set[str]:
    """Lines and branches that tests ran, as `FILE:LINE` and `FILE:LINE->LINE`, from coverage's JSON."""
    found = set()
    for path, file in json.loads(text)["files"].items():
        found |= {f"{path}:{line}" for line in file["executed_lines"]}
        found |= {f"{path}:{start}->{end}" for start, end in file.get("executed_branches", ())}
    return found


def killed(text: str) -> set[str]:
    """Mutants that a test found, as `FILE:MUTANT`, from `mutmut results --all true`."""
    found = set()
    for line in text.splitlines():
        mutant, _, state = line.strip().partition(": ")
        if state in ("killed", "timeout"):
            module, _, name = mutant.rpartition(".")
            found.add(f"{module.replace('.', '/')}.py:{name}")
    return found


def main(before: str, after: str) -> int:
    """Compare the two files."""
    texts = [Path(path).read_text("utf-8") for path in (before, after)]
    had, has = map(covered if texts[0].startswith("{") else killed, texts)
    counts = [Counter("/".join(each.split("/")[:2]) for each in found) for found in (had, has)]
    print(f"{'':24}{'before':>10}{'after':>10}")
    for package in sorted(counts[0] | counts[1]):
        print(f"{package:24}{counts[0][package]:10,}{counts[1][package]:10,}")
    print(f"{'farm':24}{len(had):10,}{len(has):10,}")
    lost = sorted(had - has)
    print(f"\nlost: {len(lost):,}", *lost, sep="\n  ")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
