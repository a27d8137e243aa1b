"""The process that is a virtual phone's adbd: it takes connections from the lab and serves adb servers on them.

Connections come with the message `adb`; every other message is JSON. The lab tells the whole wanted `LinkConfig` when
something changes (so that a phone that was rebooted needs no history), asks for actions, and hears what happens:
`{"event": "online"}`, `{"event": "link_lost", "reason": ...}`, `{"event": "key", "key": ...}` and
`{"event": "reboot", "into": ...}`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections import deque
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.common.errors import FarmError, ProtocolError
from farm.simulation.adbd import DeviceConnection, HandshakePhase, parse_public_key
from farm.simulation.link import LinkPace
from farm.simulation.machine import DiskQuota, PushFuse
from farm.simulation.process_tree import runs_server
from farm.simulation.services import FEATURES, open_service
from farm.simulation.session import AdbSession, Stream
from farm.simulation.shell import Reaper
from farm.simulation.sockets import ReverseTable
from farm.simulation.state import STATE_ENVIRONMENT

if TYPE_CHECKING:
    import socket

    from farm.simulation.machine import ConnectionSource, Machine

KEPT_SERVICES = 1000  # what hosts asked for lately; a farm asks for tens per phone and minute


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """How the phone treats hosts; the lab keeps it across reboots."""

    secure: bool = False  # hosts need an accepted key
    accepted_keys: tuple[str, ...] = ()
    mode: str = "normal"  # or one of faults.OFFLINE_MODES
    bytes_per_s: float | None = None
    latency_s: float = 0.0
    free_bytes: int | None = None  # on the disk; None: no limit of ours
    shell_delay_s: float = 0.0  # before a shell begins
    state: str = "device"  # first word of the banner: device, recovery, sideload

    def to_record(self) -> dict[str, Any]:
        """For the wire."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> LinkConfig:
        """From the wire."""
        return cls(**{**record, "accepted_keys": tuple(record["accepted_keys"])})

    @property
    def pace(self) -> LinkPace | None:
        """How slow the link is; None: not at all."""
        return None if self.bytes_per_s is None else LinkPace(self.bytes_per_s, self.latency_s)


@dataclass(frozen=True, slots=True)
class PhoneSettings:
    """Settings that do not change while the phone is up."""

    name: str
    product: str
    model: str
    device: str


def run_phone(settings: PhoneSettings, source: ConnectionSource) -> None:
    """Be that phone's adbd until the lab goes or the process is killed."""
    os.umask(0)  # as adbd: modes are exactly what the host asked for
    gc.freeze()
    loop = asyncio.new_event_loop()
    phone = Phone(loop, settings, source)
    loop.add_signal_handler(signal.SIGTERM, loop.stop)
    try:
        phone.start()
        loop.run_forever()
    finally:
        phone.close()
        loop.close()


class Phone:
    """One adbd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: PhoneSettings, source: ConnectionSource) -> None:
        self.loop = loop
        self.settings = settings
        self.machine = source.machine
        self.config = LinkConfig()
        self.reaper = Reaper(loop)
        self.quota = DiskQuota()
        self.fuse = PushFuse()
        self.services: deque[str] = deque(maxlen=KEPT_SERVICES)
        self._source = source
        self._hosts: list[_AdbHost] = []
        self._connections = 0

    def start(self) -> None:
        """Take connections and messages from now on."""
        os.set_inheritable(self._source.fileno(), False)  # the lab's line is none of a shell's business
        self.loop.add_reader(self._source.fileno(), self._on_message)

    def close(self) -> None:
        """Let go of every host."""
        self._drop()

    def publish(self, event: str, **fields: object) -> None:
        """Let the lab know."""
        self._send({"event": event, **fields})

    def forget(self, host: _AdbHost) -> None:
        """A host's link ended."""
        if host in self._hosts:
            self._hosts.remove(host)

    def _send(self, message: dict[str, object]) -> None:
        try:
            self._source.send(json.dumps(message).encode())
        except OSError:
            self.loop.stop()  # the lab is gone, or does not read any more

    def _on_message(self) -> None:
        try:
            received = self._source.receive()
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            self.loop.stop()  # the lab is gone: nobody could reach this phone again
            return
        data, connection = received
        if connection is not None:
            connection.set_inheritable(False)  # else every shell of the phone would hold the link open
            self._connections += 1
            self._hosts.append(_AdbHost(self, connection, self._connections))
            return
        message = json.loads(data)
        reply: dict[str, object] = {"id": message.get("id")}
        try:
            reply["value"] = self._perform(message)
            reply["ok"] = True
        except (FarmError, OSError, KeyError, TypeError, ValueError) as error:
            reply["ok"] = False
            reply["message"] = f"{type(error).__name__}: {error}"
        self._send(reply)

    def _perform(self, message: dict[str, Any]) -> object:
        action = message["do"]
        if action == "configure":
            self._configure(LinkConfig.from_record(message["config"]))
        elif action == "drop":
            self._drop()
        elif action == "accept":
            return self._accept()
        elif action == "services":
            return list(self.services)
        elif action == "cut_push":
            self.fuse.left_bytes = message["after_bytes"]
            self.fuse.blown = self._cut
        elif action == "signal_server":
            return signal_servers(signal.Signals(message["signal"]), self.machine)
        else:
            raise ValueError(f"unknown action {action!r}")
        return None

    def _configure(self, config: LinkConfig) -> None:
        before, self.config = self.config, config
        if config.free_bytes != before.free_bytes:
            self.quota.left_bytes = config.free_bytes
        for host in self._hosts:
            host.apply(config)

    def _drop(self) -> None:
        for host in tuple(self._hosts):
            host.close()
        self._hosts.clear()

    def _cut(self) -> None:
        self._drop()
        self.publish("link_lost", reason="cut in the middle of a push", cut=True)

    def _accept(self) -> list[str]:
        """Accept every key a host waits with; returns them for the lab to keep."""
        return [key for host in tuple(self._hosts) if (key := host.accept_key()) is not None]


class _AdbHost:
    """One adb server on one link; also the controls for that link's services (services.PhoneControls)."""

    def __init__(self, phone: Phone, connection: socket.socket, number: int) -> None:
        self.phone = phone
        self.loop = phone.loop
        self.machine = phone.machine
        self.reaper = phone.reaper
        self.quota = phone.quota
        self.fuse = phone.fuse
        self.reverses = ReverseTable(phone.loop, phone.machine, f"host-{number}")
        self._offered_key: bytes | None = None
        config = phone.config
        self._session = AdbSession(
            phone.loop,
            connection,
            DeviceConnection(_banner(phone.settings, config.state), verify=self._verify if config.secure else None),
            open_service=self._open_service,
            on_online=partial(phone.publish, "online"),
            on_key=self._on_key,
            on_lost=self._on_lost,
        )
        self.reverses.session = self._session
        self.apply(config)

    def apply(self, config: LinkConfig) -> None:
        """Behave as the lab wants from now on."""
        self._session.link.deaf = config.mode in {"silent", "offline"}
        self._session.refuses_everything = config.mode == "refuse"
        self._session.link.set_pace(config.pace)

    def close(self) -> None:
        """Pull the cable."""
        self.reverses.close()
        self._session.close()

    def reboot(self, into: str) -> None:
        """Ask the lab for it: only the lab can end this process and start another."""
        self.phone.publish("reboot", into=into)

    def accept_key(self) -> str | None:
        """Accept the key the host offered; None when it offered none."""
        if self._offered_key is None or self._session.connection.phase is not HandshakePhase.AUTHORIZING:
            return None
        key = self._offered_key.decode("ascii", "replace")
        self._session.accept_host()
        return key

    def _open_service(self, name: str, stream: Stream) -> None:
        self.phone.services.append(name)
        delay_s = self.phone.config.shell_delay_s
        if delay_s and name.startswith(("shell", "exec:")):
            self.loop.call_later(delay_s, self._open_late, name, stream)
        else:
            open_service(self, name, stream)

    def _open_late(self, name: str, stream: Stream) -> None:
        if stream.is_open:
            open_service(self, name, stream)

    def _verify(self, token: bytes, signature: bytes) -> bool:
        for key in self.phone.config.accepted_keys:
            try:
                if parse_public_key(key.encode()).verifies(token, signature):
                    return True
            except ProtocolError:
                continue  # a key accepted by hand that is none: it admits nobody
        return False

    def _on_key(self, key: bytes) -> None:
        self._offered_key = key
        self.phone.publish("key", key=key.decode("ascii", "replace"))

    def _on_lost(self, reason: str) -> None:
        self.reverses.close()
        self.phone.forget(self)
        self.phone.publish("link_lost", reason=reason)


def signal_servers(number: signal.Signals, machine: Machine) -> int:
    """Send a signal to every tvm_rpc process of this phone, and only of this one; returns how many there were."""
    state = machine.environment.get(STATE_ENVIRONMENT, "")
    marker = f"{STATE_ENVIRONMENT}={state}".encode()
    count = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            program = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes().split(b"\0")
            if marker in environment and runs_server(program):
                os.kill(int(entry.name), number)
                count += 1
        except OSError:
            continue  # it ended meanwhile, or is not ours to look at
    return count


def _banner(settings: PhoneSettings, state: str) -> str:
    facts = {
        "ro.product.name": settings.product,
        "ro.product.model": settings.model,
        "ro.product.device": settings.device,
        "features": ",".join(FEATURES),
    }
    return f"{state}::" + ";".join(f"{key}={value}" for key, value in facts.items())
