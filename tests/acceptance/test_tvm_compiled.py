"""TVM itself, compiled from a checkout as for an NDK: its runtime on a phone, with farm's server."""

import pytest

from farm.bundle.folder import read_folder
from farm.bundle.model import LARGE_PAGE_BYTES, Abi
from farm.common.errors import Code, HostError
from farm.runtime.checkout import OPENCL_HEADERS, TVM_FFI
from farm.runtime.ndk_build import NdkRecipe, build_with_ndk
from farm.runtime.parts import default_cache
from tests.support.ndk import CMAKE_MAKERS, given_checkout, installed_tvm, stand_in_ndk
from tests.support.needs import needs
from tests.support.stock_client import Clients
from tests.support.whole_farm import Story, answer, until_ready

LIMIT_S = 300.0
USE = "session = connect().request('android'); tell(add_one(session)); close(session)"
pytestmark = [pytest.mark.farm("galaxy-s9"), pytest.mark.timeout(7200), needs(*CMAKE_MAKERS, "clang", "llvm-strip")]


@pytest.fixture(scope="module", autouse=True)  # before a farm is started
def folder(tmp_path_factory):
    """Twenty minutes of processor time; from the cache at once."""
    checkout = given_checkout(TVM_FFI, OPENCL_HEADERS)
    recipe = NdkRecipe(Abi.X86_64, stand_in_ndk(tmp_path_factory.mktemp("ndk") / "r28"), checkout, opencl=True)
    try:
        return build_with_ndk(default_cache(), recipe, installed_tvm(), lambda _: None)
    except HostError as error:
        if error.code == Code.NO_BUILD_TOOL:
            pytest.skip(f"{error.message}: {error.hint}")
        raise


def test_every_library_is_stripped_aligned_and_whole(folder):
    found = read_folder(folder)
    assert {"libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_runtime_opencl.so", "libtvm_ffi.so"} <= {
        each.name for each in found.files
    }
    built = [each for each in found.files if each.name.startswith(("tvm_rpc", "libtvm"))]
    assert {each.elf.page_alignment_bytes for each in built} == {LARGE_PAGE_BYTES}
    assert not [each for each in built if str(folder.parents[1]).encode() in (folder / each.name).read_bytes()]


def test_a_phone_takes_it_and_measures(farm, phone, folder, kernel, model):
    story = Story(farm)
    made = answer(farm.farm("bundle", "add", str(folder), "--name", "compiled", "--json", timeout_s=LIMIT_S))
    story.until("bundle.current", hash=made["hash"])
    until_ready(farm)
    assert (phone.row["bundle"], phone.row["findings"]) == (made["hash"], [])
    assert Clients(farm, kernel).result(USE) is True
    bench = farm.farm("bench", str(model), "--on", phone.name, "--repeat", "3", timeout_s=LIMIT_S)
    assert "Outputs match the reference" in bench.stdout, bench
