"""What all agents work with, and whom they tell: protocols, so that tests can play each part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from farm.adb.client import AdbClient
from farm.adb.push import PushProgress
from farm.bundle.manifest import Bundle
from farm.core.identity import DeviceIdentity
from farm.core.lifecycle_state import DeviceState
from farm.core.recovery import Around
from farm.fleet import traces
from farm.fleet.checker import Checker
from farm.fleet.power import PowerSwitch

if TYPE_CHECKING:
    from farm.fleet.agent import Agent

# A hub of phones comes at once and shares one cable anyway. A push holds 2 MiB in buffers: a hundred at a time took
# 170 MB that the allocator never gave back, and not one phone was ready earlier.
PUSHES_AT_ONCE = 8


class BundleSource(Protocol):
    """What the agent needs of the bundle library (farm.bundle.library.BundleLibrary)."""

    def for_abi(self, abi: str, platform: str | None = None) -> Bundle | None:
        """The bundle for a device of that ABI and platform. Synchronous: called in a thread."""


class Owner(Protocol):
    """What an agent asks of and tells the fleet."""

    def identified(self, agent: Agent, identity: DeviceIdentity) -> bool:
        """The device was read; whether it is adopted."""

    def changed(self, agent: Agent) -> None:
        """Its state or its facts changed."""

    def in_hands(self, agent: Agent) -> bool:
        """Whether a person has it now."""

    def outlived(self, agent: Agent) -> str:
        """The secret of its server while a session of the daemon before this one is open there; "" when none is."""


class News(Protocol):
    """Who hears of an agent's work while it goes on."""

    def pushing(self, agent: Agent, progress: PushProgress) -> None:
        """A bundle is on its way."""

    def tidied(self, agent: Agent, done: traces.Tidied) -> None:
        """What a person left is gone."""

    def repaired(self, agent: Agent, files: int) -> None:
        """So many of farm's files on it had been changed."""


class Recovery(Protocol):
    """Whom an agent asks and tells about its recovery (farm.fleet.care.Care)."""

    def around(self, agent: Agent) -> Around:
        """What it must know of the world around it."""

    def climbed(self, agent: Agent, before: DeviceState) -> None:
        """Its place on the recovery ladder, its quarantine or its proven bundle changed."""


@dataclass(frozen=True, slots=True)
class Means:
    """What all agents work with."""

    client: AdbClient
    bundles: BundleSource
    checker: Checker
    owner: Owner
    news: News
    recovery: Recovery
    pushes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PUSHES_AT_ONCE))
    monotonic: Callable[[], float] = time.monotonic
    quiet: Container[str] = frozenset()  # serials of phones that somebody here has made quiet, and will change back
    power: PowerSwitch | None = None  # None: that rung of the ladder is skipped, and said so
