"""Identities of genuine phones, exactly; and no exception on anything."""

import asyncio
import os
import shutil
import subprocess
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.connection import ServerAddress
from farm.common.errors import Code
from farm.common.phone_text import SECTION, decode, parse_getprop
from farm.devices.health.probe.parse import probe_command
from farm.devices.health.probe_round import MOMENT_SECTIONS
from farm.devices.identity.identity import READ_COMMAND, RawIdentity, clock_policy, identify, read_identity
from farm.devices.identity.soc import SocEvidence, identify_soc, read_gpu
from farm.model.identity import Confidence, CpuCluster, DeviceIdentity
from tests.support.errors import raises_code
from tests.support.needs import needs
from tests.support.waiting import HANG_S
from tests.unit.devices.captures import PHONES, answer, capture, every

CERTAIN, LIKELY, GUESS, UNKNOWN = Confidence

# getprop capture: model, market name, release, SDK, ABI, SoC (model, name, confidence, source), GPU (family, model,
# confidence), names of targets. Only what the phone itself prints was used: no cpuinfo, no sysfs.
ADRENO = ("cpu", "adreno", "adreno-texture", "adreno-clml", "opencl", "vulkan")
OTHER_GPU = ("cpu", "opencl", "vulkan")
GOLDEN = {
    "asus-tf201-android4": ("TF201", "", "3.2.1", 13, "armeabi-v7a", "", "", UNKNOWN, "", "", "", UNKNOWN, ("cpu",)),
    "galaxya55-s5e8845-exynos-a15": (
        *("SM-A5560", "", "15", 35, "arm64-v8a", "S5E8845", "Exynos 1480", CERTAIN, "ro.soc.model"),
        *("xclipse", "Xclipse 530", LIKELY, OTHER_GPU),
    ),
    "galaxynote20-kona-a13": (  # states SM8250, which three speed grades share; this one is an 865+
        *("SM-N9810", "", "13", 33, "arm64-v8a", "SM8250", "Snapdragon 865 / Snapdragon 865+ / Snapdragon 870"),
        *(CERTAIN, "ro.soc.model", "adreno", "Adreno 650", LIKELY, ADRENO),
    ),
    "galaxys8-msm8998-a9-crlf": (
        *("SM-G9500", "", "9", 28, "arm64-v8a", "MSM8998", "Snapdragon 835", CERTAIN, "ro.hardware.chipname"),
        *("adreno", "Adreno 540", LIKELY, ADRENO),
    ),
    "galaxyzfold7-sun-a16": (
        *("SM-F9660", "", "16", 36, "arm64-v8a", "SM8750", "Snapdragon 8 Elite", CERTAIN, "ro.soc.model"),
        *("adreno", "Adreno 830", LIKELY, ADRENO),
    ),
    "huaweimate20-kirin980-a9": (
        *("HMA-AL00", "HUAWEI Mate 20", "9", 28, "arm64-v8a", "Kirin 980", "Kirin 980", LIKELY, "ro.hardware"),
        *("mali", "Mali-G76", LIKELY, OTHER_GPU),
    ),
    "huaweimate70proplus-harmonynext6": (  # ro.soc.model is "kirin"
        *("PLA-AL10", "HUAWEI Mate 70 Pro+", "12", 31, "arm64-v8a", "Kirin 9020", "Kirin 9020", LIKELY, "ro.hardware"),
        *("maleoon", "Maleoon 920", LIKELY, ("cpu",)),
    ),
    "huaweimatepad108-kirin990-harmony42": (
        *("SCMR-W09", "HUAWEI MatePad 10.8", "12", 31, "arm64-v8a", "Kirin 990", "Kirin 990", CERTAIN),
        *("ro.config.cpu_info_display", "mali", "Mali-G76", LIKELY, OTHER_GPU),
    ),
    "huaweinova2-hi6250-a8": (
        *("PIC-AL00", "HUAWEI nova 2", "8.0.0", 26, "arm64-v8a", "Kirin 659", "Kirin 659", CERTAIN),
        *("ro.hardware.alter", "mali", "Mali-T830", LIKELY, OTHER_GPU),
    ),
    "iqooneo8-taro-sm8475-a13-noserial": (
        *("V2301A", "iQOO Neo8", "13", 33, "arm64-v8a", "SM8475", "Snapdragon 8+ Gen1", CERTAIN, "ro.soc.model"),
        *("adreno", "Adreno 730", LIKELY, ADRENO),
    ),
    "lg-v60-timelm": (
        *("LM-V600", "", "11", 30, "arm64-v8a", "SM8250", "Snapdragon 865 / Snapdragon 865+ / Snapdragon 870"),
        *(LIKELY, "ro.board.platform", "adreno", "Adreno 650", LIKELY, ADRENO),
    ),
    "motog84-holi-lineage23": (
        *("moto g84 5G", "", "16", 36, "arm64-v8a", "", "", GUESS, "ro.board.platform"),
        *("adreno", "Adreno 619", GUESS, ADRENO),
    ),
    "oneplus12-pineapple-a15": (
        *("PJD110", "一加 12", "15", 35, "arm64-v8a", "SM8650", "Snapdragon 8 Gen3", CERTAIN, "ro.soc.model"),
        *("adreno", "Adreno 750", LIKELY, ADRENO),
    ),
    "oneplus9pro-lahaina-a11": (  # lahaina names two chips; the boot loader names the part
        *("LE2120", "OnePlus 9 Pro", "11", 30, "arm64-v8a", "SM8350"),
        *("Snapdragon 888 / Snapdragon G3x Gen 1 / Snapdragon 888+", LIKELY, "ro.boot.platform_name"),
        *("adreno", "Adreno 660", LIKELY, ADRENO),
    ),
    "oneplusace5pro-sun-a15-mangled-columns": (  # ro.soc.manufacturer shares a line with another property
        *("PKR110", "一加 Ace 5 Pro", "15", 35, "arm64-v8a", "SM8750", "Snapdragon 8 Elite", CERTAIN, "ro.soc.model"),
        *("adreno", "Adreno 830", LIKELY, ADRENO),
    ),
    "oppoa72-mt6853-a12": (  # states MT6853V/TNZA
        *(
            "PDYM20",
            "OPPO A72 5G",
            "12",
            31,
            "arm64-v8a",
            "MT6853",
            "Dimensity 720 / Dimensity 800U",
            CERTAIN,
            "ro.soc.model",
        ),
        *("mali", "Mali-G57", LIKELY, OTHER_GPU),
    ),
    "oppofindx3pro-lahaina-a14-crlf": (
        *("PEEM00", "OPPO Find X3 Pro", "14", 34, "arm64-v8a", "SM8350"),
        *("Snapdragon 888 / Snapdragon G3x Gen 1 / Snapdragon 888+", CERTAIN, "ro.soc.model"),
        *("adreno", "Adreno 660", LIKELY, ADRENO),
    ),
    "opporeno7se-mt6877-a13": (  # ro.mediatek.platform says MT6833
        *(
            "PFCM00",
            "OPPO Reno7 SE 5G",
            "13",
            33,
            "arm64-v8a",
            "MT6877",
            "Dimensity 900 / Dimensity 920 / Dimensity 1080",
            CERTAIN,
        ),
        *("ro.soc.model", "mali", "Mali-G68", LIKELY, OTHER_GPU),
    ),
    "poco-f6-peridot": (
        *("24069PC21I", "POCO F6", "15", 35, "arm64-v8a", "SM8635", "Snapdragon 8s Gen3", CERTAIN, "ro.soc.model"),
        *("adreno", "Adreno 735", LIKELY, ADRENO),
    ),
    "realmegtneo3-mt6895-a12": (
        *("RMX3560", "真我GT NEO 3", "12", 31, "arm64-v8a", "MT6895", "Dimensity 8100", CERTAIN, "ro.soc.model"),
        *("mali", "Mali-G610", LIKELY, OTHER_GPU),
    ),
    "realmeq3pro-mt6891-a13": (  # ro.board.platform says mt6893
        *("RMX2205", "真我Q3 Pro 5G", "13", 33, "arm64-v8a", "MT6891", "Dimensity 1100", CERTAIN, "ro.soc.model"),
        *("mali", "Mali-G77", LIKELY, OTHER_GPU),
    ),
    "redmi-note11s-fleur": (
        *("miel", "", "12", 32, "arm64-v8a", "MT6781", "Helio G96", LIKELY, "ro.board.platform"),
        *("mali", "Mali-G57", LIKELY, OTHER_GPU),
    ),
    "redmi8a-msm8937-a10-32bit": (
        *("Redmi 8A", "", "10", 29, "armeabi-v7a", "", "", GUESS, "ro.board.platform"),
        *("adreno", "", GUESS, ADRENO),
    ),
    "vivos20-crow-sm7550-a15": (
        *("V2429A", "vivo S20", "15", 35, "arm64-v8a", "SM7550", "Snapdragon 7 Gen 3", CERTAIN, "ro.soc.model"),
        *("adreno", "Adreno 720", LIKELY, ADRENO),
    ),
    "xiaomi17promax-canoe-a16": (
        *("2509FPN0BC", "Xiaomi 17 Pro Max", "16", 36, "arm64-v8a", "SM8850", "Snapdragon 8 Elite Gen 5", CERTAIN),
        *("ro.soc.model", "adreno", "Adreno 840", LIKELY, ADRENO),
    ),
}


def summary(identity):
    soc, gpu = identity.soc, identity.gpu
    return (
        *(identity.model, identity.market_name, identity.android_release, identity.sdk, identity.abi),
        *(soc.model, soc.name, soc.confidence, soc.source, gpu.family, gpu.model, gpu.confidence),
        tuple(identity.targets),
    )


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_identity_from_properties_alone(name):
    assert summary(identify(RawIdentity.parse(answer(name)))) == GOLDEN[name]


@pytest.mark.parametrize(
    ("properties", "model", "name", "gpu"),
    [
        (
            {"ro.arch": "exynos7420", "ro.board.platform": "exynos5", "ro.hardware": "m86"},
            "Exynos 7420",
            "Exynos 7420",
            "Mali-T760",
        ),
        ({"ro.meizu.hardware.soc": "EXYNOS7420"}, "Exynos 7420", "Exynos 7420", "Mali-T760"),
        ({"ro.meizu.hardware.soc": "SDM855", "ro.board.platform": "msmnile"}, "SM8150", "Snapdragon 855", "Adreno 640"),
        (
            {"ro.hardware": "samsungexynos8895", "ro.board.platform": "exynos5"},
            "Exynos 8895",
            "Exynos 8895",
            "Mali-G71",
        ),
        ({"ro.hardware": "kirin810", "ro.board.platform": "orlando"}, "Kirin 810", "Kirin 810", "Mali-G52"),
        ({"ro.hardware": "Kirin9000SL", "ro.soc.model": "kirin"}, "Kirin 9000SL", "Kirin 9000SL", "Maleoon 910"),
        ({"ro.board.platform": "kirin990"}, "Kirin 990", "Kirin 990", "Mali-G76"),
        ({"ro.board.platform": "mt6797"}, "MT6797", "Helio X20", "Mali-T880"),
        ({"ro.soc.model": "MT6769H"}, "MT6769H", "Helio G88", "Mali-G52"),
        ({"ro.soc.model": "SM8845"}, "SM8845", "Snapdragon 8 Gen 5", "Adreno 829"),
        ({"ro.soc.model": "Tensor", "ro.board.platform": "gs101"}, "Tensor", "Tensor GS101", "Mali-G78"),
    ],
)
def test_parts_that_few_properties_name(properties, model, name, gpu):
    soc, rows = identify_soc(properties, {}, "", SocEvidence())
    assert (soc.model, soc.name.split(" / ")[0]) == (model, name)
    found = read_gpu({}, properties, rows, soc.confidence)
    assert (found.model, found.confidence) == (gpu, LIKELY)


def test_ambiguous_platform_lists_its_candidates():
    identity = identify(RawIdentity.parse(answer("motog84-holi-lineage23")))
    assert identity.soc.candidates == ("SM4350", "SM4375")
    assert identity.soc.vendor == "Qualcomm"


@pytest.mark.parametrize(
    ("extra", "model", "name", "confidence"),
    [
        (b"/sys/class/kgsl/kgsl-3d0/gpu_model=Adreno660v2", "SM8350", "Snapdragon 888", LIKELY),
        (b"/sys/class/kgsl/kgsl-3d0/gpu_model=Adreno642Lv1", "SM7325", "Snapdragon 778G 5G", LIKELY),
        (b"/sys/devices/soc0/soc_id=475", "SM7325", "Snapdragon 778G 5G", LIKELY),
        (b"/sys/devices/soc0/machine=SM8350", "SM8350", "Snapdragon 888", CERTAIN),
    ],
)
def test_the_phone_itself_resolves_an_ambiguous_platform(extra, model, name, confidence):
    identity = identify(RawIdentity.parse(answer("oneplus9pro-lahaina-a11", extra=extra)))
    assert (identity.soc.model, identity.soc.confidence) == (model, confidence)
    assert identity.soc.name.startswith(name)


def test_the_clock_tells_speed_grades_apart():
    fast = b"/sys/devices/system/cpu/cpu7/cpufreq/cpuinfo_max_freq=3091200"
    identity = identify(RawIdentity.parse(answer("galaxynote20-kona-a13", extra=fast)))
    assert (identity.soc.model, identity.soc.name) == ("SM8250", "Snapdragon 865+")


def test_galaxy_s9_from_everything_it_tells():
    identity = identify(
        RawIdentity.parse(
            answer(
                "galaxys9-sdm845-a10",
                cpuinfo="galaxy-s9-us",
                files=("kgsl/galaxy-s9-us", "cpufreq/galaxy-s9-us"),
            )
        )
    )
    assert identity.vendor == "samsung"
    assert identity.hardware_serial == "XXXXXXXXXXXXXXXX"
    assert identity.fingerprint == "samsung/starqltezc/starqltechn:10/QP1A.190711.020/G9600ZCS9FVA4:user/release-keys"
    assert identity.abis == ("arm64-v8a", "armeabi-v7a", "armeabi")
    assert (identity.gpu.model, identity.gpu.confidence) == ("Adreno 630", CERTAIN)
    assert identity.gpu.source == "/sys/class/kgsl/kgsl-3d0/gpu_model"
    assert identity.cpu == (
        CpuCluster(4, "Kryo 3xx Silver", "cortex-a55", 1766400),
        CpuCluster(4, "Kryo 3xx Gold", "cortex-a75", 2803200),
    )
    # Its kernel states no dot product, which LLVM takes for granted on a Cortex-A75.
    host = {
        "kind": "llvm",
        "mtriple": "aarch64-linux-android",
        "mcpu": "cortex-a75",
        "mattr": ["+neon", "+fullfp16", "-dotprod", "-rdm"],
        "num-cores": 8,
    }
    assert identity.targets == {
        "cpu": host,
        "adreno": {"tag": "qcom/adreno-opencl", "host": host},
        "adreno-texture": {"tag": "qcom/adreno-opencl-texture", "host": host},
        "adreno-clml": {"tag": "qcom/adreno-opencl-clml", "host": host},
        "opencl": {"kind": "opencl", "host": host},
        "vulkan": {"kind": "vulkan", "host": host},
    }
    assert identity.raw["ro.hardware.chipname"] == "SDM845"
    assert identity.raw["/sys/class/kgsl/kgsl-3d0/gpu_model"] == "Adreno630v2"


def test_mate_20_has_three_clusters_and_its_gpu_from_opengl():
    gles = b"GLES: ARM, Mali-G76, OpenGL ES 3.2 v1.r16p0-01rel0.5f3ad1a1e8d4d7a7a3c0f4a1c8e7a1d0"
    identity = identify(
        RawIdentity.parse(
            answer("huaweimate20-kirin980-a9", cpuinfo="huawei-mate-20", files=("cpufreq/huawei-mate-20",), gles=gles)
        )
    )
    assert identity.cpu == (
        CpuCluster(4, "Cortex-A55", "cortex-a55", 1805000),
        CpuCluster(2, "Cortex-A76", "cortex-a76", 1901000),
        CpuCluster(2, "Cortex-A76", "cortex-a76", 2600000),
    )
    assert (identity.gpu.model, identity.gpu.confidence, identity.gpu.source) == ("Mali-G76", CERTAIN, "SurfaceFlinger")
    assert identity.targets["cpu"] == {
        "kind": "llvm",
        "mtriple": "aarch64-linux-android",
        "mcpu": "cortex-a76",
        "mattr": ["+neon", "+fullfp16", "-dotprod", "-rdm"],
        "num-cores": 8,
    }


def test_a_32_bit_phone_gets_a_32_bit_target():
    identity = identify(RawIdentity.parse(answer("smartisan-msm8916-a5", cpuinfo="moto-g-gen4")))
    assert identity.abis == ("armeabi-v7a", "armeabi")
    assert identity.targets["cpu"] == {
        "kind": "llvm",
        "mtriple": "armv7a-linux-androideabi",
        "mcpu": "cortex-a53",
        "mattr": ["+neon", "+vfp4", "+hwdiv-arm", "+hwdiv"],
        "num-cores": 8,
    }


def test_a_virtual_phone_is_what_runs_there():
    output = answer("galaxys9-sdm845-a10", cpuinfo="galaxy-s9-us", files=("kgsl/galaxy-s9-us",))
    identity = identify(RawIdentity.parse(output + b"\n[farm.virtual.abi]: [x86_64]\n"))
    assert (identity.virtual, identity.abi, identity.abis[0]) == (True, "x86_64", "arm64-v8a")
    assert identity.gpu.model == "Adreno 630", "it still answers to its profile's name"
    assert identity.targets == {
        "cpu": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64", "num-cores": 8}
    }


@pytest.mark.parametrize(
    ("name", "model", "vendor", "family"),
    [
        ("meizu-m2note-mt6753", "MT6753", "MediaTek", ""),  # ro.hardware has the family's first, MT6735
        ("realme-note50-ums9230", "T612", "Unisoc", ""),
        ("teclast-p20hd-sp9863a", "SP9863A", "Unisoc", "powervr"),
        ("konka551-hi3751-a5", "Hi3751", "HiSilicon", ""),
    ],
)
def test_parts_of_rarer_vendors(name, model, vendor, family):
    properties = parse_getprop(decode(capture(f"getprop_excerpts/{name}")))
    soc, rows = identify_soc(properties, {}, "", SocEvidence())
    assert (soc.model, soc.vendor) == (model, vendor)
    assert read_gpu({}, properties, rows, soc.confidence).family == family


@pytest.mark.parametrize("path", every("getprop"), ids=lambda path: path.stem)
def test_every_phone_is_identified(path):
    identity = identify(RawIdentity.parse(answer(path.stem)))
    assert identity.vendor
    assert identity.model
    assert identity.sdk >= 13
    assert identity.fingerprint.count("/") >= 4
    assert identity.abi in {"arm64-v8a", "armeabi-v7a"}
    assert "cpu" in identity.targets


@pytest.mark.parametrize(
    "mangle",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r\r\n").encode(),
        lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
    ],
    ids=["crlf", "crcrlf", "utf-16", "utf-8-bom"],
)
def test_line_ends_and_encodings_change_nothing(mangle):
    assert callable(mangle)
    plain = answer("poco-f6-peridot", cpuinfo="oneplus-5t", files=("cpufreq/oneplus-5t",))
    assert identify(RawIdentity.parse(mangle(decode(plain)))) == identify(RawIdentity.parse(plain))


def test_a_property_cannot_forge_a_section():
    forged = answer("poco-f6-peridot") + f"\n[a]: [x\n{SECTION}files\n/sys/devices/soc0/machine=SM1234]\n".encode()
    raw = RawIdentity.parse(forged)
    assert raw.files == {}
    assert raw.properties["a"].startswith("x\n")


@dataclass(frozen=True)
class Printed:
    stdout: bytes


class FakeClient:
    def __init__(self, output):
        self.output = output
        self.address = ServerAddress.parse("tcp:5038")
        self.commands = []

    async def shell(self, serial, command, *, timeout_s, most_bytes):
        self.commands.append((serial, command))
        assert most_bytes <= 1 << 20
        return Printed(self.output)


async def test_reading_takes_one_round_trip():
    client = FakeClient(answer("poco-f6-peridot"))
    raw = await read_identity(client, "S1")
    assert client.commands == [("S1", READ_COMMAND)]
    assert raw.properties["ro.soc.model"] == "SM8635"


async def test_an_answer_without_properties_is_a_phone_error_with_evidence():
    with raises_code(Code.NO_IDENTITY) as caught:
        await read_identity(FakeClient(b"/system/bin/sh: getprop: not found\n"), "S1")
    assert "S1" in caught.value.message
    assert "`adb -P 5038 -s S1 shell getprop`" in caught.value.hint
    assert "not found" in caught.value.evidence


SHELLS = [shell for shell in ("mksh", "sh", "bash") if shutil.which(shell)]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_runs_in_a_posix_shell_and_writes_nothing(shell, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    programs = {"getprop": f"cat {PHONES}/getprop/poco-f6-peridot.txt", "dumpsys": "echo ' GLES: ARM, Mali-G78, x'"}
    for name, body in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    empty = tmp_path / "cwd"
    empty.mkdir()
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        [shell, "-c", READ_COMMAND], env=environment, cwd=empty, capture_output=True, timeout=HANG_S, check=True
    )
    assert done.stderr == b""
    assert list(empty.iterdir()) == []
    raw = RawIdentity.parse(done.stdout)
    assert raw.properties == parse_getprop(decode(capture("getprop/poco-f6-peridot")))
    assert "processor" in raw.cpuinfo
    assert raw.gles == "GLES: ARM, Mali-G78, x"
    assert raw.files["/sys/devices/system/cpu/present"].startswith("0")


COMMANDS = {"identity": READ_COMMAND, "probe": probe_command(), "moment": probe_command(MOMENT_SECTIONS)}
# Below 4096 bytes, the smallest payload limit of the adb transport, with room for the service's name.
LONGEST_COMMAND_BYTES = 4000


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_fit_the_oldest_adbd(name):
    assert len(COMMANDS[name].encode()) < LONGEST_COMMAND_BYTES


@needs("shellcheck")
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_clean_posix_sh(name):
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-"], input=COMMANDS[name].encode(), capture_output=True, timeout=HANG_S, check=False
    )
    assert done.stdout.decode() == ""


lines = st.sampled_from(
    [
        b"==farm:files\n",
        b"==farm:cpuinfo\n",
        b"==farm:gles\n",
        b"==farm:getprop\n",
        b"/sys/devices/system/cpu/present=0-99999999\n",
        b"/sys/devices/system/cpu/cpu1/cpufreq/related_cpus=9-1,x\n",
        b"/sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq=\xd9\xa1\n",
        b"processor : 99999999999\n",
        b"CPU part : 0xzz\n",
        b"CPU implementer : 0x41\n",
        b"[ro.build.version.sdk]: [\xd9\xa3]\n",
        b"[farm.virtual.abi]: [sparc]\n",
        b"[ro.product.cpu.abilist]: [,,]\n",
    ]
)


@given(st.lists(lines | st.binary(max_size=40), max_size=20).map(b"".join))
def test_anything_gives_an_identity(output):
    identity = identify(RawIdentity.parse(output))
    assert isinstance(identity, DeviceIdentity)
    assert sum(cluster.cores for cluster in identity.cpu) <= 64


def test_a_truncated_answer_still_identifies():
    whole = answer("xiaomipad6pro-taro-a14", cpuinfo="huawei-mate-20", files=("kgsl/galaxy-s9-us",))
    for cut in range(0, len(whole), 997):
        assert isinstance(identify(RawIdentity.parse(whole[:cut])), DeviceIdentity)


def test_reading_can_be_cancelled():
    class Hanging:
        async def shell(self, serial, command, *, timeout_s, most_bytes):
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    async def scenario():
        async with asyncio.timeout(0.01):
            await read_identity(Hanging(), "S1")

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())


def test_governors_are_the_clock_policy():
    policy = "/sys/devices/system/cpu/cpufreq/policy"
    files = {f"{policy}0/scaling_governor": "schedutil", f"{policy}4/scaling_governor": "schedutil"}
    assert clock_policy(files) == "schedutil"
    assert clock_policy({**files, "/sys/class/kgsl/kgsl-3d0/devfreq/governor": "msm-adreno-tz"}) == (
        "schedutil, gpu msm-adreno-tz"
    )
    assert clock_policy({**files, f"{policy}7/scaling_governor": "performance"}) == "performance, schedutil"
    assert clock_policy({}) == ""
