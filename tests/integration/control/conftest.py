"""What tests of the control door share."""

import pytest

from tests.integration.control.door import Door


@pytest.fixture
async def door(tmp_path):
    door = Door(tmp_path)
    await door.server.start()
    yield door
    await door.server.stop()
