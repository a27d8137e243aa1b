"""benchmarks/README.md names every benchmark, and none that is not there."""

import re
from pathlib import Path

from benchmarks.bench_soak import DEFAULT_MINUTES, DEFAULT_PHONES
from benchmarks.harness import names

TABLE = Path(__file__).resolve().parents[2] / "benchmarks/README.md"


def rows() -> dict[str, str]:
    text = TABLE.read_text("utf-8")
    return {line.split("`")[1]: line for line in text.splitlines() if re.match(r"\| `", line)}


def test_every_benchmark_is_in_the_table() -> None:
    assert set(rows()) == set(names())


def test_the_soak_is_as_long_and_as_large_as_it_says() -> None:
    assert f"over {DEFAULT_PHONES} phones" in rows()["soak"]
    assert f"`SOAK_MINUTES`, {DEFAULT_MINUTES:g};" in rows()["soak"]
