"""Qualcomm's OpenCL ML SDK, which TVM's CLML runtime is built with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from farm.common.errors import Code, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from farm.bundle.model import Abi

_HEADER = "CL/cl_qcom_ml_ops.h"
_HEADER_FOLDERS = ("", "include")
_LIBRARY = "libOpenCL.so"

clml_error = partial(UserError, code=Code.BAD_CLML_SDK)


@dataclass(frozen=True, slots=True)
class ClmlSdk:
    """An SDK for one ABI."""

    folder: Path
    headers: Path  # the folder with CL/
    library: Path  # a phone's libOpenCL.so, to link against

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that decide what is built."""
        return (*sorted((self.headers / "CL").glob("*.h")), self.library)


def find_clml(sdk: Path, abi: Abi) -> ClmlSdk:
    """Check an SDK's folder.

    Raises:
        UserError: headers, or the library for the ABI, are missing.
    """
    hint = "unpack Qualcomm's OpenCL ML SDK, and give the folder that has CL/ (or include/CL/) and lib64/"
    headers = next((sdk / each for each in _HEADER_FOLDERS if (sdk / each / _HEADER).is_file()), None)
    if headers is None:
        raise clml_error(f"{sdk} is no OpenCL ML SDK: it has no {_HEADER}", hint=hint)
    library = sdk / ("lib64" if abi.bits == 64 else "lib") / _LIBRARY
    if not library.is_file():
        raise clml_error(f"the OpenCL ML SDK in {sdk} has no {library.relative_to(sdk)} for {abi}", hint=hint)
    return ClmlSdk(sdk, headers, library)
