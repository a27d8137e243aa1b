"""A start waits for its database, says so to the service manager and to clients, and can be ended meanwhile."""

import asyncio
import socket
from contextlib import closing
from types import SimpleNamespace

import pytest

from farm.common.errors import Code, DaemonUnreachableError, HostError
from farm.common.systemd import Notifier
from farm.control import address
from farm.daemon import starting
from farm.daemon.starting import Start, StopRequestedError
from farm.store.server_opening import DatabaseAwayError
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S, until


@pytest.fixture
def manager(tmp_path, numbers):
    """What a service manager hears."""
    numbers(starting, TRY_AGAIN_S=0.01)
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.setblocking(False)
        said = []

        def heard():
            while True:
                try:
                    said.append(listening.recv(4096).decode())
                except BlockingIOError:
                    return said

        with closing(Notifier(path)) as notifier:
            yield SimpleNamespace(notifier=notifier, heard=heard)


def probed(folder):
    with pytest.raises(DaemonUnreachableError) as error:
        address.probe(folder / address.SOCKET_NAME, {})
    return error.value.message


async def test_a_start_waits_and_says_for_what(tmp_path, manager):
    here = asyncio.Event()

    def open_it():
        if here.is_set():
            return "the store"
        raise DatabaseAwayError("cannot use the database: it is away", hint="wait")

    opening = asyncio.create_task(Start(manager.notifier, asyncio.Event()).open_database(open_it, tmp_path))
    await until(lambda: "it is away" in probed(tmp_path))
    await until(lambda: any(each.startswith("STATUS=waits for its database: ") for each in manager.heard()))
    assert any(each.startswith("EXTEND_TIMEOUT_USEC=") for each in manager.heard())
    here.set()
    assert await asyncio.wait_for(opening, HANG_S) == "the store"
    assert not (tmp_path / address.START_NOTE).exists()
    assert "it is away" not in probed(tmp_path)


async def test_a_start_that_waits_can_be_ended(tmp_path, manager):
    stop = asyncio.Event()

    def open_it():
        raise DatabaseAwayError("it is away")

    opening = asyncio.create_task(Start(manager.notifier, stop).open_database(open_it, tmp_path))
    await until((tmp_path / address.START_NOTE).exists)
    stop.set()
    with pytest.raises(StopRequestedError):
        await asyncio.wait_for(opening, HANG_S)
    assert not (tmp_path / address.START_NOTE).exists()


async def test_a_database_that_cannot_be_used_is_not_waited_for(tmp_path, manager):
    def open_it():
        raise HostError("the password is wrong", Code.DATABASE_UNUSABLE)

    with raises_code(Code.DATABASE_UNUSABLE):
        await Start(manager.notifier, asyncio.Event()).open_database(open_it, tmp_path)


def test_the_note_of_a_daemon_that_was_killed_says_nothing(tmp_path):
    (tmp_path / address.START_NOTE).write_text("waits for its database: it is away")
    assert "it is away" not in probed(tmp_path)
