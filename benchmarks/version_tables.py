"""The tables of docs/versions.md, made of what was tried: `python -m benchmarks.version_tables` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from farm.bundle.versions import TrialKind, TrialResult, TvmVersions, VersionTrial, known_trials

PAGE = Path(__file__).parents[1] / "docs" / "versions.md"
MARK = "<!-- Tables of farm/bundle/data/versions.tsv -->\n"  # nothing below it is written by hand
MEANING = {
    TrialKind.ENVIRONMENT: "TVM (rows) with an FFI (columns) in one process",
    TrialKind.SERVER: "TVM's runtime (rows) with an FFI (columns) as RPC server",
    TrialKind.SESSION: "Clients (rows) with servers (columns)",
    TrialKind.PACKAGE: "What the rows compiled, on servers (columns), with a client as the server",
}
BOTH = (TrialKind.SESSION, TrialKind.PACKAGE)


def tables(trials: Sequence[VersionTrial]) -> str:
    """What stands below the mark."""
    parts = []
    for kind, meaning in MEANING.items():
        found = [each for each in trials if each.kind is kind]
        parts.append(f"### {meaning}\n\n{_matrix(found, crossed=kind in BOTH)}")
        if failures := _failures(found):
            parts.append(failures)
    return "\n".join(parts)


def write(trials: Sequence[VersionTrial]) -> None:
    """Put the tables into the page."""
    above = PAGE.read_text("utf-8").partition(MARK)[0]
    PAGE.write_text(f"{above}{MARK}\n{tables(trials)}", "utf-8")


def _matrix(trials: Sequence[VersionTrial], *, crossed: bool) -> str:
    cells = {(_row(each, crossed=crossed), _column(each, crossed=crossed)): each.result for each in trials}
    rows, columns = dict.fromkeys(row for row, _ in cells), dict.fromkeys(column for _, column in cells)
    as_rows = _alike({row: tuple(cells.get((row, column)) for column in columns) for row in rows})
    as_columns = _alike({column: tuple(cells.get((row, column)) for row in rows) for column in columns})
    lines = [f"| | {' | '.join(as_columns.values())} |", "|---" * (1 + len(as_columns)) + "|"]
    for row, name in as_rows.items():
        shown = " | ".join(cells.get((row, column)) or "-" for column in as_columns)
        lines.append(f"| {name} | {shown} |")
    return "\n".join(lines) + "\n"


def _alike(results: Mapping[str, tuple[TrialResult | None, ...]]) -> dict[str, str]:
    """The first of each set of names with the same results, and all names of the set."""
    groups: dict[tuple[TrialResult | None, ...], list[str]] = {}
    for name, each in results.items():
        groups.setdefault(each, []).append(name)
    return {names[0]: "<br>".join(names) for names in groups.values()}


def _row(trial: VersionTrial, *, crossed: bool) -> str:
    return _short(trial.versions) if crossed else trial.versions.tvm


def _column(trial: VersionTrial, *, crossed: bool) -> str:
    return _short(trial.other) if crossed else trial.versions.ffi


def _short(versions: TvmVersions) -> str:
    return f"{versions.tvm} + {versions.ffi}"


def _failures(trials: Sequence[VersionTrial]) -> str:
    """How often each thing went wrong."""
    counts: dict[tuple[TrialResult, str], int] = {}
    for each in trials:
        if each.result is not TrialResult.WORKS:
            counts[each.result, each.detail] = counts.get((each.result, each.detail), 0) + 1
    rows = "\n".join(f"| {result} | `{detail}` | {count} |" for (result, detail), count in counts.items())
    return f"| result | where | cells |\n|---|---|---|\n{rows}\n" if rows else ""


if __name__ == "__main__":
    write(known_trials())
