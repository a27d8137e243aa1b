"""The process with dask's scheduler, the daemon's child: builders connect to it, join at it, and runs order from it.

    python -m farm.builders.server FD

FD is one end of a stream socket pair (farm.common.frames). The first message says where everything is (`Settings`);
then the daemon asks {id, verb, ...}, is answered {id, answer} or {id, error, hint}, and gets {event, ...} and, every
second, {builders}. The process ends when the daemon closes its end, however it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Scheduler
from distributed.comm import registry
from pydantic import TypeAdapter

from farm.builders.authority import Authority
from farm.builders.broker import Broker
from farm.builders.join import JoinServer
from farm.builders.table_policy import Builder
from farm.builders.tls import NO_DASHBOARD, GuardedBackend, HostSecurity, use_settings
from farm.builders.token_policy import BuilderToken
from farm.common.errors import FarmError, UserError
from farm.common.frames import FrameReader, frame

REPORT_S = 1.0  # between two reports to the daemon, and to runs
SAVE_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The addresses, paths and limits of the process."""

    folder: str  # an Authority's
    host: str  # where dask and joining listen
    port: int  # of dask; joining is at the next one; 0: the kernel chooses both
    advertise: str  # the host that tokens name
    socket: str  # of runs
    gid: int | None  # whose members may connect there; None: only our user


class BuilderServer:
    """Answers the daemon."""

    def __init__(self, settings: Settings, link: asyncio.StreamWriter) -> None:
        self._settings, self._link = settings, link
        self._authority = Authority(Path(settings.folder))
        self._security = HostSecurity(self._authority.folder)
        self._noted: Counter[Builder] = Counter()  # builds that the authority knows of
        self._join_port = 0

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Serve until the daemon closes its end.

        Raises:
            OSError: a port is taken.
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
            await self._listen(await stack.enter_async_context(client), int(scheduler.port))
            tasks = [asyncio.create_task(each) for each in (self._keep_reporting(), self._serve(reader))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            self._save()

    async def _listen(self, client: Client, port: int) -> None:
        joining = JoinServer(self._authority, lambda: port, lambda name: self._publish("builder.certified", name, {}))
        asked_for = self._settings.port
        self._join_port = joining.listen(self._settings.host, asked_for + 1 if asked_for else 0)
        await self._broker.listen(_bound(Path(self._settings.socket), self._settings.gid), client)
        self._send({"listening": {"port": port, "join_port": self._join_port}})

    def _send(self, fields: Mapping[str, Any]) -> None:
        self._link.write(frame(fields))

    def _publish(self, kind: str, subject: str, data: Mapping[str, Any]) -> None:
        self._send({"event": kind, "subject": subject, "data": dict(data)})
        self._report()
        if kind in ("builder.left", "builder.certified"):
            self._save()

    async def _keep_reporting(self) -> None:
        saved_s = time.monotonic()
        while True:
            self._broker.note_heartbeats()
            self._broker.grant_slots()
            self._report()
            if time.monotonic() - saved_s >= SAVE_S:
                saved_s = time.monotonic()
                self._save()
            await asyncio.sleep(REPORT_S)

    def _report(self) -> None:
        builders = list(self._broker.table.builders.values())
        for each in {*builders, *self._noted}:
            new = each.built - self._noted[each]
            if each in builders:
                self._noted[each] += new
            else:
                del self._noted[each]
            self._authority.note(each.certificate, built=new, versions=dict(each.versions), seen_at=_seen_at(each))
        self._send({"builders": self._rows(builders)})

    def _rows(self, builders: list[Builder]) -> list[dict[str, Any]]:
        now_s, wanted = time.monotonic(), self._broker.wanted
        rows = [
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
            for each in builders
        ]
        connected = {each.certificate for each in builders}
        rows += [
            {
                "name": name, "state": "removed" if each.removed_at else "away", "slots": 0, "building": 0,
                "built": each.built, "identity": "", "versions": each.versions, "seen_at": each.seen_at or None,
            }
            for name, each in self._authority.members.builders.items()
            if name not in connected
        ]  # fmt: skip
        return sorted(rows, key=lambda row: str(row["name"]))

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # counts only: they are written again
            self._authority.save()

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        messages = FrameReader()
        while data := await reader.read(1 << 16):
            for fields, _ in messages.feed(data):
                try:
                    self._send({"id": fields["id"], "answer": await self._answer(fields)})
                except FarmError as error:
                    self._send({"id": fields["id"], "error": error.message, "hint": error.hint})
                except OSError as error:
                    self._send(
                        {"id": fields["id"], "error": f"the state folder cannot be written: {error}", "hint": ""}
                    )

    async def _answer(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        if fields["verb"] == "token":
            secret = self._authority.new_token(time.time())
            host = self._settings.advertise
            return {"token": BuilderToken(host, self._join_port, self._authority.fingerprint, secret).text()}
        if fields["verb"] == "remove":
            name = str(fields["name"])
            self._authority.remove(name)
            self._security.read_crl()
            await self._broker.remove(name)
            self._publish("builder.removed", name, {})
            return {"name": name}
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
