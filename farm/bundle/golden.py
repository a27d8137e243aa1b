"""The golden kernels that are kept with a bundle: what is wanted, what was made, and who makes it.

A golden kernel is a small compiled function with seeded inputs and the outputs it must give. A phone that does not
give them is not handed out. They are compiled in another process, by the bundle's *toolchain*: a Python that has TVM.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

import farm
from farm.bundle.abi import Abi, Platform
from farm.bundle.model import GOLDEN_FORMAT, GOLDEN_INDEX
from farm.core.errors import HostError

COMPILE_TIMEOUT_S = 300.0  # about 5 s on a warm host; the first import of TVM from a cold disk was measured at 10 s


@dataclass(frozen=True, slots=True)
class GoldenWanted:
    """What a bundle needs golden kernels for."""

    abi: Abi
    platform: Platform
    kinds: tuple[str, ...]  # KIND_CPU, and KIND_OPENCL when the bundle's runtime can do OpenCL


class GoldenCompiler(Protocol):
    """Fills the empty folder `out` with golden.json and the files it names, or raises a FarmError."""

    def __call__(self, wanted: GoldenWanted, out: Path) -> None:
        """Compile what is wanted into `out`."""


@dataclass(frozen=True, slots=True)
class Golden:
    """One kind's kernels: a shared library, and an .npz with inputs and expected outputs."""

    kind: str
    library: Path
    expected: Path


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """What a golden folder holds."""

    tvm_version: str  # of the TVM that compiled them
    linker: str
    goldens: tuple[Golden, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    library: str
    expected: str


@dataclass(frozen=True, slots=True)
class _Index:
    format: int
    tvm_version: str
    linker: str
    kernels: dict[str, _Entry]


_INDEX = TypeAdapter(_Index)


def read_golden(folder: Path) -> GoldenSet:
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
    goldens = tuple(
        Golden(kind, folder / Path(entry.library).name, folder / Path(entry.expected).name)
        for kind, entry in sorted(index.kernels.items())
    )
    for golden in goldens:
        for file in (golden.library, golden.expected):
            if not file.is_file():
                raise HostError(f"the golden kernels in {folder} lack {file.name}", hint="add the bundle again")
    return GoldenSet(index.tvm_version, index.linker, goldens)


@dataclass(frozen=True, slots=True)
class ToolchainGoldenCompiler:
    """Runs `python -m farm.worker.golden` under a toolchain's interpreter."""

    python: Path
    timeout_s: float = COMPILE_TIMEOUT_S

    def __call__(self, wanted: GoldenWanted, out: Path) -> None:
        """Compile what is wanted into `out`.

        Raises:
            HostError: the interpreter is not there, has no TVM, has no linker for the ABI, or takes too long.
        """
        command = [
            *(str(self.python), "-m", "farm.worker.golden"),
            *("--abi", wanted.abi, "--platform", wanted.platform),
            *("--kinds", ",".join(wanted.kinds), "--out", str(out)),
        ]
        with tempfile.TemporaryDirectory(prefix="farm-golden-") as place:
            # The toolchain's interpreter need not have farm installed. A folder with nothing but a link to farm lends
            # it to that interpreter without our site-packages shadowing its own.
            (Path(place) / "farm").symlink_to(Path(farm.__file__).parent)
            environ = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
            try:
                done = subprocess.run(
                    command, env=environ, cwd=place, capture_output=True, text=True, timeout=self.timeout_s, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise HostError(
                    f"compiling golden kernels took more than {self.timeout_s:g} s",
                    hint=f"see whether `{self.python} -c 'import tvm'` works",
                ) from error
            except OSError as error:
                raise HostError(
                    f"the toolchain's interpreter {self.python} does not run: {error.strerror}",
                    hint="give the Python of an environment that has TVM",
                ) from error
        if done.returncode != 0:
            raise _failure(done.stdout, done.stderr, self.python)


def _failure(stdout: str, stderr: str, python: Path) -> HostError:
    """The error that farm.worker.golden printed as its last line, else its stderr's last line."""
    try:
        said = json.loads(stdout.strip().rpartition("\n")[2])["error"]
        return HostError(str(said["message"]), hint=str(said["hint"]), evidence=str(said["evidence"]))
    except (ValueError, KeyError, TypeError):
        last = stderr.strip().rpartition("\n")[2] or "it said nothing"
        return HostError(
            f"compiling golden kernels with {python} failed: {last}",
            hint="`farm doctor` checks the toolchain",
            evidence=stderr,
        )
