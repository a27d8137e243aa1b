"""Verbs that reach into one phone for a person: its screen, a file, an app, what adb says of it.

Files travel as artifacts, so the caller needs no access to the daemon's disk, nor the daemon to the caller's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass as checked

from farm.adb.tools import PhoneTools
from farm.control.artifacts import ArtifactFolder
from farm.control.server import ControlCall, ControlServer, Role
from farm.control.verbs import STRICT, OneDevice, read_fields
from farm.core.errors import UserError
from farm.fleet.fleet import Fleet


@checked(frozen=True, slots=True, config=STRICT)
class Install:
    """`device.install`: an uploaded .apk and its file name."""

    device: str
    package: str
    name: str


@checked(frozen=True, slots=True, config=STRICT)
class Pull:
    """`device.pull`: a path on the phone."""

    device: str
    path: str


class ToolVerbs:
    """Verbs over farm.adb.tools."""

    def __init__(self, fleet: Fleet, tools: PhoneTools, artifacts: ArtifactFolder) -> None:
        self._fleet = fleet
        self._tools = tools
        self._artifacts = artifacts

    def register(self, server: ControlServer) -> None:
        """Add every verb to the door."""
        server.register("device.screenshot", self.screenshot, Role.USER)
        server.register("device.pull", self.pull, Role.USER)
        server.register("device.install", self.install, Role.OPERATOR)
        server.register("device.adb", self.facts, Role.VIEWER)

    async def screenshot(self, call: ControlCall) -> Mapping[str, Any]:
        """The screen as a PNG artifact."""
        serial = self._adopted(read_fields(call, OneDevice).device)
        with _file("screen.png") as local:
            width, height = await self._tools.screenshot(serial, local)
            return {"artifact": await self._keep(local), "width": width, "height": height}

    async def pull(self, call: ControlCall) -> Mapping[str, Any]:
        """A file of the phone as an artifact."""
        asked = read_fields(call, Pull)
        serial = self._adopted(asked.device)
        with _file("pulled") as local:
            size_bytes = await self._tools.pull(serial, asked.path, local)
            return {"artifact": await self._keep(local), "size_bytes": size_bytes}

    async def install(self, call: ControlCall) -> Mapping[str, Any]:
        """Install an uploaded .apk."""
        asked = read_fields(call, Install)
        serial = self._adopted(asked.device)
        with _file("package.apk") as local:
            local.symlink_to(self._artifacts.path(asked.package))
            await self._tools.install(serial, local)
        return {"device": asked.device, "name": asked.name}

    async def facts(self, call: ControlCall) -> Mapping[str, Any]:
        """What adb and the phone say of themselves, for support requests."""
        return asdict(await self._tools.facts(self._adopted(read_fields(call, OneDevice).device)))

    def _adopted(self, name: str) -> str:
        """The serial of an adopted phone.

        Raises:
            UserError: it is not adopted: nothing but read-only commands may run on it.
        """
        view = self._fleet.view(name)
        if not view.adopted:
            raise UserError(f"{view.name} is not adopted", hint=f"farm device adopt {view.name}")
        return view.serial

    async def _keep(self, local: Path) -> str:
        return await asyncio.to_thread(lambda: self._artifacts.add(local.read_bytes()))


@contextmanager
def _file(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="farm-tools-") as folder:
        yield Path(folder) / name
