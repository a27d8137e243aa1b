"""Another runtime bundle on a phone than its own, for as long as somebody has the phone.

Which bundle a phone runs is its life's business (`farm.core.lifecycle`, `lent`): it is provisioned, started and checked
as ever, and what fails there puts the phone's own bundle back. Here is who asks for it, and who waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from farm.bundle.manifest import Bundle
from farm.core import lifecycle_messages as m
from farm.core.device import DeviceView, Life
from farm.core.errors import NoSuchDeviceError, PhoneError
from farm.fleet.agent import Agent


class BundleNotTakenError(PhoneError):
    """The phone does not run with the bundle that was wanted."""

    code = "bundle_not_taken"


class Lending:
    """Lends bundles to the agents that `find` knows; `subscribe` tells of every change of theirs."""

    def __init__(
        self,
        find: Callable[[str], Agent],
        subscribe: Callable[[Callable[[DeviceView], None]], Callable[[], None]],
    ) -> None:
        self._find = find
        self._subscribe = subscribe

    async def use(self, name: str, bundle: Bundle) -> None:
        """Change the device to `bundle`, at once; returns when it is READY with it.

        It keeps the bundle until another is wanted, `give_back`, or the end of its way to READY.

        Raises:
            NoSuchDeviceError: there is no such device.
            BundleNotTakenError: the bundle does not start or fails its check there, or the device went away; it is on
                its way back to its own bundle.
        """
        agent = self._find(name)
        news = asyncio.Event()

        def look(view: DeviceView) -> None:
            if view.serial == agent.serial:
                news.set()

        unsubscribe = self._subscribe(look)
        try:
            agent.lend(bundle)
            while agent.state.lent == bundle.hash:
                if agent.state.life is Life.READY:
                    return
                news.clear()
                await news.wait()
        finally:
            unsubscribe()
        why = agent.state.refusal or "it was given back meanwhile"
        raise BundleNotTakenError(
            f"{agent.name} does not run with bundle {bundle.name or bundle.short_hash}: {why}",
            hint=f"farm bundle verify {bundle.short_hash}; farm device show {agent.name}",
        )

    def give_back(self, name: str) -> None:
        """Nobody borrows the device any more: with a lent bundle it leaves READY at once and gets its own back."""
        with suppress(NoSuchDeviceError):  # forgotten meanwhile: its server was ended
            self._find(name).tell(m.BundleWanted(""))
