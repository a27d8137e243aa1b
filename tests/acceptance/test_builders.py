"""A tuning with a builder: a real daemon, dask over TLS, and a machine that runs today's compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm.simulation.virtual_farm import VirtualFarm
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import until

pytest.importorskip("distributed")

TRIALS = 24

pytestmark = [
    pytest.mark.farm("oneplus-12", config='[builders]\nlisten = "tcp://127.0.0.1:0"\n'),
    pytest.mark.timeout(900),
]


def rows(farm: VirtualFarm) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(farm.farm("builder", "list", "--json").stdout)["builders"]
    return found


def tuned(farm: VirtualFarm, folder: Path, seed: int) -> dict[str, Any]:
    (folder / "dense.onnx").write_bytes(dense_onnx())
    done = farm.farm(
        "tune", str(folder / "dense.onnx"), "--on", "android", "--trials", str(TRIALS), "--cost-model", "random",
        "--seed", str(seed), "--json", timeout_s=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)["results"][0]
    assert (result["trials"], result["ended"]) == (TRIALS, "trials")
    return result


def test_a_builder_joins_builds_is_killed_and_removed_and_counts_are_exact(farm: VirtualFarm, tmp_path: Path) -> None:
    until(lambda: farm.farm("builder", "token", "ci-1").returncode == 0)  # its process imports dask
    token, place = str(tmp_path / "token"), tmp_path / "builder"
    (tmp_path / "token").write_text(farm.farm("builder", "token", "ci-1").stdout)
    joined = farm.farm("builder", "join", token, "--folder", str(place), "--no-start")
    assert joined.returncode == 0, joined.stderr
    assert joined.stdout.startswith("ci-1 is a builder of the farm at tls://127.0.0.1:")
    again = farm.farm("builder", "join", token, "--folder", str(tmp_path / "b"))
    assert again.returncode != 0
    assert "the farm does not take this token" in again.stderr
    builder = subprocess.Popen([sys.executable, "-m", "farm", "builder", "start", "--folder", place, "--slots", "2"])
    try:
        until(lambda: [row["state"] for row in rows(farm)] == ["ready"])
        assert "1 builder: 0 of 2 slots build" in farm.farm("status").stdout
        builds = tuned(farm, tmp_path, seed=1)["builds"]
        assert builds["remote"] > 0
        assert builds["remote"] + builds["local"] >= TRIALS  # TVM's own schedules are built, too
        assert sum(row["built"] for row in rows(farm)) >= builds["remote"]
        os.kill(builder.pid, signal.SIGSTOP)  # it answers nothing, and nobody knows yet
        assert tuned(farm, tmp_path, seed=2)["builds"]["remote"] == 0
    finally:
        builder.kill()
        builder.wait()
    until(lambda: [row["state"] for row in rows(farm)] == ["away"])
    assert farm.farm("builder", "remove", "ci-1").returncode == 0
    assert rows(farm) == []
