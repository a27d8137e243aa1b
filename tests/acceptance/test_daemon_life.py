"""What outlives the daemon, and what ends with it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from farm.common.errors import ExitCode
from tests.support.stock_client import Clients
from tests.support.waiting import HANG_S, still_alive
from tests.support.whole_farm import Story, answer, leftovers, phones, refused, running_farm, until

HOLD = "session = connect().request({key!r}); tell(add_one(session)); wait(); tell(outcome(add_one, session))"


@pytest.fixture
def farm():
    with running_farm("galaxy-a55", "galaxy-note20") as farm:
        yield farm


@pytest.fixture
def clients(farm, kernel):
    return Clients(farm, kernel)


def family(pid):
    """The processes below the daemon, without the adb server: phones are behind that one."""
    return [child for child in psutil.Process(pid).children(recursive=True) if child.name() != "adb"]


def test_a_killed_daemon_is_followed_by_one_that_knows_everything(farm, clients):
    phone, other = phones(farm)
    assert (
        farm.farm("device", "set", phone.name, "--name", "bench-1", "--pool", "desk", "--label", "rack=3").returncode
        == 0
    )
    assert farm.farm("alias", "set", "mine", "pool=desk").returncode == 0
    assert farm.farm("device", "drain", other.name).returncode == 0
    drained = other.name
    helpers = family(farm.daemon.process.pid)
    assert helpers
    with clients.running(HOLD.format(key="mine")) as client:
        assert client.hear() is True
        seq = farm.status()["seq"]
        farm.daemon.kill()
        client.go()
        assert client.hear()
    assert still_alive(helpers) == []

    farm.daemon.start().close()
    story = Story(farm, since=seq)
    until_ready_but(farm, drained)
    assert phone.row["name"] == "bench-1"
    assert phone.row["pool"] == "desk"
    assert answer(farm.farm("device", "show", "bench-1", "--json"))["labels"]["rack"] == "3"
    assert other.row["service"] == "draining"
    story.read()
    assert "device.new" not in story.kinds()
    assert "device.pushing" not in [event["kind"] for event in story.events]
    for each in (phone, other):
        each.server()  # that of the first daemon, or one instead of it
    assert clients.result("tell(add_one(connect().request('mine')))") is True


def until_ready_but(farm, drained):
    until(lambda: all(row["life"] == "ready" for row in farm.status()["devices"]) and farm.status()["devices"])
    [row] = [row for row in farm.status()["devices"] if row["name"] == drained]
    assert row["state"] == "draining"


def test_a_second_daemon_on_the_same_state_is_refused(farm):
    second = farm.run(
        sys.executable, "-m", "farm", "serve", "--config", str(farm.folder / "farm.toml"),
        "--state-dir", str(farm.folder / "state"), "--runtime-dir", str(farm.folder / "run-2"),
    )  # fmt: skip
    refused(second, ExitCode.FAILED, str(farm.daemon.process.pid), str(farm.folder / "state"))
    assert {row["state"] for row in farm.status()["devices"]} == {"ready"}


def test_a_daemon_that_is_told_to_stop_ends_well_and_takes_its_own_with_it(farm):
    process = farm.daemon.process
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    assert process.wait(HANG_S) == 0
    assert still_alive(children) == []


def test_the_demo_ends_by_itself_and_leaves_nothing():
    with tempfile.TemporaryDirectory(prefix="acc-") as folder:
        demo = subprocess.run(
            [sys.executable, "-m", "farm", "demo", "--phones", "galaxy-s9", "--repeat", "3"],
            env={**os.environ, "TMPDIR": folder}, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert demo.returncode == 0, demo.stderr
        assert "query_rpc_tracker" in demo.stdout
        assert "adreno-630" in demo.stdout
        assert "speed-up" in demo.stdout
        assert leftovers(Path(folder)) == []
        assert list(Path(folder).iterdir()) == []
