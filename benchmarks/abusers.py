"""A process that abuses a running farm until it is killed: `python -m benchmarks.abusers KIND COUNT WHERE`.

WHERE is JSON: {"key": key file of a viewer, "socket": control socket, "tracker": [host, port], "web": URL, "upload":
file}. It prints a line when all COUNT abusers have begun. Every connection that the farm ends is opened again.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import zmq

from farm.common.errors import FarmError
from farm.control.address import Remote, connect, read_key, remote
from farm.control.client import ControlClient
from farm.control.messages import Request, decode_reply, encode_request

DRIP_S = 0.5  # a slow client sends a byte so often
AGAIN_S = 0.1  # after a refusal
NICE = 10  # abusers are on other hosts: here they should not take the farm's cores
Where = Mapping[str, Any]


def read_events(where: Where, count: int, begun: Callable[[], None]) -> None:
    """`count` connections of one viewer read the farm's whole history, over and over."""
    context, poller = zmq.Context(), zmq.Poller()
    question = encode_request(Request("again", "events", {"follow": False}))

    def opened() -> None:
        client = context.socket(zmq.DEALER)
        connect(client, _viewer(where))
        client.reconnect_ivl = 100
        client.send_multipart(question)
        poller.register(client, zmq.POLLIN)

    for _ in range(count):
        opened()
    begun()
    while True:
        for client, _ in poller.poll():
            reply = decode_reply(client.recv_multipart())
            if not reply.more:
                if reply.error is not None:
                    time.sleep(AGAIN_S / count)
                client.send_multipart(question)


def connect_silently(where: Where, count: int, begun: Callable[[], None]) -> None:
    """`count` connections to the TVM port that send nothing."""

    def silent() -> socket.socket | None:
        with contextlib.suppress(OSError):
            opened = socket.create_connection(tuple(where["tracker"]), 30)
            opened.setblocking(False)
            return opened
        return None

    held = [silent() for _ in range(count)]
    begun()
    while True:
        for number, each in enumerate(held):
            try:
                if each is None or each.recv(1) == b"":
                    held[number] = silent()
            except BlockingIOError:
                continue
            except OSError:
                held[number] = None
        time.sleep(AGAIN_S)


def drip(where: Where, count: int, begun: Callable[[], None]) -> None:
    """`count` clients of each port that send a byte at a time."""
    web, key = urlsplit(where["web"]), _viewer(where)
    starts = {
        tuple(where["tracker"]): b"\x71\xf2\x02\x00\x00\x40\x00\x00",
        (web.hostname, web.port): b"GET / HTTP/1.1\r\nX: ",
        (key.host, key.port): b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
    }

    def slow(address: tuple[str, int], start: bytes) -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(address, 30) as connection:
                for number in range(10_000):
                    connection.sendall(start[number : number + 1] or b"a")
                    time.sleep(DRIP_S)
            time.sleep(AGAIN_S)

    for address, start in starts.items():
        _threads(count, partial(slow, address, start))
    begun()


def read_page(where: Where, count: int, begun: Callable[[], None], path: str = "") -> None:
    """`count` readers of a page; the first one without `path`."""

    def read() -> None:
        while True:
            with contextlib.suppress(OSError), urlopen(where["web"] + path, timeout=30) as answer:
                answer.read()

    _threads(count, read)
    begun()


def connect_again(where: Where, count: int, begun: Callable[[], None], port: str) -> None:
    """`count` clients that connect to a port, and leave at once."""
    web, key = urlsplit(where["web"]), _viewer(where)
    addresses = {"tvm": where["tracker"], "web": (web.hostname, web.port), "control": (key.host, key.port)}

    def again() -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(tuple(addresses[port]), 30):
                pass

    _threads(count, again)
    begun()


def upload(where: Where, count: int, begun: Callable[[], None]) -> None:
    """`count` users upload a file."""

    def put() -> None:
        while True:
            with contextlib.suppress(FarmError, OSError), ControlClient(Path(where["socket"])) as client:
                client.put_artifact(Path(where["upload"]))

    _threads(count, put)
    begun()


def _viewer(where: Where) -> Remote:
    key, home = read_key(Path(where["key"]))
    return remote(home, key)


def _threads(count: int, work: Callable[[], None]) -> None:
    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()


KINDS: dict[str, Callable[[Where, int, Callable[[], None]], None]] = {
    "events": read_events, "silent": connect_silently, "drip": drip, "web": read_page, "upload": upload,
    "metrics": partial(read_page, path="metrics"), "jobs": partial(read_page, path="jobs?sort=name"),
    **{f"connect {port}": partial(connect_again, port=port) for port in ("tvm", "web", "control")},
}  # fmt: skip


def main(kind: str, count: int, where: Where) -> None:
    """Run `count` abusers."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    threading.stack_size(256 << 10)
    KINDS[kind](where, count, lambda: print("begun", flush=True))
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
