"""ARM for real: a phone whose programs are AArch64, run by qemu; what it runs is made here, without an NDK."""

import signal
import sys

import pytest

from farm.bundle.elf import read_elf
from farm.runtime.packages import DownloadError
from farm.simulation.arm64 import Arm64ToolsError, arm64_folder
from tests.support.arm64 import board, compile_arm64_kernel, compile_dot_product
from tests.support.stock_client import Clients
from tests.support.tiny_model import check_numbers
from tests.support.whole_farm import ON_PHONE, Story, answer, phones, running_farm, until, until_ready

ARM, X86 = "oneplus-12+arm64", "galaxy-s9"
USE = "session = connect().request({key!r}); tell(add_one(session)); close(session)"
HOLD = """
session = connect().request({key!r}); tell(add_one(session)); wait()
tell(outcome(add_one, session))
"""
REFUSED = """
session = connect().request({key!r}); session.upload(kernel)
tell(outcome(session.load_module, "add_one.so")); close(session)
"""
FOREVER = ("--repeat", "20000", "--number", "1000000")


@pytest.fixture(scope="module")
def programs():
    """The folder with qemu, C library and bundle; without it there is nothing to test."""
    try:
        return arm64_folder()
    except (Arm64ToolsError, DownloadError) as error:
        pytest.skip(f"{error.message} ({error.hint}) {error.evidence}")


@pytest.fixture(scope="module")
def whole(programs):
    with running_farm(ARM, X86) as farm:
        yield farm


@pytest.fixture(scope="module")
def arm_kernel(tmp_path_factory):
    return compile_arm64_kernel(tmp_path_factory.mktemp("arm64"))


@pytest.fixture
def clients(farm, arm_kernel):
    return Clients(farm, arm_kernel)


def machine_of(farm, phone, path, folder):
    """`e_machine` of a file on the phone, as the host's adb reads it."""
    pulled = folder / "pulled"
    assert farm.adb("-s", phone.serial, "pull", path, str(pulled)).returncode == 0
    return read_elf(pulled).machine


def libraries(phone):
    return phone.shell(f"find {ON_PHONE}/farm/run -name '*.so'").split()


def test_the_phone_is_found_out_to_be_aarch64_and_gets_the_bundle_for_it(farm, phone, tmp_path):
    device = answer(farm.farm("device", "show", phone.name, "--json"))
    assert (device["identity"]["abi"], device["identity"]["virtual"]) == ("arm64-v8a", True)
    target = device["targets"]["cpu"]
    assert (target["mtriple"], target["mattr"]) == ("aarch64-linux-gnu", ["+neon"])
    assert phone.shell("uname -m").strip() == "aarch64"
    bundle = f"{ON_PHONE}/farm/bundles/{phone.row['bundle']}"
    for name in ("tvm_rpc", "libtvm_runtime.so"):
        assert machine_of(farm, phone, f"{bundle}/{name}", tmp_path) == "AARCH64"
    other = phones(farm)[1]
    assert other.shell("uname -m").strip() == "x86_64"
    assert other.row["bundle"] != phone.row["bundle"]


def test_a_model_is_cross_compiled_run_and_right(farm, phone, model, tmp_path):
    check_numbers(farm, phone, model, tmp_path)


def test_a_bench_pushes_an_aarch64_library(farm, phone, model, tmp_path):
    [job] = answer(farm.farm("bench", str(model), "--on", phone.name, *FOREVER, "--detach", "--json"))["jobs"]
    try:
        until(lambda: libraries(phone))
        # The model's; by now maybe the reference kernel's, too.
        assert {machine_of(farm, phone, path, tmp_path) for path in libraries(phone)} == {"AARCH64"}
    finally:
        farm.client.call("job.cancel", job=job["id"])
    done = farm.farm("bench", str(model), "--on", phone.name, "--repeat", "5")
    assert done.returncode == 0, done
    assert "MEDIAN" in done.stdout


def test_a_stock_client_uses_it_through_the_tracker(phone, clients):
    assert clients.result(USE.format(key=phone.name)) is True


def test_a_library_for_another_machine_is_refused(farm, phone, kernel, clients):
    said = Clients(farm, kernel).result(REFUSED.format(key=phone.name))
    assert "add_one.so: cannot open shared object file" in said  # glibc's words for a file of another machine
    assert clients.result(USE.format(key=phone.name)) is True


def test_a_program_for_another_machine_is_refused(farm, phone, programs):
    for name in ("x86", "arm"):
        source = sys.executable if name == "x86" else programs / "bundle/tvm_rpc"
        assert farm.adb("-s", phone.serial, "push", str(source), f"{ON_PHONE}/{name}").returncode == 0
    libraries = f"LD_LIBRARY_PATH={ON_PHONE}/farm/bundles/{phone.row['bundle']}"
    said = phone.shell(
        f"cd {ON_PHONE}; chmod 755 x86 arm; ./x86 -c 'print(1)' 2>&1; {libraries} ./arm 2>&1; rm x86 arm"
    )
    assert "64-bit ELF" in said
    assert "Command line usage" in said


def test_an_instruction_that_the_abi_does_not_promise_is_illegal(farm, phone, tmp_path):
    where = f"{ON_PHONE}/dot"
    assert farm.adb("-s", phone.serial, "push", str(compile_dot_product(tmp_path)), where).returncode == 0
    assert phone.shell(f"{where} 2>/dev/null; echo $?; rm {where}").split()[-1] == str(128 + signal.SIGILL)


def test_a_kernel_that_crashes_ends_its_session_only(farm, phone, clients):
    story, before = Story(farm), phone.server()
    with clients.running(HOLD.format(key=phone.name)) as client:
        assert client.hear() is True
        farm.lab.fault(phone.nickname, "segfault")
        client.go()
        assert "RPC" in client.hear()
        farm.lab.good_kernels(phone.nickname)
        story.until("lease.released")
    until_ready(farm)
    story.order("session.opened", "session.ended", "lease.released", device=phone.name)
    assert phone.server() == before
    assert phone.shell(f"find {ON_PHONE} -name core -o -name 'core.*' -o -name '*.core'") == ""
    assert clients.result(USE.format(key=phone.name)) is True


def test_a_board_that_is_no_android_registers_itself_and_runs_the_same_code(farm, programs, clients, tmp_path):
    _, tracker = farm.tracker()
    with board(programs, tracker, "raspberry-pi", tmp_path):
        assert clients.result(USE.format(key="raspberry-pi")) is True
        rows = {row["key"]: row["total"] for row in farm.status()["keys"]}
        assert (rows["raspberry-pi"], rows["android"]) == (1, 2)


@pytest.mark.parametrize("isolation", ["user", "none"])
def test_it_works_on_every_level_of_isolation_and_leaves_nothing(programs, arm_kernel, isolation):
    with running_farm(ARM, isolation=isolation) as farm:  # afterwards nothing of it is left
        [phone] = phones(farm)
        assert Clients(farm, arm_kernel).result(USE.format(key=phone.name)) is True
        assert phone.shell("uname -m").strip() == "aarch64"
