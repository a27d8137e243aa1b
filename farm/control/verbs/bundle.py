"""Verbs about runtime bundles and toolchains.

A toolchain's interpreter is accepted after it has imported its TVM, and a pair after a check of both. The bundle
library is synchronous and hashes files: every call runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from farm.bundle.golden import GoldenCompiler
from farm.bundle.library import BundleLibrary
from farm.bundle.model import Bundle
from farm.bundle.versions import checked_alone, of_packages
from farm.common.errors import Code, UserError
from farm.common.tasks import SharedCall
from farm.common.verbs import verb
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Role
from farm.control.server import ControlCall
from farm.control.verbs import HostPath, VerbGroup, json_of
from farm.devices.rollouts import Rollouts
from farm.jobs.supervisor import Supervisor
from farm.jobs.toolchains import Toolchains, check_pair, examine
from farm.model.toolchain import Toolchain
from farm.store.database import run_to_completion

ADDS_AT_ONCE = 2  # each copies files and compiles for up to minutes; a thread continues although its caller left


class BundleSharing(Protocol):
    """The other hosts of a lab."""

    async def share(self, bundle: Bundle) -> None:
        """Let them have a bundle that was added by its name."""

    async def withdraw(self, names: Sequence[str]) -> None:
        """These names were removed: hosts without such a bundle get none from now on."""


class BundleVerbs(VerbGroup):
    """Verbs about runtime bundles."""

    def __init__(
        self,
        library: BundleLibrary,
        artifacts: ArtifactFolder,
        compiler_of: Callable[[str], GoldenCompiler],
        in_use: Callable[[Bundle], str],
        rollouts: Rollouts,
        changed: Callable[[str], Awaitable[None]],
        sharing: BundleSharing | None = None,
    ) -> None:
        """Take the parts.

        Args:
            library: where bundles are.
            artifacts: where clients put packed folders.
            compiler_of: a toolchain's golden compiler; raises UserError for an unknown toolchain.
            in_use: why a bundle must stay, or "".
            rollouts: which bundles phones get.
            changed: called after a bundle came (its hash) or went (""), so that phones look again which one is theirs.
            sharing: with the other hosts of the lab; None: there are none.
        """
        self._sharing = sharing
        self._library = library
        self._artifacts = artifacts
        self._compiler_of = compiler_of
        self._in_use = in_use
        self._rollouts = rollouts
        self._changed = changed
        self._adders = ThreadPoolExecutor(ADDS_AT_ONCE, "farm-bundle-add")  # all else that waits keeps its threads
        self._verified = SharedCall(self._verify)
        self._verify_lock = asyncio.Lock()  # of those who verify: each reads a bundle whole, in one of a few threads

    @verb("bundle.add", Role.OPERATOR, subject="name", order=("toolchain", "folder"))
    async def add(
        self, call: ControlCall, name: str, folder: str = "", packed: str = "", toolchain: str = "default"
    ) -> Mapping[str, Any]:
        """Check a folder of the daemon's host, or one that is an artifact (`packed`), and keep it.

        Its steps are sent ahead of the answer.
        """
        compiler = self._compiler_of(toolchain)
        loop = asyncio.get_running_loop()

        def progress(step: str) -> None:
            asyncio.run_coroutine_threadsafe(call.progress(step=step), loop)

        source = await self._artifacts.ensure(packed) if packed else Path(folder)
        add = partial(self._library.add_packed if packed else self._library.add, source, name=name)
        add = partial(add, toolchain=toolchain, compile_golden=compiler, progress=progress)
        return self._row(await self._take_in(add, progress))

    @run_to_completion  # what is in the library is taken by phones and shared, also if its user leaves meanwhile
    async def _take_in(self, add: Callable[[], Bundle], progress: Callable[[str], None]) -> Bundle:
        bundle = await asyncio.get_running_loop().run_in_executor(self._adders, add)
        await self._changed(bundle.hash)
        if self._sharing is not None:
            progress("sharing it with the other hosts")
            await self._sharing.share(bundle)
        return bundle

    @verb("bundle.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Every bundle."""
        return {"bundles": [self._row(bundle) for bundle in await asyncio.to_thread(self._library.list)]}

    @verb("bundle.show", Role.VIEWER, subject="bundle")
    async def show(self, bundle: str) -> Mapping[str, Any]:
        """One bundle, by its name or the start of its hash."""
        return self._row(await asyncio.to_thread(self._library.get, bundle))

    @verb("bundle.promote", Role.OPERATOR, subject="bundle")
    async def promote(self, bundle: str) -> Mapping[str, Any]:
        """Make a bundle current without a canary."""
        found = await asyncio.to_thread(self._library.get, bundle)
        takers = await self._rollouts.promote(found)
        return {**self._row(found), "platform": found.platform, "takers": takers}

    @verb("bundle.rollback", Role.OPERATOR, subject="bundle")
    async def rollback(self, call: ControlCall, bundle: str) -> Mapping[str, Any]:
        """Withdraw a candidate, or the current bundle in favour of the one before."""
        found = await asyncio.to_thread(self._library.get, bundle)
        await self._rollouts.roll_back(found, call.caller.user)
        return self._row(found)

    @verb("bundle.remove", Role.OPERATOR, subject="bundle")
    async def remove(self, bundle: str) -> Mapping[str, Any]:
        """Forget a bundle that no phone uses."""
        names, files_removed = await self._let_go(bundle)
        return {"name": bundle, "names": list(names), "files_removed": files_removed}

    @run_to_completion
    async def _let_go(self, bundle: str) -> tuple[tuple[str, ...], bool]:
        names, files_removed = await asyncio.to_thread(self._library.remove, bundle, in_use=self._in_use)
        await self._changed("")
        if self._sharing is not None:
            await self._sharing.withdraw(names)
        return names, files_removed

    @verb("bundle.verify", Role.VIEWER, subject="bundle")
    async def verify(self, bundle: str) -> Mapping[str, Any]:
        """Hash a bundle's files again."""
        hash_ = await asyncio.to_thread(self._library.hash_of, bundle)  # its manifest may be what is damaged
        return {"name": bundle, "differences": await self._verified(hash_)}

    def _row(self, bundle: Bundle) -> dict[str, Any]:
        return {**bundle_row(bundle), **self._rollouts.state(bundle)}

    async def _verify(self, hash_: str) -> Sequence[str]:
        async with self._verify_lock:
            return [*await asyncio.to_thread(self._library.verify, hash_)]


class ToolchainVerbs(VerbGroup):
    """Verbs about toolchains."""

    def __init__(
        self,
        toolchains: Toolchains,
        zygotes: Supervisor,
        bundles: BundleLibrary,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """`changed`: called after a toolchain came or went, so that phones look again which bundle is theirs."""
        self._toolchains = toolchains
        self._zygotes = zygotes
        self._bundles = bundles
        self._changed = changed
        self._orders = asyncio.Lock()  # one at a time: a name is free from the check until it is kept

    @verb("toolchain.add", Role.OPERATOR, subject="name", order=("bundle", "python"))
    async def add(self, call: ControlCall, name: str, python: HostPath, bundle: str = "") -> Mapping[str, Any]:
        """Let an interpreter of the host import TVM, compare it with the bundle if one is named, keep it, start it."""
        if not Path(python).is_absolute():
            raise UserError(f"{python!r} is no absolute path", hint="the daemon has a folder of its own")
        async with self._orders:
            self._toolchains.check_free(name)
            found = await asyncio.to_thread(self._bundles.get, bundle) if bundle else None
            await call.progress(step=f"importing TVM in {python}")
            facts = await examine(Path(python))
            warnings = [alone] if (alone := checked_alone(facts.versions, f"toolchain {name}")) else []
            if found is not None and (warning := check_pair(name, facts, found)):
                warnings.append(warning)
            toolchain = Toolchain(name, Path(python), bundle, facts.tvm)
            await self._take_in(toolchain)
        return {**self._row(toolchain), "tvm": facts.tvm, "versions": facts.packages, "warnings": warnings}

    @verb("toolchain.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Every toolchain."""
        return {"toolchains": [self._row(each) for each in self._toolchains.all()]}

    @verb("toolchain.remove", Role.OPERATOR, subject="name")
    async def remove(self, name: str) -> Mapping[str, Any]:
        """Forget a toolchain that nothing needs."""
        async with self._orders:
            self._toolchains.check_removable(name)
            made = await asyncio.to_thread(self._toolchains.made_for, name)
            if made:
                shown = made[0].names[0] if made[0].names else made[0].short_hash
                raise UserError(
                    f"bundle {shown} was added for toolchain {name}, which checks the phones that have it",
                    Code.TOOLCHAIN_IN_USE,
                    hint=f"first: farm bundle remove {shown}",
                )
            await self._let_go(name)
        return {"name": name}

    async def reread(self) -> None:
        """Take up the toolchains that other hosts of the lab have added or removed.

        Raises:
            UserError: attempts run in one that was removed.
            HostError: the database is away.
        """
        async with self._orders:
            stored, known = await self._toolchains.stored(), dict(self._toolchains.added)
            changed = [name for name in {**known, **stored} if known.get(name) != stored.get(name)]
            for name in changed:
                await self._zygotes.remove(name)
                self._toolchains.put(name, stored.get(name))
                if name in stored:
                    await self._zygotes.add(stored[name])
            if changed:
                await self._changed()

    @run_to_completion
    async def _take_in(self, toolchain: Toolchain) -> None:
        await self._toolchains.add(toolchain)
        await self._zygotes.add(toolchain)
        await self._changed()

    @run_to_completion
    async def _let_go(self, name: str) -> None:
        await self._zygotes.remove(name)
        await self._toolchains.remove(name)
        await self._changed()

    def _row(self, toolchain: Toolchain) -> dict[str, Any]:
        versions = dict(self._zygotes.versions(toolchain.name))
        return {
            "name": toolchain.name,
            "python": str(toolchain.python),
            "bundle": toolchain.bundle,
            "configured": self._toolchains.is_configured(toolchain.name),
            "up": bool(versions),
            "tvm": of_packages(versions, toolchain.tvm_version).tvm,
            "ffi": of_packages(versions).ffi,
            "versions": versions,
        }


def bundle_row(bundle: Bundle) -> dict[str, Any]:
    """A bundle in `farm bundle list`."""
    return {
        **json_of(bundle, "name", "hash", "abi", "toolchain", "tvm_version", "ffi_version", "has_opencl"),
        "names": [*bundle.names],
        "size_bytes": sum(file.size for file in bundle.files),
        "files": [{"name": f.name, "size_bytes": f.size, "sha256": f.sha256} for f in bundle.files],
        "golden": [*bundle.golden_kinds],
        "warnings": list(bundle.warnings),
    }
