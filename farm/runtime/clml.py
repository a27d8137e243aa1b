"""Qualcomm's OpenCL ML SDK, which TVM's CLML runtime is built with."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from farm.bundle.model import Abi
from farm.common.errors import Code, UserError

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = "CL/cl_qcom_ml_ops.h"
_HEADER_FOLDERS = ("", "include")
_LIBRARY = "libOpenCL.so"

clml_error = partial(UserError, code=Code.BAD_CLML_SDK)


def check_clml(sdk: Path, abi: Abi) -> None:
    """Refuse a folder in which TVM's build would not find headers and library for an ABI.

    Raises:
        UserError: something is missing.
    """
    hint = "unpack Qualcomm's OpenCL ML SDK, and give the folder that has CL/ (or include/CL/) and lib64/"
    if not any((sdk / folder / _HEADER).is_file() for folder in _HEADER_FOLDERS):
        raise clml_error(f"{sdk} is no OpenCL ML SDK: it has no {_HEADER}", hint=hint)
    folder = "lib64" if abi.bits == 64 else "lib"
    if not (sdk / folder / _LIBRARY).is_file():
        raise clml_error(f"the OpenCL ML SDK in {sdk} has no {folder}/{_LIBRARY} for {abi}", hint=hint)


def clml_files(sdk: Path | None) -> list[Path]:
    """The files of an SDK that decide what is built."""
    return sorted(file for file in sdk.rglob("*") if file.suffix in {".h", ".so"} and file.is_file()) if sdk else []
