import pytest

from farm.common.errors import Code
from farm.kinds.bench import BenchSpec
from farm.model.identity import CpuCluster
from farm.model.placement import ThreadPlacement, core_ranges, mask_of, placed
from tests.support.errors import raises_code

LITTLE_FIRST = (CpuCluster(4, max_khz=1_800_000), CpuCluster(3, max_khz=2_400_000), CpuCluster(1, max_khz=3_200_000))
BIG_FIRST = (CpuCluster(2, max_khz=2_800_000), CpuCluster(6, max_khz=1_900_000))
ALIKE = (CpuCluster(4, max_khz=2_000_000),)
UNKNOWN = (CpuCluster(4), CpuCluster(4))


@pytest.mark.parametrize(
    ("cores", "clusters", "mask"),
    [
        ("little", LITTLE_FIRST, 0x0F),
        ("big", LITTLE_FIRST, 0xF0),
        ("little", BIG_FIRST, 0xFC),
        ("big", BIG_FIRST, 0x03),
        ("0x81", LITTLE_FIRST, 0x81),
        ("0x81", (), 0x81),  # nothing is known of its cores: the phone itself will tell
    ],
)
def test_cores_are_a_mask(cores, clusters, mask):
    assert mask_of(cores, clusters, "p1") == mask


@pytest.mark.parametrize(
    ("threads", "cores", "clusters", "said"),
    [
        (9, None, LITTLE_FIRST, "p1 has 8 cores, too few for 9 threads"),
        (5, "big", LITTLE_FIRST, "p1 has 4 cores in big, too few for 5 threads"),
        (2, "0x1", (), "p1 has 1 core in 0x1, too few for 2 threads"),
        (None, "0x100", LITTLE_FIRST, "p1 has cores 0 to 7, and 0x100 names core 8"),
        (None, "big", ALIKE, "p1 has no big cores: its cores are all alike"),
        (None, "little", UNKNOWN, "p1 has no little cores: it does not tell their clocks"),
        (None, "little", (), "p1 has no little cores: it does not tell their clocks"),
    ],
)
def test_what_a_phone_does_not_have_is_refused(threads, cores, clusters, said):
    with raises_code(Code.NO_SUCH_CORES) as raised:
        placed(threads, cores, top_app=False, clusters=clusters, phone="p1")
    assert raised.value.message == said
    assert raised.value.hint


def test_a_placement_in_words():
    assert placed(2, "big", top_app=True, clusters=LITTLE_FIRST, phone="p1") == ThreadPlacement(2, 0xF0, top_app=True)
    assert ThreadPlacement(2, 0xF0, top_app=True).words == "2 threads, cores 4-7, top-app"
    assert ThreadPlacement(1, 0x01).words == "1 thread, core 0"
    assert ThreadPlacement().words == ""
    assert core_ranges(0b1101101) == "0,2-3,5-6"


@pytest.mark.parametrize("cores", ["0x0", "0x", "0x000", "f0", "middle", "", "0xg", "0x" + "f" * 17])
def test_a_spec_takes_no_mask_without_cores(cores):
    with raises_code(Code.BAD_SPEC, match="must be big, little, or a mask with cores such as 0xf0"):
        BenchSpec.from_wire({"on": "android", "model": "0" * 64, "name": "a.onnx", "cores": cores})
