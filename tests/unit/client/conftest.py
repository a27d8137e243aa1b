"""A made-up daemon, a client of it, and what the client said."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from farm import Client
from tests.support.fake_daemon import FakeDaemon


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def said():
    return []


@pytest.fixture
def client(daemon, said):
    with Client(daemon.socket, restart_s=5.0, on_notice=said.append) as client:
        yield client


@pytest.fixture
def background():
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit
