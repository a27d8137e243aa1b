"""Verbs about toolchains: an interpreter is believed after it has imported its TVM, and a pair after a look at both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from farm.bundle.library import BundleLibrary
from farm.control.callers import Role
from farm.control.forms import HostPath, Verbs, form, verb
from farm.control.server import ControlCall
from farm.core.errors import UserError
from farm.jobs.toolchain_check import check_pair, examine
from farm.jobs.toolchains import Toolchains
from farm.jobs.zygote import Toolchain
from farm.store.changes import to_its_end


@form
class AddToolchain:
    """`toolchain.add`: an interpreter on the daemon's host, and a bundle by name or hash; "": none in particular."""

    name: str
    python: HostPath
    bundle: str = ""


@form
class OneToolchain:
    """A toolchain by name."""

    name: str


class ToolchainInUseError(UserError):
    """The toolchain is needed."""

    code = "toolchain_in_use"


class Zygotes(Protocol):
    """The supervisor, as far as toolchains come and go."""

    async def add(self, toolchain: Toolchain) -> None:
        """Start its zygote in the background."""
        ...

    async def remove(self, name: str) -> None:
        """End its zygote; UserError while an attempt runs in it."""
        ...

    def versions(self, toolchain: str) -> Mapping[str, str]:
        """Versions in a toolchain; empty while it is not up."""
        ...


class ToolchainVerbs(Verbs):
    """Verbs about toolchains."""

    def __init__(
        self, toolchains: Toolchains, zygotes: Zygotes, bundles: BundleLibrary, changed: Callable[[], None]
    ) -> None:
        """`changed`: called after a toolchain came or went, so that phones look again which bundle is theirs."""
        self._toolchains = toolchains
        self._zygotes = zygotes
        self._bundles = bundles
        self._changed = changed
        self._orders = asyncio.Lock()  # one at a time: a name is free from the check until it is kept

    @verb("toolchain.add", Role.OPERATOR)
    async def add(self, asked: AddToolchain, call: ControlCall) -> Mapping[str, Any]:
        """Let an interpreter import TVM, compare it with the bundle, keep it, start it."""
        python = Path(asked.python)
        if not python.is_absolute():
            raise UserError(f"{asked.python!r} is no absolute path", hint="the daemon has a folder of its own")
        async with self._orders:
            self._toolchains.check_free(asked.name)
            bundle = await asyncio.to_thread(self._bundles.get, asked.bundle) if asked.bundle else None
            await call.progress(step=f"importing TVM in {python}")
            facts = await examine(python)
            if bundle is not None:
                check_pair(asked.name, facts, bundle)
            toolchain = Toolchain(asked.name, python, asked.bundle)
            await self._take_in(toolchain, facts.tvm)
        return {**self._row(toolchain), "tvm": facts.tvm, "versions": facts.packages}

    @verb("toolchain.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Every toolchain."""
        return {"toolchains": [self._row(each) for each in self._toolchains.all()]}

    @verb("toolchain.remove", Role.OPERATOR)
    async def remove(self, asked: OneToolchain) -> Mapping[str, Any]:
        """Forget a toolchain that nothing needs."""
        name = asked.name
        async with self._orders:
            self._toolchains.check_removable(name)
            made = await asyncio.to_thread(self._toolchains.made_for, name)
            if made:
                shown = made[0].names[0] if made[0].names else made[0].short_hash
                raise ToolchainInUseError(
                    f"bundle {shown} was added for toolchain {name}, which checks the phones that have it",
                    hint=f"first: farm bundle remove {shown}",
                )
            await self._let_go(name)
        return {"name": name}

    @to_its_end
    async def _take_in(self, toolchain: Toolchain, tvm: str) -> None:
        await self._toolchains.add(toolchain, tvm)
        await self._zygotes.add(toolchain)
        self._changed()

    @to_its_end
    async def _let_go(self, name: str) -> None:
        await self._zygotes.remove(name)
        await self._toolchains.remove(name)
        self._changed()

    def _row(self, toolchain: Toolchain) -> dict[str, Any]:
        versions = dict(self._zygotes.versions(toolchain.name))
        tvm = versions.get("apache-tvm") or self._toolchains.verified_tvm(toolchain.name)
        return {
            "name": toolchain.name,
            "python": str(toolchain.python),
            "bundle": toolchain.bundle,
            "configured": self._toolchains.is_configured(toolchain.name),
            "up": bool(versions),
            "tvm": tvm,
            "versions": versions,
        }
