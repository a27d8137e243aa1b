"""Verbs that reach into one phone for a person: its screen, a file, an app, what adb says of it.

Files travel as artifacts, so the caller needs no access to the daemon's disk, nor the daemon to the caller's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from farm.adb.tools import PhoneTools
from farm.control.artifact_budget import SHARE
from farm.control.artifacts import MAX_ARTIFACT_BYTES, ArtifactFolder
from farm.control.callers import Role
from farm.control.forms import OneDevice, Verbs, form, verb
from farm.control.server import ControlCall
from farm.core.errors import NotAllowedError, UserError
from farm.fleet.fleet import Fleet
from farm.fleet.getprop import decode
from farm.fleet.probe.parse import parse_probe
from farm.fleet.probe.read import Shells, raw_probe
from farm.leasing import Leasing

LOOK_EVERY_S = 0.5  # whether somebody got the phone: whose job has begun to compile by then
T = TypeVar("T")


@form
class Install:
    """`device.install`: an uploaded .apk and its file name."""

    device: str
    package: str
    name: str


@form
class Pull:
    """`device.pull`: a path on the phone."""

    device: str
    path: str


class ToolVerbs(Verbs):
    """Verbs over farm.adb.tools."""

    def __init__(
        self, fleet: Fleet, leasing: Leasing, tools: PhoneTools, artifacts: ArtifactFolder, shells: Shells
    ) -> None:
        self._fleet = fleet
        self._leasing = leasing
        self._tools = tools
        self._artifacts = artifacts
        self._shells = shells
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @verb("device.screenshot", Role.USER)
    async def screenshot(self, asked: OneDevice, call: ControlCall) -> Mapping[str, Any]:
        """The screen as a PNG artifact."""
        async with self._turn(call, asked.device) as serial:
            with self._artifacts.scratch() as scratch:
                taken = self._tools.screenshot(serial, scratch.path)
                width, height = await self._until_taken(call, asked.device, taken)
                kept = await asyncio.to_thread(self._artifacts.take, scratch, call.caller.user)
        return {"artifact": kept, "width": width, "height": height}

    @verb("device.pull", Role.USER)
    async def pull(self, asked: Pull, call: ControlCall) -> Mapping[str, Any]:
        """A file of the phone as an artifact."""
        max_bytes = min(MAX_ARTIFACT_BYTES, self._artifacts.rules.budget_bytes // SHARE)
        async with self._turn(call, asked.device) as serial:
            with self._artifacts.scratch() as scratch:
                pulled = self._tools.pull(serial, asked.path, scratch.path, max_bytes=max_bytes, room=scratch.grow)
                size_bytes = await self._until_taken(call, asked.device, pulled)
                kept = await asyncio.to_thread(self._artifacts.take, scratch, call.caller.user)
        return {"artifact": kept, "size_bytes": size_bytes}

    @verb("device.install", Role.OPERATOR)
    async def install(self, asked: Install, call: ControlCall) -> Mapping[str, Any]:
        """Install an uploaded .apk."""
        serial = self._usable(call, asked.device)
        with tempfile.TemporaryDirectory(prefix="farm-tools-") as folder:
            local = Path(folder) / "package.apk"
            local.symlink_to(self._artifacts.path(asked.package))
            await self._tools.install(serial, local)
        return {"device": asked.device, "name": asked.name}

    @verb("device.adb", Role.USER)
    async def facts(self, asked: OneDevice, call: ControlCall) -> Mapping[str, Any]:
        """What adb and the phone say of themselves, for support requests."""
        return asdict(await self._tools.facts(self._usable(call, asked.device)))

    @verb("device.probe", Role.USER)
    async def probe(self, asked: OneDevice, call: ControlCall) -> Mapping[str, Any]:
        """One probe, as the phone printed it and as farm reads it."""
        serial = self._usable(call, asked.device)
        output = await raw_probe(self._shells, serial)
        health = await asyncio.to_thread(parse_probe, output)  # of a phone that may print anything
        return {"probe": decode(output), "health": asdict(health)}

    @asynccontextmanager
    async def _turn(self, call: ControlCall, name: str) -> AsyncIterator[str]:
        """One file of a user at a time, and one of a phone: each may be as large as a share of the artifacts' disk.

        Yields the phone's serial.
        """
        mine = self._turns.setdefault(f"user {call.caller.user}", asyncio.Lock())
        phones = self._turns.setdefault(f"phone {self._usable(call, name)}", asyncio.Lock())
        async with mine, phones:
            yield self._usable(call, name)

    async def _until_taken(self, call: ControlCall, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Do it, unless somebody gets the phone meanwhile, who may measure there."""
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({working}, timeout=LOOK_EVERY_S))[0]:
                self._usable(call, name)
            return working.result()
        finally:
            working.cancel()
            await asyncio.wait({working})

    def _usable(self, call: ControlCall, name: str) -> str:
        """The serial of an adopted phone that nobody else has in hands: screens and files are its holder's.

        Raises:
            UserError: it is not adopted.
            NotAllowedError: somebody else holds it, and the caller is no operator.
        """
        serial = self._adopted(name)
        device, caller = self._fleet.view(name).name, call.caller
        holder = self._leasing.holder(device)
        if holder is not None and holder.lease.request.user != caller.user and caller.role < Role.OPERATOR:
            who = holder.lease.request.user or holder.peer
            raise NotAllowedError(f"{who} holds {device}", hint="wait until it is free, or ask an operator")
        return serial

    def _adopted(self, name: str) -> str:
        """The serial of an adopted phone.

        Raises:
            UserError: it is not adopted: nothing but read-only commands may run on it.
        """
        view = self._fleet.view(name)
        if not view.adopted:
            raise UserError(f"{view.name} is not adopted", hint=f"farm device adopt {view.name}")
        return view.serial
