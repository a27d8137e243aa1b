"""What adb's list means for a device's life."""

import pytest

from farm.adb.devices import AdbDevice, AdbState
from farm.devices.lifecycle.messages import listed


@pytest.mark.parametrize(
    ("state", "reconnectable"),
    [
        (AdbState.OFFLINE, True),
        (AdbState.HOST, True),  # seen where an adb server was replaced in the middle of a phone's handshake
        (AdbState.UNKNOWN, True),
        (AdbState.UNAUTHORIZED, True),
        (AdbState.BOOTLOADER, False),
        (AdbState.RECOVERY, False),
        (AdbState.NO_PERMISSIONS, False),
    ],
)
def test_only_a_link_that_may_come_right_by_itself_is_made_anew(state, reconnectable):
    assert listed(AdbDevice("S1", state), "adb").reconnectable is reconnectable
