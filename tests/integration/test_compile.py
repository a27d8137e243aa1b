"""Compiling: every target's code is what it should be, what TVM cannot do is refused, a crash is an error."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from farm.bundle.elf import parse_elf
from farm.common.errors import Code, ModelError
from farm.compiler.build import BuildRequest, build, make_package
from farm.compiler.compile import (
    Recipe,
    compile_library,
    compile_model,
    lowered,
)
from farm.compiler.load import load
from farm.compiler.package import read_package, write_package
from farm.compiler.record_files import BadRecordsError
from farm.compiler.records import RECORDS, WORKLOADS
from farm.compiler.targets import ForeignRecordsError, TargetRefusedError, generators, host_target
from farm.compiler.tvm_errors import run_in_child
from farm.devices.identity.targets import named_target
from tests.support.compiling import ADRENO, HOST, PHONE, outputs_of
from tests.support.errors import raises_code
from tests.support.opencl import opencl_source, syntax_errors
from tests.support.tiny_model import tiny_onnx


@pytest.fixture(scope="module")
def small():
    return load(tiny_onnx(), name="tiny.onnx")


def test_records_that_cannot_be_read_are_refused(small, tmp_path):
    with pytest.raises(BadRecordsError, match="tuning records cannot be used"):
        compile_model(small, Recipe(HOST, records=tmp_path))
    (tmp_path / WORKLOADS).write_text("[1, 2\n")
    (tmp_path / RECORDS).write_text("")
    with pytest.raises(BadRecordsError):
        compile_model(small, Recipe(HOST, records=tmp_path))


def test_records_for_another_target_are_refused_and_both_are_named(small, tmp_path):
    module = next(each.with_attr("global_symbol", "main") for each in functions(lowered(small, Recipe(HOST))))
    module = tvm.IRModule({"main": module})
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    workload, trace = database.commit_workload(module), Schedule(module).trace
    info = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    record = ms.database.TuningRecord(trace, workload, [0.001], tvm.target.Target(PHONE), info)
    database.commit_tuning_record(record)
    with pytest.raises(
        ForeignRecordsError, match=r"for llvm x86_64-linux-gnu: they are for llvm aarch64-linux-android"
    ):
        compile_model(small, Recipe(HOST, records=tmp_path))
    assert compile_model(small, Recipe({**PHONE, "num-cores": 8}, records=tmp_path)) is not None


def noted(folder, model, function, target=HOST):
    """A record in a folder: that operator's outermost loop in parallel."""
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    database = ms.database.JSONDatabase(work_dir=str(folder))
    schedule = Schedule(module)
    loop, *_ = schedule.get_loops(schedule.get_child_blocks(schedule.get_sblock("root"))[0])
    schedule.parallel(loop)
    info = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    workload = database.commit_workload(module)
    database.commit_tuning_record(
        ms.database.TuningRecord(schedule.trace, workload, [0.001], tvm.target.Target(target), info)
    )


def test_records_for_another_model_are_refused(small, tmp_path):
    other = load(tiny_onnx(batch=2), name="tiny.onnx")
    noted(tmp_path, other, functions(lowered(other, Recipe(HOST)))[0])
    with pytest.raises(ForeignRecordsError, match=r"no tuning record is for an operator of tiny\.onnx in float32"):
        compile_model(small, Recipe(HOST, records=tmp_path))


def test_a_build_is_tuned_when_a_record_schedules_something_of_it(small, tmp_path):
    records, cache = tmp_path / "records", tmp_path / "cache"
    every = functions(lowered(small, Recipe(HOST)))
    records.mkdir()
    noted(records, small, every[0])
    tuned = build(
        tiny_onnx(), "tiny.onnx", BuildRequest(recipe=Recipe(HOST, records=records), shapes={}, dtypes={}), cache
    )
    assert tuned.tuned
    assert (tuned.about()["compile"]["with_record"], tuned.about()["compile"]["operators"]) == (1, len(every))
    (records / RECORDS).write_text("")  # as of a set whose every best is slower than TVM's own
    plain = build(
        tiny_onnx(), "tiny.onnx", BuildRequest(recipe=Recipe(HOST, records=records), shapes={}, dtypes={}), cache
    )
    assert not plain.tuned


def test_a_package_whose_manifest_lacks_inputs_is_refused_not_the_phone(small, tmp_path):
    made = read_package(make_package(small, Recipe(HOST), tmp_path, source=tiny_onnx())[0])
    package = write_package(replace(made.manifest, inputs=(), sha256={}), made.members)
    for fill, said in (("random", "expected outputs cannot be read"), ("zeros", r"names the inputs \[\]")):
        with raises_code(Code.BAD_PACKAGE, match=said):
            build(package, "x.farm.tar", BuildRequest(recipe=Recipe(HOST), shapes={}, dtypes={}, fill=fill), tmp_path)


def functions(module):
    return [each for each in module.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]


def test_opencl_source_in_half_precision_is_valid(small):
    source = opencl_source(compile_model(small, Recipe(ADRENO, "float16")))
    assert "__kernel void fused_conv2d" in source
    assert "half" in source
    assert syntax_errors(source) == ""


def test_half_precision_keeps_the_models_interface_and_is_near_enough(small, tmp_path):
    wanted = BuildRequest(recipe=Recipe(HOST, "float16"), shapes={}, dtypes={})
    built = build(tiny_onnx(), "tiny.onnx", wanted, tmp_path)
    outputs = outputs_of(compile_model(small, built.recipe), small)
    assert [output.dtype for output in outputs] == [np.float32]
    assert built.judged(outputs)["max_abs_error"] > 1e-5  # else it would compute in float32 all the same
    with raises_code(Code.BAD_PRECISION, match="no precision 'int4'"):
        compile_model(small, Recipe(HOST, "int4"))


def test_the_syntax_check_sees_a_wrong_kernel():
    assert "foo" in syntax_errors("kernel void f(global float* a) { a[0] = foo(a[1]); }")


@pytest.mark.parametrize(
    ("target", "machine", "bits", "needed"),
    [
        (PHONE, "AARCH64", 64, ["libtvm_ffi.so", "libm.so", "libc.so"]),
        (named_target("android-armv7"), "ARM", 32, ["libtvm_ffi.so", "libm.so", "libc.so"]),
        (named_target("rpi4"), "AARCH64", 64, []),
        (named_target("rpi4-32"), "ARM", 32, []),
        (ADRENO, "AARCH64", 64, ["libtvm_ffi.so", "libm.so", "libc.so"]),
    ],
    ids=["android-arm64", "android-armv7", "linux-arm64", "linux-armv7", "adreno"],
)
def test_libraries_are_for_their_machine(small, tmp_path, monkeypatch, target, machine, bits, needed):
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    elf = parse_elf(compile_library(small, Recipe(target), tmp_path).library.read_bytes())
    assert (elf.machine, elf.bits) == (machine, bits)
    assert list(elf.needed) == needed


def test_textures_are_compiled_apart_and_leave_the_model_whole(small, tmp_path):
    texture = {"tag": "qcom/adreno-opencl-texture", "host": PHONE}
    before = outputs_of(compile_model(small, Recipe(HOST)), small)
    assert compile_library(small, Recipe(texture), tmp_path).library.stat().st_size > 0
    after = outputs_of(compile_model(small, Recipe(HOST)), small)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(TargetRefusedError, match="records do not apply"):
        lowered(small, Recipe(texture))
    wanted = BuildRequest(recipe=Recipe(texture), shapes={}, dtypes={})
    built = build(tiny_onnx(), "tiny.onnx", wanted, tmp_path)
    with pytest.raises(TargetRefusedError, match="generates wrong code for textures") as caught:
        built.judged([np.zeros_like(output) for output in before])
    assert "--target adreno --texture" in caught.value.hint


def test_what_this_tvm_has_no_generator_for_is_refused(small):
    assert {"llvm", "opencl"} <= set(generators())
    for tag, said in (("qcom/adreno-opencl-clml", "without USE_CLML"), ("vulkan", "no code generator for vulkan")):
        target = {"tag" if "/" in tag else "kind": tag, "host": PHONE}
        with pytest.raises(TargetRefusedError, match=said) as caught:
            compile_model(small, Recipe(target))
        assert caught.value.exit_code == 2


def test_this_machine_as_a_target_runs_here(small):
    target = host_target()
    assert target["num-cores"] == len(os.sched_getaffinity(0))
    assert outputs_of(compile_model(small, Recipe(target)), small)[0].shape == (1, 3)


def test_a_crash_in_a_process_of_its_own_is_one_error():
    run_in_child(lambda: None, "nothing", "")
    with raises_code(Code.TVM_CRASHED, match="crashed \\(SIGKILL\\) while dying"):
        run_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), "dying", "")
    with raises_code(Code.TVM_CRASHED, match="ZeroDivisionError"):
        run_in_child(lambda: 1 // 0, "dividing", "")

    def refuse():
        raise ModelError("no such thing")

    with pytest.raises(ModelError, match="no such thing"):
        run_in_child(refuse, "refusing", "")
