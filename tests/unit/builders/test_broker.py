"""The broker between tuning runs and dask: every order is answered, whatever goes wrong."""

import time

import pytest

pytest.importorskip("distributed")

from farm.builders.broker import Broker, BuildOrder, ConnectedRun
from farm.builders.table_policy import Builder
from farm.bundle.model import Abi, Platform
from farm.common.frames import FrameReader


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


async def test_an_order_that_nobody_can_be_given_is_answered_so_that_the_run_builds_it(caplog):
    broker = Broker(Scheduler(), lambda *_: None)
    broker._client = ClosedClient()
    builder = Builder("b1", "tcp://127.0.0.1:9", 2, frozenset({"same"}), {}, time.monotonic())
    broker.table.builders[builder.address] = builder
    run = ConnectedRun(Writer())
    order = BuildOrder(7, "same", "a" * 64, {}, next(iter(Abi)), next(iter(Platform)), 10.0)
    await broker._fill(run, order, b"module")
    [(fields, library)] = FrameReader().feed(run.writer.written)
    assert (fields["number"], fields["error"], library) == (7, "", b"")
    assert not builder.running
    assert "the client is closed" in caplog.text
