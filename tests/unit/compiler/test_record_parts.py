"""A growing folder of records in parts: all of them are the folder, wherever they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.compiler.record_files import BadRecordsError, FolderParts, RecordFolder, read_parts, write_records
from farm.compiler.records import FILES, RECORDS, Origin, RecordSet, TuningTask, Workload
from tests.unit.compiler.test_records import module_of, record

WORKLOAD = Workload("1234", module_of("ir.Type"))


def a_set(*tiles):
    records = tuple(record("1234", tile, tile / 100) for tile in tiles)
    origins = {each.key: Origin(key=each.key, device="pixel", at="2026-11-26T00:00:00Z") for each in records}
    return RecordSet({"1234": WORKLOAD}, records, origins, {"1234": TuningTask(workload="1234", name="conv")})


def append(folder, found, before=0):
    """The records of the set behind the first `before`, as a search appends them."""
    for name, text in found.texts().items():
        lines = text.splitlines(keepends=True)
        there = folder / name
        known = there.read_text().splitlines(keepends=True) if there.exists() else []
        there.write_text("".join([*known, *(line for line in lines if line not in known)]))


def test_each_part_has_what_came_since_the_one_before(tmp_path):
    parts = FolderParts(tmp_path, ("scale.json",))
    assert parts.next() == b""
    append(tmp_path, a_set(1, 2))
    (tmp_path / "scale.json").write_text("{}")
    first = parts.next()
    assert parts.next() == first  # it was not taken
    parts.taken()
    assert parts.next() == b""
    append(tmp_path, a_set(1, 2, 3))
    second = parts.next()
    assert a_set(1).texts()[RECORDS].encode() not in second
    found, others = read_parts((first, second))
    assert found.set == a_set(1, 2, 3)
    assert others == {"scale.json": b"{}"}


def test_a_line_that_is_being_written_comes_with_the_next_part(tmp_path):
    append(tmp_path, a_set(1, 2))
    whole = (tmp_path / RECORDS).read_bytes()
    (tmp_path / RECORDS).write_bytes(whole[:-5])
    parts = FolderParts(tmp_path)
    first = parts.next()
    parts.taken()
    (tmp_path / RECORDS).write_bytes(whole)
    assert [each.run_s for each in read_parts((first, parts.next()))[0].set.records] == [(0.01,), (0.02,)]


@given(st.lists(st.integers(0, 400), max_size=8))
def test_any_moments_give_the_same_records(tmp_path_factory, moments):
    """The files grow byte by byte, in the order in which a search writes them."""
    texts = {name: text.encode() for name, text in a_set(1, 2, 3, 4).texts().items()}
    folder = tmp_path_factory.mktemp("records")
    for name in FILES:
        (folder / name).write_bytes(b"" if name == RECORDS else texts[name])
    parts, taken = FolderParts(folder), []
    for moment in (*sorted(moments), len(texts[RECORDS])):
        (folder / RECORDS).write_bytes(texts[RECORDS][:moment])
        if part := parts.next():
            taken.append(part)
            parts.taken()
    assert read_parts(taken)[0].set == a_set(1, 2, 3, 4)


def test_what_is_no_part_is_refused():
    with pytest.raises(BadRecordsError, match="part 1 of the records"):
        read_parts((b"nothing",))


@pytest.mark.parametrize(("own", "kept", "together", "more"), [
    ((), (1, 2), (1, 2), 2),
    ((1, 2), (1, 2, 3), (1, 2, 3), 1),
    ((1, 2, 4), (1, 2), (1, 2, 4), 0),
    ((1, 9), (1, 2), (1, 2, 9), 1),
])  # fmt: skip
def test_a_folder_takes_in_what_another_host_has_kept(tmp_path, own, kept, together, more):
    write_records(a_set(*own), tmp_path)
    with RecordFolder(tmp_path) as folder:
        assert folder.add(a_set(*kept)) == more
    with RecordFolder(tmp_path) as folder:
        assert folder.damage == ()
        assert [each.run_s for each in folder.found.set.records] == [(tile / 100,) for tile in together]
