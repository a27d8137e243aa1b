"""OpenCL through the whole farm: a virtual phone whose GPU is the host's driver for CPUs, and drivers that fail."""

import pytest

from tests.support.opencl import has_float16, need_driver, opencl_library
from tests.support.tiny_model import LIMIT_S, check_numbers, tiny_onnx
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import Story, answer, phones, refused, running_farm, until_ready

GPU, PLAIN = "oneplus-12+opencl", "galaxy-s9"
ONCE = ("--max-attempts", "1")
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
    check_numbers(farm, phone, model, tmp_path, "--target", target)


def test_operators_with_textures_are_checked_on_the_gpu_before_the_model_runs(farm, phone, model):
    words = ("--on", phone.name, "--target", "adreno", "--texture", "--json")
    [result] = answer(farm.farm("run", str(model), *words, timeout_s=LIMIT_S))["results"]
    textures = result["compile"]["textures"]
    assert (len(textures["textures"]), textures["buffers"]) == (3, {})
    assert textures["checked"]
    assert {*result["compile"]["kernels"]} == {"gpu"}
    assert result["max_abs_error"] < 1e-5


def test_a_bench_times_kernels_and_operators_on_the_gpu(farm, phone, model):
    words = ("--on", phone.name, "--target", "opencl", "--repeat", "5", "--profile", "--require-offload", "100%")
    done = farm.farm("bench", str(model), *words, timeout_s=LIMIT_S)
    assert done.returncode == 0, done
    assert "Outputs match the reference" in done.stdout
    assert "conv2d" in done.stdout
    assert "operators in the model's own run" in done.stdout
    assert "the time of a wait for nothing" in done.stdout
    assert "by unit: gpu 100.0 %" in done.stdout


def test_a_search_measures_on_the_gpu_and_its_best_record_schedules_the_next_bench(farm, phone, tmp_path):
    dense = tmp_path / "dense.onnx"
    dense.write_bytes(dense_onnx(rows=64))
    words = ("--on", phone.name, "--target", "opencl", "--json")
    search = ("--trials", "4", "--cost-model", "random")
    [tuned] = answer(farm.farm("tune", str(dense), *words, *search, timeout_s=LIMIT_S))["results"]
    assert [(task["trials"], task["failed"]) for task in tuned["tasks"]] == [(4, 0)]
    assert tuned["max_abs_error"] < 1e-5
    best = tmp_path / "best.tar"
    assert farm.farm("records", "best", "dense.onnx", "-o", str(best)).returncode == 0
    records = ("--records", str(best), "--repeat", "3")
    [bench] = answer(farm.farm("bench", str(dense), *words, *records, timeout_s=LIMIT_S))["results"]
    assert bench["compile"]["tuned"]
    assert bench["max_abs_error"] < 1e-5


def test_a_kernel_that_the_driver_cannot_build_is_named_with_the_drivers_reason(farm, phone, model):
    """pocl has no float16, as the GPUs of old phones."""
    if has_float16():
        pytest.skip("the host's OpenCL driver has float16")
    words = ("--on", phone.name, "--target", "opencl", "--precision", "float16")
    done = farm.farm("run", str(model), *words, timeout_s=LIMIT_S)
    refused(done, 1, "the GPU's driver cannot build a kernel: ", "Half precision floating point not supported")
    assert farm.client.call("job.list", limit=1)["jobs"][0]["attempts"] == 1  # it would be refused again


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


def test_operators_whose_images_are_too_large_for_the_gpu_use_buffers(farm, phone, broken, tmp_path):
    (tmp_path / "wide.onnx").write_bytes(tiny_onnx(side=72))
    broken("small_images")
    words = ("--on", phone.name, "--target", "adreno", "--texture", "--json", *ONCE)
    [result] = answer(farm.farm("run", str(tmp_path / "wide.onnx"), *words, timeout_s=LIMIT_S))["results"]
    reasons = result["compile"]["textures"]["buffers"].values()
    assert any("the GPU has no such image: " in reason for reason in reasons), reasons
    assert result["max_abs_error"] < 1e-5


def test_a_kernel_that_exceeds_the_local_memory_is_refused_before_it_runs(farm, phone, model, broken):
    broken("small_local_memory")
    words = ("--on", phone.name, "--target", "opencl", *ONCE)
    done = farm.farm("run", str(model), *words, timeout_s=LIMIT_S)
    refused(done, 1, "loading the model failed: a kernel is too large: ", "bytes of local memory, and the GPU has 1024")
    until_ready(farm)


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
    assert "loading opencl failed: the phone's RPC worker died" in event["data"]["reason"]
    assert phones(farm)[1].row["state"] == "ready"
