"""Where the daemon is: its socket on this host, or `tcp://HOST:PORT` of a lab, with the key file that opens it.

Imported by `farm status`, so the standard library and pyzmq must do; not even tomllib: both files that are read here
hold nothing but `name = "value"` lines.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.common.errors import DaemonUnreachableError, FarmError, NotAllowedError, UserError
from farm.common.install import ENDED_DEMO_HINT, default_runtime_dir

CONNECT_S = 1.0  # a unix socket's connect blocks only while the daemon's backlog is full
BUSY_POLL_S = 0.02
REMOTE_CONNECT_S = 5.0
DEAD_LINK_S = 20  # so long the other end may be silent where the kernel asks, or leave what was sent unacknowledged
ASKED_EVERY_S = 5
MAX_FILE_BYTES = 65_536
PORT = 9192
SOCKET_NAME = "control.sock"
SERVICE_SOCKET = Path("/run/farm", SOCKET_NAME)
SERVICE_UNIT = Path("/etc/systemd/system/farm.service")
START_NOTE = "starting"  # file beside the socket: why a starting daemon waits (farm.daemon.starting)
MAX_NOTE_CHARS = 1000
_LINE = re.compile(r'([a-z_]+)\s*=\s*"([^"\\]*)"\s*(?:#.*)?')
_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A key file of `farm auth new`: the client's key pair and the daemon's public key, as Z85."""

    name: str
    server_key: str
    public_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote daemon."""

    host: str
    port: int
    key: ClientKey

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"


Where = Path | Remote


def _of_this_host(service: Path = SERVICE_SOCKET, unit: Path = SERVICE_UNIT) -> Path:
    """One's own daemon if it has a socket, else the service's if there is one, up or down (docs/service.md)."""
    own = default_runtime_dir() / SOCKET_NAME
    mine = os.access(own, os.F_OK)  # a folder of another user's has none
    return service if not mine and (service.parent.is_dir() or unit.exists()) else own


def find(daemon: str = "", key: Path | str = "", environ: Mapping[str, str] = os.environ) -> Where:
    """The daemon's address: the given one, then the environment, then the client's file, then this host's own.

    Args:
        daemon: a path with a `/`, or `tcp://HOST[:PORT]`; empty: `$FARM_DAEMON`, `$FARM_SOCKET`, the client's file.
        key: a key file; empty: `$FARM_KEY`, the client's file. A key alone means the daemon that it names.
        environ: the environment.

    Raises:
        UserError: an address or a key file is no such thing.
    """
    daemon = daemon or environ.get("FARM_DAEMON", "")
    key = key or environ.get("FARM_KEY", "")
    if not daemon and not key and (named := environ.get("FARM_SOCKET")):
        return Path(named)
    if not (daemon and key) and (daemon.startswith("tcp:") or not daemon):
        defaults = _client_file(environ)
        if not daemon and not key:
            daemon = defaults.get("daemon", "")
        key = key or defaults.get("key", "")
    if daemon and not daemon.startswith("tcp:"):
        if "/" not in daemon or "://" in daemon:
            raise UserError(f"{daemon[:80]!r} is no daemon's address", hint=_suggestion(daemon))
        return Path(daemon)
    if not daemon and not key:
        return _of_this_host()
    if not key:
        raise UserError(f"{daemon} needs a key", hint="--key FILE or FARM_KEY: the file that `farm auth new` gave out")
    client_key, home = read_key(Path(key).expanduser())
    return remote(daemon or home, client_key)


def remote(daemon: str, key: ClientKey) -> Remote:
    """The daemon at `tcp://HOST[:PORT]`.

    Raises:
        UserError: it is no such address.
    """
    found = _ADDRESS.fullmatch(daemon)
    port = int(found[2] or PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise UserError(f"{daemon[:80]!r} is no daemon's address", hint="tcp://HOST:PORT, or a socket's path")
    return Remote(found[1], port, key)


def _suggestion(daemon: str) -> str:
    """The form to write instead of HOST:PORT, or of a page's address, whose port is another."""
    scheme, _, rest = daemon.rpartition("://")
    host = rest.partition("/")[0]
    suggestion = f"tcp://{host.rpartition(':')[0] or host if scheme.startswith('http') else host}"
    return (
        f"write {suggestion}"
        if _ADDRESS.fullmatch(suggestion)
        else "tcp://HOST:PORT, or a socket's path with a / in it"
    )


def read_key(path: Path) -> tuple[ClientKey, str]:
    """A key file, and the daemon it names ("" none).

    Raises:
        UserError: it cannot be read, others may read it, or it is no key file.
    """
    values = _values(path)
    try:
        others = path.stat().st_mode & 0o077
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if others:
        raise UserError(f"others may read the key {path}", hint=f"chmod 600 {path}")
    keys = [values.get(name, "") for name in ("server_key", "public_key", "secret_key")]
    if not all(_Z85.fullmatch(each) for each in keys):
        raise UserError(f"{path} is no key file", hint="it is what `farm auth new NAME --role ROLE` prints")
    return ClientKey(values.get("name", ""), *keys), values.get("daemon", "")


def connect(opened: Any, where: Where) -> None:
    """Lead a DEALER socket (zmq.Socket) to the daemon. A refused remote one is not tried again by itself."""
    if isinstance(where, Path):
        opened.connect(f"ipc://{where}")
        return
    key = where.key
    opened.ipv6 = True
    opened.curve_serverkey, opened.curve_publickey = key.server_key.encode(), key.public_key.encode()
    opened.curve_secretkey = key.secret_key.encode()
    opened.reconnect_ivl = -1
    notice_dead_links(opened)
    opened.connect(str(where))


def notice_dead_links(opened: Any) -> None:
    """Have the kernel end TCP connections of this ZeroMQ socket (Any: of either kind) whose other end is gone.

    Not ZeroMQ's own heartbeats: libzmq 4.3.5 aborts the process (`!_io_error`, stream_engine_base.cpp) when one is due
    on a connection that was closed while its reading was held back by a full queue.
    """
    opened.tcp_keepalive = 1
    opened.tcp_keepalive_idle = opened.tcp_keepalive_intvl = ASKED_EVERY_S
    opened.tcp_keepalive_cnt = DEAD_LINK_S // ASKED_EVERY_S - 1
    opened.tcp_maxrt = 1000 * DEAD_LINK_S


def probe(where: Where, environ: Mapping[str, str] = os.environ) -> None:
    """Check that a daemon listens: ZeroMQ would retry silently forever, the kernel reports it at once.

    `environ`: the environment, which may name a farm that is no more.

    Raises:
        DaemonUnreachableError: none does.
        NotAllowedError: this user may not connect.
    """
    if isinstance(where, Remote):
        _probe_remote(where)
        return
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(CONNECT_S)
        try:
            connect_unix(trial, where, CONNECT_S)
        except (BlockingIOError, TimeoutError) as error:
            raise DaemonUnreachableError(
                f"the farm daemon at {where} is busy: other clients wait to connect",
                hint="try again in a moment",
                evidence=str(error),
            ) from error
        except PermissionError as error:
            raise NotAllowedError(
                f"you may not open the farm's control socket {where}",
                hint="have an operator add you to the group farm: sudo usermod -aG farm USER, then log in again",
            ) from error
        except OSError as error:
            if environ.get("FARM_SOCKET") == str(where) and not where.parent.exists():
                raise DaemonUnreachableError(
                    f"FARM_SOCKET names {where}, and no farm is there", hint=ENDED_DEMO_HINT
                ) from error
            if note := start_note(where.parent / START_NOTE):
                raise DaemonUnreachableError(
                    f"the farm daemon starts: it {note}", hint="it continues by itself: farm doctor, journalctl -u farm"
                ) from error
            raise DaemonUnreachableError(
                f"no farm daemon listens on {where}",
                hint="start one with `farm serve` (or systemctl start farm); `farm demo` needs no phone",
                evidence=str(error),
            ) from error


def start_note(path: Path) -> str:
    """Why a starting daemon waits; "": none does."""
    try:
        with path.open(encoding="utf-8", errors="replace") as note:
            try:
                fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # its daemon lives
                return note.read(MAX_NOTE_CHARS).strip()
    except OSError:
        pass
    return ""


def connect_unix(opened: socket.socket, path: Path, limit_s: float) -> None:
    """Connect to a unix socket; while its backlog is full (EAGAIN, connect(2)), again until `limit_s` has passed.

    Raises:
        BlockingIOError: it is full still: a process listens there, and is busy.
        OSError: as connect(2) has it.
    """
    until_s = time.monotonic() + limit_s
    while True:
        try:
            return opened.connect(os.fspath(path))
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(BUSY_POLL_S)


def refused(where: Where) -> FarmError:
    """The error for a remote daemon that ended the handshake."""
    return NotAllowedError(
        f"the farm daemon at {where} does not take this key",
        hint="it was revoked, or is another lab's: have an operator there run `farm auth list`, then `farm auth new`",
    )


def stuck_hint(where: Where) -> str:
    """The hint for a daemon that runs and does not answer."""
    if isinstance(where, Remote):
        return f"something listens at {where}: is it a farm daemon's [control] listen, and the way to it sound?"
    return f"it holds {where} but is stuck: systemctl status farm"


def _probe_remote(where: Remote) -> None:
    try:
        with socket.create_connection((where.host.strip("[]"), where.port), timeout=REMOTE_CONNECT_S):
            pass
    except OSError as error:
        raise DaemonUnreachableError(
            f"no farm daemon listens at {where}",
            hint="is `[control] listen` set there, and the way to it open? Over ssh: ssh -L 9192:127.0.0.1:9192 LAB",
            evidence=str(error),
        ) from error


def _client_file(environ: Mapping[str, str]) -> dict[str, str]:
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", ""), ".config")  # noqa: PTH118 (thin)
    path = Path(base, "farm", "client.toml")
    return _values(path) if os.access(path, os.F_OK) else {}  # a closed home has none


def _values(path: Path) -> dict[str, str]:
    """The `name = "value"` lines of a small file."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1).decode()
    except OSError as error:
        hint = "name the file that `farm auth new` wrote: --key FILE or FARM_KEY"
        raise UserError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text", hint="name the file that `farm auth new` wrote") from error
    values = {}
    for number, line in enumerate(text[:MAX_FILE_BYTES].splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _LINE.fullmatch(stripped)
        if found is None:
            raise UserError(f'{path}: line {number} is not name = "value"')
        values[found[1]] = found[2]
    return values
