"""The process with dask's scheduler, the daemon's child: builders connect to it and join at it, runs order from it.

    python -m farm.builders.server FD

FD is one end of a stream socket pair (farm.common.frames). The first message says where everything is (`Settings`);
then the daemon asks {id, verb, ...}, is answered {id, answer} or {id, error, hint}, and gets {event, ...} and, every
second, {builders}. A machine that joins is {join, token, certificate}, which the daemon answers with {joined, answer}.
The process ends when the daemon closes its end, however it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Scheduler
from distributed.comm import registry
from pydantic import TypeAdapter

from farm.builders.broker import Broker
from farm.builders.membership import BuilderToken
from farm.builders.table_policy import Builder
from farm.builders.tls import NO_DASHBOARD, GuardedBackend, HostSecurity, use_settings
from farm.common.errors import FarmError, UserError
from farm.common.frames import FrameReader, frame
from farm.lab.identity import new_certificate, open_identity

REPORT_S = 1.0  # between two reports to the daemon, and to runs


@dataclass(frozen=True, slots=True)
class Settings:
    """The addresses, paths and limits of the process."""

    name: str  # of this host
    keys: str  # the folder of its identity
    folder: str  # for dask's files
    host: str  # where builders connect
    port: int  # 0: the kernel chooses
    advertise: str  # the host that tokens name
    socket: str  # of runs
    gid: int | None  # whose members may connect there; None: only our user
    members: dict[str, str]  # certificates (PEM) of builders, by name
    tokens: dict[str, str]  # the same of tokens


class BuilderServer:
    """Answers the daemon."""

    def __init__(self, settings: Settings, link: asyncio.StreamWriter) -> None:
        """It has the host's identity then.

        Raises:
            HostError: the identity cannot be used.
        """
        self._settings, self._link = settings, link
        Path(settings.folder).mkdir(mode=0o700, exist_ok=True)
        self._identity = open_identity(Path(settings.keys), settings.name)
        self._security = HostSecurity(self._identity, self._join)
        self._security.use(settings.members, settings.tokens)
        self._joining: dict[str, asyncio.Future[Mapping[str, Any]]] = {}  # by the builder's certificate
        self._port = 0

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Serve until the daemon closes its end.

        Raises:
            OSError: the port is taken.
        """
        settings = self._settings
        registry.backends["tls"] = GuardedBackend()
        async with contextlib.AsyncExitStack() as stack:
            scheduler = Scheduler(
                host=settings.host, port=settings.port, protocol="tls", security=self._security,
                dashboard_address=NO_DASHBOARD,
            )  # fmt: skip
            self._broker = Broker(scheduler, self._publish)
            await stack.enter_async_context(scheduler)
            client = Client(scheduler.address, asynchronous=True, security=self._security)
            await stack.enter_async_context(client)
            await self._broker.listen(_bound(Path(settings.socket), settings.gid), client)
            self._port = int(scheduler.port)
            self._send({"listening": {"port": self._port}})
            tasks = [asyncio.create_task(each) for each in (self._keep_reporting(), self._serve(reader))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()

    def _send(self, fields: Mapping[str, Any]) -> None:
        self._link.write(frame(fields))

    def _publish(self, kind: str, subject: str, data: Mapping[str, Any]) -> None:
        self._send({"event": kind, "subject": subject, "data": dict(data)})
        self._report()

    async def _keep_reporting(self) -> None:
        while True:
            self._broker.note_heartbeats()
            self._broker.grant_slots()
            self._report()
            await asyncio.sleep(REPORT_S)

    def _report(self) -> None:
        self._send({"builders": self._rows()})

    def _rows(self) -> list[dict[str, Any]]:
        now_s, wanted = time.monotonic(), self._broker.wanted
        return [
            {
                "name": each.name,
                "state": each.state(now_s, wanted),
                "slots": each.slots,
                "building": len(each.running),
                "built": each.built,
                "identity": min(each.identities & wanted, default=min(each.identities, default="")),
                "versions": dict(each.versions),
                "seen_at": _seen_at(each),
            }
            for each in self._broker.table.builders.values()
        ]

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        messages = FrameReader()
        while data := await reader.read(1 << 16):
            for fields, _ in messages.feed(data):
                if "joined" in fields:
                    asked = self._joining.pop(fields["joined"], None)
                    if asked is not None and not asked.done():  # else its connection was too slow
                        asked.set_result(fields["answer"])
                    continue
                try:
                    self._send({"id": fields["id"], "answer": await self._answer(fields)})
                except FarmError as error:
                    self._send({"id": fields["id"], "error": error.message, "hint": error.hint})

    async def _join(self, name: str, token: str, certificate: str) -> Mapping[str, Any]:
        """The daemon's answer to a builder that joins."""
        if certificate in self._joining:
            raise UserError("a builder with this certificate joins already")
        answered: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._joining[certificate] = answered
        self._send({"join": name, "token": token, "certificate": certificate})
        return await answered

    async def _answer(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        match fields["verb"]:
            case "token":
                key, certificate = (each.decode() for each in new_certificate(fields["name"]))
                own, host = self._identity.certificate, self._settings.advertise
                made = BuilderToken(fields["name"], host, self._port, own, certificate, key)
                return {"token": made.text(), "certificate": certificate}
            case "let in":
                former = self._security.names
                self._security.use(fields["members"], fields["tokens"])
                for name in {name for pem, name in former.items() if pem not in self._security.names}:
                    await self._broker.remove(name)
                self._security.close_others()
                return {}
        raise UserError(f"no verb {fields['verb']}")


def _seen_at(builder: Builder) -> str:
    """When its latest heartbeat was, ISO 8601."""
    return (datetime.now(UTC) - timedelta(seconds=time.monotonic() - builder.seen_s)).isoformat(timespec="seconds")


def _bound(path: Path, gid: int | None) -> socket.socket:
    """A unix socket for our user, and for the members of a group."""
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)  # no moment at which others could connect
    try:
        found.bind(str(path))
    finally:
        os.umask(mask)
    if gid is not None:
        os.chown(path, -1, gid)
        path.chmod(0o660)
    return found


async def _main(link: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=link)
    try:
        [(fields, _)] = FrameReader().feed(await reader.readuntil(b"\n"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return  # the daemon has ended
    use_settings()
    settings = TypeAdapter(Settings).validate_python(fields)
    dask.config.set({"temporary-directory": settings.folder})  # dask tidies it up at the next start
    try:
        await BuilderServer(settings, writer).run(reader)
    except (OSError, ValueError, FarmError) as error:
        writer.write(frame({"problem": str(error)}))
        await writer.drain()


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # sent to all of a service: for the daemon
    asyncio.run(_main(socket.socket(fileno=int(sys.argv[1]))))
