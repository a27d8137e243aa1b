"""The way in for people elsewhere: TCP with CURVE (encrypted, both sides proven by their keys), off by default.

Who may come is decided by ZeroMQ's authentication protocol (ZAP, rfc.zeromq.org/spec/27) inside this process: a key
that no account has ends at the handshake, after a wait that grows with each one from the same address. The account is
looked up again for every message, so a revoked key is worth nothing from that moment on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import zmq
import zmq.asyncio
from zmq.utils import z85

from farm.control.accounts import Account, Accounts
from farm.control.address import notice_dead_links
from farm.control.callers import KeyPeer, Peer
from farm.control.entrances import DoorError
from farm.core.control_policy import address_of
from farm.core.errors import FarmError
from farm.core.tasks import tell_failure

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
DOMAIN = b"farm"
BACKLOG = 128
MOST_WAITING = 256  # wrong keys that are made to wait at once; more are refused without a wait
LONGEST_WAIT_S = 4.0  # less than the router's HANDSHAKE_MS: the answer should still find its connection
KEY_BYTES = 32

logger = logging.getLogger(__name__)


class CurveEntrance:
    """A TCP port for clients with a key."""

    name = "elsewhere"

    def __init__(self, listen: str, accounts: Accounts, key_file: Path) -> None:
        """Prepare the port.

        Args:
            listen: tcp://ADDRESS:PORT; port 0: the kernel chooses.
            accounts: who may come in.
            key_file: the daemon's key pair; made, mode 0600, when it is not there.
        """
        self._listen = listen
        self._accounts = accounts
        self._key_file = key_file
        self.endpoint = listen
        self._zap: zmq.asyncio.Socket | None = None
        self._answering: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[None]] = set()
        self.server_key = ""  # public half, Z85
        self.on_wrong_key: Callable[[str], None] = lambda _: None  # told the address it came from

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.endpoint.rpartition(":")[2])

    def open(self, context: zmq.asyncio.Context, door: zmq.asyncio.Socket) -> None:
        """Bind the door's socket; the guard is there first.

        Raises:
            DoorError: the port is taken, or the key file cannot be used.
        """
        self.server_key, secret_key = server_keys(self._key_file)
        self._zap = context.socket(zmq.ROUTER)
        self._zap.bind(ZAP_ENDPOINT)
        self._answering = asyncio.create_task(self._guard(self._zap), name="door elsewhere: guard")
        self._answering.add_done_callback(tell_failure)
        door.zap_domain = DOMAIN
        door.curve_server = True
        door.curve_publickey, door.curve_secretkey = self.server_key.encode(), secret_key.encode()
        notice_dead_links(door)
        door.backlog = BACKLOG
        told = address_of(self._listen)
        door.ipv6 = told is not None and ":" in told[0]
        try:
            door.bind(self._listen)
        except zmq.ZMQError as error:
            self.close()
            raise DoorError(
                f"cannot listen on {self._listen}", hint="[control] listen names the address", evidence=str(error)
            ) from error
        self.endpoint = door.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    @property
    def parts(self) -> Sequence[asyncio.Task[None]]:
        """The guard: without it no key is judged."""
        return () if self._answering is None else (self._answering,)

    def close(self) -> None:
        """End the guard."""
        for task in (*self._waiting, *self.parts):
            task.cancel()
        if self._zap is not None:
            self._zap.close(linger=0)
            self._zap = None

    def owner(self, connection: socket.socket) -> str | None:
        """The address that connected.

        Raises:
            OSError: it has ended.
        """
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != self.port:
            return None
        return str(connection.getpeername()[0])

    def sender(self, frame: zmq.Frame) -> Peer | KeyPeer | None:
        """The account of the key that this connection was opened with; None: it has been revoked."""
        try:
            user, address = str(frame.get("User-Id")), str(frame.get("Peer-Address"))
        except zmq.ZMQError:
            return None
        try:
            account = self._accounts.by_curve_key(bytes.fromhex(user))
        except (ValueError, FarmError):  # no key, or the database cannot be read: then nobody comes in
            return None
        return None if account is None else KeyPeer(account.name, address)

    async def _guard(self, zap: zmq.asyncio.Socket) -> None:
        """Answer libzmq's questions about keys, each within its wait."""
        while True:
            frames = await zap.recv_multipart()
            try:
                self._judge(zap, frames)
            except Exception:  # whoever asked is not answered, and so not let in; the next one is
                logger.exception("door elsewhere: a key is not judged")

    def _judge(self, zap: zmq.asyncio.Socket, frames: Sequence[bytes]) -> None:
        if len(frames) < 9:  # route, "", version, id, domain, address, identity, mechanism, key
            return
        route, _, version, request_id, domain, address, _, mechanism, key, *_ = frames
        place = address.decode(errors="replace")
        known = None
        if (version, domain, mechanism, len(key)) == (ZAP_VERSION, DOMAIN, b"CURVE", KEY_BYTES):
            with contextlib.suppress(FarmError):  # a database that cannot be read lets nobody in
                known = self._accounts.by_curve_key(key)
        if known is None:
            self.on_wrong_key(place)
            wait_s = min(self._accounts.keys.failed(place), LONGEST_WAIT_S)
            wait_s = wait_s if len(self._waiting) < MOST_WAITING else 0.0
            self._later(_answer(zap, route, request_id, b"400", b"unknown key", b"", wait_s))
        else:
            self._later(self._let_in(zap, route, request_id, key, known))

    async def _let_in(
        self, zap: zmq.asyncio.Socket, route: bytes, request_id: bytes, key: bytes, account: Account
    ) -> None:
        await _answer(zap, route, request_id, b"200", b"OK", key.hex().encode(), 0.0)
        await self._accounts.noted(account)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._waiting.add(task)
        task.add_done_callback(tell_failure)
        task.add_done_callback(self._waiting.discard)


async def _answer(
    zap: zmq.asyncio.Socket, route: bytes, request_id: bytes, status: bytes, text: bytes, user: bytes, wait_s: float
) -> None:
    if wait_s:
        await asyncio.sleep(wait_s)
    with contextlib.suppress(zmq.ZMQError):  # the door is closing
        await zap.send_multipart([route, b"", ZAP_VERSION, request_id, status, text, user, b""])


def server_keys(path: Path) -> tuple[str, str]:
    """The daemon's key pair, public half first, as Z85; made when there is none.

    Raises:
        DoorError: the file cannot be read or written, others may read it, or it holds something else.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            made = zmq.curve_keypair()[1]
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(made + b"\n")
                file.flush()
                os.fsync(file.fileno())
            logger.info("made the daemon's key %s", path)
        if path.stat().st_mode & 0o077:
            raise DoorError(f"others may read the daemon's key {path}", hint=f"chmod 600 {path}; better: remove it")
        secret = path.read_bytes().strip()
        if len(secret) != 40 or len(z85.decode(secret)) != KEY_BYTES:
            raise ValueError
        return zmq.curve_public(secret).decode(), secret.decode()
    except OSError as error:
        raise DoorError(f"cannot use the daemon's key {path}: {error.strerror}") from error
    except (ValueError, KeyError) as error:
        raise DoorError(
            f"{path} is no key", hint="remove it: a new one is made, and every client needs a new key file then"
        ) from error
