"""TVM's OpenCL runtime: what is missing is named before anything is compiled."""

from pathlib import Path

import pytest

from farm.bundle.model import Platform
from farm.cli.runtimes import build_bundle
from farm.common.errors import HostError, UserError
from farm.runtime import build as bundle_build
from farm.runtime.build import OPENCL_LIBRARY, build_opencl
from farm.runtime.packages import TvmWheel
from farm.runtime.server import Compiler

SOURCES = ("opencl_device_api.cc", "opencl_module.cc", "opencl_wrapper/opencl_wrapper.cc")
COMPILER = """\
#!/bin/sh
[ "$1" = --version ] && { echo 1; exit; }
echo run >>@LOG@
while [ "$1" != -o ]; do shift; done
echo library >"$2"
"""


@pytest.fixture
def checkout(tmp_path):
    """The files of a checkout that are named, and the headers of its submodule."""
    for name in (*(f"src/backend/opencl/runtime/{each}" for each in SOURCES), "3rdparty/OpenCL-Headers/CL/cl_ext.h"):
        (file := tmp_path / "tvm" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text("//\n")
    return tmp_path / "tvm"


@pytest.fixture
def compiler(tmp_path):
    program = tmp_path / "g++"
    program.write_text(COMPILER.replace("@LOG@", str(tmp_path / "log")))
    program.chmod(0o755)
    return Compiler("g++", (str(program),))


def build(tmp_path, checkout, compiler):
    return build_opencl(tmp_path / "cache", checkout, compiler, TvmWheel((), ()), lambda _: None)


def test_the_same_sources_are_compiled_once(tmp_path, checkout, compiler):
    library = build(tmp_path, checkout, compiler)
    assert library.name == OPENCL_LIBRARY
    assert build(tmp_path, checkout, compiler) == library
    assert (tmp_path / "log").read_text() == "run\n"
    (checkout / "src/backend/opencl/runtime" / SOURCES[1]).write_text("// changed\n")
    assert build(tmp_path, checkout, compiler) != library


def test_missing_headers_are_named_with_their_package(tmp_path, checkout, compiler, monkeypatch):
    (checkout / "3rdparty/OpenCL-Headers/CL/cl_ext.h").unlink()
    monkeypatch.setattr(bundle_build, "_SYSTEM_HEADERS", tmp_path)
    with pytest.raises(HostError, match="no OpenCL headers") as caught:
        build(tmp_path, checkout, compiler)
    assert "apt install opencl-headers" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gpu", {"opencl": True, "tvm_source": Path("/tvm")}, "needs Android's C library"),
        ("GPU!", {"opencl": True, "tvm_source": Path("/tvm"), "platform": Platform.LINUX}, "cannot be a bundle's name"),
        ("gpu", {"clml": Path("/sdk")}, "--clml needs --ndk"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_build(name, options, said):
    with pytest.raises(UserError, match=said):
        build_bundle(name, **options)
