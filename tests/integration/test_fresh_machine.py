"""A host with Python and a plain Linux userland only: no compiler, no linker, no adb, neither mksh nor toybox.

The phones are folders then, their RPC server is the Python launcher, libraries are linked by the ziglang package, and
adb is the one inside adbutils.
"""

import contextlib
import importlib.util
import json
import re
import shutil
import socket
from pathlib import Path

import psutil
import pytest

from farm.devices.server.phone_paths import ROOT
from farm.devices.server.rpc_server import FIRST_PORT
from farm.simulation.runtime import is_launcher
from tests.support.whole_farm import Story, phones, running_farm, until

PROFILES = ("galaxy-s9", "oneplus-12")
ABSENT = re.compile(r"(mksh|toybox|adb|(.*-)?(g\+\+|gcc|c\+\+|cc|clang|ld|lld|gold|mold|bfd)([.-].*)?|clang\+\+.*)$")


@pytest.fixture(scope="module")
def first_port():
    """Somebody else on the host has the first port that a server tries: this process, or phones of another test."""
    try:
        with socket.create_server(("127.0.0.1", FIRST_PORT)):
            yield "this process"
    except OSError:
        yield "phones of another test"  # which may leave it at any time


@pytest.fixture(scope="module")
def farm(tmp_path_factory, first_port):
    tools = tmp_path_factory.mktemp("bin")
    for program in (entry for folder in ("/bin", "/usr/bin") for entry in Path(folder).iterdir()):
        if not ABSENT.match(program.name) and not (tools / program.name).is_symlink():
            (tools / program.name).symlink_to(program)
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PATH", str(tools))
        patch.delenv("ANDROID_NDK_HOME", raising=False)
        yield stack.enter_context(running_farm(*PROFILES, anywhere=True))


def servers(phone):
    """The RPC servers of one phone and their sessions; the host's process list holds those of all."""
    folder = phone.farm.lab.phone(phone.nickname).directory
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any("tvm_rpc" in word and word.startswith(folder) for word in process.cmdline()[:2]):
                found.append(process)
    return found


def server(phone):
    """Its RPC server, as soon as it is alone: a session's own process ends after its session."""
    until(lambda: len(servers(phone)) == 1)
    return servers(phone)[0]


def ports(phone):
    """Where they listen."""
    return {
        connection.laddr.port
        for process in servers(phone)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def test_nothing_but_python_is_used(farm):
    assert {phone.isolation for phone in farm.lab.status().values()} == {"none"}
    assert shutil.which("ld") is shutil.which("g++") is shutil.which("adb") is None
    assert is_launcher(farm.folder / "bundle" / "tvm_rpc")
    assert "adbutils" in str(farm.adb_path)
    golden = next((farm.folder / "state").rglob("golden.json"))
    if importlib.util.find_spec("ziglang"):
        assert json.loads(golden.read_text())["linker"] == "ziglang (PyPI)"


def test_servers_share_the_hosts_loopback(farm, first_port):
    first, second = phones(farm)
    assert len(ports(first)) == len(ports(second)) == 1
    assert first_port != "this process" or FIRST_PORT not in ports(first) | ports(second)
    assert ports(first) != ports(second)


def test_a_phone_knows_only_its_own_paths(farm):
    one = phones(farm)[0]
    assert one.shell("pwd; readlink -f /data/local/tmp; cd /; ls -d data").split() == ["/", "/data/local/tmp", "data"]
    assert one.shell(f"cat {ROOT}/run/log")
    assert str(farm.folder) not in one.shell(f"cat {ROOT}/run/log*")
    assert "No such file" in one.shell("cat /data/local/tmp/absent 2>&1 || true")
    everything = one.shell("cat /data/local/tmp/absent 2>&1; sh /sdcard/absent.sh 2>&1; env; find /data/local; exit 0")
    assert "/data/local/tmp/farm/bin/reap.sh" in everything
    assert str(farm.folder) not in everything
    typed = farm.run("sh", "-c", f"echo 'pwd; exit 7' | {farm.adb_path} -s {one.serial} shell")
    assert (typed.returncode, typed.stdout) == (7, "/\n")


def test_a_model_is_benchmarked(farm, model):
    bench = farm.farm("bench", str(model), "--on", "android", "--repeat", "5", "--json")
    assert bench.returncode == 0, bench.stderr
    results = json.loads(bench.stdout)["results"]
    assert sorted(result["gpu"] for result in results) == ["Adreno 630", "Adreno 750"]
    for result in results:
        assert len(result["samples_s"]) == 5
        assert result["max_abs_error"] < 1e-5
    for phone in phones(farm):
        server(phone)


def test_a_crashed_server_is_replaced(farm):
    one = phones(farm)[0]
    name, story = one.name, Story(farm)
    assert farm.lab.server_crash(one.nickname) >= 1
    story.until("device.ready", subject=name)
    server(one)


def test_a_reboot_is_one(farm):
    one, other = phones(farm)
    name, story, before = one.name, Story(farm), server(other)
    boot_id = one.shell("cat /proc/sys/kernel/random/boot_id")
    done = farm.farm("device", "reboot", name)
    assert done.returncode == 0, done.stderr
    story.until("device.ready", subject=name)
    assert one.shell("cat /proc/sys/kernel/random/boot_id") != boot_id
    assert f"boot={one.shell('cat /proc/sys/kernel/random/boot_id')}" in one.shell(f"cat {ROOT}/run/state")
    server(one)
    assert server(other) == before


def test_a_forgotten_phone_is_clean(farm):
    """The last one: rules of the virtual farm do not take it back."""
    one = phones(farm)[0]
    done = farm.farm("device", "forget", one.name, "--clean")
    assert done.returncode == 0, done.stderr
    folder = Path(farm.lab.phone(one.nickname).directory)
    assert servers(one) == []
    assert not (folder / "data" / ROOT.removeprefix("/data/")).exists()
    assert list((folder / "data/local/tmp").iterdir()) == []
