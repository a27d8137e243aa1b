"""Heads in processes of their own over a real PostgreSQL, and hosts that are the test."""

import asyncio
import itertools
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import psycopg

from farm.head import orders
from farm.head.messages import Order
from farm.kinds import KINDS as SPECS
from tests.support.forked_processes import popen
from tests.support.lab_host import LabHost

HEAD = """
import asyncio, logging, signal, sys
from farm.head import beats
from farm.head.model import LeasePolicy
from farm.head.process import HeadProcess, HeadSettings
from farm.kinds import KINDS
from farm.store import term

term.TERM_S, term.RENEWED_EVERY_S = 3.0, 0.3
beats.BEAT_EVERY_S = float(sys.argv[2])
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = HeadSettings(LeasePolicy(), keep_days=90.0, max_mb=2000, audit_days=365.0)
    await HeadProcess(sys.argv[1], settings, KINDS).run(stop)

asyncio.run(main())
"""
QUICK_S = 0.5  # between beats
DEEP = f'{{"kind": {"[" * 3000 + "]" * 3000}}}'
HUGE = f'{{"kind": "LeaseRestored", "lease": {{"granted_at": {"9" * 400}}}}}'
DAMAGED = ("", "{", "[]", DEEP, HUGE, HUGE.replace("9", "9" * 20), '{"kind": "DeviceChanged", "state": []}')
NUMBERS = itertools.count()


class Heads:
    """Processes that are heads or wait to be."""

    def __init__(self, url):
        self.url = url
        self.all = []

    def begin(self, beat_s=2.0):
        command = [sys.executable, "-c", HEAD, self.url, str(beat_s)]
        self.all.append(popen(command, stdout=subprocess.PIPE, text=True))
        return self.all[-1]

    async def decides(self, head, said="this head decides, in term"):
        """Wait until that one does; what it said."""

        def read():
            for line in head.stdout:
                if said in line:
                    return line
            raise AssertionError(f"the head ended with {head.wait()}")

        return await asyncio.to_thread(read)

    def rows(self, query):
        """What a select finds."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return connection.execute(query).fetchall()

    def damage(self, row):
        """Write damaged messages into the rows of this INSERT."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            connection.cursor().executemany(row, [(str(number), body) for number, body in enumerate(DAMAGED)])

    def close(self):
        for each in self.all:
            each.send_signal(signal.SIGCONT)
            each.kill()
            each.communicate()


@asynccontextmanager
async def a_host(heads, *devices, name="one", reads=True, beat_s=2.0):
    host = LabHost(heads.url, name, *devices)
    host.beat_s = beat_s
    await host.begin(reads=reads)
    try:
        async with asyncio.timeout(90):
            yield host
    finally:
        await host.close()
    for device in devices:  # in the order in which they were armed
        fences = [lease.fence for lease in host.armed if lease.device == device]
        assert fences == sorted(set(fences))


async def submit(host, on):
    """A job, by an order of that host."""
    spec = SPECS["shell"].from_wire({"on": on, "command": "id", "max_attempts": 2})
    await ordered(host, "submit", spec=spec, user="ann", key="", must_match=True)


async def ordered(host, method, **fields):
    """Give the head an order of that host; return when it is answered."""
    order = Order(f"order-{next(NUMBERS)}", method, orders.to_wire(method, fields))
    await host.store.mailbox.send(host.letter(order))
    answer = await host.answers.get()
    assert answer.error is None


async def until(host, holds):
    """Look at each wake-up of the host, and twice a second."""
    while not await asyncio.to_thread(holds):
        await host.listener.wait()


def events_of(host):
    """What happened to hosts."""
    return [each.kind for each in host.store.events.since(0) if each.kind.startswith("host.")]


async def states(host, names):
    return [each.state for each in await host.store.read(host.store.jobs.several, names)]
