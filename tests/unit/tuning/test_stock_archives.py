"""What stock's builder makes is linked on this host, and what cannot be is told once, with what repairs it."""

import io
import subprocess
import tarfile

import pytest

from farm.compiler import tvm_errors
from farm.compiler.files import TarError
from farm.tuning.candidate import CandidateError
from farm.tuning.stock import ArchiveLinker, is_archive, objects_in
from tests.support.candidates import target
from tests.support.needs import needs

OBJECT = b"\x7fELF and so on"


def archive(files, mode="w:gz"):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as opened:  # the mode is no literal
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))
    return made.getvalue()


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_object_files_are_found_compressed_or_not(mode):
    made = archive({"lib0.o": OBJECT, "../../etc/devc.o": OBJECT + b"2"}, mode)
    assert is_archive(made)
    assert objects_in(made) == [OBJECT, OBJECT + b"2"]


def test_a_library_is_no_archive_and_stays_as_it_is():
    said = []
    assert ArchiveLinker(lambda: None, said.append)(OBJECT) is OBJECT
    assert said == []


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (archive({"devc.c": b"int main;"}), "'devc.c' is no object file"),
        (archive({}), "no object file in it"),
        (archive({"lib0.o": OBJECT})[:-20], "cut short"),
        (b"\x1f\x8b and no more", "damaged"),
        (archive({"lib0.o": OBJECT + bytes(1 << 20)}), "more than 0 MB"),  # a kilobyte that says it is a megabyte
    ],
    ids=["other", "empty", "cut", "damaged", "large"],  # not by contents: archives hold the time
)
def test_what_holds_something_else_or_too_much_is_refused(made, why):
    with pytest.raises(TarError, match=why):
        objects_in(made, most_bytes=1 << 19)


@needs("clang")
def test_trouble_is_told_once_with_what_mends_it(tmp_path):
    source = tmp_path / "x.s"
    source.write_text(".globl main\nmain: nop\n")
    subprocess.run(["clang", "--target=aarch64-linux-gnu", "-c", source, "-o", tmp_path / "x.o"], check=True)
    foreign = archive({"lib0.o": (tmp_path / "x.o").read_bytes()})
    said = []
    link = ArchiveLinker(lambda: {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, said.append)
    for _ in range(3):
        with pytest.raises(CandidateError, match=r"its \.tar cannot be linked: .* cannot link"):
            link(foreign)
    [told] = said
    assert "build for the phones' own target, {'kind': 'llvm', 'mtriple': 'x86_64-linux-gnu'}" in told


def test_what_tvm_builds_is_linked(tmp_path):
    import ctypes

    import tvm
    from tvm.support.tar import tar as stock

    from tests.support.candidates import module

    tvm.tirx.build(module("add"), target=target()).export_library(str(tmp_path / "x.tar"), fcompile=stock)
    linked = ArchiveLinker(target, lambda _: None)((tmp_path / "x.tar").read_bytes())
    (tmp_path / "x.so").write_bytes(linked)
    assert ctypes.CDLL(str(tmp_path / "x.so")).__tvm_ffi_main


def test_the_line_after_rpcs_own_is_the_one_that_tells():
    said = "RPCError: Error caught from RPC call:\nthis phone has no linker for .tar files: x.tar"
    assert tvm_errors.first_line(RuntimeError(said)) == "this phone has no linker for .tar files: x.tar"
    assert tvm_errors.first_line(RuntimeError("Error caught from RPC call:")) == "Error caught from RPC call:"
    assert tvm_errors.first_line(RuntimeError("bad shape\n  at frame 1")) == "bad shape"
