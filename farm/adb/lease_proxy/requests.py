"""Requests of a client of a leased adb: they are read, judged and put in terms of the one phone. Pure.

`request_of` reads a block, `judge` turns a request into the proxy's action. A request for no phone in particular means
the leased one; one that names another is refused as an adb server refuses a phone that is not there. What is not known
to be harmless is refused.

This keeps people from hurting other users by mistake and their tools from seeing other phones. It is no jail on the
phone itself: `adb shell reboot` is a shell's business, and ends the lease.

Sources: what adb 29.0.6 and 36.0.0 send (docs/facts.md), AOSP packages/modules/adb SERVICES.TXT.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.adb.devices import ListForm
from farm.adb.host_protocol import LENGTH_BYTES, text_of
from farm.adb.tunnels import EMULATOR_PORTS, TunnelKind
from farm.common.errors import ProtocolError

FIRST_UNPRIVILEGED_PORT = 1024  # the adb server may be root: no user gets a privileged port of the host from it


def request_of(block: bytes) -> str:
    """The request in a block of the smart-socket protocol.

    Raises:
        ProtocolError: it is empty.
    """
    if not block:
        raise ProtocolError("an adb client sent an empty request", evidence="0" * LENGTH_BYTES)
    return text_of(block)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer FAIL with this text."""

    message: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the real server this and pass its whole answer on."""

    service: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Ask for the list of phones and pass on the entry of the leased one."""

    service: str
    form: ListForm = ListForm.TEXT
    follow: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """Switch the connection to the phone. With `tell_id` the answer carries its transport id (u64)."""

    tell_id: bool = False


@dataclass(frozen=True, slots=True)
class Serve:
    """Open this service on the phone and copy bytes."""

    service: str


@dataclass(frozen=True, slots=True)
class OpenTunnel:
    """Listen on one side and dial the other. `rebind`: a forward or reverse of the lease that listens there goes."""

    kind: TunnelKind
    listen: str
    dial: str
    rebind: bool


@dataclass(frozen=True, slots=True)
class CloseTunnel:
    """Stop listening on `listen`, or wherever the lease listens if None."""

    kind: TunnelKind
    listen: str | None


@dataclass(frozen=True, slots=True)
class ListForwards:
    """The phone's forwards."""


Decision = Refuse | Ask | Listing | Select | Serve | OpenTunnel | CloseTunnel | ListForwards


@dataclass(frozen=True, slots=True)
class JudgedRequest:
    """The proxy's action; `transport_id`: only if that is the leased phone's now."""

    decision: Decision
    transport_id: int | None = None


_ASKED_OF_SERVER = frozenset({"version", "host-features", "server-status"})
_ASKED_OF_PHONE = frozenset({"features", "get-state", "get-serialno", "get-devpath"})
_WAIT_FOR = re.compile(r"wait-for-[a-z]+(?:-[a-z]+)?")
_LISTINGS = {
    "devices": Listing("host:devices"),
    "devices-l": Listing("host:devices-l"),
    "track-devices": Listing("host:track-devices", follow=True),
    "track-devices-l": Listing("host:track-devices-l", follow=True),
    "track-devices-proto-binary": Listing("host:track-devices-proto-binary", ListForm.PROTO_BINARY, follow=True),
    "track-devices-proto-text": Listing("host:track-devices-proto-text", ListForm.PROTO_TEXT, follow=True),
}
_FARM_KEEPS_LIST = "farm decides which phones its adb server has"
_FARM_KEEPS_LINK = "farm looks after the connection to the phone"
_WOULD_END_LEASE = "the phone would be lost for the lease; farm device reboot is for operators"
# A client that reaches it waits forever: the server accepts only the keys of farm's sessions.
_FARMS_SERVER = (
    "not on a leased adb: the phone's tcp:{port} is farm's own RPC server: use the lease's TVM key (farm lease show), "
    "or give your server another port (--port=5101 --port-end=5102)"
)
_REFUSED_OF_SERVER = {
    "kill": "this is the adb server of your farm lease; it ends with the lease (farm lease release)",
    "connect": _FARM_KEEPS_LIST,
    "disconnect": _FARM_KEEPS_LIST,
    "pair": _FARM_KEEPS_LIST,
    "emulator": _FARM_KEEPS_LIST,
    "mdns": _FARM_KEEPS_LIST,
    "attach": _FARM_KEEPS_LINK,
    "detach": _FARM_KEEPS_LINK,
    "reconnect": _FARM_KEEPS_LINK,
    "reconnect-offline": _FARM_KEEPS_LINK,
}
_REFUSED_OF_PHONE = {
    "reboot": _WOULD_END_LEASE,
    "sideload": _WOULD_END_LEASE,
    "sideload-host": _WOULD_END_LEASE,
    "rescue-install": _WOULD_END_LEASE,
    "rescue-getprop": _WOULD_END_LEASE,
    "rescue-wipe": _WOULD_END_LEASE,
    "root": _FARM_KEEPS_LINK,
    "unroot": _FARM_KEEPS_LINK,
    "tcpip": _FARM_KEEPS_LINK,
    "usb": _FARM_KEEPS_LINK,
    "reconnect": _FARM_KEEPS_LINK,
    "remount": "the phone's system stays as it is",
    "disable-verity": "the phone's system stays as it is",
    "enable-verity": "the phone's system stays as it is",
    "restore": "the phone's data stay as they are",
}
_SERVED = frozenset({
    "shell", "exec", "sync", "tcp", "localabstract", "localreserved", "localfilesystem", "local", "dev", "dev-raw",
    "jdwp", "track-jdwp", "track-app", "abb", "abb_exec", "framebuffer", "log", "backup", "sink", "source",
})  # fmt: skip
# A forward's service is asked of the phone as it stands: any other would be a way around what is judged above.
_SOCKETS = frozenset({"tcp", "localabstract", "localreserved", "localfilesystem", "local"})
_FORWARDED = _SOCKETS | {"dev", "dev-raw", "jdwp"}
MAX_NAME = 32
_SERVICE_NAME = re.compile(r"[a-z_-]+")


def judge(request: str, serial: str, *, selected: bool = False, server_port: int = 0) -> JudgedRequest:
    """Decide about one request.

    Args:
        request: as read.
        serial: the leased phone's, as the real server lists it.
        selected: whether the connection was switched to the phone before.
        server_port: of farm's RPC server on the phone; 0: none runs now.
    """
    if request.startswith("host"):
        judged = _judge_host(request, serial)
    elif not selected:
        return JudgedRequest(Refuse("no phone was chosen on this connection"))
    else:
        judged = JudgedRequest(_judge_service(request))
    match judged.decision:
        case Serve(service=dialled) | OpenTunnel(kind=TunnelKind.FORWARD, dial=dialled):
            if reaches_server(dialled, server_port):
                return JudgedRequest(Refuse(_FARMS_SERVER.format(port=server_port)))
    return judged


def reaches_server(service: str, server_port: int) -> bool:
    """Whether a service of the phone dials farm's RPC server, which has this port there; 0: none runs."""
    return bool(server_port) and _port_dialled(service) == server_port


def change_of(request: str, decision: Decision) -> str:
    """The audit log's name of the change that a request makes; "" for a request that only reads.

    Only the service's name: what follows it (a shell's line, a file's path) is the user's own.
    """
    match decision:
        case Refuse():
            asked = request.partition(":")[2] if request.startswith("host") else request
            found = _SERVICE_NAME.match(asked)
            return found[0][:MAX_NAME] if found else "unknown"
        case Serve(service=service):
            found = _SERVICE_NAME.match(service)
            return found[0][:MAX_NAME] if found else "unknown"
        case OpenTunnel(kind=kind) | CloseTunnel(kind=kind):
            return kind.value
    return ""


def _judge_host(request: str, serial: str) -> JudgedRequest:
    """A request to the server, about the server or a phone."""
    prefix, _, rest = request.partition(":")
    if prefix == "host-serial":
        own = f"{serial}:"
        if not rest.startswith(own):
            return JudgedRequest(_no_such_phone(rest.rpartition(":")[0] or rest, serial))
        return JudgedRequest(_of_server(rest.removeprefix(own), serial))
    if prefix == "host-transport-id":
        number, _, asked = rest.partition(":")
        transport_id = _transport_id(number)
        if transport_id is None:
            return JudgedRequest(Refuse(f"'{number}' is no transport id"))
        return JudgedRequest(_of_server(asked, serial), transport_id)
    if prefix == "host" and (rest.startswith(("transport", "tport:"))):
        return _select(rest, serial)
    if prefix in ("host", "host-usb", "host-local"):
        return JudgedRequest(_of_server(rest, serial))
    return JudgedRequest(Refuse("unknown host service"))


def _select(request: str, serial: str) -> JudgedRequest:
    if request.startswith("tport:"):
        target, tell_id = request.removeprefix("tport:"), True
    else:
        target, tell_id = request.removeprefix("transport"), False
        target = f"serial{target}" if target.startswith(":") else target.removeprefix("-")
    if target in ("any", "usb", "local"):
        return JudgedRequest(Select(tell_id))
    kind, _, value = target.partition(":")
    if kind == "id":
        transport_id = _transport_id(value)
        return JudgedRequest(
            Refuse(f"'{value}' is no transport id") if transport_id is None else Select(), transport_id
        )
    if kind != "serial":
        return JudgedRequest(Refuse("unknown host service"))
    return JudgedRequest(Select(tell_id) if value == serial else _no_such_phone(value, serial))


def _of_server(asked: str, serial: str) -> Decision:
    if asked in _ASKED_OF_SERVER:
        return Ask(f"host:{asked}")
    if asked in _ASKED_OF_PHONE or _WAIT_FOR.fullmatch(asked):
        return Ask(f"host-serial:{serial}:{asked}")
    if asked in _LISTINGS:
        return _LISTINGS[asked]
    name, _, rest = asked.partition(":")
    match name:
        case "list-forward":
            return ListForwards()
        case "forward":
            return _forward(rest)
        case "killforward":
            return CloseTunnel(TunnelKind.FORWARD, rest)
        case "killforward-all":
            return CloseTunnel(TunnelKind.FORWARD, None)
    reason = _REFUSED_OF_SERVER.get(name)
    return Refuse(f"not on a leased adb: {reason}" if reason else "unknown host service")


def _judge_service(request: str) -> Decision:
    found = _SERVICE_NAME.match(request)
    name = found[0] if found else ""
    if name == "reverse":
        return _reverse(request.removeprefix("reverse:"))
    if name in _REFUSED_OF_PHONE:
        return Refuse(f"not on a leased adb: {_REFUSED_OF_PHONE[name]}")
    if name not in _SERVED:
        return Refuse(f"a leased adb does not know the service {name or request[:40]!r}")
    return Serve(request)


def _forward(rest: str) -> Decision:
    rebind = not rest.startswith("norebind:")
    local, _, remote = rest.removeprefix("norebind:").partition(";")
    if not local or not remote:
        return Refuse(f"bad forward: {rest}")
    port = _port(local)
    if port is None:
        return Refuse(f"not on a leased adb: the host's side of a forward is tcp:PORT, not {local}")
    if port and (port < FIRST_UNPRIVILEGED_PORT or port in EMULATOR_PORTS):
        return Refuse(
            f"not on a leased adb: the host's port {port} (choose tcp:0, or one from {FIRST_UNPRIVILEGED_PORT} up "
            f"outside {EMULATOR_PORTS[0]}-{EMULATOR_PORTS[-1]})"
        )
    if not _is_one_of(remote, _FORWARDED):
        return Refuse(f"not on a leased adb: a forward to {remote[:40]!r}; it leads to a socket of the phone")
    return OpenTunnel(TunnelKind.FORWARD, local, remote, rebind)


def _reverse(asked: str) -> Decision:
    name, _, rest = asked.partition(":")
    match name:
        case "list-forward":
            return Serve("reverse:list-forward")
        case "killforward-all":
            return CloseTunnel(TunnelKind.REVERSE, None)
        case "killforward":
            return CloseTunnel(TunnelKind.REVERSE, rest)
        case "forward":
            rebind = not rest.startswith("norebind:")
            remote, _, local = rest.removeprefix("norebind:").partition(";")
            if not remote or not local:
                return Refuse(f"bad reverse: {rest}")
            if not _port(local):
                return Refuse(f"not on a leased adb: the host's side of a reverse is tcp:PORT, not {local}")
            if not _is_one_of(remote, _SOCKETS):
                return Refuse(f"not on a leased adb: a reverse from {remote[:40]!r}; the phone listens on a socket")
            return OpenTunnel(TunnelKind.REVERSE, remote, local, rebind)
    return Refuse("unknown reverse service")


def _no_such_phone(named: str, serial: str) -> Refuse:
    return Refuse(f"device '{named}' not found (the farm lease is for '{serial}')")


def _transport_id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _is_one_of(spec: str, kinds: frozenset[str]) -> bool:
    """Whether `KIND:REST` is of one of these kinds."""
    kind, _, rest = spec.partition(":")
    return kind in kinds and bool(rest)


def _port_dialled(service: str) -> int | None:
    """The port of the phone's loopback that a service dials, or None for anything else."""
    match service.split(":"):
        case ["tcp", port] | ["tcp", port, "localhost" | "127.0.0.1"] | ["tcp", "localhost" | "127.0.0.1", port]:
            return _port(f"tcp:{port}")
    return None


def _port(spec: str) -> int | None:
    """The port of `tcp:PORT`, or None for anything else. 0 lets the kernel choose."""
    kind, _, port = spec.partition(":")
    if kind != "tcp" or not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    return int(port) if int(port) <= 0xFFFF else None
