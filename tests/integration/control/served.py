"""A control server with a few verbs, for clients in threads."""

import asyncio

from farm.common.errors import PhoneError
from farm.common.peers import user_name
from farm.common.verbs import Verb
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Principal, Role
from farm.control.client import ControlClient
from farm.control.router import Answer
from farm.control.server import ControlServer

FLOOD = 6000  # messages: more than ZeroMQ and the kernel keep for a caller that does not read


class ServedControl:
    """A server with a few handlers, driven from threads as real clients drive it."""

    def __init__(self, folder, gid=None, **doors):
        self.path = folder / "control.sock"
        self.artifacts = ArtifactFolder(folder / "artifacts")
        self.role = Role.OPERATOR
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.server = ControlServer(
            self.path, artifacts=self.artifacts, principal_of=self.principal_of, gid=gid, **doors
        )
        for kind, handler, role in (
            ("echo", self.echo, Role.VIEWER),
            ("count", self.count, Role.USER),
            ("flood", self.flood, Role.VIEWER),
            ("slow", self.slow, Role.USER),
            ("never", self.never, Role.USER),
            ("fails", self.fails, Role.VIEWER),
            ("bug", self.bug, Role.VIEWER),
            ("odd", self.odd, Role.VIEWER),
            ("change", self.echo, Role.OPERATOR),
        ):
            self.server.register(Verb(kind, role, subject="device", frame=kind == "echo"), handler)

    async def principal_of(self, uid):
        return Principal(user_name(uid), self.role)

    async def echo(self, call):
        return Answer({"fields": dict(call.fields), "user": call.caller.user}, call.request.frames)

    async def count(self, call):
        for number in range(3):
            await call.progress(number=number)
        return {"counted": 3}

    async def flood(self, call):
        for number in range(FLOOD):
            await call.progress(number=number, padding=" " * 500)
        return {}

    async def slow(self, call):
        await asyncio.sleep(0.7)  # longer than the server's first sign
        return {"done": True}

    async def never(self, call):
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return {}

    async def fails(self, call):
        raise PhoneError("the phone is on fire", hint="put it out", evidence="smoke")

    async def bug(self, call):
        raise KeyError("x")

    async def odd(self, call):
        return {"x": object()}

    async def call(self, kind, /, **fields):
        def run():
            with ControlClient(self.path) as client:
                return client.call(kind, **fields)

        return await asyncio.to_thread(run)
