"""What to tell people about a folder: where a missing library is found, and what will not work all the same."""

from __future__ import annotations

from collections.abc import Sequence

from farm.bundle.abi import VENDOR_LIBRARIES, Abi, Platform, lacks_large_pages
from farm.bundle.model import OPENCL_MARK, PROGRAM, RANDOM_FILL_MARK, FileKind, Finding, FolderFile, listed, warning

_NDK_TRIPLE = {
    Abi.ARM64: "aarch64-linux-android",
    Abi.ARMV7: "arm-linux-androideabi",
    Abi.X86_64: "x86_64-linux-android",
    Abi.X86: "i686-linux-android",
    Abi.RISCV64: "riscv64-linux-android",
}


def where_to_find(name: str, abi: Abi | None, platform: Platform) -> str:
    """What to do about the missing library `name`: where it is found, or how to build without it."""
    if name.startswith("libtvm"):
        return f"copy it from <tvm>/build/lib of the build that {PROGRAM} came from"
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


def warnings_of(files: Sequence[FolderFile], abi: Abi, platform: Platform, marks: frozenset[bytes]) -> list[Finding]:
    """What will not work, or not on every phone, though no needed library is missing."""
    tvm_libraries = sorted(file.name for file in files if file.elf and file.name.startswith("libtvm"))
    native = any(file.name == PROGRAM and file.kind is FileKind.PROGRAM for file in files)
    found: list[Finding] = []
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
                "build TVM with USE_OPENCL=ON and copy it from <tvm>/build/lib",
            )
        )
    if platform is Platform.ANDROID:
        found += _android_warnings(files, abi, tvm_libraries)
    if native:
        found += _unused(files, tvm_libraries)
    return found


def _android_warnings(files: Sequence[FolderFile], abi: Abi, tvm_libraries: list[str]) -> list[Finding]:
    absent = VENDOR_LIBRARIES - {file.name for file in files}
    found = [
        warning(
            file.name,
            f"{file.name} is linked against {name}, which not every phone has: {PROGRAM} does not start there",
            "build with USE_OPENCL=ON, which looks for OpenCL only when it is used"
            if "OpenCL" in name
            else "check that all your phones have it",
        )
        for file in files
        if file.elf
        for name in file.elf.needed
        if name in absent
    ]
    if len(tvm_libraries) > 1 and not any("libc++_shared.so" in file.elf.needed for file in files if file.elf):
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


def _unused(files: Sequence[FolderFile], tvm_libraries: list[str]) -> list[Finding]:
    """TVM libraries that only take room, or that somebody believes to be in use."""
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
                    f"link {PROGRAM} against it (TVM's own is, since 0.25), or remove it",
                )
            )
    return found


def _reached(files: Sequence[FolderFile]) -> set[str]:
    """File names that the dynamic linker loads when it starts the program."""
    by_name = {file.name: file for file in files}
    todo, seen = [PROGRAM], {PROGRAM}
    while todo:
        file = by_name.get(todo.pop())
        for name in file.elf.needed if file and file.elf else ():
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def _named_by_program(files: Sequence[FolderFile], library: str) -> bool:
    return any(library.encode() in file.marks for file in files if file.name == PROGRAM)
