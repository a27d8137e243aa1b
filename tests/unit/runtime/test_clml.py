"""Qualcomm's SDK is taken in the layouts that it has, or one line says what it lacks."""

import pytest

from farm.bundle.model import Abi
from farm.common.errors import Code
from farm.runtime.ndk_build import find_clml
from tests.support.errors import raises_code


@pytest.mark.parametrize("headers", ["", "include"])
def test_headers_and_library_are_found(tmp_path, headers):
    for name in (f"{headers}/CL/cl_qcom_ml_ops.h", f"{headers}/CL/cl.h", "lib64/libOpenCL.so", "docs/readme.h"):
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = find_clml(tmp_path, Abi.ARM64)
    assert (found.headers, found.library) == (tmp_path / headers, tmp_path / "lib64/libOpenCL.so")
    assert [file.name for file in found.files] == ["cl.h", "cl_qcom_ml_ops.h", "libOpenCL.so"]
    with raises_code(Code.BAD_CLML_SDK, match="has no lib/libOpenCL.so for armeabi-v7a"):
        find_clml(tmp_path, Abi.ARMV7)


def test_a_folder_that_is_none(tmp_path):
    with raises_code(Code.BAD_CLML_SDK, match="is no OpenCL ML SDK: it has no CL/cl_qcom_ml_ops.h") as caught:
        find_clml(tmp_path, Abi.ARM64)
    assert "lib64/" in caught.value.hint
