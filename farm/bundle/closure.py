"""Decides whether the files of a folder make a bundle: one ABI, one platform, every needed library there.

Pure: takes what `farm.bundle.folder` read, returns findings. Nothing here touches a disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from farm.bundle.model import (
    LARGE_PAGE_BYTES,
    OPENCL_MARK,
    RANDOM_FILL_MARK,
    SERVER_PROGRAM,
    Abi,
    BundleFinding,
    ElfError,
    ElfInfo,
    FileKind,
    FolderDescription,
    FolderFile,
    Inspection,
    Platform,
    listed,
    refusal,
    warning,
)
from farm.bundle.versions import FFI_PACKAGE, TVM_PACKAGE, TvmVersions

_T = TypeVar("_T")

_ABI_OF = {
    ("AARCH64", 64): Abi.ARM64,
    ("ARM", 32): Abi.ARMV7,
    ("X86_64", 64): Abi.X86_64,
    ("386", 32): Abi.X86,
    ("RISCV", 64): Abi.RISCV64,
}
_NOT_LOADED = {"REL": "an object file", "CORE": "a core dump"}
_NDK_TRIPLE = {
    Abi.ARM64: "aarch64-linux-android",
    Abi.ARMV7: "arm-linux-androideabi",
    Abi.X86_64: "x86_64-linux-android",
    Abi.X86: "i686-linux-android",
    Abi.RISCV64: "riscv64-linux-android",
}

# The C library's own file is called libc.so under bionic and libc.so.6 under glibc, so a library's needs decide.
_GLIBC_MARKS = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
_BIONIC_MARKS = ("libc.so", "libm.so", "libdl.so", "liblog.so")

# Android: the public NDK libraries (system/core/rootdir/etc/public.libraries.android.txt, developer.android.com/ndk/
# guides/stable_apis). A program in /data/local/tmp also sees /vendor and /odm ("unrestricted" in ld.config.txt), but
# what lies there differs from phone to phone: see VENDOR_LIBRARIES.
_ANDROID_LIBRARIES = frozenset({
    "libandroid.so", "libaaudio.so", "libamidi.so", "libbinder_ndk.so", "libc.so", "libcamera2ndk.so", "libdl.so",
    "libEGL.so", "libGLESv1_CM.so", "libGLESv2.so", "libGLESv3.so", "libicu.so", "libjnigraphics.so", "liblog.so",
    "libmediandk.so", "libm.so", "libnativehelper.so", "libnativewindow.so", "libneuralnetworks.so",
    "libOpenMAXAL.so", "libOpenSLES.so", "libstdc++.so", "libsync.so", "libvulkan.so", "libz.so",
})  # fmt: skip

# glibc Linux: the C library's own parts only (glibc NEWS 2.34 for which are stubs now). libstdc++ and libgcc_s belong
# to the compiler, so a bundle carries them: a virtual phone's root has nothing but this.
_LINUX_LIBRARIES = frozenset({
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1", "ld-linux-armhf.so.3", "ld-linux.so.2", "ld-linux-riscv64-lp64d.so.1",
})  # fmt: skip

# On some phones only, put there by the chip's vendor.
VENDOR_LIBRARIES = frozenset({"libOpenCL.so", "libOpenCL_system.so", "libcdsprpc.so"})


def inspect(files: Sequence[FolderFile], description: FolderDescription | None = None) -> Inspection:
    """Judge the files of one folder together; `description` is its bundle.toml."""
    description = description or FolderDescription()
    findings = _program_refusals(files, description)
    verdicts = _verdicts(files, findings)
    abi, platform = _common(verdicts, description, findings, own_loader=any(file.is_loader for file in files))
    findings += missing_libraries(files, abi, platform) if platform else ()
    versions = _versions(files, description, findings)
    marks = frozenset[bytes]().union(*(file.marks for file in files))
    if abi and platform:
        findings += warnings_of(files, abi, platform, marks)
    return Inspection(
        files=tuple(files),
        abi=abi,
        platform=platform,
        findings=tuple(findings),
        description=description,
        versions=versions,
        has_opencl=OPENCL_MARK in marks,
        has_random_fill=RANDOM_FILL_MARK in marks,
    )


def _program_refusals(files: Sequence[FolderFile], description: FolderDescription) -> list[BundleFinding]:
    """Problems of tvm_rpc itself, the first thing to know."""
    program = next((file for file in files if file.name == SERVER_PROGRAM), None)
    if program is None:
        return [
            refusal(
                SERVER_PROGRAM,
                f"there is no {SERVER_PROGRAM} in it",
                "build TVM with USE_CPP_RPC=ON and copy <tvm>/build/tvm_rpc (docs/bundles.md)",
            )
        ]
    if program.kind is FileKind.SCRIPT and (description.abi is None or description.platform is None):
        return [
            refusal(
                SERVER_PROGRAM,
                f"{SERVER_PROGRAM} is a script, whose ABI cannot be read",
                'state it: a file bundle.toml beside it with abi = "x86_64" and platform = "linux-glibc"',
            )
        ]
    if program.kind is FileKind.LIBRARY:
        return [
            refusal(
                SERVER_PROGRAM,
                f"{SERVER_PROGRAM} is a shared library, not a program",
                "copy the executable <tvm>/build/tvm_rpc",
            )
        ]
    return []


def _versions(
    files: Sequence[FolderFile], description: FolderDescription, findings: list[BundleFinding]
) -> TvmVersions:
    """The TVM and FFI of the libraries; those that differ become findings."""
    stated = TvmVersions()
    for part, package, said in (
        ("tvm", TVM_PACKAGE, description.versions.tvm),
        ("ffi", FFI_PACKAGE, description.versions.ffi),
    ):
        known = {file.name: file.build.versions for file in files if file.build and file.build.package == package}
        first, versions = next(iter(known.items()), ("", (said,)))
        others = [(name, each[-1]) for name, each in known.items() if each != versions]
        if said and said not in versions:
            others.append((f"{part}_version in bundle.toml", said))
        for name, version in others:
            message = f"{first} is of {package} {versions[-1]}, {name} is {version}"
            findings.append(refusal(first, message, "take all libraries from one build: docs/bundles.md"))
        stated = replace(stated, **{part: said if said in versions else versions[-1]})
    return stated


def _looks_like_library(name: str) -> bool:
    return name.endswith(".so") or ".so." in name


def _verdicts(files: Sequence[FolderFile], findings: list[BundleFinding]) -> dict[str, tuple[Abi, Platform | None]]:
    """Each ELF file's own verdict; a file that cannot be judged becomes a finding."""
    verdicts: dict[str, tuple[Abi, Platform | None]] = {}
    for file in files:
        problem: ElfError | None = file.problem
        if file.elf is not None and problem is None:
            try:
                verdicts[file.name] = identify(file.elf, file.name)
            except ElfError as error:
                problem = error
        elif (
            problem is None
            and file.kind is FileKind.DATA
            and (file.name == SERVER_PROGRAM or _looks_like_library(file.name))
        ):
            what = "program" if file.name == SERVER_PROGRAM else "library"
            findings.append(
                refusal(
                    file.name,
                    f"{file.name} is not an ELF file",
                    f"copy the {what} itself; this may be a linker script, a text or an LFS pointer",
                )
            )
        if problem is not None:
            findings.append(refusal(file.name, problem.message, problem.hint))
    return verdicts


def _common(
    verdicts: Mapping[str, tuple[Abi, Platform | None]],
    description: FolderDescription,
    findings: list[BundleFinding],
    *,
    own_loader: bool,
) -> tuple[Abi | None, Platform | None]:
    """The one ABI and platform of all files; those that differ become findings.

    With a loader of its own a bundle needs nothing of the phone's system: all files are for glibc, whatever the phone's
    platform is.
    """
    program_abi, program_platform = verdicts.get(SERVER_PROGRAM, (None, None))
    abi = description.abi or program_abi or _most([abi for abi, _ in verdicts.values()])
    platform = (
        description.platform or program_platform or _most([platform for _, platform in verdicts.values() if platform])
    )
    for name, (own_abi, own_platform) in verdicts.items():
        basis = (
            "bundle.toml says"
            if name == SERVER_PROGRAM or SERVER_PROGRAM not in verdicts
            else f"{SERVER_PROGRAM} is for"
        )
        if own_abi is not abi:
            findings.append(
                refusal(
                    name,
                    f"{name} is built for {own_abi}, but {basis} {abi}",
                    "keep the files of one ABI in a folder; add one bundle per ABI",
                )
            )
        elif own_platform not in (None, Platform.LINUX if own_loader else platform):
            findings.append(
                refusal(
                    name,
                    f"{name} is built for {own_platform}, but {basis} {platform}",
                    "take all files from one build: the NDK's for phones, the host's for virtual ones",
                )
            )
    if platform is None and not findings:
        findings.append(
            refusal(
                SERVER_PROGRAM,
                "no file shows whether the bundle is for Android or glibc Linux",
                'state it: a file bundle.toml with platform = "android"',
            )
        )
    return abi, platform


def _most(values: Sequence[_T]) -> _T | None:
    return Counter(values).most_common(1)[0][0] if values else None


def missing_libraries(files: Sequence[FolderFile], abi: Abi | None, platform: Platform) -> list[BundleFinding]:
    """Needed libraries found nowhere. The dynamic linker looks for file names, so a fitting SONAME does not help."""
    present = {file.name for file in files}
    own_loader = any(file.is_loader for file in files)
    if not own_loader:
        present |= provided_libraries(platform)
    if not own_loader and platform is Platform.ANDROID:
        present |= VENDOR_LIBRARIES  # a warning's business
    needed_by: dict[str, list[str]] = {}
    for file in files:
        for name in file.elf.needed if file.elf else ():
            if name not in present:
                needed_by.setdefault(name, []).append(file.name)
    renamed = {file.elf.soname: file.name for file in files if file.elf and file.elf.soname}
    return [
        refusal(
            name,
            f"{name} is missing: it is needed by {listed(sorted(users))}",
            f"rename {renamed[name]} to {name}: the phone looks for that file name"
            if name in renamed
            else where_to_find(name, abi, Platform.LINUX if own_loader else platform),
        )
        for name, users in sorted(needed_by.items())
    ]


def provided_libraries(platform: Platform) -> frozenset[str]:
    """File names of the shared libraries that every device of `platform` has."""
    return _ANDROID_LIBRARIES if platform is Platform.ANDROID else _LINUX_LIBRARIES


def identify(info: ElfInfo, where: str) -> tuple[Abi, Platform | None]:
    """The ABI of an ELF file, and its platform: None for a library that needs no other. `where` names it in errors.

    Raises:
        ElfError: machine, byte order, C library or file type is none that a bundle can hold.
    """
    abi = _ABI_OF.get((info.machine, info.bits))
    if abi is None or not info.little_endian:
        order = "" if info.little_endian else " big-endian"
        raise ElfError(
            f"{where} is built for {info.machine} ({info.bits}-bit{order}), which no phone of the farm runs",
            hint=f"build it for one of {', '.join(Abi)}",
        )
    if info.type not in ("EXEC", "DYN"):
        what = _NOT_LOADED.get(info.type, f"an ELF file of type {info.type}")
        raise ElfError(
            f"{where} is {what}, neither a program nor a shared library",
            hint="remove it from the folder, or link it into a shared library",
        )
    return abi, _platform(info, where)


def lacks_large_pages(info: ElfInfo, abi: Abi) -> bool:
    """Whether a kernel with 16 KiB pages cannot map this file (64-bit only: 32-bit code never meets such a kernel)."""
    return abi.bits == 64 and 0 < info.page_alignment_bytes < LARGE_PAGE_BYTES


def _platform(info: ElfInfo, where: str) -> Platform | None:
    if info.interpreter:
        name = info.interpreter.rpartition("/")[2]
        if name in ("linker", "linker64"):
            return Platform.ANDROID
        if name.startswith(("ld-linux", "ld64")):
            return Platform.LINUX
        raise ElfError(
            f"{where} wants the dynamic linker {info.interpreter}, which neither Android nor glibc Linux has",
            hint="build it with the Android NDK (docs/bundles.md), or for glibc when it is for a virtual phone",
        )
    if info.android_api is not None:
        return Platform.ANDROID
    glibc = [name for name in info.needed if name in _GLIBC_MARKS or name.startswith("ld-linux")]
    bionic = [name for name in info.needed if name in _BIONIC_MARKS]
    if glibc and bionic:
        raise ElfError(
            f"{where} needs both {glibc[0]} (glibc) and {bionic[0]} (Android)",
            hint="link it again, with one toolchain only",
        )
    if glibc:
        return Platform.LINUX
    return Platform.ANDROID if bionic else None


def where_to_find(name: str, abi: Abi | None, platform: Platform) -> str:
    """The remedy for the missing library `name`: where it is found, or how to build without it."""
    if name.startswith("libtvm"):
        return f"copy it from <tvm>/build/lib of the build that {SERVER_PROGRAM} came from"
    if platform is Platform.ANDROID:
        if name == "libc++_shared.so":
            triple = _NDK_TRIPLE[abi] if abi else "<triple>"
            return f"copy it from $ANDROID_NDK_HOME/toolchains/llvm/prebuilt/*/sysroot/usr/lib/{triple}/{name}"
        if name in ("libomp.so", "libgomp.so.1", "libiomp5.so"):
            return "build TVM with USE_OPENMP=none (its own threads serve better), or copy the NDK's libomp.so"
        if name in ("libstdc++.so.6", "libgcc_s.so.1") or ".so." in name:
            return "that is a glibc Linux library: build with the Android NDK (docs/bundles.md)"
    elif name in ("libstdc++.so.6", "libgcc_s.so.1"):
        return f"copy what `g++ -print-file-name={name}` prints"
    return "copy it into the folder from the build that made the file needing it, or link that file without it"


def warnings_of(
    files: Sequence[FolderFile], abi: Abi, platform: Platform, marks: frozenset[bytes]
) -> list[BundleFinding]:
    """Functions that will fail, or fail on some phones, though no needed library is missing."""
    tvm_libraries = sorted(file.name for file in files if file.elf and file.name.startswith("libtvm"))
    native = any(file.name == SERVER_PROGRAM and file.kind is FileKind.PROGRAM for file in files)
    found: list[BundleFinding] = []
    if native and RANDOM_FILL_MARK not in marks:
        found.append(
            warning(
                "libtvm_runtime_extra.so",
                "there is no libtvm_runtime_extra.so: tuning needs it for its random inputs and fails without it",
                "copy it from <tvm>/build/lib",
            )
        )
    if native and platform is Platform.ANDROID and OPENCL_MARK not in marks:
        found.append(
            warning(
                "libtvm_runtime_opencl.so",
                "there is no libtvm_runtime_opencl.so: phones with this bundle serve CPU work only",
                "for GPUs: farm bundle build NAME --ndk DIR --tvm-source DIR --opencl (docs/bundles.md)",
            )
        )
    if platform is Platform.ANDROID:
        found += _android_warnings(files, abi, tvm_libraries)
    if native:
        found += _unused(files, tvm_libraries)
    return found


def _android_warnings(files: Sequence[FolderFile], abi: Abi, tvm_libraries: list[str]) -> list[BundleFinding]:
    absent = VENDOR_LIBRARIES - {file.name for file in files}
    found = [
        warning(
            file.name,
            f"{file.name} is linked against {name}, which not every phone has: {SERVER_PROGRAM} does not start there",
            "build with USE_OPENCL=ON, which looks for OpenCL only when it is used"
            if "OpenCL" in name
            else "check that all your phones have it",
        )
        for file in files
        if file.elf
        for name in file.elf.needed
        if name in absent
    ]
    shared = ("libc++_shared.so", "libstdc++.so.6")
    if len(tvm_libraries) > 1 and not any(name in file.elf.needed for name in shared for file in files if file.elf):
        found.append(
            warning(
                "libc++_shared.so",
                f"{listed(tvm_libraries)} each carry their own C++ library: exceptions between them may abort",
                "build with -DANDROID_STL=c++_shared and add libc++_shared.so",
            )
        )
    small = [file.name for file in files if file.elf and lacks_large_pages(file.elf, abi)]
    if small:
        found.append(
            warning(
                small[0],
                f"{listed(small)} cannot be mapped by a kernel with 16 KiB pages (some phones from Android 15 on)",
                "build with NDK r28 or newer, or link with -Wl,-z,max-page-size=16384",
            )
        )
    return found


def _unused(files: Sequence[FolderFile], tvm_libraries: list[str]) -> list[BundleFinding]:
    """TVM libraries that nothing loads."""
    reached = _reached(files)
    found = []
    for name in tvm_libraries:
        if name in reached or _named_by_program(files, name):
            continue
        if name == "libtvm_compiler.so":
            found.append(
                warning(name, f"{name} is of no use on a phone", "remove it: it is large and every phone would get it")
            )
        else:
            found.append(
                warning(
                    name,
                    f"{name} is in the folder but nothing loads it: no file is linked to it",
                    f"link {SERVER_PROGRAM} against it (TVM's own is, since 0.25), or remove it",
                )
            )
    return found


def _reached(files: Sequence[FolderFile]) -> set[str]:
    """File names that the dynamic linker loads when it starts the program."""
    by_name = {file.name: file for file in files}
    todo, seen = [SERVER_PROGRAM], {SERVER_PROGRAM}
    while todo:
        file = by_name.get(todo.pop())
        for name in file.elf.needed if file and file.elf else ():
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def _named_by_program(files: Sequence[FolderFile], library: str) -> bool:
    return any(library.encode() in file.marks for file in files if file.name == SERVER_PROGRAM)
