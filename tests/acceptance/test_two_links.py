"""One phone by two links: an emulator's port is also a network phone's."""

import pytest

from tests.support.whole_farm import Story, until_status

pytestmark = pytest.mark.farm("oneplus-12")


def test_a_second_link_to_a_phone_is_shown_and_not_used(farm, phone):
    story, port = Story(farm), int(phone.serial.rpartition("-")[2]) + 1
    assert farm.adb("connect", f"127.0.0.1:{port}").returncode == 0
    story.until("device.new", serial=f"127.0.0.1:{port}")
    status = until_status(farm, lambda status: len(status["devices"]) == 2)
    assert {row["serial"]: row["adopted"] for row in status["devices"]} == {
        phone.serial: True, f"127.0.0.1:{port}": False,
    }  # fmt: skip
    assert "device.recovering" not in story.kinds(phone.name)
    assert farm.farm("shell", "--on", phone.name, "true").returncode == 0
    farm.adb("disconnect", f"127.0.0.1:{port}")
