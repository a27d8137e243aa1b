"""Targets are accepted by TVM and promise no instruction that was not stated; what people type for one."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import target as tvm_target

from farm.common.errors import Code, UserError
from farm.devices.identity.cpu import ArmPart, CpuFacts, arm_parts
from farm.devices.identity.identity import RawIdentity, identify
from farm.devices.identity.targets import BOARDS, NAMES, ForeignTargetError, named_target, target_on, targets_of
from farm.model.identity import target_typed
from tests.support.errors import raises_code
from tests.unit.devices.captures import answer, every

AARCH64 = "aarch64-linux-android"
ARM = "armv7a-linux-androideabi"
# What LLVM's code generator uses unasked once it is on: the columns `aarch64` and `arm` of arm_parts.tsv.
WATCHED = {
    AARCH64: {
        *("fullfp16", "fp16fml", "rdm", "dotprod", "complxnum", "sha3", "i8mm", "bf16"),
        *("sve", "sve2", "sme", "cssc", "mops"),
    },
    ARM: {"neon", "vfp4", "fullfp16", "dotprod", "i8mm", "bf16", "hwdiv-arm", "hwdiv"},
}


def llvm_features(target):
    """What LLVM would use for this target."""
    return {str(name) for name in tvm_target.codegen.llvm_get_cpu_features(tvm_target.Target(dict(target)))}


def known_cpus(mtriple):
    target = tvm_target.Target({"kind": "llvm", "mtriple": mtriple})
    return {str(name) for name in tvm_target.codegen.llvm_get_cpu_archlist(target)}


@pytest.mark.parametrize("mtriple", [AARCH64, ARM])
def test_the_part_table_says_what_llvm_takes_for_granted(mtriple):
    cpus = known_cpus(mtriple)
    for part in arm_parts().values():
        stated = part.llvm_aarch64 if mtriple == AARCH64 else part.llvm_arm
        assert (stated is not None) == (part.mcpu in cpus), part.name
        if stated is not None:
            features = llvm_features({"kind": "llvm", "mtriple": mtriple, "mcpu": part.mcpu})
            assert stated == features & WATCHED[mtriple], part.name


# The kernel's words for each watched feature.
FLAGS = {
    "fullfp16": {"fphp", "asimdhp"},
    "fp16fml": {"asimdfhm"},
    "rdm": {"asimdrdm"},
    "dotprod": {"asimddp"},
    "complxnum": {"fcma"},
    "sha3": {"sha3"},
    "i8mm": {"i8mm"},
    "bf16": {"bf16"},
    "sve": {"sve"},
    "sve2": {"sve", "sve2"},
    "sme": {"sme"},
    "cssc": {"cssc"},
    "mops": {"mops"},
    "neon": {"neon"},
    "vfp4": {"vfpv4"},
    "hwdiv-arm": {"idiva"},
    "hwdiv": {"idivt"},
}
STATED = [
    (),
    ("asimd", "fphp", "asimdhp"),
    ("asimd", "fphp", "asimdhp", "asimddp", "asimdrdm", "i8mm", "bf16"),
    ("asimd", "fphp", "asimdhp", "asimddp", "asimdrdm", "asimdfhm", "fcma", "i8mm", "bf16", "sve", "sve2"),
]


@pytest.mark.parametrize("features", STATED, ids=["nothing", "fp16", "no-sve", "armv9"])
def test_no_core_gets_an_instruction_that_was_not_stated(features):
    for part in arm_parts().values():
        target = targets_of("arm64-v8a", CpuFacts(features=features, cores=8, lead=part), "", virtual=False)["cpu"]
        used = llvm_features(target) & WATCHED[AARCH64]
        unstated = {name for name in used if not FLAGS[name] <= set(features)}
        assert unstated == set(), (part.name, target)
        assert "neon" in llvm_features(target)


@pytest.mark.parametrize("features", [(), ("neon", "vfpv3"), ("neon", "vfpv4", "idiva", "idivt"), ("asimd",)])
def test_no_32_bit_core_gets_an_instruction_that_was_not_stated(features):
    promised = {*features, *(("neon", "vfpv4", "idiva", "idivt") if "asimd" in features else ())}
    for part in arm_parts().values():
        target = targets_of("armeabi-v7a", CpuFacts(features=features, cores=4, lead=part), "", virtual=False)["cpu"]
        used = llvm_features(target) & WATCHED[ARM]
        assert {name for name in used if not FLAGS[name] <= promised} == set(), (part.name, target)


def test_stated_features_are_used_without_a_known_core():
    features = ("asimd", "fphp", "asimdhp", "asimddp", "i8mm", "sve")
    for lead in (None, ArmPart("new", "", None, None)):
        target = targets_of("arm64-v8a", CpuFacts(features=features, lead=lead), "", virtual=False)["cpu"]
        assert "mcpu" not in target
        assert llvm_features(target) >= {"neon", "fullfp16", "dotprod", "i8mm", "sve"}


ABIS = ("arm64-v8a", "armeabi-v7a", "x86_64", "x86")
FAMILIES = ("adreno", "mali", "xclipse", "powervr", "maleoon", "")


@pytest.mark.parametrize(("abi", "family"), list(itertools.product(ABIS, FAMILIES)))
def test_tvm_accepts_every_target(abi, family):
    targets = targets_of(abi, CpuFacts(features=("asimd",), cores=8), family, virtual=False)
    adreno = {"adreno", "adreno-texture", "adreno-clml", "opencl", "vulkan"}
    gpus = {"adreno": adreno, "maleoon": set(), "": set()}.get(family, {"opencl", "vulkan"})
    assert set(targets) == {"cpu"} | gpus
    for name, target in targets.items():
        built = tvm_target.Target(dict(target))
        assert str(built.kind.name) == {"cpu": "llvm", "vulkan": "vulkan"}.get(name, "opencl")
        host = built if name == "cpu" else built.host
        assert "android" in str(host.attrs["mtriple"])
        assert int(host.attrs["num-cores"]) == 8
        if name.startswith("adreno"):
            assert "adreno" in [str(key) for key in built.keys]


@pytest.mark.parametrize("abi", ["x86_64", "arm64-v8a"])
def test_a_virtual_phone_gets_the_baseline_of_its_architecture(abi):
    (target,) = targets_of(abi, CpuFacts(features=("sve",), cores=8), "adreno", virtual=True).values()
    features = llvm_features(target)
    assert not features & {"avx", "avx2", "sse4.2", "sve", "dotprod", "fullfp16"}
    assert str(tvm_target.Target(dict(target)).attrs["mtriple"]).endswith("-linux-gnu")


@pytest.mark.parametrize(
    ("family", "names"), [("adreno", {"adreno", "adreno-texture", "opencl"}), ("mali", {"opencl"}), ("", set())]
)
def test_a_virtual_phone_with_a_driver_has_its_gpus_targets_by_opencl(family, names):
    targets = targets_of("x86_64", CpuFacts(), family, virtual=True, virtual_gpu=True)
    assert targets.keys() == {"cpu"} | names
    assert all(target["host"] == targets["cpu"] for name, target in targets.items() if name != "cpu")


@pytest.mark.parametrize("abi", ["", "sparc", "mips", "armeabi", "riscv64"])
def test_an_abi_without_a_target_gets_none(abi):
    assert targets_of(abi, CpuFacts(), "adreno", virtual=False) == {}
    assert targets_of(abi, CpuFacts(), "adreno", virtual=True) == {}


@pytest.mark.parametrize("path", every("cpuinfo"), ids=lambda path: path.stem)
def test_targets_of_genuine_cores_are_accepted(path):
    stem = str(getattr(path, "stem", ""))
    for phone in ("galaxynote20-kona-a13", "redmi8a-msm8937-a10-32bit"):
        identity = identify(RawIdentity.parse(answer(phone, cpuinfo=stem)))
        for target in identity.targets.values():
            assert isinstance(target, dict)
            assert tvm_target.Target(dict(target)).kind is not None


def test_exynos_9810_is_not_believed():
    """Its kernel states ARMv8.2 for all cores, its M3 cores are ARMv8.0 (golang/go issue 28431)."""
    identity = identify(RawIdentity.parse(answer("galaxys9-sdm845-a10", cpuinfo="galaxy-s9-global")))
    assert "atomics" in identity.cpu_features
    target = identity.targets["cpu"]
    assert isinstance(target, dict)
    assert target["mcpu"] == "exynos-m3"
    assert not {"atomics", "fphp", "asimdhp"} - set(identity.cpu_features)
    assert not llvm_features(target) & {"lse", "fullfp16", "dotprod"}


def test_the_weakest_design_decides():
    parts = arm_parts()
    a53, a76, unknown = parts[0x41, 0xD03], parts[0x41, 0xD0B], ArmPart("new", "", None, None)
    features = ("asimd", "fphp", "asimdhp", "asimddp")

    def mattr(*seen):
        facts = CpuFacts(features=features, lead=a76, parts=seen)
        return targets_of("arm64-v8a", facts, "", virtual=False)["cpu"]["mattr"]

    assert mattr(a76) == ["+neon", "+fullfp16", "+dotprod", "-rdm"]
    assert mattr(a76, unknown) == mattr(a76)
    assert mattr(a76, a53) == ["+neon", "-fullfp16", "-dotprod", "-rdm"]


PHONE = {
    "cpu": {"kind": "llvm", "mtriple": "aarch64-linux-android", "mcpu": "cortex-a76", "num-cores": 8},
    "opencl": {"kind": "opencl", "host": {"kind": "llvm", "mtriple": "aarch64-linux-android"}},
}


@pytest.mark.parametrize("name", NAMES)
def test_tvm_takes_every_name(name):
    target = named_target(name)
    built = tvm_target.Target(dict(target))
    assert str(built.kind.name) == "llvm"
    if name in BOARDS:
        assert int(built.attrs["num-cores"]) == BOARDS[name].cores
        assert str(built.attrs["mcpu"]).startswith("cortex-a")
        assert str(built.attrs["mtriple"]).endswith("gnueabihf" if BOARDS[name].bits == 32 else "-linux-gnu")


def test_old_raspberries_get_no_instruction_of_newer_ones():
    assert named_target("rpi4")["mattr"] == ["+neon"]
    assert named_target("rpi5")["mattr"] == ["+neon", "+fullfp16", "+dotprod"]


def test_a_name_that_is_none_is_told_with_the_nearest():
    with raises_code(Code.NO_SUCH_TARGET, match="no target 'rpi44' without a phone") as caught:
        named_target("rpi44")
    assert "did you mean 'rpi4'?" in caught.value.hint
    with raises_code(Code.NO_SUCH_TARGET, match="empty"):
        named_target("")
    with raises_code(Code.NO_SUCH_TARGET, match="p has no target 'rpi4'") as caught:
        target_on("rpi4", PHONE, "p")
    assert caught.value.hint == "its targets: cpu, opencl"


@pytest.mark.parametrize(
    ("asked", "own", "hint"),
    [
        ("adreno", {"cpu": {}}, "its targets: cpu; it has no GPU that is known, as virtual phones have none"),
        ("vulcan", PHONE, "did you mean 'vulkan'? its targets: cpu, opencl"),
        ("vulkan", PHONE, "its targets: cpu, opencl"),
        ("vulcan", {"cpu": {}}, "did you mean 'vulkan'? its targets: cpu; it has no GPU that is known, as virtual "),
        ("qcom/adreno-opencl", {"cpu": {}}, "its targets: cpu; it has no GPU that is known"),
        ("opencl -device=adreno", {"cpu": {}}, "its targets: cpu; it has no GPU that is known"),
        ('{"kind": "vulkan"}', {"cpu": {}}, "its targets: cpu; it has no GPU that is known"),
        ("opencl,clml", PHONE, "did you mean 'adreno-clml'? its targets: cpu, opencl"),
    ],
)
def test_a_gpus_target_on_a_phone_without_it(asked, own, hint):
    with raises_code(Code.NO_SUCH_TARGET, match=re.escape(f"p has no target {asked!r}")) as caught:
        target_on(asked, own, "p")
    assert caught.value.hint.startswith(hint)


def test_a_tag_or_dict_of_a_gpu_gets_the_phones_cpu_as_its_host():
    assert target_on("opencl", PHONE, "p") is PHONE["opencl"]
    assert target_on("qcom/adreno-opencl", PHONE, "p") == {"tag": "qcom/adreno-opencl", "host": PHONE["cpu"]}
    wanted = {"kind": "opencl", "max_num_threads": 128}
    assert target_on(json.dumps(wanted), PHONE, "p") == wanted | {"host": PHONE["cpu"]}


def test_a_dict_of_a_cpu_is_completed_and_must_be_for_the_phones_architecture():
    found = target_on('{"kind": "llvm", "mcpu": "cortex-a55"}', PHONE, "p")
    assert found == {"kind": "llvm", "mcpu": "cortex-a55", "mtriple": "aarch64-linux-android", "num-cores": 8}
    for triple in ("armv7a-linux-androideabi", "x86_64-linux-gnu", "aarch64-linux-gnu"):
        with pytest.raises(ForeignTargetError, match=f"is for {triple}, and p is aarch64-linux-android"):
            target_on(json.dumps({"kind": "llvm", "mtriple": triple}), PHONE, "p")


@given(st.text() | st.dictionaries(st.text(), st.text()).map(json.dumps) | st.text().map("{{{}".format))
def test_any_text_is_a_target_or_refused_in_words(text):
    for find in (named_target, lambda text: target_on(text, PHONE, "p")):
        try:
            found = find(text)
        except UserError as error:
            found = {"said": error.message}
        assert isinstance(found, dict)
        assert found.get("said", "words")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llvm -mcpu=cortex-a55 -mattr=+neon,-sve", {"mcpu": "cortex-a55", "mattr": ["+neon", "-sve"]}),
        ("llvm --num-cores=4 -device=arm_cpu -model=pixel2", {"num-cores": 4, "mcpu": None}),
        ("pixel2", {"mattr": ["+neon"], "mcpu": None}),
    ],
)
def test_strings_of_tvmc_and_names_of_tutorials_are_for_the_phone(text, expected):
    built = tvm_target.Target(dict(target_on(text, PHONE, "pixel")))
    attributes = {name: built.attrs.get(name) for name in expected}
    assert {name: list(value) if name == "mattr" else value for name, value in attributes.items()} == expected
    assert built.attrs["mtriple"] == "aarch64-linux-android"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("llvm", PHONE["cpu"]),
        ("llvm -target=aarch64-linux-android", {"kind": "llvm", "mtriple": "aarch64-linux-android", "num-cores": 8}),
        ("opencl,llvm -mtriple=aarch64-linux-android", {
            "kind": "opencl", "host": {"kind": "llvm", "mtriple": "aarch64-linux-android"}
        }),
        ("opencl -device=adreno, llvm", {"tag": "qcom/adreno-opencl", "host": PHONE["cpu"]}),
    ],
)  # fmt: skip
def test_targets_as_tvmc_has_them_are_completed_by_the_phone(text, meant):
    assert target_on(text, PHONE, "p") == meant


@pytest.mark.parametrize(
    "text", ["opencl -device=adreno -mtriple=aarch64-linux-android", "vulkan -mtriple=aarch64-linux-android"]
)
def test_the_mtriple_of_a_gpu_is_its_hosts(text):
    assert named_target(text)["host"] == {"kind": "llvm", "mtriple": "aarch64-linux-android"}


@pytest.mark.parametrize("name", ["opencl", "adreno"])
def test_the_hint_for_a_gpu_without_a_phone_is_a_target(name):
    with raises_code(Code.NO_SUCH_TARGET) as caught:
        named_target(name)
    assert "host" in named_target(caught.value.hint.split("'")[1])


@pytest.mark.parametrize("name", ["cpu", "opencl"])
def test_a_shown_target_can_be_typed(name):
    assert target_on(target_typed(PHONE[name]), PHONE, "p") == PHONE[name]


def test_opencl_for_adreno_is_the_tag_with_the_phones_cpu():
    assert target_on("opencl -device=adreno", PHONE, "pixel") == {"tag": "qcom/adreno-opencl", "host": PHONE["cpu"]}
    with pytest.raises(ForeignTargetError, match="armv7l-linux-gnueabihf"):
        target_on("rasp3b", PHONE, "pixel")
    with raises_code(Code.NO_SUCH_TARGET, match="an option without a value: -mcpu"):
        named_target("llvm -mcpu")
