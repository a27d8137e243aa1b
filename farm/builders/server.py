"""The process with dask's scheduler, the daemon's child: builders connect to it, join at it, and runs order from it.

    python -m farm.builders.server FD

FD is one end of a stream socket pair (farm.common.frames). The first message says where everything is (`Settings`);
then the daemon asks {id, verb, ...}, is answered {id, answer} or {id, error, hint}, and is told {event, ...} and, every
two seconds, {builders}. The process ends when the daemon closes its end, however it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from distributed import Client, Scheduler
from pydantic import TypeAdapter

from farm.builders.authority import Authority
from farm.builders.broker import Broker
from farm.builders.join import JoinServer
from farm.builders.table_policy import Builder
from farm.builders.tls import NO_DASHBOARD, HostSecurity, use_settings
from farm.builders.token_policy import BuilderToken
from farm.common.errors import FarmError, UserError
from farm.common.frames import FrameReader, frame

TELL_S = 2.0
SAVE_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Where everything is."""

    folder: str  # an Authority's
    host: str  # where dask and joining listen
    port: int  # of dask; 0: the kernel chooses both
    join_port: int
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
        async with contextlib.AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(
                Scheduler(
                    host=settings.host, port=settings.port, protocol="tls", security=self._security,
                    dashboard_address=NO_DASHBOARD,
                )
            )  # fmt: skip
            client = await stack.enter_async_context(
                Client(scheduler.address, asynchronous=True, security=self._security)
            )
            broker = self._broker = Broker(scheduler, client, self._tell)
            await self._listen(broker, int(scheduler.port))
            tasks = [asyncio.create_task(each) for each in (broker.keep_looking(), self._report(), self._serve(reader))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            self._save()

    async def _listen(self, broker: Broker, port: int) -> None:
        joining = JoinServer(self._authority, lambda: port, lambda name: self._tell("builder.certified", name, {}))
        server = await joining.listen(self._settings.host, self._settings.join_port)
        self._join_port = server.sockets[0].getsockname()[1]
        await broker.listen(_bound(Path(self._settings.socket), self._settings.gid))
        self._send({"listening": {"port": port, "join_port": self._join_port}})

    def _send(self, fields: Mapping[str, Any]) -> None:
        self._link.write(frame(fields))

    def _tell(self, kind: str, subject: str, data: Mapping[str, Any]) -> None:
        self._send({"event": kind, "subject": subject, "data": dict(data)})
        if kind in ("builder.left", "builder.certified"):
            self._report_now()
            self._save()

    async def _report(self) -> None:
        saved_s = time.monotonic()
        while True:
            self._report_now()
            if time.monotonic() - saved_s >= SAVE_S:
                saved_s = time.monotonic()
                self._save()
            await asyncio.sleep(TELL_S)

    def _report_now(self) -> None:
        builders = list(self._broker.table.builders.values())
        for each in {*builders, *self._noted}:
            new = each.built - self._noted[each]
            if each in builders:
                self._noted[each] += new
            else:
                del self._noted[each]
            self._authority.note(each.certificate, built=new, slots=each.slots, versions=dict(each.versions))
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
                "seen_at": (datetime.now(UTC) - timedelta(seconds=now_s - each.seen_s)).isoformat(timespec="seconds"),
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
            for each in list(self._broker.table.builders.values()):
                if each.certificate == name:
                    each.aside = "removed"
                    await self._broker.disconnect(each)
            self._tell("builder.removed", name, {})
            self._report_now()
            return {"name": name}
        raise UserError(f"no verb {fields['verb']}")


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
    [(fields, _)] = FrameReader().feed(await reader.readuntil(b"\n"))
    use_settings()
    settings = TypeAdapter(Settings).validate_python(fields)
    try:
        await BuilderServer(settings, writer).run(reader)
    except (OSError, ValueError) as error:
        writer.write(frame({"problem": str(error)}))
        await writer.drain()


if __name__ == "__main__":
    asyncio.run(_main(socket.socket(fileno=int(sys.argv[1]))))
