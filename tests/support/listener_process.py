"""A TVM door in its own process, for tests that starve it or measure it. Talks JSON lines on stdin and stdout.

`python -m tests.support.listener_process [--files N] [--shed-after S] [--adb SPEC] [--store FOLDER] [--child]
[--phone NAME:PORT:SECRET[:SERIAL]]...` prints its port. Leases are kept in a database in FOLDER, else in memory. A
phone with a serial is dialled through the adb server at SPEC, others on 127.0.0.1. The gate is in this process, or,
with --child, a child of it, as a daemon's is. The line "cpu" on stdin is answered by {"cpu_s"}, each other one by
{"rss_bytes", "cpu_s", "loop_delay_s", "open", "waiting", "keys"}; the line "hog" first takes every free descriptor,
"unhog" gives them back. Ends when stdin is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import sys
import time
from pathlib import Path

from farm.adb.client import AdbClient
from farm.common.events import EventLog
from farm.head.model import LeasePolicy
from farm.store.store import Store
from farm.tvm_server import listener
from farm.tvm_server.gate.child import GateChild
from farm.tvm_server.server import TvmServer
from tests.support.gate_lab import GateInLoop
from tests.support.keeping import MemoryKeeper
from tests.support.local_head import leasing_over
from tests.support.tvm import FakeDevices

LOOP_PROBE_S = 0.01


class LoopDelay:
    """The worst lateness of a timer since it was last asked."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self.worst_s = 0.0
        self._arm()

    def _arm(self):
        self._due = self._loop.time() + LOOP_PROBE_S
        self._loop.call_at(self._due, self._tick)

    def _tick(self):
        self.worst_s = max(self.worst_s, self._loop.time() - self._due)
        self._arm()

    def take(self):
        worst, self.worst_s = self.worst_s, 0.0
        return worst


class AdbDevices(FakeDevices):
    """Devices that may be behind an adb server."""

    def __init__(self, adb_socket):
        super().__init__()
        self._adb = AdbClient(adb_socket) if adb_socket else None
        self._serials = {}

    def add_phone(self, name, port, secret, serial=""):
        if serial:
            self._serials[name] = serial
        self.add(name, "android", port=int(port), secret=secret)

    async def dial(self, name, timeout_s):
        serial = self._serials.get(name)
        if serial is None or self._adb is None:
            return await super().dial(name, timeout_s)
        sock = await self._adb.open_tcp(serial, self.ports[name], timeout_s=timeout_s)
        return sock, self.secrets[name]


def hog():
    """Every descriptor there is."""
    taken = []
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return taken


async def main(arguments):
    if arguments.files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (arguments.files, arguments.files))
    listener.SHED_AFTER_S = arguments.shed_after
    if arguments.child:
        await serve(arguments, GateChild(listener.bind("127.0.0.1", 0)), lambda door: door.sessions)
    else:
        async with GateInLoop() as lab:
            await serve(arguments, lab.path, lambda _: lab.gate._listener.open)


async def serve(arguments, gate, count_open):
    statm = os.open("/proc/self/statm", os.O_RDONLY)  # opened while there are descriptors
    devices = AdbDevices(arguments.adb)
    store = Store.open(Path(arguments.store) / "farm.db") if arguments.store else None
    keeper = MemoryKeeper() if store is None else store.leases
    leasing = leasing_over(devices, EventLog(), 1, keeper, LeasePolicy())
    for phone in arguments.phone:
        devices.add_phone(*phone.split(":", 3))
    door = TvmServer(gate, "bench", leasing.tvm, leasing.tvm)
    await door.start()
    door.begin()
    delay = LoopDelay()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps({"port": door.port}), flush=True)
    taken = []
    while command := (await reader.readline()).strip():
        if command == b"hog":
            taken = hog()
        elif command == b"unhog":
            for descriptor in taken:
                os.close(descriptor)
        elif command == b"cpu":
            print(json.dumps({"cpu_s": time.process_time()}), flush=True)
            continue
        gc.collect()
        state = {
            "rss_bytes": int(os.pread(statm, 100, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            "cpu_s": sum(os.times()[:2]),
            "loop_delay_s": delay.take(),
            "open": count_open(door),
            "waiting": door.tracker.waiting,
            "keys": len(door.summary()["queue_info"]),
        }
        print(json.dumps(state), flush=True)
    await door.stop()
    await leasing.close()
    if store is not None:
        store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--shed-after", type=float, default=listener.SHED_AFTER_S)
    parser.add_argument("--adb", default="")
    parser.add_argument("--store", default="")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--phone", action="append", default=[])
    asyncio.run(main(parser.parse_args()))
