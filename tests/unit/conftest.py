"""Commands as people start them, against a daemon whose answers are made up."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from farm.store.store import Store
from tests.support.fake_daemon import FARM, FakeDaemon
from tests.support.forked_processes import popen
from tests.support.snapshots import Snapshot


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def typed(daemon):
    started = []

    def start(*arguments):
        process = popen(
            [*FARM, *arguments], env=os.environ | {"FARM_SOCKET": str(daemon.socket)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def store(tmp_path):
    """The real store; tests/unit/store has one on each engine."""
    store = Store.open(tmp_path / "farm.db")
    yield store
    store.close()


@pytest.fixture
def background():
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


@pytest.fixture
def snapshot(request):
    return Snapshot(request.node)


@pytest.fixture
def numbers(monkeypatch):
    """Change named numbers of a module for one test: `numbers(writer, PROBE_S=0.02)`."""

    def change(module, **values):
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)

    return change
