import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.bundle.elf import MAX_BUILD_ID_BYTES, MAX_READ_BYTES, parse_elf, read_elf
from farm.bundle.model import ElfError, ElfInfo
from farm.common.errors import Code
from tests.support.errors import raises_code
from tests.unit.bundle.elves import AARCH64, ARM, LINKER64, MIPS, Elf

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_+.-0123456789", min_size=1, max_size=40).map(lambda stem: f"lib{stem}.so")
FULL = Elf(
    interpreter=LINKER64,
    needed=("libtvm_ffi.so", "libc.so"),
    soname="libtvm_runtime.so",
    runpath="$ORIGIN:/data/local/tmp",
    android_api=28,
    build_id=bytes(range(20)),
)


def test_reads_every_fact_a_loader_reads():
    assert parse_elf(FULL.to_bytes()) == ElfInfo(
        bits=64,
        little_endian=True,
        machine="AARCH64",
        type="DYN",
        interpreter=LINKER64,
        needed=("libtvm_ffi.so", "libc.so"),
        soname="libtvm_runtime.so",
        page_alignment_bytes=16384,
        android_api=28,
        build_id=bytes(range(20)).hex(),
    )


def test_a_build_id_of_any_length_is_kept_short():
    assert parse_elf(Elf(build_id=bytes(4000)).to_bytes()).build_id == "00" * MAX_BUILD_ID_BYTES
    assert parse_elf(Elf().to_bytes()).build_id == ""


@given(
    machine=st.sampled_from([(ARM, "ARM"), (AARCH64, "AARCH64"), (MIPS, "MIPS"), (9999, "machine 9999")]),
    bits=st.sampled_from([32, 64]),
    little=st.booleans(),
    needed=st.lists(NAMES, unique=True, max_size=12),
    soname=st.one_of(st.just(""), NAMES),
    align=st.sampled_from([4096, 16384, 65536]),
    api=st.one_of(st.none(), st.integers(1, 40)),
    interpreter=st.sampled_from(["", LINKER64]),
)
def test_what_is_written_is_read(machine, bits, little, needed, soname, align, api, interpreter):
    elf = Elf(machine[0], bits, little, 3, interpreter, tuple(needed), soname, "", align, api)
    assert parse_elf(elf.to_bytes()) == ElfInfo(
        bits, little, machine[1], "DYN", interpreter, tuple(needed), soname, align, api
    )


def test_smallest_alignment_counts():
    loose = bytearray(Elf(align=65536, interpreter=LINKER64).to_bytes())
    second = 64 + 56  # the INTERP segment becomes a second LOAD one, aligned to 4 KiB
    loose[second : second + 4] = (1).to_bytes(4, "little")
    loose[second + 48 : second + 56] = (4096).to_bytes(8, "little")
    assert parse_elf(bytes(loose)).page_alignment_bytes == 4096


def test_truncated_anywhere_is_refused():
    whole = FULL.to_bytes()
    for length in range(len(whole)):
        with pytest.raises(ElfError) as caught:
            parse_elf(whole[:length], "libx.so")
        assert "libx.so" in caught.value.message
        assert caught.value.hint


def test_more_program_headers_than_any_library_has_are_refused():
    many = bytearray(FULL.to_bytes())
    many[56:58] = b"\xff\x0f"  # e_phnum
    with pytest.raises(ElfError, match="4095 program headers"):
        parse_elf(bytes(many))


def test_a_string_without_end_is_read_to_a_bound():
    endless = bytearray(Elf(interpreter=LINKER64, payload=b"A" * (2 * MAX_READ_BYTES)).to_bytes())
    offset_at = 64 + 56 + 8  # p_offset of the second program header, the interpreter's
    endless[offset_at : offset_at + 8] = (len(endless) - 2 * MAX_READ_BYTES).to_bytes(8, "little")
    with pytest.raises(ElfError, match=f"more than {MAX_READ_BYTES} bytes"):
        parse_elf(bytes(endless))


@pytest.mark.parametrize("name", ["lib\x1b[2J.so", "lib\u202eos.so"])
def test_a_name_that_a_terminal_obeys_is_refused(name):
    with pytest.raises(ElfError, match="a library name is not text"):
        parse_elf(Elf(needed=(name,)).to_bytes())


@given(st.binary(max_size=300))
def test_garbage_is_refused(garbage):
    with pytest.raises(ElfError):
        parse_elf(garbage)


def answer_or_typed_error(data):
    """The parser's one promise about bytes nobody vouches for."""
    try:
        return parse_elf(data).bits in (32, 64)
    except ElfError as error:
        return bool(error.message and error.hint)


@given(st.binary(max_size=400))
def test_garbage_after_a_good_start(garbage):
    assert answer_or_typed_error(b"\x7fELF\x02\x01\x01" + bytes(9) + garbage)
    assert answer_or_typed_error(b"\x7fELF\x01\x02\x01" + bytes(9) + garbage)


@given(st.lists(st.tuples(st.integers(0, len(FULL.to_bytes()) - 1), st.integers(0, 255)), min_size=1, max_size=12))
def test_flipped_bytes(changes):
    data = bytearray(FULL.to_bytes())
    for place, value in changes:
        data[place] = value
    assert answer_or_typed_error(bytes(data))


def test_text_and_empty_files_are_not_elf(tmp_path):
    text = tmp_path / "libx.so"
    text.write_text("version https://git-lfs.github.com/spec/v1\n")
    with raises_code(Code.NOT_ELF, match=r"libx\.so is not an ELF file"):
        read_elf(text)
    text.write_bytes(b"")
    with raises_code(Code.NOT_ELF) as caught:
        read_elf(text)
    assert caught.value.evidence == "it is empty"
