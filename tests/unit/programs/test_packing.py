"""A program as one artifact: packed and unpacked; and its files against a phone, by their ELF headers."""

import io
import tarfile

import numpy as np
import pytest

from farm.bundle.folder import read_files
from farm.bundle.model import Platform
from farm.bundle.storage import unpack as unpack_bundle
from farm.common.errors import Code
from farm.programs.packing import check_files, is_packed, mode_of, packed_file, unpacked
from tests.support.errors import raises_code
from tests.unit.bundle.elves import AARCH64, LD_LINUX, LINKER64, X86_64, Elf

SPEC = """
name = "mine"
command = ["{runtime}/timer"]
output = "json-lines"
files = "tool"
"""


@pytest.fixture
def tool(tmp_path):
    """The folder of the program's files."""
    (tmp_path / "tool").mkdir()
    return tmp_path / "tool"


@pytest.fixture
def spec(tmp_path, tool):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def unpack(spec, abi="x86_64"):
    archive, place = spec.parent / "packed.tar", spec.parent / "place"
    archive.write_bytes(packed_file(spec))
    place.mkdir()
    return unpacked(archive, place, abi)


def checked(spec, abi="x86_64", platform=Platform.LINUX):
    program = unpack(spec, abi)
    files = read_files(program.folder)
    check_files(program.description, files, abi, platform, "unit")
    return files


def test_the_same_program_is_the_same_bytes(spec, tool):
    (tool / "timer").write_text("#!/system/bin/sh\n")
    assert packed_file(spec) == packed_file(spec)
    program = unpack(spec)
    assert program.description.name == "mine"
    assert [path.name for path in program.folder.iterdir()] == ["timer"]
    assert is_packed(spec.parent / "packed.tar")
    assert not is_packed(spec)


def test_a_description_that_starts_a_file_of_no_folder_names_the_field(spec):
    spec.write_text(SPEC.replace('files = "tool"', ""))
    with raises_code(Code.BAD_PROGRAM, match="spec.toml: files is missing") as caught:
        packed_file(spec)
    assert "{runtime}/timer" in caught.value.hint


def test_a_text_file_is_no_program(spec, tool):
    timer = tool / "timer"
    timer.write_text("echo 1\n")
    with raises_code(Code.BAD_PROGRAM, match="timer, which the command of mine starts, is no program") as caught:
        checked(spec)
    assert "#!/system/bin/sh" in caught.value.hint
    (spec.parent / "place").rename(spec.parent / "before")
    timer.write_text("#!/bin/sh\necho 1\n")
    assert [file.name for file in checked(spec)] == ["timer"]


def test_files_and_numbers_of_one_abi(spec, tool):
    for abi, text in (("arm64-v8a", "#!a"), ("x86_64", "#!b")):
        (tool / abi).mkdir()
        (tool / abi / "timer").write_text(text)
    spec.write_text(SPEC + '[expected]\nfile = "out.raw"\nreference = "wanted.npy"\n')
    np.save(spec.parent / "wanted.npy", np.ones(3, np.float32))
    program = unpack(spec)
    assert (program.folder / "timer").read_text() == "#!b"
    assert np.load(program.reference).tolist() == [1, 1, 1]
    (spec.parent / "place").rename(spec.parent / "before")
    with raises_code(Code.BAD_PROGRAM, match="no files for riscv64, only for arm64-v8a, x86_64"):
        unpack(spec, "riscv64")


def test_what_cannot_be_packed_is_named(spec, tool):
    with raises_code(Code.BAD_PROGRAM, match="tool is empty"):
        packed_file(spec)
    (tool / "a b").write_text("")
    with raises_code(Code.BAD_PROGRAM, match="a b cannot be pushed"):
        packed_file(spec)
    spec.write_text(SPEC.replace('"tool"', '"other"'))
    with raises_code(Code.BAD_PROGRAM, match="there is no folder"):
        packed_file(spec)
    spec.write_text(SPEC + '[expected]\nfile = "x"\nreference = "none.npy"\n')
    (spec.parent / "other").mkdir()
    with raises_code(Code.BAD_PROGRAM):
        packed_file(spec)


@pytest.mark.parametrize("name", ["../timer", "files/../x", "etc/x", "files/a b", "x86_64/.hidden"])
def test_an_archive_of_somebody_else_leaves_nothing_outside(tmp_path, name):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    (tmp_path / "packed.tar").write_bytes(packed.getvalue())
    (tmp_path / "place").mkdir()
    with raises_code(Code.BAD_PROGRAM, match="does not belong into a program"):
        unpacked(tmp_path / "packed.tar", tmp_path / "place", "x86_64")


SCRIPT = b"#!/system/bin/sh\n"
OF_PHONE, OF_EMULATOR = (Elf(machine, interpreter=LINKER64).to_bytes() for machine in (AARCH64, X86_64))
NEEDS = Elf(X86_64, interpreter=LD_LINUX, needed=("libonnxruntime.so.1",)).to_bytes()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"timer": OF_PHONE}, "timer is built for arm64-v8a, android; unit is x86_64, linux-glibc"),
        ({"timer": OF_EMULATOR}, "timer is built for x86_64, android; unit is x86_64, linux-glibc"),
        ({"timer": NEEDS}, "libonnxruntime.so.1 is missing"),
        ({"other": SCRIPT}, "mine has no file timer, which its command starts"),
        ({"timer": SCRIPT, "libx.so": b"\x7fELF" + bytes(10)}, r"libx.so is a damaged ELF file"),
    ],
)
def test_files_that_do_not_run_there_are_refused_by_name(spec, tool, files, said):
    for name, content in files.items():
        (tool / name).write_bytes(content)
    with raises_code(Code.BAD_PROGRAM, match=said):
        checked(spec)


def test_files_that_run_there(spec, tool):
    Elf(X86_64, interpreter=LD_LINUX, needed=("libtool.so", "libc.so.6")).write(tool / "timer")
    Elf(X86_64, needed=("libm.so.6",)).write(tool / "libtool.so")
    (tool / "input_list.txt").write_text("input.raw\n")
    files = checked(spec)
    assert {file.name: mode_of(file) for file in files} == {
        "input_list.txt": 0o644, "libtool.so": 0o755, "timer": 0o755,
    }  # fmt: skip


def header(kind, size, name="files/timer"):
    """A header of a tar that claims so much."""
    member = tarfile.TarInfo(name)
    member.type = kind
    made = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    made[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    made[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(made))[0]
    return bytes(made)


@pytest.mark.parametrize(
    "archive",
    [
        header(tarfile.GNUTYPE_LONGNAME, 1 << 60), header(tarfile.XHDTYPE, 1 << 60), header(tarfile.XGLTYPE, 1 << 60),
        header(tarfile.REGTYPE, 1 << 80), header(tarfile.REGTYPE, -1024),
        (header(tarfile.GNUTYPE_LONGNAME, 512) + bytes(512)) * 2000,
    ],
    ids=["long name", "attributes", "attributes of all", "file", "file that leads back", "names of names"],
)  # fmt: skip
def test_no_header_of_an_archive_is_believed(tmp_path, archive):
    packed, place = tmp_path / "packed.tar", tmp_path / "place"
    packed.write_bytes(archive + bytes(1024))
    place.mkdir()
    with raises_code(Code.BAD_PROGRAM, match="this is no packed program"):
        unpacked(packed, place, "x86_64")
    assert not is_packed(packed)
    (tmp_path / "bundle").mkdir()
    with raises_code(Code.BAD_BUNDLE, match="this is no packed bundle"):
        unpack_bundle(packed, tmp_path / "bundle")


def test_a_file_of_a_long_name_is_packed_and_unpacked(spec, tool):
    (tool / ("n" * 150)).write_text("#!/system/bin/sh\n")
    assert [path.name for path in unpack(spec).folder.iterdir()] == ["n" * 150]
    assert is_packed(spec.parent / "packed.tar")
