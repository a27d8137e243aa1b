"""What an arm64 phone is built from: programs that this host lacks are told in a sentence."""

import platform
import shutil

import pytest

from farm.simulation.arm64 import Arm64ToolsError, find_tools
from farm.simulation.profiles import Choice, choose, load_profile

ON_X86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="arm64 phones are emulated on x86-64 hosts")


@ON_X86_64
def test_all_that_is_missing_is_told_at_once_with_what_to_install():
    with pytest.raises(Arm64ToolsError) as caught:
        find_tools(lambda name: None if "aarch64" in name or name == "apt-get" else f"/usr/bin/{name}")
    assert "qemu-aarch64-static, apt-get" in caught.value.message
    assert caught.value.hint == "apt install qemu-user-static apt"


@ON_X86_64
def test_a_qemu_that_needs_the_hosts_libraries_is_refused():
    linked = shutil.which("sh")
    with pytest.raises(Arm64ToolsError, match="linked to libraries of the host"):
        find_tools(lambda name: linked if "qemu" in name else f"/usr/bin/{name}")


def test_another_host_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(Arm64ToolsError, match="this one is riscv64"):
        find_tools(lambda name: f"/usr/bin/{name}")


def test_what_stands_behind_a_profiles_name_decides_its_abi():
    assert choose("galaxy-s9+arm64") == Choice("galaxy-s9", arm64=True, rooted=False, opencl=False)
    assert choose("galaxy-s9+root") == Choice("galaxy-s9", arm64=False, rooted=True, opencl=False)
    assert choose("galaxy-s9+opencl+root") == Choice("galaxy-s9", arm64=False, rooted=True, opencl=True)
    assert choose("galaxy-s9+toast").profile == "galaxy-s9+toast"
    assert load_profile("galaxy-s9").properties("s", "arm64-v8a")["farm.virtual.abi"] == "arm64-v8a"
