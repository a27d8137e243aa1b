"""The daemon's side of builders: their rows in the store, and `farm.builders.server`, which it starts and asks."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from farm.builders.table_policy import NO_MATCH
from farm.common.durations import BackOff
from farm.common.errors import HostError, ProtocolError, UserError
from farm.common.events import EventLog
from farm.common.frames import FrameReader, frame
from farm.common.install import pip_install
from farm.common.tasks import BackgroundTasks, end_tasks
from farm.common.verbs import verb
from farm.config import FarmConfig
from farm.config.consistency import address_of
from farm.control.callers import Role
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup
from farm.store.builders import BuilderRecord
from farm.store.host_token_policy import LIFE_S, check_host_name
from farm.store.store import Store

BACK_OFF = BackOff(1.0, 30.0)  # between two starts of a process that ends
ANSWER_S = 10.0
SERVER = "farm.builders.server"
READ_BYTES = 1 << 18
LOOK_EVERY_S = 5.0
NAMELESS = "farm"  # the name in the certificate of a host outside a lab


class BuildersProcess:
    """The process. `run` keeps it running until it is cancelled."""

    def __init__(
        self, config: FarmConfig, store: Store, events: EventLog, *, socket: Path, gid: int | None = None
    ) -> None:
        """`config.builders.listen` is not empty.

        Args:
            config: where builders connect, and the state folder.
            store: has the builders and their tokens.
            events: gets the events of builders.
            socket: where runs order.
            gid: of the workers, when they are another user.
        """
        self.socket = str(socket)
        self._config, self._store, self._events, self._gid = config, store, events, gid
        self.rows: Sequence[Mapping[str, Any]] = ()  # of the connected builders, as `farm builder list` has them
        self.listening: Mapping[str, int] = {}  # its port; empty: it is not there
        self._let_in: Mapping[str, Any] = {}  # by the process
        self._problem = ""
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._write: Callable[[bytes], None] | None = None
        self._tasks = BackgroundTasks()
        self._looking = asyncio.Lock()  # what was read first is let in first

    def problems(self) -> list[str]:
        """Why there are no builders."""
        return [f"no builders: {self._problem}"] if self._problem else []

    def slots(self) -> Mapping[str, int]:
        """Counts: connected builders, candidates that they can build at once, and those that they build now."""
        ready = [row for row in self.rows if row["state"] == "ready"]
        return {
            "builders": len(ready),
            "slots": sum(row["slots"] for row in ready),
            "building": sum(row["building"] for row in ready),
        }

    def unmatched(self) -> int:
        """How many builders no tuning can use: their identity is another one."""
        return sum(row["state"].startswith(NO_MATCH) for row in self.rows)

    async def run(self) -> None:
        """Start the process, again and again; the first failure is a problem that `farm status` shows."""
        failures = 0
        while True:
            if importlib.util.find_spec("distributed") is None or importlib.util.find_spec("cryptography") is None:
                self._problem = f"this host has no dask.distributed: {pip_install('builders')}"
            else:
                try:
                    await self._run_once()
                except (OSError, HostError) as error:
                    self._problem = f"its process does not start: {error}"
            failures = 1 if self.listening else failures + 1
            self._problem = self._problem or "its process has ended, the daemon's log says why; it is started again"
            self.rows, self.listening, self._write = (), {}, None
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(HostError("the builders' process has ended"))
            await asyncio.sleep(BACK_OFF.delay_s(failures))

    async def ask(self, asking: str, **fields: Any) -> Mapping[str, Any]:
        """The process's answer.

        Raises:
            HostError: it is not there, or does not answer.
            UserError: it refuses.
        """
        if self._write is None or not self.listening:
            raise HostError(self._problem or "the builders' process starts still", hint="try again in a few seconds")
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._write(frame({"id": number, "verb": asking, **fields}))
            async with asyncio.timeout(ANSWER_S):
                answer = await asked
        except TimeoutError as error:
            raise HostError("the builders' process does not answer") from error
        finally:
            del self._asked[number]
        if "error" in answer:
            raise UserError(str(answer["error"]), hint=str(answer["hint"]))
        found: Mapping[str, Any] = answer["answer"]
        return found

    async def all(self) -> list[Mapping[str, Any]]:
        """Every builder and every token that is still good; a connected builder has a row for each of its processes."""
        known, now = await self._store.read(self._store.builders.all), self._store.now()
        connected = {_certificate_of(row) for row in self.rows}
        rows = [
            {
                "name": each.name, "state": "away" if each.expires_at is None else "has a token, has not joined",
                "slots": 0, "building": 0, "built": each.built, "identity": "", "versions": dict(each.versions),
                "seen_at": each.seen_at and each.seen_at.isoformat(timespec="seconds"),
            }
            for each in known
            if each.name not in connected and (each.expires_at is None or each.expires_at > now)
        ]  # fmt: skip
        return sorted([*self.rows, *rows], key=lambda row: str(row["name"]))

    async def token(self, name: str, made_by: str) -> str:
        """A token with which one machine may join under this name within 24 hours.

        Raises:
            UserError: the name cannot be one, or a builder has it.
            HostError: the process is not there, or the store cannot be written.
        """
        check_host_name(name)
        made = await self.ask("token", name=name)
        until = self._store.now() + timedelta(seconds=LIFE_S)
        if not await self._store.builders.invite(BuilderRecord(name, made["certificate"], made_by, until)):
            raise UserError(f"there is a builder {name!r}", hint=f"another name, or: farm builder remove {name}")
        await self._look()
        return str(made["token"])

    async def remove(self, name: str) -> None:
        """Take a builder's membership, or an unused token, and end the builder's connections.

        Raises:
            UserError: there is none of that name.
            HostError: the process is not there, or the store cannot be written.
        """
        if not await self._store.builders.remove(name):
            raise UserError(f"there is no builder {name!r}", hint="farm builder list")
        await self._look()
        self._events.publish("builder.removed", name)

    async def _run_once(self) -> None:
        address = address_of(self._config.builders.listen)
        assert address is not None
        host, port = address
        self._let_in = await self._members()
        settings = {
            "name": self._config.lab.host or NAMELESS, "keys": str(self._config.state_dir / "keys"),
            "folder": str(self._config.state_dir / "builders"), "host": host, "port": port,
            "advertise": self._config.builders.advertise or host, "socket": self.socket, "gid": self._gid,
            **self._let_in,
        }  # fmt: skip
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            with contextlib.closing(writer):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", SERVER, str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                )  # fmt: skip
                theirs.close()
                following = asyncio.create_task(self._follow())
                try:
                    writer.write(frame(settings))
                    self._write = writer.write
                    await self._take_all(reader)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await asyncio.shield(process.wait())
                    Path(self.socket).unlink(missing_ok=True)  # noqa: ASYNC240 (of a folder in memory)
                    await end_tasks(following)
                    await self._note(*self.rows)

    async def _members(self) -> Mapping[str, Any]:
        """The certificates of builders and of tokens that are still good, by name."""
        known, now = await self._store.read(self._store.builders.all), self._store.now()
        return {
            "members": {each.name: each.certificate for each in known if each.expires_at is None},
            "tokens": {each.name: each.certificate for each in known if each.expires_at and each.expires_at > now},
        }

    async def _look(self) -> None:
        """Let in the builders of now, and no other machine. A process that starts still lets them in a little later."""
        async with self._looking:
            if (found := await self._members()) != self._let_in and self.listening:
                await self.ask("let in", **found)
                self._let_in = found

    async def _follow(self) -> None:
        """Look now and then: other hosts of the lab change the rows too, and tokens expire."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(HostError):  # the rows read last hold
                await self._look()

    async def _join(self, name: str, token: str, certificate: str) -> None:
        """Answer a machine that joins."""
        answer: dict[str, Any] = {}
        try:
            if await self._store.builders.join(name, token, certificate, self._store.now()):
                await self._look()
                self._events.publish("builder.certified", name)
            else:
                answer = {"error": "the token was used or replaced meanwhile"}
        except HostError as error:
            answer = {"error": error.message}
        if self._write is not None:
            self._write(frame({"joined": certificate, "answer": answer}))

    async def _note(self, *rows: Mapping[str, Any]) -> None:
        """Store what processes of builders have built that are not connected any more."""
        with contextlib.suppress(HostError):  # counts only
            for row in rows:
                seen_at = datetime.fromisoformat(row["seen_at"])
                await self._store.builders.note(_certificate_of(row), row["built"], seen_at, row["versions"])

    async def _take_all(self, reader: asyncio.StreamReader) -> None:
        messages = FrameReader()
        with contextlib.suppress(ProtocolError, ConnectionError):
            while data := await reader.read(READ_BYTES):
                for fields, _ in messages.feed(data):
                    self._take(fields)

    def _take(self, fields: Mapping[str, Any]) -> None:
        if "event" in fields:
            kind, subject, data = fields["event"], fields["subject"], fields["data"]
            if kind == "builder.left" and (row := next((row for row in self.rows if row["name"] == subject), None)):
                self._tasks.spawn(self._note({**row, "built": data["built"]}), "a builder that left")
            self._events.publish(kind, subject, **data)
        elif "join" in fields:
            joining = self._join(fields["join"], fields["token"], fields["certificate"])
            self._tasks.spawn(joining, "a builder that joins")
        elif "builders" in fields:
            self.rows = fields["builders"]
        elif "listening" in fields:
            self.listening, self._problem = fields["listening"], ""
        elif "problem" in fields:
            self._problem = fields["problem"]
        elif (asked := self._asked.get(fields["id"])) is not None and not asked.done():
            asked.set_result(fields)


class BuilderVerbs(VerbGroup):
    """Verbs about builders."""

    def __init__(self, process: BuildersProcess | None) -> None:
        """`process`: None when they are off."""
        self._process = process

    @verb("builder.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Every builder; one that is connected has a row for each of its processes."""
        return {"on": self._process is not None, "builders": await self._process.all() if self._process else []}

    @verb("builder.token", Role.OPERATOR, subject="name")
    async def token(self, call: ControlCall, name: str) -> Mapping[str, Any]:
        """A token with which one builder may join under this name, for 24 hours."""
        return {"token": await self._of().token(name, call.caller.user)}

    @verb("builder.remove", Role.OPERATOR, subject="name")
    async def remove(self, name: str) -> Mapping[str, Any]:
        """Take a builder's membership, and end its connections."""
        await self._of().remove(name)
        return {"name": name}

    def _of(self) -> BuildersProcess:
        if self._process is None:
            raise UserError(
                "this farm takes no builders",
                hint='set [builders] listen = "tcp://ADDRESS:9193" and restart the daemon',
            )
        return self._process


def _certificate_of(row: Mapping[str, Any]) -> str:
    """The name under which the machine of a row joined."""
    return str(row["name"]).partition("/")[0]
