"""OpenCL through the whole farm: a virtual phone whose GPU is the host's driver for CPUs, and drivers that fail."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.support.opencl import need_driver, opencl_library
from tests.support.whole_farm import Story, answer, phones, refused, running_farm, until_ready

GPU, PLAIN = "oneplus-12+opencl", "galaxy-s9"
ONCE = ("--max-attempts", "1")
LIMIT_S = 180.0
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def whole():
    need_driver()
    with running_farm(GPU, PLAIN, opencl=opencl_library()) as farm:
        yield farm


def test_golden_kernels_run_on_the_gpu_of_the_phone_that_has_a_driver(farm, phone):
    names = [each.name for each in phones(farm)]
    targets = [answer(farm.farm("device", "show", name, "--json"))["targets"].keys() for name in names]
    assert targets == [{"cpu", "opencl", "adreno", "adreno-texture"}, {"cpu"}]
    checks = [farm.farm("device", "show", name).stdout for name in names]
    assert "golden kernels right on opencl" in checks[0]
    assert "no OpenCL driver" in checks[1]


@pytest.mark.parametrize("target", ["opencl", "adreno"])
def test_a_model_computes_right_numbers_on_the_gpu(farm, phone, model, tmp_path, target):
    given = np.random.default_rng(7).standard_normal((1, 4, 8, 8)).astype(np.float32)
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(inputs, x=given)
    options = ("--on", phone.name, "--target", target, "--input", str(inputs), "--output", str(outputs))
    done = farm.farm("run", str(model), *options, timeout_s=LIMIT_S)
    assert done.returncode == 0, done
    [expected] = ReferenceEvaluator(onnx.load(model)).run(None, {"x": given})
    with np.load(outputs) as kept:
        [name] = kept.files
        np.testing.assert_allclose(kept[name], expected, rtol=1e-4, atol=1e-6)


def test_operators_with_textures_are_checked_on_the_gpu_before_the_model_runs(farm, phone, model):
    words = ("--on", phone.name, "--target", "adreno", "--texture", "--json")
    [result] = answer(farm.farm("run", str(model), *words, timeout_s=LIMIT_S))["results"]
    textures = result["compile"]["textures"]
    assert (len(textures["textures"]), textures["buffers"]) == (3, {})
    assert textures["checked"]
    assert result["max_abs_error"] < 1e-5


def test_a_bench_times_kernels_and_operators_on_the_gpu(farm, phone, model):
    words = ("--on", phone.name, "--target", "opencl", "--repeat", "5", "--profile")
    done = farm.farm("bench", str(model), *words, timeout_s=LIMIT_S)
    assert done.returncode == 0, done
    assert "MAX ERROR" in done.stdout
    assert "conv2d" in done.stdout


def test_a_kernel_that_the_driver_cannot_build_is_named_with_the_drivers_reason(farm, phone, model):
    """pocl has no float16, as the GPUs of old phones."""
    words = ("--on", phone.name, "--target", "opencl", "--precision", "float16", *ONCE)
    done = farm.farm("run", str(model), *words, timeout_s=LIMIT_S)
    refused(done, 1, "the GPU's driver cannot build a kernel: ", "Half precision floating point not supported")


@pytest.fixture
def broken(farm, phone):
    """Breaks the phone's driver; afterwards it is good and the phone ready."""

    def broken(fault):
        farm.lab.fault(phone.nickname, "driver", fault=fault)

    yield broken
    broken("none")
    if phone.row["state"] == "quarantined":
        farm.farm("device", "release", phone.name)
    until_ready(farm)


@pytest.mark.parametrize("fault", ["missing", "32-bit"])
def test_a_driver_that_does_not_load_ends_the_job_and_leaves_the_phone_ready(farm, phone, model, broken, fault):
    broken(fault)
    done = farm.farm("run", str(model), "--on", phone.name, "--target", "opencl", *ONCE, timeout_s=LIMIT_S)
    refused(done, 1, "the phone has no opencl device, or its driver does not load")
    done = farm.farm("run", str(model), "--on", phone.name, timeout_s=LIMIT_S)
    assert done.returncode == 0, done


def test_a_driver_that_states_float16_and_has_none_is_found_out_by_its_compiler(farm, phone, model, broken):
    broken("false_extensions")
    words = ("--on", phone.name, "--target", "opencl", "--precision", "float16", *ONCE)
    done = farm.farm("run", str(model), *words, timeout_s=LIMIT_S)
    refused(done, 1, "the GPU's driver cannot build a kernel: ")


def test_a_driver_that_hangs_costs_the_job_its_time_and_the_next_one_nothing(farm, phone, model, broken):
    broken("hang")
    words = ("--on", phone.name, "--target", "opencl", "--timeout", "12s", *ONCE)
    refused(farm.farm("run", str(model), *words, timeout_s=LIMIT_S), 1, "no result after 12 s")
    broken("none")
    done = farm.farm("run", str(model), "--on", phone.name, "--target", "opencl", timeout_s=LIMIT_S)
    assert done.returncode == 0, done


def test_a_driver_that_crashes_takes_only_its_phone_out_of_service(farm, phone, broken):
    story = Story(farm)
    broken("crash")
    farm.lab.server_crash(phone.nickname)
    event = story.until("device.quarantined", subject=phone.name)
    assert "loading the OpenCL driver failed: the phone's RPC worker died" in event["data"]["reason"]
    assert phones(farm)[1].row["state"] == "ready"
