"""Links TVM's object files into a shared library for a phone, with any linker that the host has.

TVM's LLVM back-end emits object files only, and a phone's loader takes nothing but a linked shared library, so without
any linker nothing can be exported. No TVM is imported here: `farm doctor` asks this module what it would choose.

On Android a library that is opened at run time sees the symbols of the *program* and of its own DT_NEEDED libraries,
not those of libraries that the program is linked to (bionic, linker.cpp `find_libraries`; android/ndk issue 201 says it
too). TVM's code calls into libtvm_ffi.so, so a library for Android must name it as needed. glibc looks everywhere.
"""

from __future__ import annotations

import importlib.util
import os
import platform as host_platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from farm.bundle.model import LARGE_PAGE_BYTES, Abi, Platform
from farm.common.errors import Code, HostError
from farm.common.files import publish

LINK_TIMEOUT_S = 120.0  # 0.2 s for a small network; weights of some hundred MB inside the library take longer
NDK_VARIABLES = ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_NDK")  # in the order in which they are believed
SMALL_PAGE_BYTES = 4096
SMALL_PAGES = frozenset({(Abi.X86_64, Platform.LINUX), (Abi.X86, Platform.LINUX)})  # no other pages are there
NDK_API = 28  # Android 9: what TVM's own guide builds for; a newer phone runs it, an older one is not supported

# bionic's libraries for every Android library, and TVM's for those that TVM made (see the module's text).
_ANDROID_NEEDED = ("libm.so", "libc.so")
_FFI_LIBRARY = "libtvm_ffi.so"


link_error = partial(HostError, code=Code.LINK_FAILED)


@dataclass(frozen=True, slots=True)
class Linker:
    """A way to make a shared library. `name` is for people: `farm doctor` shows it."""

    name: str
    command: tuple[str, ...]  # program and the options that make it a linker for the target
    is_driver: bool  # a compiler driver, which passes linker options on with -Wl
    has_system_libraries: bool = False  # it finds the target's own libm and libc
    page_bytes: int = (
        LARGE_PAGE_BYTES  # of the target's largest pages; GNU ld fills a library up to it between segments
    )

    def option(self, *words: str) -> list[str]:
        """Words for the linker itself."""
        return [f"-Wl,{','.join(words)}"] if self.is_driver else list(words)


@dataclass(frozen=True, slots=True)
class _Target:
    machines: tuple[str, ...]  # platform.machine() of hosts whose own compiler makes it
    emulation: str  # -m of GNU ld and its likes
    linux_triple: str
    android_triple: str


_TARGETS: dict[Abi, _Target] = {
    Abi.ARM64: _Target(("aarch64", "arm64"), "aarch64linux", "aarch64-linux-gnu", "aarch64-linux-android"),
    Abi.ARMV7: _Target((), "armelf_linux_eabi", "arm-linux-gnueabihf", "armv7a-linux-androideabi"),
    Abi.X86_64: _Target(("x86_64", "AMD64"), "elf_x86_64", "x86_64-linux-gnu", "x86_64-linux-android"),
    Abi.X86: _Target((), "elf_i386", "i686-linux-gnu", "i686-linux-android"),
    Abi.RISCV64: _Target(("riscv64",), "elf64lriscv", "riscv64-linux-gnu", "riscv64-linux-android"),
}
_NATIVE_DRIVERS = ("g++", "clang++", "c++", "gcc", "clang", "cc")
_ANY_TARGET_LINKERS = ("ld.lld", "lld")  # one LLD links for all ABIs; versioned names are looked for too
_NATIVE_LINKERS = ("ld", "ld.bfd", "ld.gold", "ld.mold")
_LLD_VERSIONS = range(30, 13, -1)  # Debian and Ubuntu install LLD as ld.lld-NN only, unless the lld package is there

Which = Callable[[str], str | None]


def find_linker(abi: Abi, platform: Platform) -> Linker:
    """The linker that will be used for a target; see `linkers` for the order.

    Raises:
        HostError: there is none.
    """
    if found := linkers(abi, platform):
        return found[0]
    raise HostError(
        f"this host has no linker for {abi} ({platform}): TVM makes object files only, which no phone can load",
        Code.NO_LINKER,
        hint="install one: `apt install lld`, or `pip install ziglang` into the toolchain's environment"
        + (", or set ANDROID_NDK_HOME" if platform is Platform.ANDROID else ", or `apt install g++`"),
    )


def linkers(
    abi: Abi,
    platform: Platform,
    *,
    environ: Mapping[str, str] | None = None,
    which: Which = shutil.which,
    machine: str = "",
) -> tuple[Linker, ...]:
    """All ways to link for a target, best first: NDK, the host's own compiler, LLD, clang, zig, GNU ld, ziglang.

    The extra `tvm` brings the PyPI package, so that there is always one; what the host's owner installed is preferred.
    """
    environ = os.environ if environ is None else environ
    target = _TARGETS[abi]
    native = platform is Platform.LINUX and (machine or host_platform.machine()) in target.machines
    found: list[Linker | None] = []
    if platform is Platform.ANDROID:
        found.append(_ndk(target, environ))
    if native:
        found += [_driver(name, which) for name in _NATIVE_DRIVERS]
    bare = (*_ANY_TARGET_LINKERS[:1], *(f"ld.lld-{version}" for version in _LLD_VERSIONS))
    found += [_bare(name, target, which) for name in bare]
    found.append(_cross_clang(target, platform, which))
    found.append(_bare_zig("zig", which("zig"), target))
    if native:
        found += [_bare(name, target, which) for name in _NATIVE_LINKERS]
    if not native and platform is Platform.LINUX:
        found.append(_driver(f"{target.linux_triple}-g++", which))
    found.append(_bare(f"{target.linux_triple}-ld", target, which))
    found.append(_bare_zig("ziglang (PyPI)", packaged_zig(), target))
    page_bytes = SMALL_PAGE_BYTES if (abi, platform) in SMALL_PAGES else LARGE_PAGE_BYTES
    return tuple(replace(linker, page_bytes=page_bytes) for linker in found if linker is not None)


def link_shared(
    linker: Linker,
    output: Path,
    objects: Sequence[Path],
    *,
    needed: Sequence[str] = (),
    stubs: Path | None = None,
    limit_s: float = LINK_TIMEOUT_S,
) -> None:
    """Link object files into the shared library `output`, which will name `needed` as its DT_NEEDED.

    `stubs`: a folder that keeps what stands in for those, for libraries of the same ABI: a linker's start for each.

    Raises:
        HostError: the linker failed; the evidence is its output.
    """
    if not objects:
        raise link_error("there is nothing to link", hint="the compiled module has no code of its own")
    with tempfile.TemporaryDirectory(prefix="farm-link-") as place:
        stand_ins = [_stub(linker, name, objects[0], Path(place), stubs or Path(place)) for name in needed]
        _run(
            linker,
            [
                *linker.option("--as-needed"),
                *map(str, objects),
                *linker.option("--no-as-needed"),
                *map(str, stand_ins),
                *linker.option("--as-needed"),
                # gcc and clang, unlike g++, take libm only when asked to.
                *(["-lm"] if linker.has_system_libraries else _without_system_libraries(linker)),
            ],
            output,
            limit_s,
        )


def needed_libraries(platform: Platform, linker: Linker) -> tuple[str, ...]:
    """The names that a TVM-made library must have as DT_NEEDED on that platform (this interpreter's TVM decides)."""
    if platform is not Platform.ANDROID:
        return ()
    ffi = (_FFI_LIBRARY,) if importlib.util.find_spec("tvm_ffi") else ()  # TVM before 2025 had no such library
    return ffi if linker.has_system_libraries else (*ffi, *_ANDROID_NEEDED)


def exporter(abi: Abi, platform: Platform, stubs: Path | None = None) -> Callable[..., None]:
    """The `fcompile` for TVM's `export_library` that links for a target; `stubs` as in `link_shared`.

    Raises:
        HostError: the host has no linker for it (now, not at export).
    """
    chosen = find_linker(abi, platform)
    needed = needed_libraries(platform, chosen)

    def fcompile(output: str, objects: Sequence[str], options: object = None, **_others: object) -> None:
        del options
        link_shared(chosen, Path(output), [Path(name) for name in objects], needed=needed, stubs=stubs)

    fcompile.output_format = "so"  # type: ignore[attr-defined]  # how export_library learns the suffix
    return fcompile


def _stub(linker: Linker, name: str, content: Path, place: Path, kept: Path) -> Path:
    """A stand-in for a library that is on the phone only: all a linker takes from it is its name.

    Any object file serves as its content (GNU ld refuses an empty one); the real objects come first and win.
    """
    stub = kept / name
    if not stub.exists():
        made = place / f"{name}.made"
        _run(linker, [*linker.option("-soname", name), str(content), *_without_system_libraries(linker)], made)
        publish(made, stub)  # whole from the first moment: others may link beside us
    return stub


def _without_system_libraries(linker: Linker) -> list[str]:
    return ["-nostdlib"] if linker.is_driver else []


def _run(linker: Linker, arguments: Sequence[str], output: Path, limit_s: float = LINK_TIMEOUT_S) -> None:
    command = [
        *linker.command,
        "-shared",
        *linker.option("-z", f"max-page-size={linker.page_bytes}"),
        *linker.option("--strip-debug"),  # TVM makes some KB for each kernel: every byte of a candidate goes to a phone
        *linker.option("--hash-style=both"),  # bionic before Android 6 reads the old kind, newer GNU ld writes the new
        *("-o", str(output)),
        *arguments,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise link_error(f"{linker.name} took more than {limit_s:g} s", evidence=" ".join(command)) from error
    except OSError as error:
        raise link_error(
            f"{linker.name} does not run: {error.strerror}", hint="`farm doctor` shows the linkers"
        ) from error
    if done.returncode != 0:
        why = done.stderr.strip().partition("\n")[0] or "no message on stderr"
        raise link_error(
            f"{linker.name} cannot link {output.name}: {why}",
            hint="`farm doctor` shows which linkers there are",
            evidence=f"{' '.join(command)}\n{done.stderr}",
        )


def _ndk(target: _Target, environ: Mapping[str, str]) -> Linker | None:
    for variable in NDK_VARIABLES:
        if not environ.get(variable):
            continue
        tools = sorted((Path(environ[variable]) / "toolchains" / "llvm" / "prebuilt").glob("*/bin/clang"))
        for clang in tools:
            api = max(NDK_API, 35) if target.android_triple.startswith("riscv64") else NDK_API  # it begins with 35
            return Linker(
                f"NDK clang ({variable})",
                (str(clang), f"--target={target.android_triple}{api}", "-fPIC"),
                is_driver=True,
                has_system_libraries=True,
            )
    return None


def _driver(name: str, which: Which) -> Linker | None:
    path = which(name)
    return Linker(name, (path, "-fPIC"), is_driver=True, has_system_libraries=True) if path else None


def _bare(name: str, target: _Target, which: Which) -> Linker | None:
    path = which(name)
    return Linker(name, (path, "-m", target.emulation), is_driver=False) if path else None


def _cross_clang(target: _Target, platform: Platform, which: Which) -> Linker | None:
    """A host's clang links for other machines only through LLD, which it may bring itself."""
    path = which("clang")
    if path is None or not (which("ld.lld") or (Path(path).resolve().parent / "ld.lld").exists()):
        return None
    triple = target.android_triple if platform is Platform.ANDROID else target.linux_triple
    return Linker("clang with lld", (path, f"--target={triple}", "-fPIC", "-fuse-ld=lld"), is_driver=True)


def _bare_zig(name: str, path: str | None, target: _Target) -> Linker | None:
    """Zig carries an LLD; unlike `zig cc` it needs no cache folder, which a service's home may not allow."""
    return Linker(name, (path, "ld.lld", "-m", target.emulation), is_driver=False) if path else None


def packaged_zig() -> str | None:
    """The program inside the package: `python -m ziglang` would start an interpreter to start it."""
    spec = importlib.util.find_spec("ziglang")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if os.access(program := Path(place) / "zig", os.X_OK):
            return str(program)
    return None
