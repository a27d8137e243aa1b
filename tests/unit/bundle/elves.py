"""Writes ELF files byte by byte, independent of the reader under test."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

LOAD, DYNAMIC, INTERP, NOTE = 1, 2, 3, 4
AARCH64, ARM, X86_64, I386, RISCV, MIPS = 183, 40, 62, 3, 243, 8
LINKER64, LD_LINUX = "/system/bin/linker64", "/lib64/ld-linux-x86-64.so.2"
OPENCL, RANDOM = b"clGetPlatformIDs", b"tvm.contrib.random.random_fill_for_measure"


@dataclass(frozen=True)
class Elf:
    machine: int = AARCH64
    bits: int = 64
    little: bool = True
    type: int = 3
    interpreter: str = ""
    needed: tuple[str, ...] = ()
    soname: str = ""
    runpath: str = ""
    align: int = 16384
    android_api: int | None = None
    build_id: bytes = b""
    payload: bytes = b""

    def write(self, path):
        path.write_bytes(self.to_bytes())
        return path

    def to_bytes(self):
        order, wide = ("<" if self.little else ">"), self.bits == 64
        header_bytes, entry_bytes = (64, 56) if wide else (52, 32)
        strings, places = b"\0", {}
        for text in (*self.needed, self.soname, self.runpath):
            places[text] = len(strings)
            strings += text.encode() + b"\0"
        entries = [(1, places[name]) for name in self.needed]
        entries += [(14, places[self.soname])] if self.soname else []
        entries += [(29, places[self.runpath])] if self.runpath else []
        segments, body = [], b""
        count = 1 + bool(self.interpreter) + bool(entries) + (self.android_api is not None) + bool(self.build_id)
        start = header_bytes + count * entry_bytes

        def put(kind, content, align):
            nonlocal body
            body += bytes(-len(body) % 8)
            offset = start + len(body)
            body += content
            segments.append((kind, offset, len(content), align))
            return offset

        if self.interpreter:
            put(INTERP, self.interpreter.encode() + b"\0", 1)
        if self.android_api is not None:
            put(NOTE, struct.pack(order + "III8sI", 8, 4, 1, b"Android\0", self.android_api), 4)
        if self.build_id:
            put(NOTE, struct.pack(order + "III4s", 4, len(self.build_id), 3, b"GNU\0") + self.build_id, 4)
        if entries:
            body += bytes(-len(body) % 8)
            strings_at = start + len(body)
            body += strings
            entries += [(5, 0x10000 + strings_at), (10, len(strings)), (0, 0)]
            put(DYNAMIC, b"".join(struct.pack(order + ("qQ" if wide else "iI"), *entry) for entry in entries), 8)
        body += self.payload
        segments.insert(0, (LOAD, 0, start + len(body), self.align))
        table = b""
        for kind, offset, size, align in segments:
            address = 0x10000 + offset
            if wide:
                table += struct.pack(order + "IIQQQQQQ", kind, 5, offset, address, address, size, size, align)
            else:
                table += struct.pack(order + "IIIIIIII", kind, offset, address, address, size, size, 5, align)
        ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if self.little else 2, 1]) + bytes(9)
        pointers = "QQQ" if wide else "III"
        fixed = struct.pack(
            order + "HHI" + pointers + "IHHHHHH",
            *(self.type, self.machine, 1, 0x10000, header_bytes, 0, 0, header_bytes, entry_bytes, count, 0, 0, 0),
        )
        return ident + fixed + table + body


SERVER = Elf(interpreter=LINKER64, needed=("libtvm_runtime.so", "libc++_shared.so", "libc.so"), android_api=28)
ANDROID_BUNDLE = {
    "tvm_rpc": Elf(
        interpreter=LINKER64,
        needed=("libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_runtime_opencl.so", "libc.so"),
        android_api=28,
    ),
    "libtvm_runtime.so": Elf(needed=("libtvm_ffi.so", "libc++_shared.so", "libc.so"), soname="libtvm_runtime.so"),
    "libtvm_ffi.so": Elf(needed=("libc++_shared.so", "libdl.so", "libc.so"), soname="libtvm_ffi.so"),
    "libtvm_runtime_extra.so": Elf(needed=("libtvm_runtime.so", "libc.so"), payload=RANDOM),
    "libtvm_runtime_opencl.so": Elf(needed=("libtvm_runtime.so", "libc.so"), payload=OPENCL),
    "libc++_shared.so": Elf(needed=("libc.so", "libm.so", "libdl.so"), soname="libc++_shared.so"),
}
LINUX_BUNDLE = {
    "tvm_rpc": Elf(
        X86_64, interpreter=LD_LINUX, needed=("libtvm_runtime.so", "libtvm_runtime_extra.so", "libc.so.6"), align=4096
    ),
    "libtvm_runtime.so": Elf(X86_64, needed=("libstdc++.so.6", "libc.so.6"), align=4096),
    "libtvm_runtime_extra.so": Elf(X86_64, needed=("libtvm_runtime.so", "libc.so.6"), align=4096, payload=RANDOM),
    "libstdc++.so.6": Elf(X86_64, needed=("libm.so.6", "libc.so.6"), align=4096),
}


OWN_LOADER_BUNDLE = {  # glibc's loader and C library beside the server
    "tvm_rpc": replace(
        LINUX_BUNDLE["tvm_rpc"], machine=AARCH64, interpreter="/lib/ld-linux-aarch64.so.1", payload=RANDOM, align=65536,
        needed=("libtvm_runtime.so", "libc.so.6"),
    ),
    "libtvm_runtime.so": Elf(needed=("libc.so.6",)),
    "libc.so.6": Elf(needed=("ld-linux-aarch64.so.1",), soname="libc.so.6"),
    "libc.so": Elf(needed=("libc.so.6",), soname="libc.so"),
    "ld-linux-aarch64.so.1": Elf(soname="ld-linux-aarch64.so.1"),
}  # fmt: skip


def write_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, elf in files.items():
        elf.write(folder / name)
    return folder
