"""The machine under a virtual phone: what a shell sees, what a reboot keeps, what is left afterwards."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from farm.simulation.namespaces import Isolation, detect_isolation
from farm.simulation.profiles import load_profile
from farm.simulation.state import read_state, state_folder
from farm.simulation.world import WorldSpec, boot
from tests.support.needs import needs_namespaces
from tests.support.waiting import still_alive
from tests.support.whole_farm import descendants, until, words_of

from .conftest import run_commands, shell

LEVELS = [
    pytest.param(Isolation.FULL, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
    pytest.param(Isolation.USER, marks=needs_namespaces),
    Isolation.NONE,
]


@pytest.fixture(params=LEVELS, ids=str)
def level(request):
    if request.param is not Isolation.NONE and detect_isolation() is Isolation.NONE:
        pytest.skip("no namespaces here")
    return request.param


def test_a_phone_says_who_it_is(phones, level):
    phone = phones(profile="galaxy-s9", isolation=level)
    assert shell(phone, "getprop ro.product.model")[1] == "SM-G9600\n"
    assert shell(phone, "getprop farm.virtual.abi")[1] == "x86_64\n"
    assert shell(phone, "getprop ro.serialno")[1].strip() == phone.spec.serial
    assert shell(phone, "cat /sys/class/kgsl/kgsl-3d0/gpu_model")[1] == "Adreno630v2\n"
    assert shell(phone, "grep -c ^processor /proc/cpuinfo")[1] == "8\n"
    assert shell(phone, "cat /proc/meminfo")[1] == load_profile("galaxy-s9").meminfo
    assert "level: 85" in shell(phone, "dumpsys battery")[1]
    assert "Thermal Status: 0" in shell(phone, "dumpsys thermalservice")[1]


def test_a_reboot_keeps_data_and_ends_everything_else(phones, level):
    phone = phones(isolation=level)
    boot_id = shell(phone, "cat /proc/sys/kernel/random/boot_id")[1]
    shell(phone, "echo kept > /data/local/tmp/kept; setsid sleep 1000 >/dev/null 2>&1 & ")
    until(lambda: sleepers(os.getpid()))
    old = phone.pid
    phone.reboot()
    assert phone.pid != old
    assert not sleepers(os.getpid())
    assert shell(phone, "cat /data/local/tmp/kept")[1] == "kept\n"
    assert shell(phone, "cat /proc/sys/kernel/random/boot_id")[1] not in ("", boot_id)
    assert read_state(state_folder(phone.spec.directory)).boot_id != boot_id.strip()


@needs_namespaces
def test_the_shell_is_a_phones(phones):
    phone = phones()
    uid = "uid=2000(shell) gid=2000(shell)" if os.geteuid() == 0 else "uid=0(root)"
    assert shell(phone, "id")[1].startswith(uid)
    code, _, error = shell(phone, "no-such-program")
    assert (code, "inaccessible or not found" in error) == (127, True)
    assert shell(phone, "su")[0] == 127
    assert shell(phone, "command -v python3 gcc bash")[1] == ""
    assert shell(phone, "touch /new")[2] == "touch: '/new': Read-only file system\n"
    denied = "Permission denied" if os.geteuid() == 0 else "Read-only file system"
    assert denied in shell(phone, "echo 1 > /sys/class/thermal/thermal_zone0/temp")[2]
    assert shell(phone, "cat /proc/1/comm /proc/2/comm")[1] == "init\nadbd\n"
    assert "LOOPBACK" in shell(phone, "ifconfig")[1]
    assert shell(phone, "cat /proc/net/dev | wc -l")[1] == "3\n"  # two header lines and lo
    assert shell(phone, "ls /system/lib64")[1].split().count("libstdc++.so.6") == 0


def test_nothing_is_left_when_the_lab_is_killed(folder, level):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from tests.acceptance.world.conftest import run_commands, shell\n"
        "from farm.simulation.world import *\n"
        "from pathlib import Path\n"
        "phone = boot(WorldSpec('a', Path(sys.argv[2]), 'galaxy-s9', Isolation(sys.argv[3])), run_commands)\n"
        "shell(phone, 'setsid sleep 1000 >/dev/null 2>&1 &')\n"
        "print(phone.pid, flush=True); time.sleep(1000)\n"
    )
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", code, root, str(folder / "a"), str(level)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as lab:
        try:
            assert lab.stdout.readline().strip().isdecimal()
            until(lambda: sleepers(lab.pid))
            family = descendants(psutil.Process(lab.pid))
        finally:
            lab.kill()
    assert still_alive(family) == []


@needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="drops root to try it")
def test_a_person_without_rights_can_boot_phones(folder):
    """In a forked child that is nobody: a user namespace of its own."""
    folder.chmod(0o777)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as any program such a person starts
            phone = boot(WorldSpec("n", folder / "n", "galaxy-s9", Isolation.USER), run_commands)
            answer = shell(phone, "id -u; getprop ro.product.model")
            phone.close()
            os.write(writer, json.dumps(answer).encode())
        except BaseException as error:  # noqa: BLE001 - the child must not run on into pytest
            os.write(writer, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = json.load(pipe)
    os.waitpid(child, 0)
    assert answer == [0, "0\nSM-G9600\n", ""]


def sleepers(pid):
    """Processes below `pid` that sleep for 1000 seconds."""
    return [each for each in descendants(psutil.Process(pid)) if "1000" in words_of(each)[1:3]]
