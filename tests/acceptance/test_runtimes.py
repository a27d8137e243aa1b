"""Real runtimes on virtual phones: ONNX Runtime and LiteRT out of their wheels. docs/programs.md is executed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from farm.simulation.virtual_farm import VirtualFarm
from tests.support.gguf_files import write_tiny_llama
from tests.support.needs import needs
from tests.support.pages import ROOT, missing, shown
from tests.support.tflite_files import by_numpy, convolution_and_dense
from tests.support.tvm import environment
from tests.support.whole_farm import running_farm

LLAMA_BENCH = os.environ.get("LLAMA_BENCH") or shutil.which("llama-bench") or ""
pytestmark = [
    needs("mksh", "toybox"),
    pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime not found: pip install onnxruntime"),
]


@pytest.fixture(scope="module")
def farm() -> Iterator[VirtualFarm]:
    with running_farm("galaxy-s9") as running:
        yield running


@pytest.fixture(scope="module")
def folder(farm: VirtualFarm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder, with `farm` in its path."""
    made = tmp_path_factory.mktemp("reader")
    (made / "bin").mkdir()
    (made / "bin" / "farm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m farm "$@"\n')
    (made / "bin" / "farm").chmod(0o755)
    return made


def type_line(farm: VirtualFarm, folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FARM_SOCKET": str(farm.socket)}
    return subprocess.run(
        ["bash", "-c", line], env=environment() | variables | {"PYTHONWARNINGS": "ignore"}, cwd=folder,
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip


@pytest.mark.timeout(600)
def test_the_page_does_what_it_says(farm: VirtualFarm, folder: Path) -> None:
    steps = [step for step in shown(ROOT / "docs" / "programs.md") if "here" in step.command]
    assert len(steps) >= 4
    for step in steps:
        done = type_line(farm, folder, step.command)
        assert done.returncode == 0, f"{step.command}\n{done.stdout}{done.stderr}"
        assert not missing(step, done.stdout + done.stderr), f"{step.command}\n{done.stdout}{done.stderr}"


def test_onnx_runtime_computes_what_the_reference_says(farm: VirtualFarm, folder: Path) -> None:
    import onnxruntime

    model = folder / "here.onnx"
    session = onnxruntime.InferenceSession(str(model))
    (given,) = session.get_inputs()
    wanted = session.run(None, {given.name: np.full(given.shape, 0.5, np.float32)})[0]
    np.save(folder / "ort-here" / "wanted.npy", wanted)
    result = checked(farm, folder / "ort-here" / "ort_runner.toml", model, wanted)
    assert result["certificate"]["runtime"]["version"] == onnxruntime.__version__


@pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="LiteRT not found: pip install ai-edge-litert")
def test_litert_computes_what_numpy_does(farm: VirtualFarm, folder: Path) -> None:
    source = np.random.default_rng(1)
    shapes = (4, 3, 3, 2), (4,), (6, 5 * 5 * 4)
    weights = [source.standard_normal(shape).astype(np.float32) for shape in shapes]
    model = folder / "net.tflite"
    model.write_bytes(convolution_and_dense(*weights, 5))
    made = farm.farm("program", "make", "litert", folder / "litert-here")
    assert made.returncode == 0, made.stdout + made.stderr
    wanted = by_numpy(*weights, np.full((1, 5, 5, 2), 0.5, np.float32))
    result = checked(farm, folder / "litert-here" / "litert_runner.toml", model, wanted)
    assert result["certificate"]["runtime"]["version"] == version("ai-edge-litert")


@pytest.mark.skipif(not LLAMA_BENCH, reason="llama-bench not found: docs/programs.md compiles it")
@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf not found: pip install gguf")
def test_llama_bench_runs_on_a_phone(farm: VirtualFarm, tmp_path: Path) -> None:
    runtime, model = tmp_path / "runtime", tmp_path / "tiny.gguf"
    runtime.mkdir()
    (runtime / "llama-bench").symlink_to(LLAMA_BENCH)
    write_tiny_llama(model)
    settings = ("--set", "generate=16", "--set", "threads=1", "--runtime-folder", runtime)
    done = farm.farm(
        "bench", model, "--on", "android", "--runtime", "llama.cpp", *settings, "--repeat", "10", "--json",
        timeout_s=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["latency"]["median_ms"] > 0
    assert result["certificate"]["runtime"]["name"] == "llama.cpp"
    assert len(result["samples_s"]) == 10
    ran_on = result["ran_on"]
    assert ran_on["offloaded"] == 0
    assert [(each["unit"], each["count"] > 0) for each in ran_on["parts"]] == [("CPU", True)]


def test_outputs_under_tvm_and_onnx_runtime_are_compared(farm: VirtualFarm, folder: Path) -> None:
    runner = folder / "ort-here" / "ort_runner.toml"
    words = ("--on", "android", "--runtime-b", runner, "--measure", "3", "--json")
    done = farm.farm("compare", folder / "here.onnx", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["outputs"]["max_abs_error"] < 1e-4
    assert result["outputs"]["largest"] > 1e-3
    assert result["unlike"] == []


def checked(farm: VirtualFarm, spec: Path, model: Path, wanted: NDArray[np.float32]) -> dict[str, Any]:
    """The result of a program whose numbers are compared with those."""
    np.save(spec.with_name("wanted.npy"), wanted)
    with_numbers = spec.with_name("checked.toml")
    expected = '\n[expected]\nfile = "output.raw"\nreference = "wanted.npy"\ntolerance = 0.0001\n'
    with_numbers.write_text(spec.read_text() + expected)
    done = farm.farm("program", "run", with_numbers, "--on", "android", "--model", model, "--repeat", "8", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any]
    (result,) = json.loads(done.stdout)["results"]
    assert result["max_abs_error"] < 1e-4
    assert (result["ran_on"]["words"], result["ran_on"]["offloaded"]) == ("CPU", 0)
    assert result["latency"]["median_ms"] > 0
    return result
