"""The toolchains there are, those of the configuration and those added by command, and which bundle goes with which."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from farm.bundle.golden import ToolchainGoldenCompiler
from farm.bundle.library import DEFAULT_TOOLCHAIN, BundleLibrary
from farm.bundle.manifest import Bundle
from farm.config import ToolchainConfig
from farm.core.device import DeviceView
from farm.core.errors import UserError
from farm.core.events import EventLog
from farm.core.selector import nearest
from farm.jobs.zygote import Toolchain
from farm.store.changes import to_its_end
from farm.store.records import ToolchainRecord
from farm.store.settings import ToolchainTable

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")  # it names a log and a cache folder


class UnknownToolchainError(UserError):
    """There is no toolchain of that name."""

    code = "unknown_toolchain"


class ToolchainNameError(UserError):
    """The name is taken, or cannot be one."""

    code = "toolchain_name"


class Toolchains:
    """Every toolchain by name. One of the configuration beats one of that name in the store."""

    def __init__(
        self, configured: Mapping[str, ToolchainConfig], kept: ToolchainTable, events: EventLog, bundles: BundleLibrary
    ) -> None:
        self._configured = {name: Toolchain(name, Path(each.python), each.bundle) for name, each in configured.items()}
        self._kept = kept
        self._events = events
        self._bundles = bundles
        self._added = {record.name: record for record in kept.all() if record.name not in configured}

    def all(self) -> tuple[Toolchain, ...]:
        """Every toolchain; the configuration's first."""
        return (*self._configured.values(), *map(_toolchain, self._added.values()))

    def get(self, name: str) -> Toolchain:
        """The toolchain of that name.

        Raises:
            UnknownToolchainError: there is none; the nearest is named.
        """
        known = {each.name: each for each in self.all()}
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near[0]!r}?" if near else f"toolchains: {', '.join(known)}"
            raise UnknownToolchainError(f"there is no toolchain {name!r}", hint=hint)
        return known[name]

    def is_configured(self, name: str) -> bool:
        """Whether it stands in the configuration."""
        return name in self._configured

    def verified_tvm(self, name: str) -> str:
        """The TVM version that was found when it was added; "" for one of the configuration."""
        return self._added[name].tvm_version if name in self._added else ""

    def compiler_of(self, name: str) -> ToolchainGoldenCompiler:
        """What compiles golden kernels in it.

        Raises:
            UnknownToolchainError: there is no such toolchain.
        """
        return ToolchainGoldenCompiler(self.get(name).python)

    def of_bundle(self, bundle: Bundle) -> str:
        """The name of the toolchain that is paired with a bundle: one that says so, else the one it was added for."""
        return next(iter(self.naming(bundle)), bundle.toolchain)

    def of_view(self, view: DeviceView) -> str:
        """The name of the toolchain whose workers speak to a device: that of the bundle on it."""
        return self.of_bundle(self._bundles.get(view.bundle)) if view.bundle else DEFAULT_TOOLCHAIN

    def for_abi(self, abi: str, platform: str | None = None) -> Bundle | None:
        """The bundle for a device of that ABI and platform: one that a toolchain names, else the one named last."""
        for each in self.all():
            if each.bundle:
                bundle = self._bundles.get(each.bundle)
                if bundle.abi == abi and platform in (None, bundle.platform):
                    return bundle
        return self._bundles.for_abi(abi, platform)

    def naming(self, bundle: Bundle) -> tuple[str, ...]:
        """The toolchains that name a bundle: it must stay while they do."""
        return tuple(
            each.name
            for each in self.all()
            if each.bundle and (each.bundle in bundle.names or bundle.hash.startswith(each.bundle))
        )

    def made_for(self, name: str) -> tuple[Bundle, ...]:
        """The bundles whose golden kernels a toolchain compiled: their checks need it."""
        return tuple(bundle for bundle in self._bundles.list() if bundle.toolchain == name)

    def check_free(self, name: str) -> None:
        """Whether a toolchain may be added under that name.

        Raises:
            ToolchainNameError: it is taken, or no name.
        """
        if not _NAME.fullmatch(name):
            raise ToolchainNameError(
                f"{name!r} cannot be a toolchain's name",
                hint="use lower-case letters, digits and . _ - (at most 64, first a letter or digit)",
            )
        if name in self._configured:
            raise ToolchainNameError(
                f"toolchain {name!r} stands in the configuration", hint="choose another name, or change it there"
            )
        if name in self._added:
            raise ToolchainNameError(
                f"there is a toolchain {name!r} already", hint=f"choose another name, or: farm toolchain remove {name}"
            )

    @to_its_end
    async def add(self, toolchain: Toolchain, tvm_version: str) -> None:
        """Keep a verified toolchain.

        Raises:
            ToolchainNameError: its name is taken.
            StoreWriteError: it cannot be kept now.
        """
        self.check_free(toolchain.name)
        record = ToolchainRecord(toolchain.name, str(toolchain.python), toolchain.bundle, tvm_version)
        told = {"python": record.python, "bundle": record.bundle, "tvm": tvm_version}
        with self._events.drafted(("toolchain.added", record.name, told)) as drafts:
            await self._kept.add(record, drafts)
        self._added[record.name] = record

    @to_its_end
    async def remove(self, name: str) -> None:
        """Forget a toolchain that was added by command.

        Raises:
            UnknownToolchainError, ToolchainNameError: there is none, or it stands in the configuration.
            StoreWriteError: that cannot be written now.
        """
        self.check_removable(name)
        with self._events.drafted(("toolchain.removed", name, {})) as drafts:
            await self._kept.remove(name, drafts)
        self._added.pop(name, None)

    def check_removable(self, name: str) -> None:
        """Whether a command may remove it.

        Raises:
            UnknownToolchainError, ToolchainNameError: there is none, or it stands in the configuration.
        """
        self.get(name)
        if name in self._configured:
            where = "it must stay" if name == DEFAULT_TOOLCHAIN else "remove it there and restart the daemon"
            raise ToolchainNameError(f"toolchain {name!r} stands in the configuration", hint=where)


def _toolchain(record: ToolchainRecord) -> Toolchain:
    return Toolchain(record.name, Path(record.python), record.bundle)
