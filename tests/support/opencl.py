"""OpenCL C that TVM generated: taken out of an executable, and checked by clang."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.support.needs import need

# An OpenCL device of 64 bits, with the built-in functions of the standard declared as clang ships them.
CLANG = ("clang", "-x", "cl", "-cl-std=CL2.0", "-target", "spir64", "-Xclang", "-finclude-default-header")


def opencl_source(executable: Any) -> str:
    """The source of every kernel in what `compile_model` returns."""
    found: list[str] = []

    def walk(module: Any) -> None:
        if module.kind == "opencl":
            found.append(module.inspect_source())
        for imported in module.imports:
            walk(imported)

    walk(executable.mod)
    return "\n".join(found)


def syntax_errors(source: str) -> str:
    """What clang says against it; "" when nothing."""
    need("clang")
    command = [*CLANG, "-fsyntax-only", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=120, check=False)
    return done.stderr if done.returncode else ""
