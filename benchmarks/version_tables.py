"""The table of versions in docs/bundles.md, made of what was tried: `python -m benchmarks.version_tables` writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from farm.bundle.versions import TrialKind, TrialResult, VersionTrial, known_trials

PAGE = Path(__file__).parents[1] / "docs" / "bundles.md"
MARK = "<!-- Table of farm/bundle/data/versions.tsv -->\n"  # nothing below it is written by hand
MEANING = {
    TrialKind.ENVIRONMENT: "in one process",
    TrialKind.SERVER: "as RPC server",
}
PAIRS = tuple(MEANING)  # the other kinds try two pairs of TVM and FFI together


def tables(trials: Sequence[VersionTrial]) -> str:
    """The text below the mark."""
    together = [each for each in trials if each.kind not in PAIRS]
    good, pairs = sum(each.result is TrialResult.WORKS for each in together), len({each.other for each in together})
    return (
        f"{_matrix([each for each in trials if each.kind in PAIRS])}\n"
        f"Each two of the {pairs} pairs that start as a server were tried together, one as client and compiler, one as "
        f"server: {good} of {len(together)} trials work. `farm/bundle/data/versions.tsv` has the failing steps.\n"
    )


def write(trials: Sequence[VersionTrial]) -> None:
    """Put the table into the page."""
    above = PAGE.read_text("utf-8").partition(MARK)[0]
    PAGE.write_text(f"{above}{MARK}\n{tables(trials)}", "utf-8")


def _matrix(trials: Sequence[VersionTrial]) -> str:
    """TVM's releases as rows, those of its FFI as columns; releases with equal results share one."""
    found: dict[tuple[str, str], dict[TrialKind, TrialResult]] = {}
    for each in trials:
        found.setdefault((each.versions.tvm, each.versions.ffi), {})[each.kind] = each.result
    cells = {pair: _cell(results) for pair, results in found.items()}
    rows, columns = dict.fromkeys(row for row, _ in cells), dict.fromkeys(column for _, column in cells)
    as_rows = _alike({row: tuple(cells.get((row, column), "-") for column in columns) for row in rows})
    as_columns = _alike({column: tuple(cells.get((row, column), "-") for row in rows) for column in columns})
    lines = [f"| TVM, FFI | {' | '.join(as_columns.values())} |", "|---" * (1 + len(as_columns)) + "|"]
    for row, name in as_rows.items():
        lines.append(f"| {name} | {' | '.join(cells.get((row, column), '-') for column in as_columns)} |")
    return "\n".join(lines) + "\n"


def _cell(results: Mapping[TrialKind, TrialResult]) -> str:
    if len(set(results.values())) == 1 and len(results) == len(PAIRS):
        return str(results[TrialKind.ENVIRONMENT])
    return ", ".join(f"{result} {MEANING[kind]}" for kind, result in results.items())


def _alike(results: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The first of each set of names with the same results, and all names of the set."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, each in results.items():
        groups.setdefault(each, []).append(name)
    return {names[0]: "<br>".join(names) for names in groups.values()}


if __name__ == "__main__":
    write(known_trials())
