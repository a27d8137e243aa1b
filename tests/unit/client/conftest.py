"""A client of the made-up daemon, and what the client said."""

import pytest

from farm import Client


@pytest.fixture
def said():
    return []


@pytest.fixture
def client(daemon, said):
    with Client(daemon.socket, restart_s=5.0, on_notice=said.append) as client:
        yield client
