"""An NDK's folder is taken, or one line says why not."""

import shutil

import pytest

from farm.bundle.model import Abi
from farm.common.errors import Code
from farm.runtime.ndk_build import find_ndk
from tests.support.errors import raises_code

BIN = "toolchains/llvm/prebuilt/linux-x86_64/bin"
LIBRARIES = "toolchains/llvm/prebuilt/linux-x86_64/sysroot/usr/lib"


@pytest.fixture
def ndk(tmp_path):
    folder = tmp_path / "ndk"
    names = ("aarch64-linux-android", "riscv64-linux-android")
    files = [f"{LIBRARIES}/{name}/libc++_shared.so" for name in names]
    for name in ("build/cmake/android.toolchain.cmake", f"{BIN}/clang++", f"{BIN}/llvm-strip", *files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "source.properties").write_text("Pkg.Desc = Android NDK\nPkg.Revision = 27.2.12479018\n")
    return folder


def test_a_whole_one(ndk):
    found = find_ndk(ndk, Abi.ARM64)
    assert (found.revision, found.api) == ("27.2.12479018", 28)
    assert found.libraries == ndk / LIBRARIES / "aarch64-linux-android"
    assert found.strip == ndk / BIN / "llvm-strip"
    assert find_ndk(ndk, Abi.RISCV64).api == 35


def test_one_without_the_abi(ndk):
    with raises_code(Code.BAD_NDK, match="NDK r27 in .* has no armeabi-v7a") as caught:
        find_ndk(ndk, Abi.ARMV7)
    assert caught.value.hint.startswith("it has: arm64-v8a, riscv64; another NDK: https://")


@pytest.mark.parametrize("gone", [BIN, f"{BIN}/llvm-strip", "build"])
def test_one_that_is_not_whole(ndk, gone):
    shutil.rmtree(ndk / gone) if (ndk / gone).is_dir() else (ndk / gone).unlink()
    with raises_code(Code.BAD_NDK, match="is not whole, or not for Linux"):
        find_ndk(ndk, Abi.ARM64)


def test_a_folder_that_is_none(ndk, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nothing"):
        with raises_code(Code.BAD_NDK, match="is no Android NDK: it has no source.properties") as caught:
            find_ndk(folder, Abi.ARM64)
        assert caught.value.hint.startswith("unpack one")
    old = "Pkg.Desc = Android NDK\nPkg.Revision = 21.4.7075529\n"
    for properties, said in (("damaged", "is no Android NDK"), (old, "is NDK r21: TVM needs r25 or newer")):
        (ndk / "source.properties").write_text(properties)
        with raises_code(Code.BAD_NDK, match=said):
            find_ndk(ndk, Abi.ARM64)


def test_the_folder_of_an_sdk_leads_to_the_ndk_in_it(ndk, tmp_path):
    ndk.rename(inside := tmp_path / "27.2.12479018")
    sdk = tmp_path / "sdk"
    (sdk / "ndk").mkdir(parents=True)
    inside.rename(sdk / "ndk/27.2.12479018")
    with raises_code(Code.BAD_NDK) as caught:
        find_ndk(sdk, Abi.ARM64)
    assert caught.value.hint == f"perhaps {sdk}/ndk/27.2.12479018"
