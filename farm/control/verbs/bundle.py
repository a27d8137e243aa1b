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
from farm.control.forms import Verbs, form, verb
from farm.control.render import bundle_row
from farm.control.server import ControlCall
from farm.core.shared_look import SharedLook


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


class BundleVerbs(Verbs):
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

    @verb("bundle.add", Role.OPERATOR)
    async def add(self, asked: AddBundle, call: ControlCall) -> Mapping[str, Any]:
        """Check a folder and keep it; its steps are sent ahead of the answer."""
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

    @verb("bundle.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Every bundle."""
        return {"bundles": [bundle_row(bundle) for bundle in await asyncio.to_thread(self._library.list)]}

    @verb("bundle.show", Role.VIEWER)
    async def show(self, asked: OneBundle) -> Mapping[str, Any]:
        """One bundle."""
        return bundle_row(await asyncio.to_thread(self._library.get, asked.bundle))

    @verb("bundle.remove", Role.OPERATOR)
    async def remove(self, asked: OneBundle) -> Mapping[str, Any]:
        """Forget a bundle that no phone uses."""
        which = asked.bundle
        removed = await asyncio.to_thread(self._library.remove, which, in_use=self._in_use)
        self._changed()
        return {"name": which, "names": list(removed.names), "files_removed": removed.files_removed}

    @verb("bundle.verify", Role.VIEWER)
    async def verify(self, asked: OneBundle) -> Mapping[str, Any]:
        """Hash a bundle's files again."""
        which = asked.bundle
        bundle = await asyncio.to_thread(self._library.get, which)
        return {"name": which, "differences": await self._verified(bundle.hash)}

    async def _verify(self, hash_: str) -> Sequence[str]:
        async with self._turn:
            damages = await asyncio.to_thread(self._library.verify, hash_)
        return [f"{damage.file}: {damage.problem}" for damage in damages]
