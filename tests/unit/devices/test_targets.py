"""Targets are accepted by TVM, and never promise an instruction that the phone did not state."""

import itertools

import pytest

from farm.devices.identity.cpu import ArmPart, CpuFacts, arm_parts
from farm.devices.identity.identity import RawIdentity, identify
from farm.devices.identity.targets import targets_of
from tests.unit.devices.captures import answer, every

tvm_target = pytest.importorskip("tvm.target")

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
