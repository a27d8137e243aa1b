"""A demo's daemon that died comes back on the ports that other shells know."""

import pytest

from tests.support.whole_farm import phones

pytestmark = pytest.mark.farm("galaxy-s9", anywhere=True)


def test_ports_stay_over_the_daemons_death(farm):
    before = farm.status()
    web = int(before["web"].rstrip("/").rpartition(":")[2])
    farm.daemon.keep_ports(before["tracker"]["port"], web_port=web)
    assert farm.client.call("reload")["restart"] == []  # nobody has changed anything
    farm.daemon.kill()
    assert farm.daemon.wait() == "signal 9"
    farm.daemon.start().close()
    after = farm.status()
    assert (after["web"], after["adb"]) == (before["web"], before["adb"])
    assert after["tracker"]["port"] == before["tracker"]["port"]
    farm.wait_ready(1)
    assert phones(farm)[0].row["state"] == "ready"
