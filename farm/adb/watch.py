"""The watcher: follows the adb server's list forever, through every failure of the server.

It survives a killed, absent, hanging or foreign-version server; starts the server if it is farm's; keeps network phones
connected; reports each problem once. Decisions are in farm.adb.watch_policy; this file only waits and acts.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from farm.adb.client import AdbClient
from farm.adb.devices import AdbDevice, AdbState, usable
from farm.adb.errors import AdbError, AdbServerUnreachable, AdbTimeout, AdbVersionClash
from farm.adb.program import socket_holder
from farm.adb.server import AdbServer
from farm.adb.watch_policy import (
    REPLACEMENTS_WITHIN_S,
    Load,
    NetworkAction,
    NetworkPhone,
    Outage,
    Remedy,
    ServerEvidence,
    WatchPolicy,
    judge,
    network_address,
)
from farm.common.errors import FarmError, ProtocolError
from farm.common.tasks import BackgroundTasks, at_most, end_tasks

Snapshot = tuple[AdbDevice, ...]
# adb 29 sends its followers `offline`, then nothing when that becomes `unauthorized` (docs/facts.md): asked every tick.
UNSETTLED = frozenset({AdbState.OFFLINE, AdbState.AUTHORIZING, AdbState.CONNECTING, AdbState.UNKNOWN})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change of the server or a network phone that people should learn once.

    `kind`: `adb.lost`, `adb.hangs` (and is left alone), `adb.back`, `adb.clash`, `network.lost`, `network.back`,
    `network.removed`.
    """

    kind: str
    subject: str  # the server's socket spec or the phone's address
    message: str
    error: FarmError | None = None


def _ignore(_: object) -> None:
    return


class DeviceWatcher:
    """Follows one adb server.

    Args:
        client: how to reach it.
        server: farm's own server, started and restarted when needed; None = another user's, only reported on.
        own_version: protocol version of the adb program in use; a server of another one is a clash (0 = any).
        on_event: called with each event.
        policy: the numbers.
    """

    def __init__(
        self,
        client: AdbClient,
        *,
        server: AdbServer | None = None,
        own_version: int = 0,
        on_event: Callable[[WatchEvent], None] = _ignore,
        policy: WatchPolicy = WatchPolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._client = client
        self._server = server
        self._own_version = own_version or (server.binary.version if server is not None else 0)
        self._on_event = on_event
        self._policy = policy
        self._network: dict[str, NetworkPhone] = {}
        self._attempts = BackgroundTasks()
        self._outage = Outage()
        self._lost_reported = False
        self._hang_reported = False
        self._trips_lost = 0
        self._failed_at = -math.inf  # monotonic second of the latest question that the server failed
        self._asking: asyncio.Task[bool] | None = None
        self._dead_since: float | None = None  # monotonic seconds
        self._replaced_at: list[float] = []
        self.load: Callable[[], Load] = Load  # the present use of the server
        self.wanted: Callable[[str], bool] = lambda _: False  # whether a request waits for the network phone
        self._reported_version = 0  # the clashing version that was reported
        self._changed = asyncio.Event()
        self.devices: Snapshot | None = None  # None until the first list came
        self.server_lost = False  # `devices` is empty because no server answers
        self.failure = ""  # what the server failed to do when it was asked last; "" nothing
        # when this task last made progress, with or without a server; for the watchdog
        self.moved_at = time.monotonic()

    def add_network(self, address: str) -> str:
        """Keeps a network phone connected from now on. Returns its address as adb lists it (its serial)."""
        serial = network_address(address)
        self._network.setdefault(serial, NetworkPhone(serial))
        return serial

    def remove_network(self, address: str) -> None:
        """Stops keeping it connected. The caller disconnects it."""
        serial = network_address(address)
        if self._network.pop(serial, None) is not None:
            self._report("network.removed", serial, f"Phone {serial} is not kept connected any more.")

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """The current list and then each newer list. A slow reader skips to the newest."""
        seen: Snapshot | None = None
        while True:
            changed = self._changed
            if self.devices is not None and self.devices is not seen:
                seen = self.devices
                yield seen
            else:
                await changed.wait()

    async def did_its_part(self, since_s: float) -> bool:
        """Whether the server answers now and has answered since monotonic second `since_s`: else no phone is at fault.

        It answers when it lists phones in time and one of them, if there are several, runs a command. Callers at the
        same time share one question; a server that fails it has `failure` until it is asked again.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answers_now(), name="adb question")
        return await asyncio.shield(self._asking) and self._failed_at < since_s

    async def reaches_any(self, phones: Snapshot) -> bool:
        """Whether any of the phones answers a command, even with an error: that needs a working transport."""
        asked = [asyncio.create_task(self._answers(phone.serial), name="adb round trip") for phone in phones]
        try:
            for answered in asyncio.as_completed(asked):
                if await answered:
                    return True
            return False
        finally:
            await end_tasks(*asked)

    async def run(self) -> None:
        """Watches until cancelled. Never raises for anything an adb server does."""
        try:
            while True:
                self.moved_at = begun = time.monotonic()
                try:
                    await self._watch()
                except (AdbError, ProtocolError, OSError) as error:
                    failed = error if isinstance(error, FarmError) else AdbServerUnreachable(str(error))
                    await self._on_failure(failed, up_s=time.monotonic() - begun)
        finally:
            await self._attempts.end(0.0)
            if self._asking is not None:
                await end_tasks(self._asking)

    async def _on_failure(self, error: FarmError, *, up_s: float) -> None:
        """The server went, or never came: report it once, show no phones, and wait."""
        if up_s > self._policy.settled_s and not self._lost_reported:
            self._outage = Outage()
        self._outage, new = self._outage.failed(error.code)
        if new:
            self._report_lost(error)
        self.server_lost = True
        self._failed("the adb server went away")
        self._publish(())
        self.moved_at = time.monotonic()
        await asyncio.sleep(self._policy.server.delay_s(self._outage.failures))

    async def _watch(self) -> None:
        version = await self._ensure()
        self.moved_at = time.monotonic()
        await self._check_version(version)
        changed = asyncio.Event()
        listening = asyncio.create_task(self._listen(changed), name="adb track-devices")
        stale, lost, asked_at = True, 0, 0.0
        try:
            while not listening.done():
                async with at_most(self._policy.tick_s):
                    await changed.wait()
                self.moved_at = now = time.monotonic()
                if changed.is_set():
                    changed.clear()
                    stale, lost = True, 0  # a server that notifies is alive, however slow its answers are
                unsettled = any(device.state in UNSETTLED for device in self.devices or ())
                if stale or unsettled or now - asked_at >= self._policy.probe_every_s:
                    stale = not await self._refresh()
                    lost = lost + 1 if stale else 0
                    asked_at = time.monotonic()
                    await self._check_health(lost)
                self._step_network(now)
            await listening  # raises what ended it
        finally:
            await end_tasks(listening)

    async def _listen(self, changed: asyncio.Event) -> None:
        """Set `changed` whenever the server reports a change.

        The lists of the stream are not used: with many phones coming at once they lag behind the answers of
        `list_devices`, and a mixture of both would show attached phones as gone. Only answers are published, in order.
        """
        try:
            async with aclosing(self._client.track_devices()) as lists:
                async for _ in lists:
                    changed.set()
        finally:
            changed.set()

    async def _ensure(self) -> int:
        if self._server is None:
            return await self._client.version()
        self._server.trim_log()
        return await self._server.ensure()

    async def _refresh(self) -> bool:
        """Asks for the list and publishes it. False when the server does not answer."""
        if self._server is not None:
            self._server.trim_log()
        devices = await self._list()
        if devices is None:
            return False
        self.server_lost = False
        self._publish(devices)
        self._report_back()
        return True

    async def _list(self) -> Snapshot | None:
        """The server's list, or None if it did not come in time."""
        try:
            async with asyncio.timeout(self._policy.probe_timeout_s):
                devices = await self._client.list_devices()
        except (TimeoutError, AdbServerUnreachable):
            self._failed("the adb server does not answer")
            return None
        self.failure = ""
        return tuple(devices)

    async def _answers_now(self) -> bool:
        try:
            devices = await self._list()
        except (AdbError, ProtocolError, OSError):
            devices = None
        phones = usable(devices or ())
        reached = len(phones) < 2 or await self._reaches_one(phones)
        return devices is not None and reached

    async def _reaches_one(self, phones: Snapshot) -> bool:
        if reached := await self.reaches_any(phones):
            return reached
        self._failed(f"the adb server lists {len(phones)} phones and none of them answers")
        return False

    def _failed(self, failure: str) -> None:
        self.failure, self._failed_at = failure, time.monotonic()

    async def _check_health(self, lists_lost: int) -> None:
        """Judge by all evidence whether the server is dead, and perform the remedy."""
        phones = usable(self.devices or ())
        # One phone that is silent is that phone's matter; a silent list is asked twice before phones are.
        asking = len(phones) > 1 if not lists_lost else phones and lists_lost >= self._policy.probes_lost
        if asking and self._silent_s() >= self._policy.life_s:
            answered = await self._reaches_one(phones)
            self._trips_lost = 0 if answered else self._trips_lost + 1
        else:
            self._trips_lost = 0
        now = time.monotonic()
        if not lists_lost and not self._trips_lost:
            self._dead_since = None
        elif self._dead_since is None:
            self._dead_since = now
        self._replaced_at = [at for at in self._replaced_at if at > now - REPLACEMENTS_WITHIN_S]
        evidence = ServerEvidence(
            lists_lost=lists_lost,
            usable=len(phones),
            trips_lost=self._trips_lost,
            silent_s=self._silent_s(),
            dead_s=0.0 if self._dead_since is None else now - self._dead_since,
            leases=self.load().leases,
            replaced=len(self._replaced_at),
        )
        remedy, why = judge(evidence, self._policy)
        if remedy is Remedy.REPLACE:
            await self._replace_wedged(why)
        elif remedy is Remedy.REPORT and not self._hang_reported:
            self._hang_reported = True
            self._report(
                "adb.hangs", self._client.address.spec, f"The adb server on {self._client.address.spec}: {why}."
            )
        elif not why and not lists_lost and self._hang_reported:
            self._hang_reported = False
            self._report("adb.back", self._client.address.spec, "The adb server works again.")

    def _silent_s(self) -> float:
        return time.monotonic() - max(self._client.last_answer_at, self.load().last_byte_at)

    async def _answers(self, serial: str) -> bool:
        try:
            await self._client.shell(serial, "true", timeout_s=self._policy.trip_timeout_s)
        except (AdbTimeout, AdbServerUnreachable):
            return False
        except (AdbError, ProtocolError):
            return True
        return True

    async def _replace_wedged(self, why: str) -> None:
        """Replace our hanging server, or give up this round on a foreign server."""
        wedged = AdbServerUnreachable(
            f"The adb server on {self._client.address.spec}: {why}.",
            hint="farm restarts its own server; a foreign one must be killed by its owner.",
        )
        self._trips_lost, self._dead_since, self._hang_reported = 0, None, False
        self._replaced_at.append(time.monotonic())
        if self._server is not None:
            self._report_lost(wedged)
            self._outage, _ = self._outage.failed(wedged.code)
            self.server_lost = True
            self._publish(())
            await self._server.restart()
        raise wedged

    async def _check_version(self, version: int) -> None:
        if not self._own_version or version == self._own_version or version == self._reported_version:
            return
        self._reported_version = version
        holder = await asyncio.to_thread(socket_holder, self._client.address)
        error = AdbVersionClash(
            f"The adb server on {self._client.address.spec} has version {version}, farm's adb program has"
            f" {self._own_version}" + (f"; the server is {holder}." if holder else "."),
            hint="Every call of either program kills the other's server: use one adb program for both.",
        )
        self._report("adb.clash", self._client.address.spec, error.message, error)

    def _report_back(self) -> None:
        if self._lost_reported:
            self._lost_reported = False
            self._report("adb.back", self._client.address.spec, "The adb server answers again.")

    def _publish(self, devices: Snapshot) -> None:
        before = {device.serial: device.transport_id for device in self.devices or ()}
        now = {device.serial: device.transport_id for device in devices}
        for serial, transport in before.items():
            if now.get(serial, -1) != transport:
                self._client.forget(serial)
        if devices == self.devices:
            return
        self.devices = devices
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _report(self, kind: str, subject: str, message: str, error: FarmError | None = None) -> None:
        self._on_event(WatchEvent(kind, subject, message, error))

    def _report_lost(self, error: FarmError) -> None:
        self._lost_reported = True
        self._report("adb.lost", self._client.address.spec, error.message, error)

    def _step_network(self, now: float) -> None:
        states = {device.serial: device.state for device in self.devices or ()}
        for address, phone in tuple(self._network.items()):
            self._network[address], action = phone.step(
                states.get(address), now, self._policy, wanted=self.wanted(address)
            )
            if action is NetworkAction.REPORT_BACK:
                self._report("network.back", address, f"Phone {address} is connected again.")
            elif action is not NetworkAction.NONE:
                self._attempts.spawn(self._attempt(address, action), f"adb-connect-{address}")

    async def _attempt(self, address: str, action: NetworkAction) -> None:
        error: FarmError | None = None
        try:
            if action is NetworkAction.RECONNECT:
                await self._client.disconnect(address)
            await self._client.connect(address)
        except (AdbError, ProtocolError) as refused:
            error = refused
        except Exception as failed:
            log.exception("network phone %s: it could not be tried", address)
            error = FarmError("farm could not try to connect it; it will try again", evidence=str(failed))
        phone = self._network.get(address)
        if phone is None:
            return  # removed meanwhile
        self._network[address], new = phone.on_attempt(error.code if error else "", time.monotonic(), self._policy)
        if error is not None and new:
            self._report("network.lost", address, error.message, error)
