"""Which records are for a target, as TVM spells targets."""

import pytest

pytest.importorskip("tvm")

from farm.compiler.record_files import packed, read_records
from farm.compiler.records import merge, pruned
from farm.compiler.targets import ForeignRecordsError, records_for, same_target, target_from, unpack_records
from tests.unit.compiler.test_records import ARM, X86, set_of

ADRENO = {"tag": "qcom/adreno-opencl", "host": ARM}
X86_SET = set_of(("1", 0, 0.001), target=X86)
ARM_SET = set_of(("1", 0, 0.004), ("2", 1, 0.004), target=ARM)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ARM, X86, False),
        (ARM, {**ARM, "mcpu": "cortex-a55"}, False),
        (ARM, {**ARM, "mattr": ["+dotprod"]}, False),
        ({**ARM, "mattr": ["+neon", "+dotprod"]}, {**ARM, "mattr": ["+dotprod", "+neon"]}, True),
        ({**ARM, "num-cores": 4}, {**ARM, "num-cores": 8}, True),
        (ARM, {**ARM, "mtriple": "aarch64-linux-gnu"}, True),
        (ADRENO, {**ADRENO, "host": X86}, True),
        (ADRENO, {"kind": "opencl"}, False),
        ({"kind": "opencl"}, {"kind": "opencl", "max_threads_per_block": 1024}, False),
        (ARM, ADRENO, False),
    ],
)
def test_targets_are_the_same_when_the_same_schedules_are_valid(one, other, same):
    assert same_target(one, other) is same
    assert same_target(target_from(one), other) is same


def test_records_of_another_target_are_left_out_and_counted():
    kept, left_out = records_for(X86, merge([X86_SET, ARM_SET]))
    assert kept.records == X86_SET.records
    assert left_out == "2 of 3 records are left out: 2 for llvm aarch64-linux-android cortex-a76"
    assert records_for(ARM, ARM_SET) == (ARM_SET, "")


def test_a_set_without_any_for_the_target_is_refused_with_both_targets(tmp_path):
    with pytest.raises(
        ForeignRecordsError, match=r"no record is for llvm x86_64\S+ znver5: 2 for llvm aarch64\S+ cortex"
    ):
        unpack_records(packed(ARM_SET), X86, tmp_path / "out", "net.tar")
    assert not (tmp_path / "out").exists()


def test_what_is_unpacked_for_a_target_is_what_compiling_needs(tmp_path):
    [said] = unpack_records(packed(merge([X86_SET, ARM_SET])), ARM, tmp_path / "out")
    assert said.startswith("1 of 3 records")
    assert read_records(tmp_path / "out").set.records == pruned(ARM_SET).records
