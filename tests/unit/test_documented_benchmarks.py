"""docs/interfaces.md names every benchmark, and none that is not there."""

import re
from pathlib import Path

from benchmarks.bench_soak import DEFAULT_MINUTES, DEFAULT_PHONES
from benchmarks.harness import names

INTERFACES = Path(__file__).resolve().parents[2] / "docs/interfaces.md"


def rows() -> dict[str, str]:
    section = INTERFACES.read_text("utf-8").partition("\n## Benchmarks\n")[2].partition("\n## ")[0]
    return {line.split("`")[1]: line for line in section.splitlines() if re.match(r"\| `", line)}


def test_every_benchmark_is_in_the_table() -> None:
    assert set(rows()) == set(names())


def test_the_soak_is_as_long_and_as_large_as_it_says() -> None:
    assert f"over {DEFAULT_PHONES} phones" in rows()["soak"]
    assert f"`SOAK_MINUTES`, {DEFAULT_MINUTES:g};" in rows()["soak"]
