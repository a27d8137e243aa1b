"""What is made of each genuine capture is the JSON beside its folder (`tests.support.golden`); no guess is among it.

Worth a look in review: a radio's thermistor is no processor and a missing battery not cold (thermalservice_excerpts);
currents and differences are no temperatures, HALs number types from 1 (thermalservice: skia-*); `throttling` of kgsl
says that it is on (galaxy-s8-us); a kernel prints one part for all cores (xiaomi-redmi-note-3); properties share a
line, or state another part than the chip is (getprop: *-mangled-columns, opporeno7se, realmeq3pro, galaxynote20).
"""

from dataclasses import asdict

import pytest

from farm.common.phone_text import decode, parse_getprop
from farm.devices.health.probe.battery import add_supply, parse_dumpsys
from farm.devices.health.probe.readings import clock_hz
from farm.devices.health.probe.system import (
    parse_boot,
    parse_cpu,
    parse_data,
    parse_gpu,
    parse_kernel,
    parse_meminfo,
    parse_processes,
)
from farm.devices.health.probe.thermal import parse_thermalservice, parse_zones
from farm.devices.identity.cpu import parse_cpu_list, read_cpu
from farm.devices.identity.identity import RawIdentity, identify
from farm.devices.identity.soc import SocEvidence, identify_soc, model_of_soc_id, part_name, read_gpu
from farm.devices.identity.soc import parse_gpu as gpu_name
from farm.model.health import Battery
from tests.support.golden import as_json, golden
from tests.unit.devices.captures import PHONES, answer, first_lines


def of_files(path):
    """A capture of files as the probe prints them."""
    return "\n".join(f"{name}={line}" for name, line in first_lines(path.read_bytes()).items())


def supply(text):
    battery, dropped = add_supply(Battery(), "\n".join(f"battery/{line}" for line in text.splitlines()))
    return battery, dropped


def kgsl(path, text):
    gpu, temperatures, dropped = parse_gpu(of_files(path) or text)
    return {"name": gpu_name(text), "gpu": gpu, "temperatures": temperatures, "dropped": dropped}


def cpufreq(path):
    (clusters, dropped), files = parse_cpu(of_files(path)), first_lines(path.read_bytes())
    return {"readings": clusters, "dropped": dropped, "identity": read_cpu("", files).clusters}


def cpuinfo(text):
    facts = read_cpu(text, {})
    assert sum(cluster.cores for cluster in facts.clusters) == facts.cores
    return {"clusters": facts.clusters, "features": facts.features, "lead": facts.lead and facts.lead.mcpu}


def processes(text):
    """With its last process for the server."""
    last = text.rstrip().splitlines()[-1].split()
    pid = next(word for word in last if word.isdigit() and int(word) > 15)
    return dict(zip(("busiest", "server"), parse_processes(f"server={pid}\n{text}"), strict=True))


def rarer(text):
    properties = parse_getprop(text)
    soc, rows = identify_soc(properties, {}, "", SocEvidence())
    return {"soc": soc, "gpu": read_gpu({}, properties, rows, soc.confidence)}


def identity(output):
    return {name: value for name, value in asdict(identify(RawIdentity.parse(output))).items() if name != "raw"}


READERS = {
    "composed": lambda path, text: composed(path.stem, text),
    "cpufreq": lambda path, _: cpufreq(path),
    "cpuinfo": lambda _, text: cpuinfo(text),
    "df": lambda _, text: parse_data(text),
    "dumpsys_battery": lambda _, text: parse_dumpsys(text),
    "getprop": lambda path, _: identity(answer(path.stem)),
    "getprop_excerpts": lambda _, text: rarer(text),
    "kgsl": kgsl,
    "lines": lambda path, text: {line: LINES[path.stem](line) for line in text.splitlines()},
    "meminfo": lambda _, text: parse_meminfo(text),
    "opencl": lambda _, text: gpu_name(text),
    "power_supply": lambda _, text: supply(text),
    "ps": lambda _, text: processes(text),
    "soc0": lambda path, _: model_of_soc_id(first_lines(path.read_bytes()).get("/sys/devices/soc0/soc_id", "")),
    "thermal_zones": lambda _, text: parse_zones(text),
    "thermalservice": lambda _, text: parse_thermalservice(text),
    "thermalservice_excerpts": lambda _, text: parse_thermalservice(text),
    "uptime": lambda _, text: parse_boot(text),
}


# Texts that no capture has, a line each: what is told apart by its unit or its spelling, and what is not believed.
LINES = {
    "clocks": clock_hz,
    "cpu_lists": parse_cpu_list,
    "gpu_names": gpu_name,
    "part_names": part_name,
    "zones": parse_zones,
}


# Texts that no capture has, each below a line that says what it is about.
COMPOSED = {
    "dumpsys_battery": parse_dumpsys,
    "power_supply": supply,
    "thermalservice": parse_thermalservice,
    "gpu": parse_gpu,
    "boot": parse_boot,
    "cpu": parse_cpu,
    "data": parse_data,
    "processes": parse_processes,
    "soc": rarer,
}


def composed(kind, text):
    parts = (part.partition("\n")[::2] for part in text.removeprefix("## ").split("\n## "))
    return {title: COMPOSED.get(title.partition(":")[0], COMPOSED.get(kind))(f"{part}\n") for title, part in parts}


def read(path):
    return READERS[path.parent.name](path, decode(path.read_bytes()))


@pytest.mark.parametrize(("path", "wanted"), [each for kind in READERS for each in golden(PHONES / kind, read)])
def test_what_is_made_of_a_capture(path, wanted):
    assert as_json(read(path)) == wanted


S9 = answer("galaxys9-sdm845-a10", cpuinfo="galaxy-s9-us", files=("kgsl/galaxy-s9-us", "cpufreq/galaxy-s9-us"))
MALI = b"GLES: ARM, Mali-G76, OpenGL ES 3.2 v1.r16p0-01rel0.5f3ad1a1e8d4d7a7a3c0f4a1c8e7a1d0"
MATE_20 = {"cpuinfo": "huawei-mate-20", "files": ("cpufreq/huawei-mate-20",), "gles": MALI}
WHOLE = {
    "galaxy-s9": S9,  # its kernel states no dot product, which LLVM takes for granted on a Cortex-A75
    "galaxy-s9-virtual": S9 + b"\n[farm.virtual.abi]: [x86_64]\n",
    "mate-20": answer("huaweimate20-kirin980-a9", **MATE_20),
    "32-bit": answer("smartisan-msm8916-a5", cpuinfo="moto-g-gen4"),
    "exynos-9810": answer("galaxys9-sdm845-a10", cpuinfo="galaxy-s9-global"),
}


@pytest.mark.parametrize(("output", "wanted"), golden(PHONES / "identities", identity, captures=WHOLE))
def test_a_whole_identity(output, wanted):
    assert as_json(identity(output)) == wanted


def test_lines_of_gpu_faults_are_told_from_noise():
    lines = decode((PHONES / "dmesg/gpu-faults.txt").read_bytes()).splitlines()
    noise = [
        "[    1.2] gpu_cc: reset controller registered",
        "[    1.3] kgsl kgsl-3d0: default thermal fault threshold",
        "[    1.4] mali 13000000.mali: ProbeResult as mali0",
    ]
    assert parse_kernel("\n".join([*noise, *lines])) == (tuple(lines), True)
    assert parse_kernel("dmesg: klogctl: Permission denied\n") == ((), False)
    assert parse_kernel("sh: dmesg: inaccessible or not found\n") == ((), False)
    assert parse_kernel("") == ((), True)
