"""What a phone says of itself is bounded: strangers are asked too, before anybody adopts them."""

from dataclasses import asdict

import pytest

from farm.common.phone_text import SECTION
from farm.devices.identity.identity import RawIdentity, identify
from tests.unit.devices.captures import texts

MUCH = 1 << 20
ROWS = {
    "files": "/sys/devices/system/cpu/cpufreq/policy{0}/scaling_governor=g{0}\x1b[2J\n",
    "cpuinfo": "processor\t: {0}\nFeatures\t: fp{0} asimd\x1b[2J\nHardware\t: \x1b]0;x\x07\n",
    "gles": "GLES: {0}\n",
    "getprop": "[a{0}]: [x]\n",
}


def of(section, body):
    return list(texts(asdict(identify(RawIdentity.parse(f"{SECTION}{section}\n{body}\n".encode())))))


@pytest.mark.parametrize("section", ROWS)
def test_a_megabyte_of_rows(section):
    row = ROWS[section]
    said = of(section, "".join(row.format(number) for number in range(MUCH // len(row))))
    assert max(map(len, said)) < 1000
    assert sum(map(len, said)) < 50_000
    assert all(each.isprintable() for each in said)


@pytest.mark.parametrize(
    "name",
    [
        "ro.product.model",
        "ro.product.manufacturer",
        "ro.build.fingerprint",
        "ro.soc.model",
        "ro.soc.manufacturer",
        "ro.product.cpu.abilist",
        "farm.virtual.abi",
        "ro.board.platform",
        "ro.hardware.egl",
        "ro.serialno",
    ],
)
@pytest.mark.parametrize("unit", ["\x1b[31m", "x", "a,", " \t", "kirin ", "powervr", "adreno "])
def test_a_property_without_end(name, unit):
    said = of("getprop", f"[{name}]: [{unit * (MUCH // len(unit))}]")
    assert max(map(len, said)) <= 200
    assert all(each.isprintable() for each in said)


def test_features_of_many_cores_are_compared_once_each():
    flags = " ".join(f"f{number}" for number in range(2000))
    said = of("cpuinfo", "".join(f"processor\t: {core}\nFeatures\t: {flags}\n" for core in range(64)))
    assert "f0" in said
    assert "f1999" not in said
