"""`farm demo --hosts`: the loss of a host is shown, and nothing is left of the lab, however the demo ends."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from farm.control.client import ControlClient
from tests.support import postgres
from tests.support.waiting import still_alive
from tests.support.whole_farm import descendants, until

LIMIT_S = 600.0
pytestmark = pytest.mark.timeout(LIMIT_S)


@pytest.fixture
def demo(tmp_path):
    """Start the demo; it is gone afterwards with all that it started."""
    postgres.need()
    started = []

    def start(*options):
        command = [sys.executable, "-u", "-m", "farm", "demo", "--isolation", "none", *options]
        with (tmp_path / "said").open("w") as said:
            started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said))
        return started[-1], tmp_path / "said"

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_tuning_goes_on_when_a_host_is_killed(demo):
    process, said = demo("--hosts", "2", "--trials", "4")
    assert process.wait() == 0, said.read_text()
    text = said.read_text()
    assert "4 trials would end before a host is killed: 32 are made." in text
    assert "The tuning has ended, once, with 32 of 32 trials." in text
    assert re.search(r"it has \S+-lab2\n.*kill -9 of the daemon of lab2.*\n  lab2 is lost", text, re.DOTALL)
    assert "Traceback" not in text


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_demo_that_was_ended(demo, end):
    process, said = demo("--hosts", "2", "--trials", "0", "--stay")
    until(lambda: "the lab's database" in said.read_text() or process.poll() is not None)
    sockets = re.findall(r"FARM_SOCKET=(\S+)", said.read_text())
    assert len(sockets) == 2, said.read_text()
    for socket in sockets:
        with ControlClient(Path(socket)) as client:
            assert client.call("ping")
    family = descendants(psutil.Process(process.pid))
    process.send_signal(end)
    process.wait()
    assert still_alive(family, LIMIT_S / 2) == []
