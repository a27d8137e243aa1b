"""A real adbd (AOSP's, as Debian builds it) in the place of ours: the farm uses a phone through it as through ours."""

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
    assert "MAX ERROR" in bench.stdout, bench
