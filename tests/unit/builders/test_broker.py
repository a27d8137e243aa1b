"""The broker between tuning runs and dask: every order is answered, whatever goes wrong."""

import asyncio
import time

import pytest
from pydantic import ValidationError

pytest.importorskip("distributed")

from farm.builders.broker import _ORDER, Broker, BuildOrder, ConnectedRun
from farm.builders.table_policy import Builder
from farm.bundle.model import Abi, Platform
from farm.common.errors import ProtocolError
from farm.common.frames import FrameReader

ORDER = BuildOrder(7, "same", "a" * 64, {}, next(iter(Abi)), next(iter(Platform)), 10.0)


class Scheduler:
    def add_plugin(self, plugin):
        self.plugin = plugin


class Writer:
    def __init__(self):
        self.written = b""

    def is_closing(self):
        return False

    def write(self, data):
        self.written += data


class ClosedClient:
    def submit(self, *_, **__):
        raise RuntimeError("the client is closed")


@pytest.mark.parametrize("fields", [{"cancel": []}, {"cancel": -1}, {"cancel": "7"}, {"number": []}])
async def test_a_frame_with_a_number_that_is_none_is_refused(fields):
    with pytest.raises(ValidationError):
        Broker(Scheduler(), lambda *_: None)._take(ConnectedRun(Writer()), fields, b"")


async def test_a_second_order_of_one_number_is_refused():
    broker, run = Broker(Scheduler(), lambda *_: None), ConnectedRun(Writer())
    run.orders[7] = asyncio.get_running_loop().create_future()
    with pytest.raises(ProtocolError, match="two orders have the number 7"):
        broker._take(run, {**_ORDER.dump_python(ORDER, mode="json")}, b"")


async def test_an_order_that_nobody_can_be_given_is_answered_so_that_the_run_builds_it(caplog):
    broker = Broker(Scheduler(), lambda *_: None)
    broker._client = ClosedClient()
    builder = Builder("b1", "tcp://127.0.0.1:9", 2, frozenset({"same"}), {}, time.monotonic())
    broker.table.builders[builder.address] = builder
    run = ConnectedRun(Writer())
    await broker._fill(run, ORDER, b"module")
    [(fields, library)] = FrameReader().feed(run.writer.written)
    assert (fields["number"], fields["error"], library) == (7, "", b"")
    assert not builder.running
    assert "the client is closed" in caplog.text
