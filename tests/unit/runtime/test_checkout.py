"""A checkout is taken when it is what the toolchain's TVM was built from; else one line says what is wrong with it."""

import shutil
import sys
from dataclasses import replace

import pytest

from farm.common.errors import Code, HostError
from farm.runtime.checkout import OPENCL_HEADERS, TVM_FFI, HostTvm, check_checkout, content_of, find_host_tvm
from tests.support.errors import raises_code

BASE = '#pragma once\n#define TVM_VERSION "{}"\nint base;\n'


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_cc", ".cc").replace("_h", ".h")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def host(tmp_path):
    packages = tmp_path / "site-packages"
    write(
        packages / "tvm", src__runtime__a_cc="a", src__runtime__b_cc="b", src__runtime__c_cc="c", src__runtime__d_cc=""
    )
    write(packages / "tvm", include__tvm__runtime__base_h=BASE.format("0.27.0"))
    write(packages / "tvm_ffi", src__ffi__object_cc="object", include__tvm__ffi__any_h="any")
    return HostTvm("toolchain default", "0.27.0.post1", "0.1.14.post1", packages / "tvm", packages / "tvm_ffi")


@pytest.fixture
def checkout(host, tmp_path):
    root = tmp_path / "tvm"
    shutil.copytree(host.tvm, root)
    shutil.copytree(host.tvm_ffi, root / TVM_FFI)
    for name in ("CMakeLists.txt", f"{TVM_FFI}/CMakeLists.txt", f"{TVM_FFI}/3rdparty/dlpack/include/dlpack/dlpack.h"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    write(root, src__target__e_cc="in no wheel")
    return root


@pytest.mark.parametrize("version", ["0.27.dev0", "0.27.0"])
def test_the_version_that_it_states_may_be_older_than_its_files(checkout, host, version):
    check_checkout(checkout, host, [TVM_FFI])
    write(checkout, include__tvm__runtime__base_h=BASE.format(version))
    check_checkout(checkout, host, [TVM_FFI])


def test_a_folder_that_is_no_checkout(host, tmp_path):
    with raises_code(Code.BAD_CHECKOUT, match="/nothing is no checkout of TVM") as caught:
        check_checkout(tmp_path / "nothing", host, [TVM_FFI])
    assert caught.value.hint == f"git clone --recursive https://github.com/apache/tvm {tmp_path}/nothing"


def test_submodules_that_are_missing_are_named_with_the_command(checkout, host):
    shutil.rmtree(checkout / TVM_FFI / "3rdparty")
    with raises_code(
        Code.BAD_CHECKOUT, match="lacks submodules: 3rdparty/tvm-ffi/3rdparty/dlpack, 3rdparty/OpenCL-Hea"
    ):
        check_checkout(checkout, host, [TVM_FFI, OPENCL_HEADERS])
    shutil.rmtree(checkout / TVM_FFI)
    with raises_code(Code.BAD_CHECKOUT, match="lacks submodules: 3rdparty/tvm-ffi, ") as caught:
        check_checkout(checkout, host, [TVM_FFI])
    assert caught.value.hint == f"git -C {checkout} submodule update --init --recursive"


def test_another_version_is_told_with_the_way_to_the_right_one(checkout, host):
    write(checkout, include__tvm__runtime__base_h=BASE.format("0.26.0"), src__runtime__a_cc="older")
    with raises_code(Code.BAD_CHECKOUT, match="is TVM 0.26.0, and toolchain default has TVM 0.27.0.post1") as caught:
        check_checkout(checkout, host, [TVM_FFI])
    assert f"git -C {checkout} checkout v0.27.0 && git -C {checkout} submodule update" in caught.value.hint


def test_files_that_differ_are_named(checkout, host):
    write(checkout, src__runtime__a_cc="mine", src__runtime__b_cc="mine", src__runtime__c_cc="mine")
    (checkout / "src/runtime/d.cc").unlink()
    differ = r"4 of 5 files differ \(src/runtime/a.cc, src/runtime/b.cc, src/runtime/c.cc, \.\.\.\)$"
    with raises_code(Code.BAD_CHECKOUT, match=f"is not the source of TVM 0.27.0.post1 of toolchain default: {differ}"):
        check_checkout(checkout, host, [TVM_FFI])


def test_another_tvm_ffi_is_told_where_it_is_built(checkout, host):
    write(checkout / TVM_FFI, include__tvm__ffi__any_h="newer")
    wanted = (
        r"is not the source of tvm-ffi 0.1.14.post1 of toolchain default: 1 of 2 files differ \(include/tvm/ffi/any.h"
    )
    with raises_code(Code.BAD_CHECKOUT, match=wanted) as caught:
        check_checkout(checkout, host, [TVM_FFI])
    assert f"git -C {checkout}/{TVM_FFI} tag" in caught.value.hint
    check_checkout(checkout, host)


def test_a_toolchain_without_sources_has_its_version_only(checkout, host, tmp_path):
    built = replace(host, tvm=tmp_path / "python/tvm", tvm_ffi=tmp_path / "python/tvm_ffi", version="0.27.0")
    check_checkout(checkout, built, [TVM_FFI])
    with raises_code(Code.BAD_CHECKOUT, match="is TVM 0.27.0, and toolchain default has TVM 0.28.0"):
        check_checkout(checkout, replace(built, version="0.28.0"), [TVM_FFI])


def test_what_is_built_from_it_has_a_hash_that_does_not_depend_on_its_place(checkout, tmp_path):
    shutil.copytree(checkout, moved := tmp_path / "elsewhere")
    write(moved, docs__index_h="not built")
    assert content_of(checkout) == content_of(moved)
    write(moved, src__target__e_cc="changed")
    assert content_of(checkout) != content_of(moved)


def test_where_an_interpreter_has_its_tvm():
    found = find_host_tvm("toolchain default", sys.executable, "0.27.0", "")
    assert (found.tvm / "__init__.py").is_file()
    assert (found.tvm_ffi / "src").is_dir()


@pytest.mark.parametrize("program", ["exit 1", "echo {}", "echo broken", "echo []"])
def test_an_interpreter_without_tvm(tmp_path, program):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    with pytest.raises(HostError, match="does not say where its TVM is"):
        find_host_tvm("toolchain own", str(python), "0.27.0", "")
