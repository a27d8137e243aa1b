"""What a build with an NDK needs, as far as this host has it: an NDK's folder with the host's clang in it."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from farm.common.errors import UserError
from farm.common.install import TVM_SOURCE_VARIABLE
from farm.runtime.checkout import TVM_FFI, HostTvm, check_checkout
from tests.support.needs import need

REVISION = "28.0.13004108"
LIBRARIES = "toolchains/llvm/prebuilt/linux-x86_64/sysroot/usr/lib/x86_64-linux-android"
TOOLS = "toolchains/llvm/prebuilt/linux-x86_64/bin"
PROGRAMS = ("clang", "clang++", "llvm-strip")
HOST_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")
CMAKE_MAKERS = ("cmake", "ninja")
# Selects the compilers of the NDK's folder for the host itself.
TOOLCHAIN_FILE = """\
set(tools ${CMAKE_CURRENT_LIST_DIR}/../../toolchains/llvm/prebuilt/linux-x86_64/bin)
set(CMAKE_C_COMPILER ${tools}/clang)
set(CMAKE_CXX_COMPILER ${tools}/clang++)
set(CMAKE_CXX_FLAGS_INIT "-DBEGUN_BY_THE_NDK")
"""
# TVM's project as far as ours sees it: targets of these names. The libraries are the installed wheel's own. A library
# of the project is really compiled, with a source after which the build waits where a test asks for that.
TVM_PROJECT = """\
cmake_minimum_required(VERSION 3.18)
project(tvm C CXX)
add_subdirectory(3rdparty/tvm-ffi)
add_library(tvm_runtime SHARED IMPORTED GLOBAL)
set_target_properties(tvm_runtime PROPERTIES IMPORTED_LOCATION @tvm@/lib/libtvm_runtime.so)
add_library(tvm_runtime_extra SHARED IMPORTED GLOBAL)
set_target_properties(tvm_runtime_extra PROPERTIES IMPORTED_LOCATION @tvm@/lib/libtvm_runtime_extra.so)
if(USE_OPENCL OR USE_CLML_GRAPH_EXECUTOR)
  add_library(tvm_runtime_opencl SHARED first.cc second.cc)
  set_target_properties(tvm_runtime_opencl PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib BUILD_RPATH "\\$ORIGIN" INSTALL_RPATH "\\$ORIGIN")
  target_link_libraries(tvm_runtime_opencl PUBLIC -Wl,--no-as-needed tvm_ffi_shared)
endif()
if(USE_CLML_GRAPH_EXECUTOR)
  target_sources(tvm_runtime_opencl PRIVATE clml.cc)
  target_include_directories(tvm_runtime_opencl PRIVATE ${USE_CLML_GRAPH_EXECUTOR}/include ${USE_CLML_GRAPH_EXECUTOR})
  target_link_libraries(tvm_runtime_opencl PUBLIC ${EXTERN_CLML_COMPUTE_LIB})
endif()
"""
FFI_PROJECT = """\
project(tvm_ffi C CXX)
add_library(tvm_ffi_header INTERFACE)
target_include_directories(tvm_ffi_header INTERFACE @tvm_ffi@/include)
add_library(tvm_ffi_shared SHARED IMPORTED GLOBAL)
set_target_properties(tvm_ffi_shared PROPERTIES IMPORTED_LOCATION @tvm_ffi@/lib/libtvm_ffi.so)
"""
FIRST = """\
#ifndef BEGUN_BY_THE_NDK
#error the flags of the NDK's toolchain file are lost
#endif
extern "C" const char* first_file() { return __FILE__; }
"""
CLML = '#include <CL/cl_qcom_ml_ops.h>\nextern "C" int clml_major() { return clGetMLMajorQCOM() + clml_file()[0]; }\n'
CLML_HEADER = 'extern "C" int clGetMLMajorQCOM();\nextern "C" inline const char* clml_file() { return __FILE__; }\n'
SECOND = 'extern "C" const char* second_file() { return __FILE__; }\n'


def stand_in_ndk(folder, revision=REVISION):
    """An NDK for x86_64 whose compiler makes programs for the host, with the host's C++ library in the NDK's place."""
    need("clang", "llvm-strip")
    (folder / "build/cmake").mkdir(parents=True)
    (folder / "source.properties").write_text(f"Pkg.Desc = Android NDK\nPkg.Revision = {revision}\n")
    (folder / "build/cmake/android.toolchain.cmake").write_text(TOOLCHAIN_FILE)
    for place in (TOOLS, LIBRARIES):
        (folder / place).mkdir(parents=True)
    for name in PROGRAMS:
        (folder / TOOLS / name).symlink_to(shutil.which(name) or name)
    for name in HOST_LIBRARIES:
        said = subprocess.run(["clang", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        shutil.copyfile(said.stdout.strip(), folder / LIBRARIES / name)
    (folder / LIBRARIES / "libc++_shared.so").touch()  # farm looks for it; nothing here is linked to it
    return folder


def stub_clml_sdk(folder):
    """An SDK with one function of our own."""
    (folder / "include/CL").mkdir(parents=True)
    (folder / "include/CL/cl_qcom_ml_ops.h").write_text(CLML_HEADER)
    (folder / "lib64").mkdir()
    source = "int clGetMLMajorQCOM() { return 4; }\n"
    command = ["clang", "-shared", "-x", "c", "-", "-Wl,-soname,libOpenCL.so", "-o", folder / "lib64/libOpenCL.so"]
    subprocess.run(command, input=source, text=True, check=True)
    return folder


def installed_tvm():
    """The TVM of this Python."""
    from importlib.metadata import version

    tvm, ffi = (Path(find_spec(name).submodule_search_locations[0]) for name in ("tvm", "tvm_ffi"))
    return HostTvm("toolchain default", version("apache-tvm"), version("apache-tvm-ffi"), tvm, ffi)


def small_checkout(folder, host):
    """A checkout with the sources of a wheel, and a project that makes a runtime out of the wheel's libraries."""
    for root, package, project in ((folder, host.tvm, TVM_PROJECT), (folder / TVM_FFI, host.tvm_ffi, FFI_PROJECT)):
        root.mkdir(parents=True, exist_ok=True)
        for name in ("src", "include"):
            (root / name).symlink_to(package / name)
        (root / "CMakeLists.txt").write_text(
            project.replace("@tvm@", str(host.tvm)).replace("@tvm_ffi@", str(host.tvm_ffi))
        )
    for name in (f"{TVM_FFI}/3rdparty/dlpack/include/dlpack/dlpack.h", "3rdparty/OpenCL-Headers/CL/cl.h"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    (folder / "first.cc").write_text(FIRST)
    (folder / "second.cc").write_text(SECOND)
    (folder / "clml.cc").write_text(CLML)
    return folder


def given_checkout(*submodules):
    """The checkout of TVM that the host provides (FARM_TVM_SOURCE), when it is the installed TVM's; else a skip.

    With `submodules`, where a test compiles what is in them.
    """
    if not (given := os.environ.get(TVM_SOURCE_VARIABLE)):
        pytest.skip(f"{TVM_SOURCE_VARIABLE} names no checkout of TVM")
    checkout = Path(given)
    try:
        check_checkout(checkout, installed_tvm(), submodules)
    except UserError as error:
        pytest.skip(f"{TVM_SOURCE_VARIABLE}: {error.message}")
    return checkout
