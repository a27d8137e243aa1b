"""The switch of each USB port, as configured, and the ports that farm has switched off and must switch on again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from farm.devices.power.power import CommandSwitch, PowerError, PowerSwitch, Uhubctl
from farm.devices.power.power_rules import PowerConfig
from farm.model.device import UsbPlace, hubs_above, parse_place

REFUSED_S = 600.0  # a hub that hung or was replugged may obey again: the next one to need it asks it
RESTORE_EVERY_S = 30.0  # a phone without power is empty in hours, and a call of uhubctl is cheap

log = logging.getLogger(__name__)


class Switchboard:
    """One per farm. Used from the event loop's thread.

    Args:
        config: `[power]`.
        notes: a folder with a file for each port that farm has switched off, for the daemon after a killed daemon.
        monotonic: seconds.
    """

    def __init__(
        self,
        config: PowerConfig | None = None,
        notes: Path | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config or PowerConfig()
        self._notes = notes
        self._monotonic = monotonic
        self.uhubctl = Uhubctl(self._config.uhubctl, self._config.timeout_s)
        self._refused: dict[UsbPlace, tuple[str, float]] = {}  # what a port's switch said last, and when
        self._off: set[UsbPlace] = set()  # a power cycle under way will switch them on
        self._failed: dict[UsbPlace, PowerError] = {}  # why ports could not be switched on again
        self._turns: defaultdict[UsbPlace, asyncio.Lock] = defaultdict(asyncio.Lock)

    def why_not(self, place: UsbPlace | None, *, ordered: bool = False) -> str:
        """Why a phone's power cannot be cut, in a few words; "" when it can, as far as is known.

        Args:
            place: its port.
            ordered: an operator wants it: what the switch said before is no reason not to ask it again.
        """
        if place is None:
            return "its USB port is unknown ([usb.places])"
        switch = self._config.rule_for(place).switch
        if switch == "none":
            return "the power of its port is not switched ([power])"
        if switch == "uhubctl" and not (self.uhubctl.find() if ordered else self.uhubctl.installed):
            return "uhubctl is not installed, and no other power switch is configured"
        refusal, at_s = self._refused.get(place, ("", 0.0))
        return "" if ordered or self._monotonic() - at_s >= REFUSED_S else refusal

    def losing_power(self, place: UsbPlace, places: Mapping[str, UsbPlace]) -> tuple[str, ...]:
        """Which of `places` (by serial) lose their power with that port, whatever is in it included.

        A switch of single ports cuts what hangs on the port; a command that names neither {port} nor {path} cuts the
        whole hub.
        """
        rule = self._config.rule_for(place)
        whole = rule.switch == "command" and not any("{port}" in word or "{path}" in word for word in rule.off)
        whole = whole and place.path not in self._config.hub
        top = place.hub if whole else place.path
        return tuple(sorted(serial for serial, other in places.items() if top in (other.path, *hubs_above(other))))

    def problems(self) -> list[str]:
        """Ports that may be without power because farm could not switch them on again."""
        again = f"tried again every {RESTORE_EVERY_S:g} s"
        return [
            f"port {place.path} may have no power: {error.message}; {again} ({error.hint})"
            for place, error in sorted(self._failed.items(), key=lambda each: each[0].path)
        ]

    async def off(self, place: UsbPlace) -> None:
        """See `PowerSwitch`. The caller must call `on` afterwards, even if this raises."""
        async with self._turns[place]:
            self._note(place)
            self._off.add(place)
            try:
                await self._switch_of(place).off(place)
            except PowerError as error:
                self._refused[place] = (error.message, self._monotonic())
                raise
            self._refused.pop(place, None)

    async def on(self, place: UsbPlace) -> None:
        """See `PowerSwitch`. `run` tries again after a failure."""
        try:
            async with self._turns[place]:
                await self._switch_on(place)
        finally:
            self._off.discard(place)

    async def run(self) -> None:
        """Until cancelled: switch on ports that farm, or a daemon before this one, left switched off."""
        while True:
            await self.restore_power()
            self.uhubctl.find()  # it may be installed any day
            await asyncio.sleep(RESTORE_EVERY_S)

    async def restore_power(self) -> None:
        """Try once to switch on every port that was left without power. Never raises."""
        for place in sorted({*self._noted(), *self._failed}, key=lambda each: each.path):
            known = self._failed.get(place)
            try:
                async with self._turns[place]:
                    if place in self._off:
                        continue
                    await self._switch_on(place)
                log.warning("port %s was left without power: it has it again", place.path)
            except PowerError as error:
                if known is None or known.message != error.message:
                    log.warning("port %s was left without power: %s (%s)", place.path, error.message, error.hint)
            except Exception:
                log.exception("port %s: a bug in farm while its power was switched on", place.path)

    async def _switch_on(self, place: UsbPlace) -> None:
        try:
            await self._switch_of(place).on(place)
        except PowerError as error:
            self._failed[place] = error
            raise
        self._failed.pop(place, None)
        if self._notes is None:
            return
        try:
            (self._notes / place.path).unlink(missing_ok=True)
        except OSError as error:
            log.warning("port %s has power, but its note stays: %s", place.path, error)

    def _note(self, place: UsbPlace) -> None:
        if self._notes is None:
            return
        try:
            self._notes.mkdir(parents=True, exist_ok=True)
            (self._notes / place.path).touch()
        except OSError as error:
            raise PowerError(
                f"port {place.path} keeps its power: that it is off could not be noted ({error.strerror})",
                hint=f"a daemon that is killed meanwhile would leave it off; look at {self._notes}: df, ls -ld",
                evidence=str(error),
            ) from error

    def _noted(self) -> set[UsbPlace]:
        if self._notes is None:
            return set()
        try:
            return {place for path in self._notes.iterdir() if (place := parse_place(path.name)) is not None}
        except FileNotFoundError:
            return set()
        except OSError as error:
            log.warning("the notes of ports left without power cannot be read: %s", error)
            return set()

    def _switch_of(self, place: UsbPlace) -> PowerSwitch:
        rule = self._config.rule_for(place)
        if rule.switch == "none":
            raise PowerError(f"the power of port {place.path} is not switched", hint="[power] in the configuration")
        if rule.switch == "command":
            return CommandSwitch(rule, self._config.timeout_s)
        return self.uhubctl
