"""CPUs and features that LLVM does not know are refused by name: it would compile plain code and continue."""

from unittest.mock import Mock

import pytest

pytest.importorskip("tvm")
import tvm

from farm.common.errors import Code
from farm.compiler.targets import TargetError, abi_of, check_here, check_target, host_target, target_from
from farm.devices.identity.targets import named_target, target_here
from farm.kinds.tune.tune_here import tune_here
from farm.worker.local import run_here
from tests.support.errors import raises_code

ARM64 = {"kind": "llvm", "mtriple": "aarch64-linux-android"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mcpu": "cortex-a7777"}, "the CPU 'cortex-a7777' of aarch64-linux-android"),
        ({"mcpu": "cortex-a76", "mattr": ["+neon", "+nosuch"]}, "the feature '\\+nosuch'"),
        ({"mattr": ["neon"]}, "the feature 'neon'"),
    ],
)
def test_unknown_cpus_and_features_are_refused_by_name(fields, named):
    with pytest.raises(TargetError, match=named):
        check_target(target_from({**ARM64, **fields}))
    with pytest.raises(TargetError, match=named):
        check_target(target_from({"kind": "opencl", "host": {**ARM64, **fields}}))


@pytest.mark.parametrize("fields", [{}, {"mcpu": "generic"}, {"mcpu": "cortex-a76", "mattr": ["+dotprod", "-sve"]}])
def test_known_ones_are_taken(fields):
    check_target(target_from({**ARM64, **fields}))


def test_an_unknown_option_has_its_nearest_name_and_no_list():
    with pytest.raises(TargetError) as caught:
        target_from({**ARM64, "mcpuu": "cortex-a76"})
    assert (caught.value.message, caught.value.hint) == (
        "TVM's targets have no option 'mcpuu'", "did you mean 'mcpu'?"
    )  # fmt: skip


@pytest.mark.parametrize("target", ["qcom/adreno-opencl", {"kind": "opencl"}])
def test_without_the_cpu_the_hint_names_mtriple_and_on(target):
    with pytest.raises(TargetError, match="does not say for which CPU") as caught:
        abi_of(target)
    assert "-mtriple=" in caught.value.hint
    assert "--on PHONE" in caught.value.hint


def test_llvm_is_this_host_and_the_rest_of_it_where_mtriple_is_left_out():
    own = host_target()
    assert target_here("llvm", host_target) == own
    assert target_here("llvm -mcpu=x", host_target) == {
        "kind": "llvm", "mcpu": "x", "mtriple": own["mtriple"], "num-cores": own["num-cores"],
    }  # fmt: skip
    assert target_here("opencl, llvm", host_target)["host"] == own
    assert target_here("rpi4", host_target) == named_target("rpi4")


@pytest.mark.parametrize(
    "name", ["android-x86_64", "rpi4", "pixel2", '{"kind": "llvm", "mtriple": "armv7a-linux-eabi"}']
)
def test_code_for_another_machine_is_refused_before_it_is_made(name):
    check_here(host_target())
    if abi_of(named_target(name)) == abi_of(host_target()):
        pytest.skip("that is this host")
    with pytest.raises(TargetError, match=r"^this target is for .*, and this host is "):
        check_here(named_target(name))


def test_a_driver_that_tvm_cannot_open_here_is_a_missing_device(numbers):
    numbers(tvm.runtime, device=Mock(side_effect=RuntimeError("Error! Cannot open libOpenCL!")))
    with raises_code(Code.HOST_RUN_FAILED, match="no opencl device"):
        check_here({"kind": "opencl", "host": host_target()})


@pytest.mark.parametrize("work", [run_here, tune_here])
def test_neither_running_nor_tuning_here_begins_with_it(work, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"never read")
    foreign = '{"kind": "llvm", "mtriple": "armv7a-linux-eabi", "num-cores": 4}'
    with pytest.raises(TargetError, match="this target is for armeabi-v7a"):
        work({"model": str(model), "target": foreign, "options": {"candidate_timeout_s": 1.0}})
