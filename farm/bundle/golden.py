"""The golden kernels that are kept with a bundle: their index, and how they are compiled.

A golden kernel is a small compiled function with seeded inputs and the outputs it must give. A phone that does not
give them is not handed out. They are compiled in another process, by the bundle's *toolchain*: a Python that has TVM.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

import farm
from farm.bundle.model import GOLDEN_FORMAT, GOLDEN_INDEX, Abi, Platform
from farm.bundle.versions import TvmVersions
from farm.common.errors import HostError

COMPILE_TIMEOUT_S = 300.0  # about 5 s on a warm host; the first import of TVM from a cold disk was measured at 10 s


GoldenCompiler = Callable[[Abi, Platform, tuple[str, ...], Path], None]
"""Fills an empty folder with golden.json and its files for an ABI, a platform and kinds, or raises a FarmError.

The kinds are KIND_CPU, and KIND_OPENCL when the bundle's runtime can do OpenCL.
"""


@dataclass(frozen=True, slots=True)
class GoldenKernels:
    """One kind's kernels as file names: a shared library, and an .npz with inputs and expected outputs."""

    library: str
    expected: str


@dataclass(frozen=True, slots=True)
class GoldenIndex:
    """The content of golden.json."""

    format: int
    tvm_version: str  # of the TVM that compiled them
    linker: str
    kernels: dict[str, GoldenKernels]  # by kind
    ffi_version: str = ""

    @property
    def versions(self) -> TvmVersions:
        """Of the interpreter that compiled them."""
        return TvmVersions(self.tvm_version, self.ffi_version)


_INDEX = TypeAdapter(GoldenIndex)


def read_golden(folder: Path) -> GoldenIndex:
    """Read a folder that a GoldenCompiler filled.

    Raises:
        HostError: golden.json is not there or wrong, or a file that it names is not there.
    """
    path = folder / GOLDEN_INDEX
    try:
        index = _INDEX.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise HostError(
            f"the golden kernels in {folder} are unreadable", hint="add the bundle again", evidence=str(error)
        ) from error
    if index.format != GOLDEN_FORMAT:
        raise HostError(
            f"the golden kernels in {folder} have format {index.format}, this farm reads {GOLDEN_FORMAT}",
            hint="add the bundle again",
        )
    for name in {name for kernels in index.kernels.values() for name in (kernels.library, kernels.expected)}:
        if Path(name).name != name or not (folder / name).is_file():
            raise HostError(f"the golden kernels in {folder} lack {name}", hint="add the bundle again")
    return index


def compile_golden(
    python: Path,
    abi: Abi,
    platform: Platform,
    kinds: tuple[str, ...],
    out: Path,
    *,
    timeout_s: float = COMPILE_TIMEOUT_S,
) -> None:
    """Run `python -m farm.worker.golden` under a toolchain's interpreter; with `python` bound, a GoldenCompiler.

    Raises:
        HostError: the interpreter is not there, has no TVM, has no linker for the ABI, or takes too long.
    """
    command = [
        *(str(python), "-m", "farm.worker.golden"),
        *("--abi", abi, "--platform", platform),
        *("--kinds", ",".join(kinds), "--out", str(out)),
    ]
    with tempfile.TemporaryDirectory(prefix="farm-golden-") as place:
        # The toolchain's interpreter need not have farm installed. A folder with nothing but a link to farm lends
        # it to that interpreter without our site-packages shadowing its own.
        (Path(place) / "farm").symlink_to(Path(farm.__file__).parent)
        environ = {**os.environ, "PYTHONPATH": place, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, env=environ, cwd=place, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise HostError(
                f"compiling golden kernels took more than {timeout_s:g} s",
                hint=f"see whether `{python} -c 'import tvm'` works",
            ) from error
        except OSError as error:
            raise HostError(
                f"the toolchain's interpreter {python} does not run: {error.strerror}",
                hint="give the Python of an environment that has TVM",
            ) from error
    if done.returncode != 0:
        raise _failure(done.stdout, done.stderr, python)


def _failure(stdout: str, stderr: str, python: Path) -> HostError:
    """The error that farm.worker.golden printed as its last line, else its stderr's last line."""
    try:
        failure = json.loads(stdout.strip().rpartition("\n")[2])["error"]
        return HostError(str(failure["message"]), hint=str(failure["hint"]), evidence=str(failure["evidence"]))
    except (ValueError, KeyError, TypeError):
        last = stderr.strip().rpartition("\n")[2] or "no message on stderr"
        return HostError(
            f"compiling golden kernels with {python} failed: {last}",
            hint="`farm doctor` checks the toolchain",
            evidence=stderr,
        )
