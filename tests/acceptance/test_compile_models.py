"""Models of the tutorials' size: tuned schedules are really used, precisions near enough, OpenCL source is valid."""

import numpy as np
import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from farm.common.errors import Code
from farm.compiler import compile as compile_module
from farm.compiler.build import BuildRequest, build, make_package
from farm.compiler.compile import Recipe, compile_library, compile_model, lowered
from farm.compiler.load import load
from farm.compiler.package import read_package, write_package
from farm.compiler.record_files import read_records
from farm.compiler.records import RECORDS, WORKLOADS
from farm.compiler.reference import compare
from farm.compiler.targets import target_from
from farm.tuning.stock import load_intrinsics
from farm.zoo import mobilenet_v2, resnet18, small_cnn
from tests.support.compiling import ADRENO, HOST, PHONE, outputs_of
from tests.support.errors import raises_code
from tests.support.opencl import opencl_source, syntax_errors
from tests.support.tiny_model import tiny_onnx

DATA = small_cnn().SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def small():
    return load(DATA, name="small_cnn.onnx")


def record_first_task(model, recipe, folder):
    """Write one record, of the first schedule that MetaSchedule's space has for one convolution; returns its name."""
    target = target_from(recipe.target)
    load_intrinsics()  # in place of those of every GPU, which take 15 s to make
    tasks = ms.relax_integration.extract_tasks(lowered(model, recipe), target)
    task = next(task for task in tasks if task.task_name.startswith("fused_conv2d"))
    workload_module = task.dispatched[0]
    context = ms.TuneContext(mod=workload_module, target=target, space_generator="post-order-apply")
    trace = context.generate_design_space()[0].trace
    folder.mkdir()
    database = ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS), allow_missing=True)
    workload = database.commit_workload(workload_module)
    arguments = ms.arg_info.ArgInfo.from_prim_func(workload_module["main"])
    database.commit_tuning_record(ms.database.TuningRecord(trace, workload, [0.001], target, arguments))
    return task.task_name


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_records_schedule_is_in_what_is_built(tmp_path, monkeypatch, precision):
    tiny = load(tiny_onnx(), name="tiny.onnx")
    recipe = Recipe(HOST, precision)
    name = record_first_task(tiny, recipe, tmp_path / "records")
    built = {}
    compile_ = tvm.compile

    def spy(module, **options):
        built.update({variable.name_hint: function for variable, function in module.functions.items()})
        return compile_(module, **options)

    monkeypatch.setattr(compile_module.tvm, "compile", spy)
    tuned = compile_model(tiny, Recipe(HOST, precision, tmp_path / "records"))
    scheduled = {name for name, function in built.items() if (function.attrs or {}).get("tirx.is_scheduled")}
    assert scheduled == {name}
    package = read_package(make_package(tiny, Recipe(HOST, precision, tmp_path / "records"), tmp_path / "cache")[0])
    assert (package.tuned, package.model) == (True, None)
    assert read_records(write_package(package.manifest, package.members)).set.records
    untuned = compile_model(tiny, recipe)
    assert compare(outputs_of(tuned, tiny), outputs_of(untuned, tiny), ["y"], precision).ok


@pytest.mark.parametrize("precision", ["float16", "float16_acc32"])
def test_each_precision_keeps_the_models_interface_and_is_near_enough(small, tmp_path, precision):
    wanted = BuildRequest(recipe=Recipe(HOST, precision), shapes={}, dtypes={})
    built = build(DATA, "small_cnn.onnx", wanted, tmp_path)
    outputs = outputs_of(tvm.runtime.load_module(str(built.compiled.library)), small)
    assert [output.dtype for output in outputs] == [np.float32]
    error = built.judged(outputs)["max_abs_error"]
    assert error > 1e-5  # else it would compute in float32 all the same


@pytest.mark.parametrize(
    ("target", "precision"),
    [(ADRENO, "float32"), (ADRENO, "float16"), ({"kind": "opencl", "host": PHONE}, "float16")],
    ids=["adreno", "adreno-half", "opencl-half"],
)
def test_opencl_source_of_untuned_operators_is_valid(small, target, precision):
    source = opencl_source(compile_model(small, Recipe(target, precision)))
    assert source.count("__kernel void fused_conv2d") >= 7
    assert ("half" in source) == (precision == "float16")
    assert syntax_errors(source) == ""


@pytest.mark.parametrize("network", [mobilenet_v2, resnet18], ids=["mobilenet_v2", "resnet18"])
def test_adreno_source_of_the_tutorials_models_is_valid(network):
    model = load(network().SerializeToString(), name="net.onnx")
    source = opencl_source(compile_model(model, Recipe(ADRENO)))
    assert source.count("__kernel void fused_conv2d") >= 17
    assert syntax_errors(source) == ""


def test_what_tvm_cannot_compile_is_told_with_model_target_and_tvms_words(small, tmp_path):
    texture = {"tag": "qcom/adreno-opencl-texture", "host": PHONE}
    with raises_code(Code.COMPILE_FAILED) as caught:  # a convolution over 3 channels: docs/facts.md
        compile_library(small, Recipe(texture), tmp_path)
    assert str(caught.value).startswith("small_cnn.onnx: TVM cannot compile it for opencl (adreno, texture): ")
    assert "Divide by zero" in str(caught.value)
