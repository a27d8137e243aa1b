"""Phones as an adb client, a fleet and a power switch show them, doing what a test says; and agents without work."""

import asyncio
from inspect import isawaitable
from types import SimpleNamespace

from farm.adb.connection import ServerAddress
from farm.adb.shell import ShellResult
from farm.devices.agent import Agent
from farm.devices.lifecycle.recovery import RecoveryContext
from farm.devices.lifecycle.state import LifecycleState
from farm.model.device import Life
from farm.model.identity import DeviceIdentity
from tests.support.waiting import until

IDENTITY = DeviceIdentity(model="M1", abi="arm64-v8a")


async def for_ever(*_, **__):
    """An answer that never comes."""
    await asyncio.Event().wait()


class FakeClient:
    """An `AdbClient` of phones that all give one answer, or each its own by serial.

    An answer is a text or bytes (printed with exit code 0), a `ShellResult`, an error (raised), a dict (by a part of
    the command, "" being part of all), a list (one after the other, the last forever), or a function of the command
    that returns an answer or awaits one. A text given to `open_shell` comes in one piece, a tuple in several: what is
    no text among them is an answer that the reader meets.
    """

    def __init__(self, answer="", **by_serial):
        self.answer, self.by_serial = answer, by_serial
        self.commands, self.serials, self.rebooted, self.disconnected = [], [], [], []
        self.shared_serials = set()
        self.address = ServerAddress.parse("tcp:5038")

    async def shell(self, serial, command, **_):
        answer = await self._answer(serial, command)
        if isinstance(answer, tuple):
            answer = b"".join([await _found(each, command) for each in answer])
        if isinstance(answer, ShellResult):
            return answer
        return ShellResult(answer.encode() if isinstance(answer, str) else answer, b"", 0)

    async def open_shell(self, serial, command, **_):
        answer = await self._answer(serial, command)
        return FakeShell(*(answer if isinstance(answer, tuple) else (answer,)))

    async def reboot(self, serial):
        self.rebooted.append(serial)

    async def disconnect(self, address):
        self.disconnected.append(address)

    async def _answer(self, serial, command):
        self.serials.append(serial)
        self.commands.append(command)
        return await _found(self.by_serial.get(serial, self.answer), command)


async def _found(answer, command):
    while True:
        if isinstance(answer, dict):
            answer = next(said for part, said in answer.items() if part in command)
        elif isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        elif isinstance(answer, Exception):
            raise answer
        elif isawaitable(answer):
            answer = await answer
        elif callable(answer):
            answer = answer(command)
        else:
            return answer


class FakeShell:
    """A command that continues: what it says, piece by piece; then it has ended."""

    def __init__(self, *pieces):
        self.pieces = [each for each in pieces if each != b""]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.pieces.clear()

    async def close_stdin(self, **_):
        return

    async def read(self, **_):
        return await _found(self.pieces.pop(0), "") if self.pieces else b""


class StubAgent(Agent):
    """An agent that does nothing: it is in the state that a test sets, and keeps the events that it is told."""

    def __init__(self, serial="S1", name="", *, place=None, identity=IDENTITY, fleet=None, **state):
        context = SimpleNamespace(client=FakeClient(), fleet=fleet or FakeFleet())
        super().__init__(
            serial, name or serial.lower(), context, LifecycleState(**{"life": Life.READY, "adopted": True, **state})
        )
        self.place, self.identity = place, identity
        self.device = SimpleNamespace(serial=serial)
        self.told = []

    @property
    def state(self):
        return self._lifecycle.state

    @state.setter
    def state(self, state):
        self._lifecycle.state = state

    def on_event(self, event):
        self.told.append(event)


class FakeFleet:
    """What surrounds an agent: fleet, rollouts, checker, views and recovery. It remembers each life and its reason."""

    def __init__(self, bundle=None):
        self.bundle = bundle
        self.seen = []
        self.left_over = []
        self.climbs = []
        self.external_cause, self.blamed = "", 0
        self.host_trouble = ""  # what is found when it is asked about the host
        self.host = ""  # why another host has the phone
        self.secret = ""  # of the server whose session outlived a daemon

    async def boots_beside(self, agent, identity):
        return {}

    def identified(self, agent, identity, boots):
        return True

    async def host_with(self, identity, starting):
        return self.host

    def changed(self, agent):
        self.seen.append((agent.state.life, agent.state.reason))

    async def find_external_cause(self, agent, since_s):
        self.external_cause = self.host_trouble
        self.blamed += 1

    def in_hands(self, agent):
        return False

    def outlived(self, agent):
        return self.secret

    async def bundle_for(self, agent):
        return self.bundle

    def context_of(self, agent):
        return RecoveryContext(external_cause=self.external_cause)

    def recovery_changed(self, agent, before):
        self.climbs.append(before)

    def pushing(self, agent, progress):
        pass

    def tidied(self, agent, done):
        self.left_over.append(done)

    def repaired(self, agent, files):
        pass

    check = for_ever

    async def until(self, life):
        """Wait for that life; returns its reason."""
        await until(lambda: life in dict(self.seen))
        return dict(self.seen)[life]


class FakeSwitch:
    """The power switch of a port: it remembers what was done; an error is raised by whoever cuts, or lights."""

    def __init__(self, *, off_fails=None, on_fails=None, off_takes_s=0.0):
        self.done = []
        self.off_fails, self.on_fails, self.off_takes_s = off_fails, on_fails, off_takes_s
        self.is_off = asyncio.Event()

    async def off(self, place):
        self.done.append(f"off {place.path}")
        self.is_off.set()
        await asyncio.sleep(self.off_takes_s)
        if self.off_fails:
            raise self.off_fails

    async def on(self, place):
        await asyncio.sleep(0)
        self.done.append(f"on {place.path}")
        if self.on_fails:
            raise self.on_fails
