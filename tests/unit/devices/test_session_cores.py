"""cores.sh by the shells that run it, over a living process; and what is made of its words."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.common.errors import Code, PhoneError
from farm.devices.server.phone_paths import scripts_folder
from farm.devices.server.session_cores import check_placed
from tests.support.errors import raises_code
from tests.support.needs import needs
from tests.support.waiting import HANG_S

SHELLS = [shell for shell in ("mksh", "dash", "bash") if shutil.which(shell)]
# A server, in a session of its own, with a session below it that has a second thread.
SERVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
SESSION = """
import sys, threading
over = threading.Event()
threading.Thread(target=over.wait, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def session(tmp_path):
    """The scripts' folder with a state that names a living server; its session's pid."""
    for name in ("bin", "run", "cpuset/top-app"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("cores.sh", "processes.sh"):
        shutil.copy(scripts_folder() / name, tmp_path / "bin")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, SESSION], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        (tmp_path / "run" / "state").write_text(f"version=1\npid={process.pid}\n")
        yield tmp_path, int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    finally:
        process.communicate(timeout=HANG_S)


def said(shell, folder, *words):
    environment = {**os.environ, "FARM_CPUSET": str(folder / "cpuset")}
    command = [shell, str(folder / "bin/cores.sh"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@needs("taskset")
@pytest.mark.parametrize("shell", SHELLS)
def test_every_thread_of_the_session_is_put_on_the_cores(session, shell):
    folder, pid = session
    core = max(os.sched_getaffinity(0))
    text = said(shell, folder, f"{1 << core:x}", "top-app")
    assert text == f"process {pid} {1 << core:x}\n"
    check_placed(text, 1 << core)
    threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    assert len(threads) == 2
    assert [os.sched_getaffinity(each) for each in threads] == [{core}, {core}]
    assert (folder / "cpuset/top-app/cgroup.procs").read_text() == f"{pid}\n"


@needs("taskset")
@pytest.mark.parametrize("shell", SHELLS)
def test_what_the_phone_refuses_is_said(session, shell):
    folder, pid = session
    shutil.rmtree(folder / "cpuset")
    text = said(shell, folder, "-", "top-app")
    assert text.startswith("refused top-app ")
    with raises_code(Code.PLACEMENT_REFUSED, match="group top-app: .*(nonexist|No such)") as raised:
        check_placed(text, 0)
    assert "leave out --top-app" in raised.value.hint
    text = said(shell, folder, f"{1 << 40:x}")
    with raises_code(Code.PLACEMENT_REFUSED, match="does not let the session have cores 40: Invalid"):
        check_placed(text, 1 << 40)
    assert f"process {pid} " in text


def test_cores_that_a_cpuset_takes_away_are_missed():
    with raises_code(Code.PLACEMENT_REFUSED, match="keeps the session off cores 4-7"):
        check_placed("process 12 f\n", 0xFF)


def test_a_session_that_is_not_there_is_no_success():
    with pytest.raises(PhoneError, match="found no process"):
        check_placed("", 1)
