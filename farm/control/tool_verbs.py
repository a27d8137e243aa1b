"""Verbs that reach into one phone for a person: its screen, a file, an app, what adb says of it.

Files travel as artifacts, so the caller needs no access to the daemon's disk, nor the daemon to the caller's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from farm.adb.tools import PhoneTools
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

    @verb("device.screenshot", Role.USER)
    async def screenshot(self, asked: OneDevice, call: ControlCall) -> Mapping[str, Any]:
        """The screen as a PNG artifact."""
        serial = self._usable(call, asked.device)
        with self._artifacts.scratch() as local:
            width, height = await self._tools.screenshot(serial, local)
            kept = await asyncio.to_thread(self._artifacts.take, local)
        return {"artifact": kept, "width": width, "height": height}

    @verb("device.pull", Role.USER)
    async def pull(self, asked: Pull, call: ControlCall) -> Mapping[str, Any]:
        """A file of the phone as an artifact."""
        serial = self._usable(call, asked.device)
        max_bytes = min(MAX_ARTIFACT_BYTES, self._artifacts.rules.budget_bytes)
        with self._artifacts.scratch() as local:
            size_bytes = await self._tools.pull(serial, asked.path, local, max_bytes=max_bytes)
            kept = await asyncio.to_thread(self._artifacts.take, local)
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

    def _usable(self, call: ControlCall, name: str) -> str:
        """The serial of an adopted phone that nobody else has in hands: screens and files are its holder's.

        Raises:
            UserError: it is not adopted.
            NotAllowedError: somebody else holds it, and the caller is no operator.
        """
        serial = self._adopted(name)
        device, caller = self._fleet.view(name).name, call.caller
        for holder in self._leasing.holders():
            user = holder.lease.request.user
            if holder.lease.device == device and user != caller.user and caller.role < Role.OPERATOR:
                raise NotAllowedError(
                    f"{user or holder.peer} holds {device}", hint="wait until it is free, or ask an operator"
                )
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
