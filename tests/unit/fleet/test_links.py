"""What adb's list means for a device's life."""

from __future__ import annotations

import pytest

from farm.adb.devices import AdbDevice, DeviceState
from farm.fleet.links import listed


@pytest.mark.parametrize(
    ("state", "mendable"),
    [
        (DeviceState.OFFLINE, True),
        (DeviceState.HOST, True),  # seen where an adb server was replaced in the middle of a phone's handshake
        (DeviceState.UNKNOWN, True),
        (DeviceState.UNAUTHORIZED, True),
        (DeviceState.BOOTLOADER, False),
        (DeviceState.RECOVERY, False),
        (DeviceState.NO_PERMISSIONS, False),
    ],
)
def test_only_a_link_that_may_come_right_by_itself_is_made_anew(state: DeviceState, mendable: bool) -> None:
    assert listed(AdbDevice("S1", state)).mendable is mendable
