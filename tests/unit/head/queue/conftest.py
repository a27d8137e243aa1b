"""A desk for the tests of the queue."""

import pytest

from tests.support.queue_desk import Desk, a_job


@pytest.fixture
def desk():
    """With one job, which asks for a phone."""
    desk = Desk()
    desk.add(a_job())
    return desk
