"""What the daemon finds of its adb server for `farm doctor`."""

from types import SimpleNamespace

from farm.adb.client import AdbClient
from farm.daemon.phones import Phones
from farm.devices.power.power_rules import PowerConfig, UsbConfig
from farm.devices.power.switchboard import Switchboard


async def test_an_adb_server_that_is_away_must_be_repaired(tmp_path):
    power, nothing = PowerConfig(), SimpleNamespace(devices=(), views=lambda: (), usb=UsbConfig(sysfs=str(tmp_path)))
    client = AdbClient(f"localfilesystem:{tmp_path}/adb.sock")
    phones = Phones(client, nothing, nothing, *[None] * 3, power, Switchboard(power), *[None] * 2)
    found = {each.check: each.verdict for each in await phones.check_usb()}
    assert found["adb server"] == "fail"
