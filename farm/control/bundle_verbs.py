"""Verbs about runtime bundles. The library is synchronous and hashes files: every call goes to a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.bundle.golden import GoldenCompiler
from farm.bundle.library import BundleLibrary
from farm.bundle.manifest import Bundle
from farm.control.callers import Role
from farm.control.forms import Nothing, form, read_fields
from farm.control.render import bundle_row
from farm.control.server import ControlCall, ControlServer
from farm.control.shared_look import SharedLook


@form
class AddBundle:
    """`bundle.add`: a folder on the daemon's host."""

    folder: str
    name: str
    toolchain: str = "default"


@form
class OneBundle:
    """A bundle by name or by the start of its hash."""

    bundle: str


class BundleVerbs:
    """Verbs about runtime bundles."""

    def __init__(
        self,
        library: BundleLibrary,
        compiler_of: Callable[[str], GoldenCompiler],
        in_use: Callable[[Bundle], str],
        changed: Callable[[], None],
    ) -> None:
        """Take the parts.

        Args:
            library: where bundles are.
            compiler_of: a toolchain's golden compiler; raises UserError for an unknown toolchain.
            in_use: why a bundle must stay, or "".
            changed: called after bundles came or went, so that waiting phones look again.
        """
        self._library = library
        self._compiler_of = compiler_of
        self._in_use = in_use
        self._changed = changed
        self._verified = SharedLook(self._verify)
        self._turn = asyncio.Lock()  # of those who verify: each reads a bundle whole, in one of a few threads

    def register(self, server: ControlServer) -> None:
        """Add every verb to the door."""
        server.register("bundle.add", self.add, Role.OPERATOR)
        server.register("bundle.list", self.list, Role.VIEWER)
        server.register("bundle.show", self.show, Role.VIEWER)
        server.register("bundle.remove", self.remove, Role.OPERATOR)
        server.register("bundle.verify", self.verify, Role.VIEWER)

    async def add(self, call: ControlCall) -> Mapping[str, Any]:
        """Check a folder and keep it; its steps are sent ahead of the answer."""
        asked = read_fields(call, AddBundle)
        compiler = self._compiler_of(asked.toolchain)
        loop = asyncio.get_running_loop()

        def progress(step: str) -> None:
            asyncio.run_coroutine_threadsafe(call.progress(step=step), loop)

        bundle = await asyncio.to_thread(
            self._library.add,
            Path(asked.folder),
            name=asked.name,
            toolchain=asked.toolchain,
            compile_golden=compiler,
            progress=progress,
        )
        self._changed()
        return bundle_row(bundle)

    async def list(self, call: ControlCall) -> Mapping[str, Any]:
        """Every bundle."""
        read_fields(call, Nothing)
        return {"bundles": [bundle_row(bundle) for bundle in await asyncio.to_thread(self._library.list)]}

    async def show(self, call: ControlCall) -> Mapping[str, Any]:
        """One bundle."""
        return bundle_row(await asyncio.to_thread(self._library.get, read_fields(call, OneBundle).bundle))

    async def remove(self, call: ControlCall) -> Mapping[str, Any]:
        """Forget a bundle that no phone uses."""
        which = read_fields(call, OneBundle).bundle
        removed = await asyncio.to_thread(self._library.remove, which, in_use=self._in_use)
        self._changed()
        return {"name": which, "names": list(removed.names), "files_removed": removed.files_removed}

    async def verify(self, call: ControlCall) -> Mapping[str, Any]:
        """Hash a bundle's files again."""
        which = read_fields(call, OneBundle).bundle
        bundle = await asyncio.to_thread(self._library.get, which)
        return {"name": which, "differences": await self._verified(bundle.hash)}

    async def _verify(self, hash_: str) -> Sequence[str]:
        async with self._turn:
            damages = await asyncio.to_thread(self._library.verify, hash_)
        return [f"{damage.file}: {damage.problem}" for damage in damages]
