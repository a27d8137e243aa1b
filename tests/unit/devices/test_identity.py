"""Identities of genuine phones, exactly; and no exception on anything."""

import asyncio
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code
from farm.common.phone_text import SECTION, decode, parse_getprop
from farm.devices.health.probe.parse import probe_command
from farm.devices.health.probe_round import MOMENT_SECTIONS
from farm.devices.identity.identity import READ_COMMAND, RawIdentity, clock_policy, identify, read_identity
from farm.model.identity import Confidence, DeviceIdentity
from tests.support.errors import raises_code
from tests.support.fake_phone import FakeClient, for_ever
from tests.support.needs import needs
from tests.support.phone_script import SHELLS, ScriptFolder, run
from tests.support.waiting import HANG_S
from tests.unit.devices.captures import PHONES, answer, capture

CERTAIN, LIKELY, *_ = Confidence


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
    plain = answer("poco-f6-peridot", cpuinfo="oneplus-5t", files=("cpufreq/oneplus-5t",))
    assert identify(RawIdentity.parse(mangle(decode(plain)))) == identify(RawIdentity.parse(plain))


def test_a_property_cannot_forge_a_section():
    forged = answer("poco-f6-peridot") + f"\n[a]: [x\n{SECTION}files\n/sys/devices/soc0/machine=SM1234]\n".encode()
    raw = RawIdentity.parse(forged)
    assert raw.files == {}
    assert raw.properties["a"].startswith("x\n")


async def test_reading_takes_one_round_trip():
    client = FakeClient(answer("poco-f6-peridot"))
    raw = await read_identity(client, "S1")
    assert (client.serials, client.commands) == (["S1"], [READ_COMMAND])
    assert raw.properties["ro.soc.model"] == "SM8635"


async def test_an_answer_without_properties_is_a_phone_error_with_evidence():
    with raises_code(Code.NO_IDENTITY) as caught:
        await read_identity(FakeClient(b"/system/bin/sh: getprop: not found\n"), "S1")
    assert "S1" in caught.value.message
    assert "`adb -P 5038 -s S1 shell getprop`" in caught.value.hint
    assert "not found" in caught.value.evidence


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_runs_in_a_posix_shell_and_writes_nothing(shell, tmp_path):
    phone, empty = ScriptFolder(shell, tmp_path / "phone"), tmp_path / "cwd"
    phone.tool("getprop", f"cat {PHONES}/getprop/poco-f6-peridot.txt")
    phone.tool("dumpsys", "echo ' GLES: ARM, Mali-G78, x'")
    empty.mkdir()
    raw = RawIdentity.parse(run([shell, "-c", READ_COMMAND], phone.environment, empty).stdout)
    assert list(empty.iterdir()) == []
    assert raw.properties == parse_getprop(decode(capture("getprop/poco-f6-peridot")))
    assert "processor" in raw.cpuinfo
    assert raw.gles == "GLES: ARM, Mali-G78, x"
    assert raw.files["/sys/devices/system/cpu/present"].startswith("0")


COMMANDS = {"identity": READ_COMMAND, "probe": probe_command(), "moment": probe_command(MOMENT_SECTIONS)}
# Below 4096 bytes, the smallest payload limit of the adb transport, with room for the service's name.
MAX_COMMAND_BYTES = 4000


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_fit_the_oldest_adbd(name):
    assert len(COMMANDS[name].encode()) < MAX_COMMAND_BYTES


@needs("shellcheck")
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_clean_posix_sh(name):
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-"], input=COMMANDS[name].encode(), capture_output=True, timeout=HANG_S, check=False
    )
    assert done.stdout.decode() == ""


LINES = b"""\
==farm:files
==farm:cpuinfo
==farm:gles
==farm:getprop
/sys/devices/system/cpu/present=0-99999999
/sys/devices/system/cpu/cpu1/cpufreq/related_cpus=9-1,x
/sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq=\xd9\xa1
processor : 99999999999
CPU part : 0xzz
CPU implementer : 0x41
[ro.build.version.sdk]: [\xd9\xa3]
[farm.virtual.abi]: [sparc]
[ro.product.cpu.abilist]: [,,]
""".splitlines(keepends=True)


@given(st.lists(st.sampled_from(LINES) | st.binary(max_size=40), max_size=20).map(b"".join))
def test_anything_gives_an_identity(output):
    identity = identify(RawIdentity.parse(output))
    assert isinstance(identity, DeviceIdentity)
    assert sum(cluster.cores for cluster in identity.cpu) <= 64


def test_a_truncated_answer_still_identifies():
    whole = answer("xiaomipad6pro-taro-a14", cpuinfo="huawei-mate-20", files=("kgsl/galaxy-s9-us",))
    for cut in range(0, len(whole), 997):
        assert isinstance(identify(RawIdentity.parse(whole[:cut])), DeviceIdentity)


async def test_reading_can_be_cancelled():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await read_identity(FakeClient(for_ever), "S1")


def test_governors_are_the_clock_policy():
    policy = "/sys/devices/system/cpu/cpufreq/policy"
    files = {f"{policy}0/scaling_governor": "schedutil", f"{policy}4/scaling_governor": "schedutil"}
    assert clock_policy(files) == "schedutil"
    assert clock_policy({**files, "/sys/class/kgsl/kgsl-3d0/devfreq/governor": "msm-adreno-tz"}) == (
        "schedutil, gpu msm-adreno-tz"
    )
    assert clock_policy({**files, f"{policy}7/scaling_governor": "performance"}) == "performance, schedutil"
    assert clock_policy({}) == ""
