"""Which machine and which platform an ELF file is for, and which libraries that platform brings along."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from farm.bundle.elf import ElfError, ElfType, Machine

if TYPE_CHECKING:
    from farm.bundle.elf import ElfInfo

LARGE_PAGE_BYTES = 16_384
# Android 15 brought kernels with 16 KiB pages (source.android.com/docs/core/architecture/16kb-page-size); a program or
# library whose segments are aligned to less is refused there, or runs in a compatibility mode.


class Abi(StrEnum):
    """Android's names for its ABIs (developer.android.com/ndk/guides/abis); used for glibc Linux too."""

    ARM64 = "arm64-v8a"
    ARMV7 = "armeabi-v7a"
    X86_64 = "x86_64"
    X86 = "x86"
    RISCV64 = "riscv64"

    @property
    def bits(self) -> int:
        """Pointer width in bits."""
        return 32 if self in (Abi.ARMV7, Abi.X86) else 64


class Platform(StrEnum):
    """Whose dynamic linker and C library a file expects."""

    ANDROID = "android"  # bionic, /system/bin/linker64
    LINUX = "linux-glibc"  # ld-linux; what a virtual phone runs


class ForeignElfError(ElfError):
    """The ELF file is for a machine or platform that no phone of the farm has."""

    code = "foreign_elf"


_ABI_OF: dict[tuple[int, int], Abi] = {
    (Machine.AARCH64, 64): Abi.ARM64,
    (Machine.ARM, 32): Abi.ARMV7,
    (Machine.X86_64, 64): Abi.X86_64,
    (Machine.I386, 32): Abi.X86,
    (Machine.RISCV, 64): Abi.RISCV64,
}

_NOT_LOADED: dict[int, str] = {ElfType.REL: "an object file", ElfType.CORE: "a core dump"}

# The C library's own file is called libc.so under bionic and libc.so.6 under glibc, so a library tells by its needs.
_GLIBC_MARKS = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
_BIONIC_MARKS = ("libc.so", "libm.so", "libdl.so", "liblog.so")

# Android: the public NDK libraries (system/core/rootdir/etc/public.libraries.android.txt, developer.android.com/ndk/
# guides/stable_apis). A program in /data/local/tmp also sees /vendor and /odm ("unrestricted" in ld.config.txt), but
# what lies there differs from phone to phone: see VENDOR_LIBRARIES.
_ANDROID_LIBRARIES = frozenset(
    {
        "libandroid.so",
        "libaaudio.so",
        "libamidi.so",
        "libbinder_ndk.so",
        "libc.so",
        "libcamera2ndk.so",
        "libdl.so",
        "libEGL.so",
        "libGLESv1_CM.so",
        "libGLESv2.so",
        "libGLESv3.so",
        "libicu.so",
        "libjnigraphics.so",
        "liblog.so",
        "libmediandk.so",
        "libm.so",
        "libnativehelper.so",
        "libnativewindow.so",
        "libneuralnetworks.so",
        "libOpenMAXAL.so",
        "libOpenSLES.so",
        "libstdc++.so",
        "libsync.so",
        "libvulkan.so",
        "libz.so",
    }
)

# glibc Linux: the C library's own parts only (glibc NEWS 2.34 for which are stubs now). libstdc++ and libgcc_s belong
# to the compiler, so a bundle carries them: a virtual phone's root has nothing but this.
_LINUX_LIBRARIES = frozenset(
    {
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
        "ld-linux-armhf.so.3",
        "ld-linux.so.2",
        "ld-linux-riscv64-lp64d.so.1",
    }
)

# On some phones only, put there by the chip's vendor.
VENDOR_LIBRARIES = frozenset({"libOpenCL.so", "libOpenCL_system.so", "libcdsprpc.so"})


@dataclass(frozen=True, slots=True)
class AbiVerdict:
    """What a file is for. `platform` is None when nothing in it tells (a library that needs no other)."""

    abi: Abi
    platform: Platform | None


def provided_libraries(platform: Platform) -> frozenset[str]:
    """File names of the shared libraries that every device of `platform` has."""
    return _ANDROID_LIBRARIES if platform is Platform.ANDROID else _LINUX_LIBRARIES


def judge(info: ElfInfo, where: str) -> AbiVerdict:
    """Say what `info` is for; `where` names the file in errors.

    Raises:
        ForeignElfError: machine, byte order, C library or file type is none that a bundle can hold.
    """
    abi = _ABI_OF.get((info.machine, info.bits))
    if abi is None or not info.little_endian:
        order = "" if info.little_endian else " big-endian"
        raise ForeignElfError(
            f"{where} is built for {info.machine_name} ({info.bits}-bit{order}), which no phone of the farm runs",
            hint=f"build it for one of {', '.join(Abi)}",
        )
    if info.type not in (ElfType.EXEC, ElfType.DYN):
        what = _NOT_LOADED.get(info.type, f"an ELF file of type {info.type}")
        raise ForeignElfError(
            f"{where} is {what}, neither a program nor a shared library",
            hint="remove it from the folder, or link it into a shared library",
        )
    return AbiVerdict(abi, _platform(info, where))


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
        raise ForeignElfError(
            f"{where} wants the dynamic linker {info.interpreter}, which neither Android nor glibc Linux has",
            hint="build it with the Android NDK (docs/bundles.md), or for glibc when it is for a virtual phone",
        )
    if info.android_api is not None:
        return Platform.ANDROID
    glibc = [name for name in info.needed if name in _GLIBC_MARKS or name.startswith("ld-linux")]
    bionic = [name for name in info.needed if name in _BIONIC_MARKS]
    if glibc and bionic:
        raise ForeignElfError(
            f"{where} needs both {glibc[0]} (glibc) and {bionic[0]} (Android)",
            hint="link it anew, with one toolchain only",
        )
    if glibc:
        return Platform.LINUX
    return Platform.ANDROID if bionic else None
