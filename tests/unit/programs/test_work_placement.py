"""Where the work ran: what tools tell of delegates, providers and layers, and what real libraries print today."""

import json
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import UserError
from farm.programs.description import RUNTIMES, asks_accelerator, builtin_description, checked_description
from farm.programs.outputs import ProgramOutput
from farm.programs.work_placement import PLACEMENT_READERS, read_placement
from farm.results.series import accelerated, series_key
from farm.runtime.server import PACKAGES, packaged_library
from tests.support.tiny_model import tiny_onnx

DATA = Path("tests/data/programs")
REPLACING = (
    "VERBOSE: Replacing {} out of {} node(s) with delegate ({}) node, yielding {} partitions for subgraph 0 (main).\n"
)
GPU, NNAPI, XNNPACK = "TfLiteGpuDelegateV2", "TfLiteNnapiDelegate", "TfLiteXNNPackDelegate"
PARTLY = "Explicitly applied GPU delegate, and the model graph will be partially executed by the delegate w/ 1 delegate"
NOTHING = "INFO: Though {} delegate is explicitly applied, the model graph will not be executed by the delegate.\n"
LAYER = "load_tensors: layer {:3d} assigned to device {}, is_swa = 0\n"


def told(form, stdout, stderr=""):
    found = read_placement(form, ProgramOutput(stdout, stderr))
    return None if found is None else (found.words, found.offloaded, found.delegated)


@pytest.mark.parametrize(
    ("stderr", "words", "offloaded", "delegated"),
    [
        ("INFO: Created TensorFlow Lite XNNPACK delegate for CPU.", "CPU", 0.0, False),
        (REPLACING.format(31, 31, XNNPACK, 1), "CPU 31 nodes", 0.0, False),
        (
            REPLACING.format(54, 108, GPU, 3) + REPLACING.format(40, 57, XNNPACK, 2) + PARTLY,
            f"{GPU} 54 nodes, CPU 54 nodes", 0.5, True,
        ),
        # A delegate that took nodes, and then executes none.
        (REPLACING.format(31, 31, NNAPI, 1) + NOTHING.format("NNAPI"), "CPU 31 nodes", 0.0, False),
        (NOTHING.format("GPU"), "CPU", 0.0, False),
        (PARTLY, "GPU, CPU", None, True),
        (
            f"Replacing 12 node(s) with delegate ({GPU}) node, yielding 2 partitions.",
            f"{GPU} 12 nodes, CPU", None, True,
        ),
        ("Applied GPU delegate.", "GPU, CPU", None, True),
    ],
)  # fmt: skip
def test_litert_tells_what_each_delegate_took(stderr, words, offloaded, delegated):
    assert told("benchmark_model", "", stderr) == (words, offloaded, delegated)


@pytest.mark.parametrize(
    ("file", "words", "offloaded"),
    [
        ("benchmark_model-gpu.txt", f"{GPU} 49 nodes", 1.0),
        ("benchmark_model-xnnpack.txt", "CPU 49 nodes", 0.0),
        ("benchmark_model-2024.txt", "CPU", 0.0),
        ("llama-bench-2026.json", "CPU", 0.0),
        ("ncnn-2021.txt", "CPU", 0.0),
        ("mnn-2022.txt", "CPU", 0.0),
    ],
)
def test_genuine_outputs(file, words, offloaded):
    form = next(form for form in PLACEMENT_READERS if form in file)
    assert told(form, (DATA / file).read_text())[:2] == (words, offloaded)


@pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="LiteRT not found: pip install ai-edge-litert")
def test_the_line_of_a_delegate_is_what_the_installed_litert_prints():
    library = packaged_library(PACKAGES["litert"])
    assert library is not None
    line = b"Replacing %d out of %d node(s) with delegate (%s) node, yielding %zu partitions for subgraph %d (%s)."
    assert line in library.read_bytes()


def event(name, provider, us, node="0"):
    about = {"op_name": "Conv", "provider": provider, "node_index": node}
    return {"cat": "Node", "dur": us, "name": f"{name}_kernel_time", "args": about}


def test_onnx_runtimes_profile_has_the_nodes_of_the_last_run_and_their_times():
    first = [event("a", "NnapiExecutionProvider", 9), event("b", "CPUExecutionProvider", 900, "1")]
    last = [event("a", "NnapiExecutionProvider", 30), event("b", "CPUExecutionProvider", 10, "1")]
    profile = json.dumps([{"cat": "Session", "name": "model_run", "args": {}}, *first, *last]) + "\n\nwarnings"
    words = "NnapiExecutionProvider 1 nodes, CPUExecutionProvider 1 nodes"
    assert told("onnxruntime_perf_test", profile) == (words, 0.75, True)  # a node may be a whole part of the graph
    xnnpack = json.dumps([event("a", "XnnpackExecutionProvider", 5)])
    assert told("onnxruntime_perf_test", xnnpack) == ("XnnpackExecutionProvider 1 nodes", 0.0, True)


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime not found: pip install onnxruntime")
def test_the_profile_of_the_installed_onnx_runtime_is_read(tmp_path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(tiny_onnx(), options)
    for _ in range(2):
        session.run(None, {each.name: np.ones(each.shape, np.float32) for each in session.get_inputs()})
    found = read_placement("onnxruntime_perf_test", ProgramOutput(Path(session.end_profiling()).read_text()))
    assert found is not None
    assert [each.unit for each in found.parts] == ["CPUExecutionProvider"]
    assert found.parts[0].count >= 3
    assert found.parts[0].ms is not None


@pytest.mark.parametrize(
    ("stderr", "words", "offloaded"),
    [
        (LAYER.format(0, "CPU") + LAYER.format(1, "GPUOpenCL") * 2, "GPUOpenCL 1 layers, CPU 1 layers", 0.5),
        ("load_tensors: offloaded 25/25 layers to GPU", "GPU 25 layers", 1.0),
        # The number that was asked for, where there is no device.
        (LAYER.format(0, "CPU") + "load_tensors: offloaded 1/1 layers to GPU", "CPU 1 layers", 0.0),
        ("load_tensors: offloaded 0/25 layers to GPU", "CPU 25 layers", 0.0),
    ],
)
def test_llama_bench_tells_the_device_of_each_layer(stderr, words, offloaded):
    assert told("llama-bench", "[\n]", stderr)[:2] == (words, offloaded)
    assert told("llama-bench", f"[\n]\n{stderr}")[:2] == (words, offloaded)


def test_people_s_own_programs_tell_it_in_a_line():
    lines = '{"ms": 1}\n{"ran_on": {"NPU": 9, "cpu": 1}}\n'
    assert told("json-lines", lines) == ("NPU 9 nodes, cpu 1 nodes", 0.9, True)
    assert told("json-lines", '{"ran_on": {"NPU": "9"}}') == ("NPU", 1.0, True)
    assert told("json-lines", '{"ran_on": {"CPU": null}}') == ("CPU", 0.0, False)


@pytest.mark.parametrize(
    ("form", "text"),
    [("json-lines", '{"ms": 1}'), ("onnxruntime_perf_test", "{}"), ("llama-bench", "[\n{}]"), ("mnn", "CPU")],
)
def test_what_is_not_told_is_not_known(form, text):
    assert told(form, text) is None


@given(text=st.text(max_size=200) | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(json.dumps))
def test_any_text_is_read_or_not(text):
    for form in PLACEMENT_READERS:
        with suppress(UserError):
            assert (found := read_placement(form, ProgramOutput(text, text))) is None or found.words, form


def test_a_setting_asks_for_an_accelerator_unless_it_names_the_cpu():
    for name in RUNTIMES:
        description, _ = builtin_description(name)
        assert asks_accelerator(description, description.settings) == ""
    litert, _ = builtin_description("litert")
    assert asks_accelerator(litert, {"threads": "4", "gpu": "true"}) == "gpu=true"
    with pytest.raises(UserError, match="cpu names 'npu', which is no setting"):
        checked_description({"name": "a", "command": ["a"], "output": "json-lines", "cpu": {"npu": ["off"]}}, "a.toml")


def test_another_placement_is_another_line_of_history_but_for_cpus_and_tvm():
    row = {"runtime": {"name": "ort"}, "ran_on": f"{GPU} 54 nodes, CPU 54 nodes", "offloaded": 0.5}
    assert accelerated(row) == row["ran_on"]
    assert series_key(row) != series_key({**row, "ran_on": f"{GPU} 60 nodes, CPU 48 nodes"})
    on_cpu = {**row, "ran_on": "CPU 31 nodes", "offloaded": 0.0}
    assert series_key(on_cpu) == series_key({"runtime": row["runtime"]})  # of an older release
    profiled = {"tvm": "0.27", "ran_on": "gpu 40 operators, cpu 1 operators", "offloaded": 0.99}
    assert series_key(profiled) == series_key({"tvm": "0.27"})
