"""Parsers of what phones print: getprop, cpuinfo, GPU names, part names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.phone_text import SECTION, decode, parse_getprop, split_sections
from farm.devices.identity.cpu import MAX_CPUS, parse_cpu_list, read_cpu
from farm.devices.identity.soc import (
    base_part,
    model_of_soc_id,
    parse_gpu,
    part_name,
    rows_of_model,
    rows_of_platform,
    vendor_name,
)
from tests.unit.devices.captures import answer, capture, every, first_lines

# --- getprop


def test_values_may_span_lines_and_properties_may_share_one():
    text = (
        "[a]: [1]\n[b]: [two\nlines\n\nand more]\n[c]: [3]      [d]: []\n[e]: [x [y] z]\nnoise\n[a]: [again]\n[f]: [cut"
    )
    assert parse_getprop(text) == {
        "a": "1",
        "b": "two\nlines\n\nand more",
        "c": "3",
        "d": "",
        "e": "x [y] z]\nnoise",
        "f": "cut",
    }


keys = st.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True)
plain_values = st.text(st.characters(codec="utf-8", exclude_characters="[]\r"), max_size=30).map(str.strip)


@given(st.dictionaries(keys, plain_values, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_what_is_printed_is_read_back(properties, end):
    printed = "".join(f"[{key}]: [{value}]\n" for key, value in properties.items()).replace("\n", end)
    wanted = {key: value.replace("\x85", "\x85") for key, value in properties.items()}
    assert parse_getprop(decode(printed.encode())) == wanted


@given(st.binary())
def test_any_bytes_are_properties(data):
    assert all(isinstance(value, str) for value in parse_getprop(decode(data)).values())


@pytest.mark.parametrize("path", every("getprop"), ids=lambda path: path.stem)
def test_almost_every_line_of_a_dump_is_a_property(path):
    text = decode(path.read_bytes())
    keys_seen = set(re.findall(r"^\[([^\]\s]+)\]: \[", text, re.MULTILINE))
    assert keys_seen <= set(parse_getprop(text))


def test_two_on_a_line_are_both_found():
    properties = parse_getprop(decode(capture("getprop/oneplusace5pro-sun-a15-mangled-columns")))
    assert properties["ro.sf.lcd_density"] == "560"
    assert properties["ro.soc.manufacturer"] == "QTI"
    assert properties["ro.support_one_handed_mode"] == "true"


# --- cpuinfo and cpufreq

A53, A55, A73, A76 = (f"cortex-a{number}" for number in (53, 55, 73, 76))
CPUINFO = {
    "alldocube-iwork8": [(4, "Intel(R) Atom(TM) x5-Z8350 CPU @ 1.44GHz", "")],
    "asus-tf201-tegra3-ics": [(4, "Cortex-A9", "cortex-a9")],
    "galaxy-s8-global": [(4, "Cortex-A53", A53), (4, "Exynos M1/M2", "")],
    "galaxy-s9-global": [(4, "Cortex-A55", A55), (4, "Exynos M3", "exynos-m3")],
    "galaxy-s9-us": [(4, "Kryo 3xx Silver", A55), (4, "Kryo 3xx Gold", "cortex-a75")],
    "goadb-8core-a53": [(8, "Cortex-A53", A53)],
    "huawei-mate-20": [(4, "Cortex-A55", A55), (4, "Cortex-A76", A76)],
    "meizu-pro-6": [(1, "Cortex-A53", A53), (1, "Cortex-A72", "cortex-a72")],
    "moto-g-gen4": [(8, "Cortex-A53", A53)],
    "nexus-s": [(1, "Cortex-A8", "cortex-a8")],
    "oneplus-5t": [(4, "Kryo 2xx Silver", A53), (4, "Kryo 2xx Gold", A73)],
    "oppo-r15": [(4, "Cortex-A53", A53), (4, "Cortex-A73", A73)],
    "oppo-r9": [(2, "Cortex-A53", A53)],
    "pixel-2-xl": [(4, "Kryo 2xx Silver", A53), (4, "Kryo 2xx Gold", A73)],
    "xiaomi-mi-5c": [(6, "Cortex-A53", A53)],
    "xiaomi-redmi-note-3": [(6, "Cortex-A53", A53)],
}


@pytest.mark.parametrize("path", every("cpuinfo"), ids=lambda path: path.stem)
def test_cpuinfo(path):
    facts = read_cpu(decode(path.read_bytes()), {})
    assert [(cluster.cores, cluster.name, cluster.mcpu) for cluster in facts.clusters] == CPUINFO[path.stem]
    assert facts.features


def test_one_part_for_all_names_no_cluster_when_there_are_two_kinds():
    # Two Cortex-A72 and four Cortex-A53; the kernel prints the part of the core that ran `cat`.
    facts = read_cpu(decode(capture("cpuinfo/xiaomi-redmi-note-3")), {}, core_kinds=2)
    assert [(cluster.cores, cluster.name) for cluster in facts.clusters] == [(6, "")]
    assert facts.lead is not None
    assert facts.lead.mcpu == A53
    assert facts.hardware == "Qualcomm Technologies, Inc MSM8956"


def test_sleeping_cores_are_completed_from_sysfs():
    cpu = "/sys/devices/system/cpu/"
    sysfs = {
        f"{cpu}present": "0-9",
        f"{cpu}cpu0/cpufreq/related_cpus": "0 1 2 3",
        f"{cpu}cpu0/cpufreq/cpuinfo_max_freq": "1400000",
        f"{cpu}cpufreq/policy4/related_cpus": "4 5 6 7",
        f"{cpu}cpufreq/policy4/cpuinfo_max_freq": "2000000",
        f"{cpu}cpu8/regs/identification/midr_el1": "0x00000000410fd081",
    }
    facts = read_cpu(decode(capture("cpuinfo/meizu-pro-6")), sysfs)
    assert [(c.cores, c.name, c.max_khz) for c in facts.clusters] == [
        (4, "", 1400000),
        (4, "Cortex-A53", 2000000),
        (1, "Cortex-A72", 0),
        (1, "", 0),
    ]
    assert facts.cores == 10


def test_features_are_what_every_core_has():
    block = "processor : {}\nFeatures : {}\nCPU implementer : 0x41\nCPU part : {}\n\n"
    text = block.format(0, "fp asimd asimddp", "0xd05") + block.format(1, "fp asimd asimddp sve", "0xd44")
    assert read_cpu(text, {}).features == ("fp", "asimd", "asimddp")


def test_an_unknown_part_is_named_by_its_numbers():
    facts = read_cpu("processor : 0\nFeatures : fp asimd\nCPU implementer : 0x51\nCPU part : 0xabc\n", {})
    assert facts.clusters[0].name == "ARM 0x51/0xabc"
    assert facts.lead is None


@pytest.mark.parametrize("path", every("cpufreq"), ids=lambda path: path.stem)
def test_cpufreq_gives_clusters(path):
    facts = read_cpu("", first_lines(path.read_bytes()))
    shapes = {
        "galaxy-s9-us": [(4, 1766400), (4, 2803200)],
        "huawei-mate-20": [(4, 1805000), (2, 1901000), (2, 2600000)],
        "huawei-p20-pro": [(4, 1844000), (4, 2362000)],
        "nexus5x": [(4, 1440000), (2, 0)],
        "oneplus-5t": [(4, 1900800), (4, 2457600)],
        "oppo-r15": [(4, 1989000), (4, 1989000)],
    }
    assert [(c.cores, c.max_khz) for c in facts.clusters] == shapes.get(path.stem, [])


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0-3", (0, 1, 2, 3)),
        ("0 1 2", (0, 1, 2)),
        ("0-1,4", (0, 1, 4)),
        ("", ()),
        ("x", ()),
        ("3-1", ()),
        ("0-999", tuple(range(MAX_CPUS))),
    ],
)
def test_cpu_lists(text, cores):
    assert parse_cpu_list(text) == cores


@given(st.text())
def test_any_cpu_list_is_within_bounds(text):
    assert all(0 <= number < MAX_CPUS for number in parse_cpu_list(text))


cpuinfo_lines = st.sampled_from(
    [
        "processor : 0",
        "processor : 1",
        "processor :",
        "Processor : x",
        "Features : fp asimd",
        "Features :",
        "CPU part : 0xd03",
        "CPU part : -1",
        "CPU implementer : 0x41",
        "CPU implementer : ",
        "Hardware : y",
        "vendor_id : z",
        "model name : w",
        "",
    ]
)


@given(st.lists(cpuinfo_lines | st.text(max_size=20), max_size=30), st.integers(0, 3))
def test_any_cpuinfo_counts_consistently(lines, kinds):
    facts = read_cpu("\n".join(lines), {}, kinds)
    assert sum(cluster.cores for cluster in facts.clusters) == facts.cores


# --- GPU and SoC names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Adreno740v2", ("adreno", "Adreno 740", 0)),
        ("Adreno829", ("adreno", "Adreno 829", 0)),
        ("Adreno642Lv1", ("adreno", "Adreno 642L", 0)),
        ("Adreno (TM) 740", ("adreno", "Adreno 740", 0)),
        ("GLES: Qualcomm, Adreno (TM) 619L, OpenGL ES 3.2 V@0615.50", ("adreno", "Adreno 619L", 0)),
        ("QUALCOMM Adreno(TM)", None),
        ("msm-adreno-tz", None),
        ("ARM Mali-G78 MP20", ("mali", "Mali-G78", 20)),
        ("Mali-G78 20 cores r0p0 0x9000", ("mali", "Mali-G78", 20)),
        ("Mali-G715s MC10", ("mali", "Mali-G715s", 10)),
        ("Mali-400 MP", ("mali", "Mali-400", 0)),
        ("Immortalis-G720 MC12", ("mali", "Immortalis-G720", 12)),
        ("Samsung Xclipse 920", ("xclipse", "Xclipse 920", 0)),
        ("PowerVR Rogue GE8320", ("powervr", "PowerVR Rogue GE8320", 0)),
        ("PowerVR B-Series BXM-8-256", ("powervr", "PowerVR B-Series BXM-8-256", 0)),
        ("Android Emulator OpenGL ES Translator", None),
        ("", None),
    ],
)
def test_gpu_names(text, found):
    assert parse_gpu(text) == found


OPENCL = {
    "adreno640-clinfo-wrapped": "Adreno 640",
    "adreno740-qcs8550-clinfo": None,
    "adreno750-clinfo": "Adreno 750",
    "adreno830-ggml-a": "Adreno 830",
    "mali-g610-clinfo-null-platform": "Mali-G610",
    "mali-g71-clinfo-null-platform": "Mali-G71",
    "mali-r26p0-clinfo": None,
}
KGSL = {
    "galaxy-a90-adreno640": "Adreno 640",
    "galaxy-s8-us": "Adreno 540",
    "galaxy-s9-us": "Adreno 630",
    "oneplus13-adreno830-unprivileged": "Adreno 830",
    "sm8845-adreno829": "Adreno 829",
}


@pytest.mark.parametrize("path", [*every("opencl"), *every("kgsl")], ids=lambda path: path.stem)
def test_gpu_names_in_captures(path):
    found = parse_gpu(decode(path.read_bytes()))
    assert (found[1] if found else None) == (OPENCL if path.parent.name == "opencl" else KGSL).get(path.stem)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Qualcomm Technologies, Inc SDM845", "SDM845"),
        ("SM8350_AC", "SM8350-AC"),
        ("MSM8996 Pro", "MSM8996 Pro"),
        ("sm6150", "SM6150"),
        ("MT6771V/C", "MT6771"),
        ("MT6853V/TNZA", "MT6853"),
        ("MT6991Z/CZB", "MT6991"),
        ("MT6769H", "MT6769H"),
        ("mt6797T", "MT6797T"),
        ("Hisilicon Kirin 659", "Kirin 659"),
        ("kirin9020", "Kirin 9020"),
        ("kirin", ""),
        ("samsungexynos9810", "Exynos 9810"),
        ("universal7870", "Exynos 7870"),
        ("s5e8845", "S5E8845"),
        ("hi6250", "Hi6250"),
        ("qcom", ""),
        ("Snapdragon", ""),
        ("lahaina", ""),
    ],
)
def test_part_names(text, part):
    assert part_name(text) == part


@given(st.text())
def test_part_names_are_fixed_points(text):
    part = part_name(text)
    assert part_name(part) == part
    assert base_part(base_part(part)) == base_part(part)


def test_table_rows():
    assert {row.model for row in rows_of_platform("lahaina")} == {"SM8350", "SM8350-AC", "SM7325", "SM7325-AE"}
    assert {row.model for row in rows_of_model("SM8350")} == {"SM8350", "SM8350-AC"}
    assert [row.name for row in rows_of_model("sm8350-ac")] == ["Snapdragon 888+"]
    assert rows_of_model("") == rows_of_platform("") == rows_of_platform("nothing") == ()


def test_soc_ids():
    ids = {path.stem: first_lines(path.read_bytes()).get("/sys/devices/soc0/soc_id", "") for path in every("soc0")}
    assert {stem: model_of_soc_id(soc_id) for stem, soc_id in ids.items()} == {
        "galaxy-c9-pro": "MSM8976",
        "galaxy-s7-us": "MSM8996",
        "galaxy-s8-us": "MSM8998",
        "nexus5x": "MSM8992",
        "xiaomi-redmi-note-4": "MSM8953",
    }


def test_vendors():
    assert vendor_name("QTI") == "Qualcomm"
    assert vendor_name("Rockchip") == "Rockchip"
    assert vendor_name("", "MT6781") == "MediaTek"
    assert vendor_name("", "mystery") == ""


# --- sections


def test_sections():
    output = f"banner\r\n{SECTION}a\r\n1\r\n{SECTION}b\r\n{SECTION}a\r\n2\r\n".encode()
    assert split_sections(output) == {"": "banner", "a": "1\n2\n"}
    assert split_sections(output, last="a") == {"": "banner", "a": f"1\n{SECTION}b\n{SECTION}a\n2\n"}
    assert set(split_sections(answer("poco-f6-peridot"))) >= {"getprop"}
