"""TVM's tensor intrinsics, without those of GPUs that no phone has.

MetaSchedule's TuneContext imports `tvm.s_tir.tensor_intrin`, whose __init__ makes the intrinsics of CUDA, ROCm, Metal
and Hexagon too: 9.6-11 s here, 8.2 of them for CUDA. Those of CPUs, which its schedule rules look up by name for ARM's
and x86's dot products, take 1 s. So nothing of it needs to be imported ahead, in the zygote, by everybody's workers.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "tvm.s_tir.tensor_intrin"
NEEDED = ("arm_cpu", "x86", "riscv_cpu")


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """The other parts, when somebody asks for them: `tvm.s_tir.tensor_intrin.cuda`."""
        if name.startswith("_") or importlib.util.find_spec(f"{PACKAGE}.{name}") is None:
            raise AttributeError(f"module {PACKAGE!r} has no attribute {name!r}")
        return importlib.import_module(f"{PACKAGE}.{name}")


def load() -> None:
    """Import those of CPUs in place of all. Nothing happens when the package is imported already."""
    if PACKAGE in sys.modules:
        return
    import tvm

    package = _Package(PACKAGE, "The CPUs' part of it: farm.tuning.intrinsics.")
    package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
    sys.modules[PACKAGE] = package
    try:
        for name in NEEDED:
            importlib.import_module(f"{PACKAGE}.{name}")
    except ImportError:  # another TVM has other parts: then all of it
        del sys.modules[PACKAGE]
        importlib.import_module(PACKAGE)
