"""TVM's own parts for tuning, made to work here: its tensor intrinsics, and the archives that its builder makes.

MetaSchedule's TuneContext imports `tvm.s_tir.tensor_intrin`, whose __init__ makes the intrinsics of CUDA, ROCm, Metal
and Hexagon too: 9.6-11 s here, 8.2 of them for CUDA. Those of CPUs, which its schedule rules look up by name for ARM's
and x86's dot products, take 1 s (`load_intrinsics`). So nothing of it needs to be imported ahead, in the zygote, by
all users' workers.

MetaSchedule's LocalBuilder makes a compressed .tar of object files, and stock's runner has the phone link it, with a
compiler on the phone. No phone has one, so it is linked here (`ArchiveLinker`). The archive is read in memory: names in
it are never written to.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from farm.common.errors import FarmError
from farm.compiler.files import TarError, tar_members
from farm.compiler.link import find_linker, link_shared, needed_libraries
from farm.compiler.targets import abi_of
from farm.tuning.candidate import CandidateError

MAX_BYTES = 256 << 20  # of an archive's contents: a candidate is one operator, a few kB to a few MB
LINK_LIMIT_S = 30.0  # as a builder's own limit for a candidate
OF_OBJECT = b"\x7fELF"
_GZIP, _TAR_MARK, _MARK_AT = b"\x1f\x8b", b"ustar", 257


class ArchiveLinker:
    """Links archives for one kind of phone. For one thread."""

    def __init__(self, target: Callable[[], object | None], report: Callable[[str], None]) -> None:
        """Nothing is asked yet.

        Args:
            target: of the phones' CPUs, asked when the first archive comes; may wait.
            report: called once for each kind of failure, with what to do about it.
        """
        self._target, self._report = target, report
        self._reported: set[str] = set()
        self._stubs = Path(tempfile.mkdtemp(prefix="farm-stubs-"))  # the same for every candidate
        weakref.finalize(self, shutil.rmtree, self._stubs, ignore_errors=True)

    def __call__(self, artifact: bytes) -> bytes:
        """The library in an artifact: itself, or the link of its object files."""
        if not is_archive(artifact):
            return artifact
        try:
            return self._linked(objects_in(artifact))
        except FarmError as error:
            self._report_once(error.code, error.message, error.hint if error.code == "no_linker" else "")
            raise CandidateError(f"its .tar cannot be linked: {error.message}") from error
        except TarError as error:
            self._report_once("tar", str(error), "")
            raise CandidateError(f"its .tar cannot be linked: {error}") from error
        except OSError as error:
            self._report_once("os", str(error), "the host's temporary folder needs room")
            raise CandidateError(f"its .tar cannot be linked: {error}") from error

    def _linked(self, objects: list[bytes]) -> bytes:
        target = self._target()
        if target is None:
            raise TarError("no phone's CPU is known yet")
        abi, platform = abi_of(target)
        linker = find_linker(abi, platform)
        needed = needed_libraries(platform, linker)
        with tempfile.TemporaryDirectory(prefix="farm-archive-") as place:
            paths = [Path(place) / f"{number}.o" for number in range(len(objects))]
            for path, content in zip(paths, objects, strict=True):
                path.write_bytes(content)
            output = Path(place) / "candidate.so"
            link_shared(linker, output, paths, needed=needed, stubs=self._stubs, limit_s=LINK_LIMIT_S)
            return output.read_bytes()

    def _report_once(self, kind: str, what: str, hint: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            remedy = hint or f"build for the phones' own target, {self._target()}, or with farm.FarmBuilder(runner)"
            self._report(f"candidates that come as .tar are linked on this host, and that fails: {what} ({remedy})")


def is_archive(artifact: bytes) -> bool:
    """Whether it is a .tar, compressed or not; a library is not."""
    return artifact.startswith(_GZIP) or artifact[_MARK_AT : _MARK_AT + len(_TAR_MARK)] == _TAR_MARK


def objects_in(artifact: bytes, most_bytes: int = MAX_BYTES) -> list[bytes]:
    """The object files in an archive, in its order."""
    data = _inflated(artifact, most_bytes) if artifact.startswith(_GZIP) else artifact
    found = []
    for name, content in tar_members(data, skip_folders=True):
        if not content.startswith(OF_OBJECT):
            raise TarError(f"its member {name[:80]!r} is no object file: it would need a compiler")
        found.append(content)
    if not found:
        raise TarError("there is no object file in it")
    return found


def _inflated(artifact: bytes, most_bytes: int) -> bytes:
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: gzip's frame
    try:
        data = inflate.decompress(artifact, most_bytes)
    except zlib.error as error:
        raise TarError(f"it is damaged ({error})") from error
    if inflate.unconsumed_tail:
        raise TarError(f"it has more than {most_bytes >> 20} MB in it")
    if not inflate.eof:
        raise TarError("it is cut short")
    return data


PACKAGE = "tvm.s_tir.tensor_intrin"
NEEDED = ("arm_cpu", "x86", "riscv_cpu")


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """Import another part when it is used: `tvm.s_tir.tensor_intrin.cuda`."""
        if name.startswith("_") or importlib.util.find_spec(f"{PACKAGE}.{name}") is None:
            raise AttributeError(f"module {PACKAGE!r} has no attribute {name!r}")
        return importlib.import_module(f"{PACKAGE}.{name}")


def load_intrinsics() -> None:
    """Import the CPUs' intrinsics in place of all. Nothing happens when the package is imported already."""
    if PACKAGE in sys.modules:
        return
    import tvm

    package = _Package(PACKAGE, "The CPUs' part of it: farm.tuning.stock.")
    package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
    sys.modules[PACKAGE] = package
    try:
        for name in NEEDED:
            importlib.import_module(f"{PACKAGE}.{name}")
    except ImportError:  # another TVM has other parts: then all of it
        del sys.modules[PACKAGE]
        importlib.import_module(PACKAGE)
