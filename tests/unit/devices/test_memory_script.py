"""memory.sh run by the shells that run it, over living processes and a /sys of plain files."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.devices.server.phone_paths import scripts_folder
from farm.kinds.memory.phases import read_lines
from tests.support.waiting import HANG_S

SHELLS = [shell for shell in ("mksh", "dash", "bash") if shutil.which(shell)]
MIB = 1 << 20
# A server, in a session of its own, with a session below it that holds 48 MiB and had 80.
SERVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
SESSION = (
    f"kept = bytearray(48 * {MIB}); gone = bytearray(32 * {MIB}); del gone; print('up', flush=True); import sys;"
    "sys.stdin.read()"
)
DUMPSYS = '#!/bin/sh\n[ "$*" = "gpu --gpumem" ] && echo "Proc $SESSION_PID total: 777"\n'
LOGCAT = """#!/bin/sh
[ "$*" = "-d -v epoch -T 1764266000.000 -s lowmemorykiller" ] || exit 1
echo "--------- beginning of main"
echo "1764266001.123   400   400 I lowmemorykiller: Kill 'com.a' (8123), uid 1000, oom_score_adj 900"
echo "1764266001.124   400   400 I lowmemorykiller: Reclaimed 3 kB"
"""

pytestmark = pytest.mark.parametrize("shell", SHELLS)


@contextmanager
def server(folder):
    """The scripts' folder with a state that names a living server; its session's pid."""
    for name in ("bin", "run", "tools"):
        (folder / name).mkdir()
    for name in ("memory.sh", "processes.sh"):
        shutil.copy(scripts_folder() / name, folder / "bin")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, SESSION], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        (folder / "run" / "state").write_text(f"version=1\npid={process.pid}\npgid={process.pid}\n")
        yield int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    finally:
        process.communicate(timeout=HANG_S)


def said(shell, folder, *words, pid=0):
    environment = {**os.environ, "FARM_SYS": str(folder / "sys"), "SESSION_PID": str(pid)}
    environment["PATH"] = f"{folder / 'tools'}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, str(folder / "bin/memory.sh"), *words], env=environment, capture_output=True, text=True, timeout=HANG_S,
        check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def tool(folder, name, text):
    (folder / "tools" / name).write_text(text)
    (folder / "tools" / name).chmod(0o755)


def test_the_session_alone_is_read_and_its_peak_begins_anew(shell, tmp_path):
    with server(tmp_path):
        first, second = (read_lines(said(shell, tmp_path, "cpu")) for _ in range(2))
    assert (first.processes, first.reset, first.kills, first.gpu) == (1, True, (), None)
    assert 48 * MIB < first.rss < 70 * MIB
    assert first.pss is not None
    assert first.peak_rss > first.rss + 25 * MIB
    assert second.peak_rss == pytest.approx(second.rss, abs=2 * MIB)


def test_the_gpus_memory_and_apps_that_were_ended(shell, tmp_path):
    with server(tmp_path) as pid:
        tool(tmp_path, "dumpsys", DUMPSYS)
        tool(tmp_path, "logcat", LOGCAT)
        plain = read_lines(said(shell, tmp_path, "gpu", pid=pid))
        kgsl = tmp_path / "sys/class/kgsl/kgsl/proc" / str(pid)
        kgsl.mkdir(parents=True)
        for name, size in (("gpumem_mapped", 4096), ("gpumem_unmapped", 8192), ("kernel_max", 20480)):
            (kgsl / name).write_text(f"{size}\n")
        found = read_lines(said(shell, tmp_path, "gpu", "1764266000", pid=pid))
    assert (plain.gpu, plain.gpu_peak, plain.kills) == (777, None, ())
    assert (found.gpu, found.gpu_peak) == (12288, 20480)
    assert found.kills == ("Kill 'com.a' (8123), uid 1000, oom_score_adj 900",)


def test_without_a_server_there_is_no_process(shell, tmp_path):
    with server(tmp_path):
        (tmp_path / "run/state").write_text("version=1\n")
        assert read_lines(said(shell, tmp_path, "cpu")).processes == 0
