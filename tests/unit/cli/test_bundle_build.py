"""`farm bundle build` refuses what this host cannot build before it asks the daemon, and before anything is fetched."""

from functools import partial

import pytest

from farm.bundle.model import Abi, Platform
from farm.cli import runtimes
from farm.common.errors import Code
from farm.runtime import build, ndk_build
from farm.runtime.packages import DownloadError
from tests.support.errors import raises_code
from tests.support.ndk import LIBRARIES, TOOLS


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch):
    monkeypatch.setattr(runtimes, "call", lambda verb, **_: pytest.fail(f"the daemon was asked: {verb}"))


@pytest.fixture
def ndk(tmp_path):
    """The files of an NDK for x86_64 that farm looks for."""
    folder = tmp_path / "ndk"
    for name in ("build/cmake/android.toolchain.cmake", f"{TOOLS}/clang++", f"{TOOLS}/llvm-strip"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / LIBRARIES).mkdir(parents=True)
    (folder / LIBRARIES / "libc++_shared.so").touch()
    (folder / "source.properties").write_text("Pkg.Revision = 28.0.1\n")
    return folder


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "tvm"
    for name in (
        "CMakeLists.txt", "include/tvm/runtime/base.h", "3rdparty/tvm-ffi/CMakeLists.txt",
        "3rdparty/tvm-ffi/3rdparty/dlpack/include/dlpack/dlpack.h", "3rdparty/OpenCL-Headers/CL/cl.h",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


with_ndk = partial(runtimes.build_bundle, "gpu", abi=Abi.X86_64, opencl=True, clml=None)


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        ("ndk/source.properties", Code.BAD_NDK),
        (f"ndk/{LIBRARIES}/libc++_shared.so", Code.BAD_NDK),
        ("tvm/CMakeLists.txt", Code.BAD_CHECKOUT),
        ("tvm/3rdparty/OpenCL-Headers/CL/cl.h", Code.BAD_CHECKOUT),
    ],
)
def test_an_ndk_or_a_checkout_that_is_none(ndk, checkout, tmp_path, missing, code):
    (tmp_path / missing).unlink()
    with raises_code(code):
        with_ndk(ndk=ndk, tvm_source=checkout)


def test_an_sdk_that_is_none(ndk, checkout, tmp_path):
    with raises_code(Code.BAD_CLML_SDK):
        with_ndk(ndk=ndk, tvm_source=checkout, clml=tmp_path)


def test_a_host_without_cmake(ndk, checkout, monkeypatch):
    monkeypatch.setattr(ndk_build, "find_cmake", partial(ndk_build.find_cmake, which=lambda _: None))
    monkeypatch.setattr("farm.runtime.ndk_build.sys.executable", str(ndk / "python"))
    with raises_code(Code.NO_BUILD_TOOL):
        with_ndk(ndk=ndk, tvm_source=checkout)


@pytest.fixture
def no_apt(monkeypatch, tmp_path):
    """A host that is no Debian, and whose cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_host_without_apt(no_apt):
    with pytest.raises(DownloadError, match="this host has no apt-get and dpkg-deb"):
        runtimes.build_bundle("main", abi=Abi.ARM64)


def test_a_host_without_a_compiler(no_apt, monkeypatch):
    monkeypatch.setattr(build, "find_compiler", partial(build.find_compiler, which=lambda _: None, zig=lambda: None))
    with raises_code(Code.NO_COMPILER):
        runtimes.build_bundle("main", abi=Abi.ARM64)


def test_opencl_out_of_a_folder_that_is_no_checkout(no_apt, tmp_path):
    with raises_code(Code.BAD_CHECKOUT):
        runtimes.build_bundle("gpu", opencl=True, tvm_source=tmp_path, platform=Platform.LINUX)
