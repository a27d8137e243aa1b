"""Sets of tuning records: read, merged, cut off anywhere, damaged anywhere."""

import base64
import json
import random
import tarfile
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.common.errors import Code
from farm.compiler.record_files import (
    ASIDE,
    REPAIRED,
    BadRecordsError,
    RecordFolder,
    packed,
    read_records,
    write_records,
)
from farm.compiler.records import (
    FAILED_S,
    FILES,
    RECORDS,
    WORKLOADS,
    Origin,
    Record,
    RecordSet,
    TuningTask,
    Workload,
    best,
    merge,
    pruned,
    read,
    record_key,
)
from farm.model.identity import target_key
from tests.support.errors import raises_code
from tests.support.tars import sparse

LLVM = {"kind": "llvm"}
X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver5"}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-android", "mcpu": "cortex-a76"}


def module_of(*kinds, text=""):
    """A module as TVM writes it, with nodes of those kinds."""
    document = (text or json.dumps({"root_index": 0, "nodes": [{"type": each} for each in kinds]})).encode()
    return base64.b64encode(len(document).to_bytes(8, "little") + document).decode()


def record(workload, tile, seconds, target=LLVM):
    trace = [[["SamplePerfectTile", ["l2"], [4, 64], ["v5"]]], [[0, [tile, 1]]]]
    key = record_key(workload, trace, target)
    return Record(workload, trace, (seconds,), target, [["TENSOR", "float32", [8]]], key)


def set_of(*rows, device="emerald-9", target=LLVM):
    records = tuple(record(*row, target) for row in rows)
    names = dict.fromkeys(each.workload for each in records)
    return RecordSet(
        {name: Workload(name, module_of("ir.IRModule")) for name in names},
        records,
        {each.key: Origin(key=each.key, device=device, at="2026-01-01T00:00:00+00:00") for each in records},
        {name: TuningTask(workload=name, name=f"conv_{name}", weight=2, flop=2e6) for name in names},
    )


def bytes_of(found):
    return {name: text.encode() for name, text in found.texts().items()}


rows = st.lists(
    st.tuples(st.sampled_from(["1", "2", "3"]), st.integers(0, 4), st.sampled_from([0.001, 0.002, 0.004, FAILED_S])),
    max_size=8,
    unique_by=lambda row: row[:2],
)
sets = st.builds(lambda given, device: set_of(*given, device=device), rows, st.sampled_from(["a", "b"]))
SMALL = set_of(("1", 0, 0.002), ("2", 1, 0.004), ("1", 2, FAILED_S))


def test_a_set_is_read_back_as_it_was_written():
    reading = read(bytes_of(SMALL))
    assert reading.set == SMALL
    assert reading.whole
    assert not reading.damage
    # A sidecar's line comes before its record; alone it says nothing.
    assert read({**bytes_of(SMALL), RECORDS: b""}).set.origins == {}


@pytest.mark.parametrize("name", FILES)
def test_cut_at_any_byte_every_whole_line_before_the_cut_is_kept(name, tmp_path):
    whole = bytes_of(SMALL)
    for cut in range(len(whole[name])):
        kept = whole[name][:cut]
        lines = kept.count(b"\n") + (whole[name][cut : cut + 1] == b"\n" and not kept.endswith(b"\n"))
        reading = read({**whole, name: kept})
        if name == RECORDS:
            assert reading.set.records == SMALL.records[:lines]
            assert not reading.damage
        if name == WORKLOADS:
            there = set(list(SMALL.workloads)[:lines])
            assert reading.set.records == tuple(each for each in SMALL.records if each.workload in there)
        assert {each.key for each in reading.set.records} >= set(reading.set.origins)


@given(st.sampled_from(FILES), st.data())
@settings(deadline=None)
def test_a_folder_cut_at_any_byte_takes_new_records_and_keeps_the_old(tmp_path_factory, name, data):
    folder = tmp_path_factory.mktemp("cut")
    write_records(SMALL, folder)
    text = (folder / name).read_bytes()
    (folder / name).write_bytes(text[: data.draw(st.integers(0, len(text)))])
    with RecordFolder(folder) as opened:
        before = opened.found.set
        new = record("9", 7, 0.003)
        opened.append(WORKLOADS, Workload("9", module_of("ir.IRModule")).line())
        opened.append(RECORDS, new.line(len(before.workloads)))
    after = read_records(folder)
    assert after.set.records == (*before.records, new)
    assert not after.damage


@given(sets, sets, sets)
def test_merging_is_associative_and_keeps_the_fastest_of_each(a, b, c):
    merged = merge([a, b, c])
    assert merge([merge([a, b]), c]) == merge([a, merge([b, c])]) == merged
    assert merge([merged, merged]) == merged
    for each in merged.records:
        same = [one for given_set in (a, b, c) for one in given_set.records if one.key == each.key]
        assert each.seconds == min(one.seconds for one in same)
    assert {each.key for each in merged.records} == {one.key for given_set in (a, b, c) for one in given_set.records}


def test_of_equally_fast_records_the_first_stays_with_its_phone():
    merged = merge([set_of(("1", 0, 0.002), device="a"), set_of(("1", 0, 0.002), device="b")])
    assert [each.device for each in merged.origins.values()] == ["a"]
    faster = merge([set_of(("1", 0, 0.002), device="a"), set_of(("1", 0, 0.001), device="b")])
    assert [each.device for each in faster.origins.values()] == ["b"]


@given(st.sampled_from((WORKLOADS, RECORDS)), st.integers(0, 2**32), st.data())
@settings(deadline=None)
def test_garbage_in_a_line_costs_that_line_only(name, seed, data):
    whole = bytes_of(SMALL)
    lines = whole[name].splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = bytes(byte for byte in random.Random(seed).randbytes(40) if byte != 10) + b"\n"
    reading = read({**whole, name: b"".join(lines)})
    lost = {at} if name == RECORDS else {i for i, each in enumerate(SMALL.records) if each.workload == str(at + 1)}
    assert reading.set.records == tuple(each for i, each in enumerate(SMALL.records) if i not in lost)
    assert len(reading.damage) == (1 if name == RECORDS else 1 + len(lost))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[7, [[[], []], [0.1], {}, []]]", "line 8 of database_workload.json, is not there"),
        ("[0, [[[], []], [], {}, []]]", "it is no record"),
        ('[0, [[[], []], ["fast"], {}, []]]', "no seconds"),
        ("[0, [[[], []], [0.1, 0], {}, []]]", "no seconds"),
        ("[0, [[[], []], [-1.0], {}, []]]", "no seconds"),
        ("[0, [[[], []], [NaN], {}, []]]", "NaN for a number"),
        ("[0, [[[], []], [0.1], 5, []]]", "no target"),
        (f"[0, [[[], []], [{'9' * 400}], {{}}, []]]", "a number of 400 digits"),
        ("[0, [[[], []], [1e999], {}, []]]", "1e999 for a number"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line, why):
    reading = read({WORKLOADS: b'["1", "bW9k"]\n', RECORDS: line.encode() + b"\n"})
    assert not reading.set.records
    assert why in reading.damage[0].why


def test_a_damaged_folder_is_repaired_and_the_wrong_lines_are_kept_aside(tmp_path):
    write_records(SMALL, tmp_path)
    lines = (tmp_path / WORKLOADS).read_text().splitlines()
    (tmp_path / WORKLOADS).write_text(f"rubbish\n{lines[1]}\n")
    with RecordFolder(tmp_path) as folder:
        assert [each.workload for each in folder.found.set.records] == ["2"]
        assert len(folder.damage) == 3
    aside = [json.loads(line) for line in (tmp_path / ASIDE).read_text().splitlines()]
    assert [each["file"] for each in aside] == [WORKLOADS, RECORDS, RECORDS]
    assert read_records(tmp_path).damage == ()
    assert json.loads((tmp_path / RECORDS).read_text())[0] == 0  # the numbers of workloads follow their lines


@pytest.mark.parametrize("moved", range(len(FILES) + 1))
def test_a_repair_that_was_killed_is_finished(moved, tmp_path):
    write_records(set_of(("1", 9, 0.5)), tmp_path)
    write_records(SMALL, tmp_path / REPAIRED)
    for name in FILES[:moved]:
        (tmp_path / REPAIRED / name).replace(tmp_path / name)
    with RecordFolder(tmp_path) as folder:
        assert folder.found.set == SMALL
    assert not (tmp_path / REPAIRED).exists()


def test_one_process_writes_a_folder(tmp_path):
    with RecordFolder(tmp_path), raises_code(Code.RECORDS_BUSY):
        RecordFolder(tmp_path)


def test_the_same_candidate_for_two_targets_is_two_records_each_with_what_belongs_to_it():
    arm = set_of(("1", 0, 0.004), ("2", 0, FAILED_S), target=ARM)
    both = merge([set_of(("1", 0, 0.001), target=X86), arm])
    assert [each.seconds for each in pruned(both).records] == [0.001, 0.004]
    assert read(bytes_of(both)).set == both
    mine = both.with_records(tuple(each for each in both.records if each.target == ARM))
    assert (mine.records, mine.origins) == (arm.records, arm.origins)


def test_tvms_own_time_on_one_target_drops_no_record_of_another():
    fast = set_of(("1", 0, 0.001), target=X86)
    known = TuningTask(workload="1", name="conv", default_s=0.002, default_for=target_key(X86))
    both = merge([replace(fast, tasks={"1": known}), set_of(("1", 0, 0.004), target=ARM)])
    assert len(pruned(both).records) == 2
    assert pruned(merge([both, set_of(("2", 0, 0.003), ("1", 1, 0.003), target=X86)])).records[0].seconds == 0.001
    below_0 = replace(fast, tasks={"1": TuningTask(workload="1", name="conv", default_s=-1.0)})
    assert pruned(below_0).records == fast.records


def test_what_only_tvm_finds_wrong_is_set_aside(tmp_path):
    write_records(SMALL, tmp_path)
    with RecordFolder(tmp_path) as folder:
        folder.set_aside({1: "its trace does not fit"})
        assert [each.key for each in folder.found.set.records] == [SMALL.records[0].key, SMALL.records[2].key]
        assert str(folder.damage[0]) == f"{RECORDS} line 2: its trace does not fit"
    assert len(read_records(tmp_path).set.records) == 2


def test_a_tar_holds_the_set_and_is_the_same_every_time(tmp_path):
    data = packed(SMALL)
    assert data == packed(SMALL)
    assert read_records(data).set == SMALL
    write_records(SMALL, tmp_path / "set.tar")
    assert (tmp_path / "set.tar").read_bytes() == data
    with tarfile.open(tmp_path / "set.tar") as tar:
        assert tar.getnames() == list(FILES)
    write_records(SMALL, tmp_path / "mine")
    with tarfile.open(tmp_path / "mine.tar", "w") as archive:  # as somebody packs a folder
        archive.add(tmp_path / "mine", "mine")
    assert read_records(tmp_path / "mine.tar").set == SMALL


SPARSE = b"".join(sparse(name, (2 << 30) - 1) for name in (WORKLOADS, RECORDS)) + bytes(1024)  # gigabytes


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no folder and no .tar"),
        (b"x" * 2000, "no folder and no .tar"),
        (packed(SMALL)[:700], "old.tar"),
        (SPARSE, "is no plain file"),
    ],
)
def test_what_is_no_set_is_refused(data, why):
    with pytest.raises(BadRecordsError, match=why):
        read_records(data, "old.tar")


def test_a_set_without_one_good_record_says_what_is_wrong(tmp_path):
    write_records(SMALL, tmp_path)
    (tmp_path / RECORDS).write_text("rubbish\n")
    with pytest.raises(BadRecordsError, match=f"{RECORDS} line 1: it is no JSON"):
        read_records(tmp_path)


def test_the_best_of_each_task():
    one, two = best(SMALL)
    assert (one.name, one.weight, one.trials, one.failed, one.seconds) == ("conv_1", 2, 2, 1, 0.002)
    assert one.gflops == pytest.approx(1.0)
    assert (one.device, two.trials) == ("emerald-9", 1)
    nothing = best(set_of(("1", 0, FAILED_S)))[0]
    assert (nothing.seconds, nothing.gflops, nothing.device) == (None, None, "")


def test_a_record_that_is_slower_than_what_tvm_does_by_itself_is_not_compiled_with():
    needed = pruned(set_of(("1", 0, 0.002), ("1", 1, 0.001), ("2", 0, FAILED_S)))
    assert ([each.seconds for each in needed.records], list(needed.workloads)) == ([0.001], ["1"])
    found = set_of(("1", 0, 0.002), ("2", 0, 0.002))
    slow = {"1": replace(found.tasks["1"], default_s=0.001), "2": replace(found.tasks["2"], default_s=0.003)}
    assert [each.workload for each in pruned(replace(found, tasks=slow)).records] == ["2"]
    assert [each.kept_own for each in best(replace(found, tasks=slow))] == [True, False]
    assert [each.kept_own for each in best(set_of(("1", 0, FAILED_S), ("2", 0, 0.002)))] == [True, False]
    assert merge([found, replace(found, tasks=slow)]).tasks == slow


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("AAAA", "its module is not read"),
        ("no base64", "its module is not read"),
        (module_of("ir.IRModule", "ffi.Module"), "it holds a node of type 'ffi.Module'"),
        (module_of("ir.EnvFunc"), "it holds a node of type 'ir.EnvFunc'"),
        (module_of(text='{"nodes": [{"type": "ffi.Module"}], "nodes": []}'), "a key is there twice"),
        (module_of("ir.IRModule") + "AAAA", "its module is not read"),
    ],
)
def test_a_module_that_stock_refuses_or_that_holds_code_is_left_out(module, why):
    found = read_records(packed(replace(SMALL, workloads={**SMALL.workloads, "2": Workload("2", module)})))
    assert list(found.set.workloads) == ["1"]
    assert found.set.records == (SMALL.records[0], SMALL.records[2])
    assert found.set.origins.keys() == {each.key for each in found.set.records}
    assert why in found.damage[0].why
    assert len(found.damage) == 2


@pytest.mark.parametrize(("kind", "left"), [("tirx.IndexMap", 3), ("ffi.Module", 2)])
def test_a_layout_in_a_trace_is_read_if_it_holds_no_code(kind, left):
    layout = json.dumps({"root_index": 0, "nodes": [{"type": kind}]})
    trace = [[["TransformLayout", ["b0", layout], [0, 1, None, False], []]], []]
    given = (*SMALL.records[:2], replace(SMALL.records[2], trace=trace))
    found = read_records(packed(replace(SMALL, records=given)))
    assert len(found.set.records) == left
    assert [each.why for each in found.damage] == (
        [] if left == 3 else [f"its trace is not read: it holds a node of type '{kind}'"]
    )


def test_what_is_not_read_is_told_line_by_line_with_what_is_kept(tmp_path):
    write_records(SMALL, tmp_path / "set")
    path = tmp_path / "set" / RECORDS
    lines = path.read_text().splitlines()
    assert read_records(tmp_path / "set").problems("x") == []
    path.write_text("\n".join([lines[0], "no record", *lines[1:], lines[0][:9]]))
    found = read_records(tmp_path / "set")
    assert found.problems("x") == [
        f"x: {RECORDS} line 2: it is no JSON: Expecting value",
        f"x: {RECORDS} line {len(lines) + 2}: it is cut off",
        f"x: 2 damaged, the other {len(lines)} records are used",
    ]
    path.write_text("\n".join([*lines, lines[0][:9]]))  # a torn end alone, as a kill leaves it
    found = read_records(tmp_path / "set")
    assert (found.damage, len(found.problems("x"))) == ((), 2)
    path.write_text("\n".join([*["no record"] * 50, *lines]))
    assert "x: 30 more lines are wrong" in read_records(tmp_path / "set").problems("x")


def test_records_of_a_job_are_told_of_before_they_are_uploaded(tmp_path):
    from farm.client.specs import packed_records

    write_records(SMALL, tmp_path / "set")
    with (tmp_path / "set" / RECORDS).open("a") as file:
        file.write("no record\n")
    for field in ("records", "prior"):
        said = []
        data = packed_records(field, tmp_path / "set", said.append)
        assert data == packed(SMALL)
        assert said[0].endswith(f"{RECORDS} line {len(SMALL.records) + 1}: it is no JSON: Expecting value")
        assert said[-1].endswith("records are used")


def test_every_command_on_records_tells_of_damage(tmp_path, capsys):
    from farm.cli import records as commands

    for name in ("a", "b"):
        write_records(SMALL, tmp_path / name)
    with (tmp_path / "b" / RECORDS).open("a") as file:
        file.write("[0, [[")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for run in (
        lambda: commands.merge([a, b], tmp_path / "c.tar", json=True),
        lambda: commands.merge([a, b], tmp_path / "c.tar", json=False),
        lambda: commands.show(b, None, json=False),
        lambda: commands.show(b, None, json=True),
        lambda: commands.export(b, tmp_path / "d.tar"),
        lambda: commands.best(b, None, json=False),
    ):
        run()
        said = capsys.readouterr()
        assert "it is cut off" in said.err
        assert "records are used" in said.err
    commands.merge([a, b], tmp_path / "c.tar", json=True)
    [damage] = json.loads(capsys.readouterr().out)["damage"]
    assert damage.startswith(f"{b}: {RECORDS} line ")


def test_why_a_task_has_no_record_to_compile_with_is_told():
    from farm.cli.records import left_out

    tasks, kept, empty = best(SMALL), pruned(SMALL), RecordSet()
    assert left_out(kept, [each for each in tasks if each.workload in kept.workloads]) == ""
    ran = replace(tasks[0], seconds=0.1)
    assert left_out(empty, [ran]) == "; 1 left out, whose best is no faster than TVM's own schedule without tuning"
    assert left_out(empty, [replace(ran, seconds=None)]) == "; 1 left out, of which no candidate ran"


def test_a_number_of_a_set_is_no_file_and_the_hint_says_how_to_make_one(tmp_path):
    with pytest.raises(BadRecordsError) as caught:
        read_records(tmp_path / "3")
    assert "farm records export SET -o SET.tar" in caught.value.hint
