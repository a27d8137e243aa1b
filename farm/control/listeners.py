"""The control sockets: a unix socket, whose clients the kernel names, and TCP with CURVE for remote clients.

The runtime folder of the unix sockets belongs to the daemon's user; the group `farm`, whose members use phones, may
enter it when there is such a group, no other user.

TCP is off by default. ZeroMQ's authentication protocol (ZAP, rfc.zeromq.org/spec/27) inside this process admits keys: a
key without an account is refused at the handshake, after a wait that grows with each wrong key from the same address.
The account is looked up again for every message, so a revoked key is worth nothing from that moment on.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import os
import socket
import stat
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path

import zmq
import zmq.asyncio
from zmq.utils import z85

from farm.common.errors import Code, FarmError, HostError
from farm.common.files import write_durably
from farm.common.peers import peer_process
from farm.common.tasks import log_failure
from farm.config.consistency import address_of
from farm.control.address import notice_dead_links
from farm.control.callers import FARM_GROUP, Accounts, KeyPeer, LocalPeer

MAX_SOCKET_PATH_BYTES = 107  # sizeof(sockaddr_un.sun_path) - 1 (unix(7))
TAKEN_PROBE_S = 1.0
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
DOMAIN = b"farm"
BACKLOG = 128
MAX_WAITING = 256  # wrong keys that are made to wait at once; more are refused without a wait
MAX_WAIT_S = 4.0  # less than the router's HANDSHAKE_MS: the answer should still find its connection
KEY_BYTES = 32
MODE = 0o750
_OTHERS = 0o007

logger = logging.getLogger(__name__)


class ControlSocketError(HostError):
    """A control socket cannot be opened."""

    code = "control_socket_unusable"


class UnixListener:
    """A unix socket of mode 0660."""

    def __init__(self, path: Path, gid: int | None = None) -> None:
        """`path` is in a folder that is there; `gid` is the group that may connect besides the owner."""
        self._path = path
        self._gid = gid
        self.endpoint = f"ipc://{path}"
        self.name = path.name

    def open(self, context: zmq.asyncio.Context, server: zmq.asyncio.Socket) -> None:  # noqa: ARG002 (as the other does)
        """Bind the socket.

        Raises:
            ControlSocketError: the path is too long, another process listens on it, or the folder refuses.
        """
        _check_free(self._path)
        try:
            mask = os.umask(0o117)  # no moment at which others could connect
            try:
                server.bind(self.endpoint)
            finally:
                os.umask(mask)
            self._path.chmod(0o660)
            if self._gid is not None:
                os.chown(self._path, -1, self._gid)
        except (OSError, zmq.ZMQError) as error:
            raise ControlSocketError(
                f"cannot open the control socket {self._path}", hint="is its folder writable?", evidence=str(error)
            ) from error

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """No tasks: a unix socket needs none."""
        return ()

    def close(self) -> None:
        """Remove the socket's name."""
        self._path.unlink(missing_ok=True)

    def owner(self, connection: socket.socket) -> str | None:
        """The uid that connected.

        Raises:
            OSError: it has ended.
        """
        if connection.family != socket.AF_UNIX or connection.getsockname() != str(self._path):
            return None
        return f"uid {peer_process(connection).uid}"

    def sender(self, frame: zmq.Frame) -> LocalPeer | KeyPeer | None:
        """The sender from libzmq's "Peer-Address" of an ipc socket: `host:uid:gid:pid`."""
        try:
            text = frame.get("Peer-Address")
        except zmq.ZMQError:
            return None
        parts: Sequence[str] = str(text).rsplit(":", 3)[-3:]
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            return None
        uid, gid, pid = map(int, parts)
        return LocalPeer(uid, gid, pid)


def _check_free(path: Path) -> None:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ControlSocketError(
            f"the control socket's path is longer than {MAX_SOCKET_PATH_BYTES} bytes: {path}",
            hint="choose a shorter runtime folder",
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TAKEN_PROBE_S)
        try:
            probe.connect(str(path))
        except (BlockingIOError, TimeoutError):  # one whose backlog is full listens too
            pass
        except OSError:
            return
    raise ControlSocketError(
        f"another process listens on {path}",
        hint=f"stop it, perhaps a farm daemon (fuser {path} names it), or start this one with another --runtime-dir",
    )


class CurveListener:
    """A TCP port for clients with a key."""

    name = "remote"

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
        self.on_wrong_key: Callable[[str], None] = lambda _: None  # gets the address of the client

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.endpoint.rpartition(":")[2])

    def open(self, context: zmq.asyncio.Context, server: zmq.asyncio.Socket) -> None:
        """Bind the socket; the key check begins first.

        Raises:
            ControlSocketError: the port is taken, or the key file cannot be used.
        """
        self.server_key, secret_key = server_keys(self._key_file)
        self._zap = context.socket(zmq.ROUTER)
        self._zap.bind(ZAP_ENDPOINT)
        self._answering = asyncio.create_task(self._answer_zap(self._zap), name="key check of the control socket")
        self._answering.add_done_callback(log_failure)
        server.zap_domain = DOMAIN
        server.curve_server = True
        server.curve_publickey, server.curve_secretkey = self.server_key.encode(), secret_key.encode()
        notice_dead_links(server)
        server.backlog = BACKLOG
        parsed = address_of(self._listen)
        server.ipv6 = parsed is not None and ":" in parsed[0]
        try:
            server.bind(self._listen)
        except zmq.ZMQError as error:
            self.close()
            raise ControlSocketError(
                f"cannot listen on {self._listen}", hint="[control] listen names the address", evidence=str(error)
            ) from error
        self.endpoint = server.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """The key check: without it no key is admitted."""
        return () if self._answering is None else (self._answering,)

    def close(self) -> None:
        """End the key check."""
        for task in (*self._waiting, *self.tasks):
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

    def sender(self, frame: zmq.Frame) -> LocalPeer | KeyPeer | None:
        """The key that this connection was opened with, and its account by then: it may have been revoked since."""
        try:
            key, _, account = str(frame.get("User-Id")).partition(" ")
            return KeyPeer(account, str(frame.get("Peer-Address")), bytes.fromhex(key))
        except (zmq.ZMQError, ValueError):
            return None

    async def _answer_zap(self, zap: zmq.asyncio.Socket) -> None:
        """Answer libzmq's questions about keys, each within its wait."""
        while True:
            frames = await zap.recv_multipart()
            self._later(self._check_key(zap, frames))

    async def _check_key(self, zap: zmq.asyncio.Socket, frames: Sequence[bytes]) -> None:
        if len(frames) < 9:  # route, "", version, id, domain, address, identity, mechanism, key
            return
        route, _, version, request_id, domain, address, _, mechanism, key, *_ = frames
        place = address.decode(errors="replace")
        known = None
        if (version, domain, mechanism, len(key)) == (ZAP_VERSION, DOMAIN, b"CURVE", KEY_BYTES):
            with contextlib.suppress(FarmError):  # while the database cannot be read, no client is admitted
                known = await self._accounts.by_curve_key(key)
        if known is None:
            self.on_wrong_key(place)
            wait_s = min(self._accounts.keys.failed(place), MAX_WAIT_S)
            wait_s = wait_s if len(self._waiting) <= MAX_WAITING else 0.0
            await _answer(zap, route, request_id, b"400", b"unknown key", b"", wait_s)
        else:
            await _answer(zap, route, request_id, b"200", b"OK", f"{key.hex()} {known.user}".encode(), 0.0)
            await self._accounts.noted(known)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="the check of a remote key")
        self._waiting.add(task)
        task.add_done_callback(log_failure)
        task.add_done_callback(self._waiting.discard)


async def _answer(
    zap: zmq.asyncio.Socket, route: bytes, request_id: bytes, status: bytes, text: bytes, user: bytes, wait_s: float
) -> None:
    if wait_s:
        await asyncio.sleep(wait_s)
    with contextlib.suppress(zmq.ZMQError):  # the socket is closing
        await zap.send_multipart([route, b"", ZAP_VERSION, request_id, status, text, user, b""])


ControlListener = UnixListener | CurveListener


def server_keys(path: Path) -> tuple[str, str]:
    """The daemon's key pair, public half first, as Z85; made when there is none.

    Raises:
        ControlSocketError: the file cannot be read or written, others may read it, or it holds something else.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            made = zmq.curve_keypair()[1]
            write_durably(path, made + b"\n", 0o600)
            logger.info("made the daemon's key %s", path)
        if path.stat().st_mode & 0o077:
            raise ControlSocketError(
                f"others may read the daemon's key {path}", hint=f"chmod 600 {path}; better: remove it"
            )
        secret = path.read_bytes().strip()
        if len(secret) != 40 or len(z85.decode(secret)) != KEY_BYTES:
            raise ValueError
        return zmq.curve_public(secret).decode(), secret.decode()
    except OSError as error:
        raise ControlSocketError(f"cannot use the daemon's key {path}: {error.strerror}") from error
    except (ValueError, KeyError) as error:
        raise ControlSocketError(
            f"{path} is no key", hint="remove it: a new one is made, and every client needs a new key file then"
        ) from error


runtime_folder_error = partial(HostError, code=Code.RUNTIME_FOLDER_UNUSABLE)


def prepare_runtime_folder(path: Path, gid: int | None) -> None:
    """Make the folder of the daemon's sockets, or check the one that is there. Done once, before any socket is opened.

    A folder that others may enter is an operator's choice (`--runtime-dir /srv/lab`): its mode stays, the sockets in it
    are closed by their own. Any other is opened to the group.

    Args:
        path: the folder.
        gid: the group to admit; see `group_to_admit`.

    Raises:
        HostError: it cannot be made, is another user's (in /tmp any user can be first), or any user may write
            to it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_foreign(path)
        if not path.stat().st_mode & _OTHERS:
            if gid is not None:
                os.chown(path, -1, gid)
            path.chmod(MODE)
    except OSError as error:
        raise runtime_folder_error(
            f"cannot use the runtime folder {path}: {error.strerror}",
            hint="choose another with --runtime-dir, or run as the user that owns it",
        ) from error


def group_to_admit(name: str = FARM_GROUP) -> int | None:
    """The id of the group `name`; None when there is none, or when this process may not give files to it."""
    try:
        gid = grp.getgrnam(name).gr_gid
    except KeyError:
        return None
    return gid if os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()) else None


def _refuse_foreign(path: Path) -> None:
    ours = {os.geteuid()}
    for facts, owners in ((path.lstat(), ours | {0}), (path.stat(), ours)):  # the link itself may be root's
        if facts.st_uid not in owners:
            raise runtime_folder_error(
                f"the runtime folder {path} belongs to uid {facts.st_uid}, not to this daemon's uid {os.geteuid()}",
                hint="choose another with --runtime-dir, or have its owner remove it",
            )
    if path.stat().st_mode & stat.S_IWOTH:
        raise runtime_folder_error(
            f"any user may write to the runtime folder {path}",
            hint="choose a folder of the daemon's own: --runtime-dir",
        )
