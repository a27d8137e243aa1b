"""A client of the made-up daemon, and what the client said."""

import pytest

from farm import Client
from tests.support.waiting import HANG_S


@pytest.fixture
def said():
    return []


@pytest.fixture
def client(daemon, said):
    with Client(daemon.socket, restart_s=5.0, on_notice=said.append) as client:
        yield client


@pytest.fixture
def acquired(daemon, client, background):
    """A lease of `pixel`, and what it is asked with."""

    def acquired(**options):
        work = background(client.acquire, on="android", **options)
        daemon.until_called("job.watch")
        daemon.grant("job-0001", "pixel")
        return work.result(HANG_S)

    return acquired
