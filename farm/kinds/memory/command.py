"""`farm memory MODEL --on SELECTOR`: seconds and memory of each phase of a model's life on phones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.cli.model_command import model_command
from farm.cli.output import print_remarks, print_table
from farm.common.durations import range_words, with_unit
from farm.kinds.memory import MemorySpec

MB = 1e6


def print_results(results: Sequence[Mapping[str, Any]]) -> None:
    """A line per phone and phase; below, what a phone did not report, and the apps that Android ended meanwhile."""
    gpu = any(row["gpu_bytes"] is not None for result in results for row in result["phases"])
    print_table(
        ("PHONE", "PHASE", "MEDIAN", "95 % RANGE", "PEAK RSS", "RSS", "SWAP", *(("GPU",) if gpu else ())),
        [_row(result["device"], row, gpu=gpu) for result in results for row in result["phases"]],
    )
    print_remarks((result["device"], line) for result in results for line in remarks(result))


memory = model_command(
    MemorySpec, "Load a model on every matching phone, run it, load it again: seconds and memory of each phase."
)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Sentences about one result."""
    killed = [
        f"Android ended an app in the phase {row['phase']!r}: {words}"
        for row in result["phases"]
        for words in row["kills"]
    ]
    notes = (result.get("certificate") or result)["notes"]  # a former release had no certificate
    return [f"at most {_mb(result['peak_bytes'])} of memory and swap", *killed, *notes]


def _row(device: str, row: Mapping[str, Any], *, gpu: bool) -> tuple[object, ...]:
    return (
        device,
        row["phase"],
        with_unit(row["ms"]),
        range_words(row, middle="ms"),
        *(_mb(row[f"{name}_bytes"]) for name in ("peak_rss", "rss", "swap")),
        *((_mb(row["gpu_bytes"]),) if gpu else ()),
    )


def _mb(size: int | None) -> str:
    return "-" if size is None else f"{size / MB:.1f} MB"
