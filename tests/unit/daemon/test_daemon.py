"""One `farm serve` without its parts: how it ends, and what a SIGHUP does meanwhile."""

import asyncio
import errno
import os
import signal
import socket
from unittest.mock import AsyncMock

import pytest
import zmq

from farm.common.errors import FarmError, HostError
from farm.config import FarmConfig
from farm.daemon import daemon as daemon_module
from farm.daemon.daemon import Daemon
from farm.daemon.scheduling import _open_ports
from tests.support.waiting import HANG_S


@pytest.fixture
def daemon(monkeypatch):
    monkeypatch.setattr(daemon_module, "raise_descriptor_limit", lambda: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    return Daemon(FarmConfig(), FarmConfig)


async def test_a_part_that_ends_by_itself_is_a_failure(daemon):
    """The service manager starts again what failed, and nothing else."""

    async def build(_):
        return [asyncio.create_task(asyncio.sleep(0), name="history")]

    daemon._build = build
    with pytest.raises(FarmError, match="history ended by itself"):
        await asyncio.wait_for(daemon.run(), HANG_S)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), zmq.ZMQError(errno.EMFILE)])
async def test_a_start_without_descriptors_is_one_line(daemon, error):
    daemon._build = AsyncMock(side_effect=error)
    with pytest.raises(HostError, match=r"^cannot start: the host: Too many open files$"):
        await daemon.run()


async def test_a_hangup_kills_it_neither_at_its_beginning_nor_at_its_end(daemon):
    heard = []

    def reload():
        heard.append("reload")
        os.kill(os.getpid(), signal.SIGTERM)

    async def hang_up():
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(3):  # the loop's own handler runs in one of its next turns
            await asyncio.sleep(0)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            heard.append("killed")

    async def build(stack):
        await hang_up()
        stack.push_async_callback(hang_up)
        daemon._reload = reload
        serving = asyncio.create_task(asyncio.sleep(HANG_S), name="serving")
        stack.callback(serving.cancel)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGHUP)
        return [serving]

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a handler that is missing this test hears; it is not ended by it
    daemon._build = build
    try:
        await asyncio.wait_for(daemon.run(), HANG_S)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert heard == ["reload"]


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_ports_that_the_daemon_listens_at_are_its_own(family, address):
    with socket.create_server((address, 0), family=family) as listener:
        assert listener.getsockname()[1] in set(_open_ports())
