"""What is kept of a tuning that came to no end of its own: its latest attempt's trials, wherever they are."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from farm.common.errors import HostError
from farm.compiler.record_files import packed, read_records, write_records
from farm.compiler.records import RECORDS
from farm.kinds.tune.run import MODEL, TUNING
from farm.kinds.tune.salvage import main
from tests.unit.compiler.test_records import LLVM, set_of


class Daemon:
    """Artifacts and kept sets."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def artifact(self, sha256: str) -> bytes:
        assert sha256 == "prior"
        return packed(set_of(("a", 9, 0.001), ("other", 9, 0.001)))

    def put_artifact(self, data: bytes) -> str:
        self.put = data
        return "put"

    def keep_records(self, **fields: Any) -> int:
        self.kept.append(fields)
        return 7

    def log(self, text: str) -> None: ...


def attempt(cache: Path, toolchain: str, model: str, at_s: float, *tiles: int) -> Path:
    """A folder of job j1, as the worker of that toolchain left it."""
    folder = cache / toolchain / TUNING / f"{model}-llvm" / "j1"
    folder.mkdir(parents=True)
    if tiles:
        write_records(set_of(*(("a", tile, 0.002) for tile in tiles)), folder)
    (folder / MODEL).write_text(json.dumps({"model": model, "target": LLVM}))
    os.utime(folder / MODEL, (at_s, at_s))
    return folder


def salvaged(cache: Path, daemon: Daemon, prior: str | None = None) -> dict[str, Any]:
    payload = {"job": "j1", "name": "net.onnx", "cache": str(cache / "default"), "prior": prior}
    return main(payload, daemon)  # type: ignore[arg-type]


@pytest.mark.parametrize(("prior", "records"), [(None, 2), ("prior", 3)])
def test_the_latest_attempt_is_kept_under_what_it_tuned_for(tmp_path: Path, prior: str | None, records: int) -> None:
    attempt(tmp_path, "default", "old", 100.0, 1)
    attempt(tmp_path, "newer", "new", 200.0, 1, 2)  # its phone, whose toolchain that is, is gone
    attempt(tmp_path, "third", "begun", 300.0)  # nothing measured yet
    daemon = Daemon()
    assert salvaged(tmp_path, daemon, prior) == {"trials": 2, "version": 7}
    [kept] = daemon.kept
    assert (kept["model"], kept["name"], kept["target"], kept["artifact"]) == ("new", "net.onnx", LLVM, "put")
    assert kept["records"] == records == len(read_records(daemon.put).set.records)


def test_where_nothing_was_measured_nothing_is_kept(tmp_path: Path) -> None:
    daemon = Daemon()
    assert salvaged(tmp_path, daemon) == {"trials": 0}
    folder = attempt(tmp_path, "default", "begun", 100.0)
    assert salvaged(tmp_path, daemon) == {"trials": 0}
    write_records(set_of(), folder)
    assert (folder / RECORDS).exists()
    assert salvaged(tmp_path, daemon) == {"trials": 0}
    assert daemon.kept == []


@pytest.mark.parametrize("text", ["", '{"model": "new"', "[" * 100_000, "[]", '{"model": "new"}'])
def test_a_torn_note_of_the_model_is_named(tmp_path: Path, text: str) -> None:
    folder = attempt(tmp_path, "default", "new", 100.0, 1)
    (folder / MODEL).write_text(text)
    with pytest.raises(HostError, match=re.escape(f"{folder / MODEL} is damaged")):
        salvaged(tmp_path, Daemon())
