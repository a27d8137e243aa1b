"""What tests of the control socket share."""

import pytest

from tests.integration.control.served import ServedControl


@pytest.fixture
async def door(tmp_path):
    door = ServedControl(tmp_path)
    await door.server.start()
    yield door
    await door.server.stop()
