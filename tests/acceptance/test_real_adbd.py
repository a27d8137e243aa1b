"""A real adbd (AOSP's, as Debian builds it) in the place of ours: the farm uses a phone through it as through ours."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.real_adbd import phone_with_real_adbd
from tests.support.stock_client import Clients
from tests.support.whole_farm import Story, running_farm

PROFILE = "galaxy-s9"
LIMIT_S = 300.0
USE = "session = connect().request('android'); tell(add_one(session)); close(session)"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory(prefix="farm-adbd-") as folder:
        Path(folder).chmod(0o755)
        with (
            phone_with_real_adbd(Path(folder) / "phone", PROFILE) as address,
            running_farm(PROFILE, plugged=False) as farm,
        ):
            story = Story(farm)
            assert "connected to" in farm.adb("connect", address).stdout
            story.until("device.ready")
            yield farm, address


def test_a_phone_is_set_up_checked_and_used(place, kernel, model):
    farm, address = place
    [row] = [row for row in farm.status()["devices"] if row["serial"] == address]
    assert (row["state"], row["findings"]) == ("ready", [])
    assert Clients(farm, kernel).result(USE) is True
    bench = farm.farm("bench", str(model), "--on", row["name"], "--repeat", "3", timeout_s=LIMIT_S)
    assert "Outputs match the reference" in bench.stdout, bench


def test_files_exit_codes_and_an_adbd_that_dies(place, kernel, tmp_path):
    farm, address = place
    (sent := tmp_path / "sent").write_bytes(os.urandom(3_000_000))
    assert farm.adb("-s", address, "push", str(sent), "/data/local/tmp/sent").returncode == 0
    assert farm.adb("-s", address, "pull", "/data/local/tmp/sent", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == sent.read_bytes()
    [row] = [row for row in farm.status()["devices"] if row["serial"] == address]
    shell = farm.farm("shell", "--on", row["name"], "--", "echo out; echo err >&2; exit 7")
    assert (shell.returncode, shell.stdout) == (1, "out\n"), shell
    story = Story(farm)
    farm.adb("-s", address, "shell", "pkill -9 -f /data/local/tmp/adbd/adbd")
    story.until("device.ready", subject=row["name"])
    story.order("device.offline", "device.ready", device=row["name"])
    assert Clients(farm, kernel).result(USE) is True
