"""One virtual phone as the lab process sees it: its power, its cable and its sensors."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.common.errors import FarmError, PhoneError
from farm.simulation.adb_port import LOOPBACK, AdbPort
from farm.simulation.control import PhoneOffError, PhoneStatus
from farm.simulation.lab_physics import LivePhysics
from farm.simulation.lab_userland import PhoneUserland
from farm.simulation.namespaces import Isolation
from farm.simulation.phone import LinkConfig, PhoneSettings, run_phone
from farm.simulation.profiles import load_profile
from farm.simulation.sensors import apply_state
from farm.simulation.state import PhoneState, read_state, state_folder, write_state
from farm.simulation.world import Booted, WorldSpec, boot

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from farm.adb.client import AdbClient
    from farm.simulation.lab_userland import Watcher

REBOOT_S = 0.3  # a real phone takes 20 s and more; tests that need that say so
_FIRST_RETRY_S = 0.03  # the server forgets a lost emulator after 0.25 s (measured); before, it refuses it
_QUICK_RETRIES = 20
_LAST_RETRY_S = 1.0  # an adb server that is away is asked for this often by each phone
_CONNECT_GRACE_S = 0.03  # the server connects before it answers, so a connection that comes is here already
_ANSWER_TIMEOUT_S = 10.0


class LabPhone:
    """Boots a phone and keeps it plugged in; lab_faults.py has its faults."""

    def __init__(self, spec: WorldSpec, adb: AdbClient | None, watcher: Watcher, *, plugged: bool = True) -> None:
        self.spec = spec
        self.plugged = plugged
        self.port_power = True  # of the USB port that the cable is in
        self.dead_battery = False  # the phone runs on the cable alone
        self.clock_limit: float | None = None  # share of the highest clock, whatever the temperature
        self.boots_that_hang = 0  # of the next ones: the phone is on and adb never sees it
        self.boots_that_loop = 0  # of the next ones: the phone reboots by itself ...
        self.loop_after_s = 0.0  # ... this long after it is up
        self.on_change: Callable[[], None] = lambda: None
        self.captured: dict[str, str] = {}  # files that say what a capture says, by path under the phone's directory
        self.physics = LivePhysics(self)
        self.userland = PhoneUserland(self, watcher)
        self.config = LinkConfig()
        self.online = False
        self.boots = 0
        self.key_shown = ""
        self.replug_after_s: float | None = None  # after a cut; None: somebody has to plug it in
        self._adb = adb
        self._profile = load_profile(spec.profile)
        self.adb_port = AdbPort(self._on_connection)
        self.port = self.adb_port.port
        self._booted: Booted | None = None
        self._links = 0
        self._changed = asyncio.Event()
        self._requests: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_request = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._start_timer: asyncio.TimerHandle | None = None
        self._watched: list[int] = []
        self._hung = False

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot the phone and plug it in. Blocks for the boot (tens of milliseconds)."""
        properties = self._profile.properties(self.spec.serial)
        settings = PhoneSettings(
            name=self.spec.name,
            product=properties.get("ro.product.name", ""),
            model=properties.get("ro.product.model", ""),
            device=properties.get("ro.product.device", ""),
        )
        self.userland.prepare()
        self._booted = boot(self.spec, lambda source: run_phone(settings, source))
        self._went_up()
        if self._adb is not None:
            self.spawn(self._keep_plugged(self._adb))

    async def close(self) -> None:
        """Switch the phone off for good. Its folder stays."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._start_timer is not None:
            self._start_timer.cancel()
        self._unwatch()
        self.physics.close()
        self.userland.close()
        if self._booted is not None:
            self._booted.close()
        self.adb_port.close()

    @property
    def title(self) -> str:
        """Maker and model as the phone's USB descriptors name them."""
        properties = self._profile.properties(self.spec.serial)
        return f"{properties.get('ro.product.manufacturer', '')} {properties.get('ro.product.model', '')}".strip()

    @property
    def powered(self) -> bool:
        """Whether the phone is on."""
        return self._booted is not None and self._booted.running

    def status(self) -> PhoneStatus:
        """The phone's state now."""
        booted = self._booted
        return PhoneStatus(
            name=self.spec.name,
            profile=self.spec.profile,
            serial=f"emulator-{self.port - 1}",
            hardware_serial=self.spec.serial,
            address=f"{LOOPBACK}:{self.port}",
            directory=str(self.spec.directory),
            isolation=booted.isolation.value if booted else "",
            pid=booted.pid if booted else 0,
            powered=self.powered,
            plugged=self.plugged,
            online=self.online,
            boots=self.boots,
            key_shown=self.key_shown,
            fault=self.config.mode,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on this phone holds; it is looked at whenever something changes."""
        while not condition():
            await self._changed.wait()

    # -- power -------------------------------------------------------------------------------------------------------

    def _went_up(self) -> None:
        assert self._booted is not None
        loop = asyncio.get_running_loop()
        self._watched = [self._booted.fileno(), self._booted.line.fileno()]
        loop.add_reader(self._watched[0], self._on_power_event)
        loop.add_reader(self._watched[1], self._on_message)
        self.boots += 1
        self._hung = self.boots_that_hang > 0
        self.boots_that_hang -= self._hung
        if self.boots_that_loop > 0:
            self.boots_that_loop -= 1
            self._start_timer = loop.call_later(self.loop_after_s, self.reboot_into, "", REBOOT_S)
        self.refresh()
        self._send_message({"do": "configure", "config": self.config.to_record()})
        self.notify()

    def _unwatch(self) -> None:
        for descriptor in self._watched:
            asyncio.get_running_loop().remove_reader(descriptor)
        self._watched = []

    def _went_down(self) -> None:
        self.physics.went_down()
        self._links, self.online, self.key_shown = 0, False, ""
        for request in self._requests.values():
            if not request.done():
                request.set_exception(PhoneOffError(f"virtual phone {self.spec.name} went down"))
        self._requests.clear()
        self.notify()

    def _on_power_event(self) -> None:
        """The phone ended by itself: `reboot` in its shell, or its adbd crashed. Init would start it again."""
        assert self._booted is not None
        self._unwatch()
        self._booted.read_event()
        self._went_down()
        self._start_later(REBOOT_S)

    def switch_off(self) -> None:
        """Power cut: everything on the phone dies, /data stays."""
        if self._start_timer is not None:
            self._start_timer.cancel()
        if self._booted is not None and self._booted.running:
            self._unwatch()
            self._booted.kill()
            self._went_down()

    def switch_on(self) -> None:
        """Start a phone that is off."""
        self._start_timer = None
        if self._booted is not None and not self._booted.running and (self.has_power or not self.dead_battery):
            self.userland.prepare()
            self._booted.start()
            self._went_up()

    def _start_later(self, delay_s: float) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
        self._start_timer = asyncio.get_running_loop().call_later(delay_s, self.switch_on)

    def reboot_into(self, into: str, down_s: float) -> None:
        """Go down at once and come back, unless `into` is a place where adb sees no phone."""
        self.config = replace(self.config, state=into if into in {"recovery", "sideload"} else "device")
        self.switch_off()
        if into not in {"bootloader", "fastboot", "download"}:  # adb does not see a phone there
            self._start_later(down_s)

    async def set_port_power(self, *, on: bool) -> None:
        """Switch the USB port that the cable is in. A link that hung is made again with the port's power."""
        if on and not self.port_power and self.config.mode != "normal":
            await self.configure(mode="normal")
        self.port_power = on
        if not on:
            await self.drop_links()
        self.mind_supply()

    def mind_supply(self) -> None:
        """The cable or its port changed: a phone without a battery goes with it."""
        if self.dead_battery and not self.has_power:
            self.switch_off()
        elif self.dead_battery:
            self.switch_on()
        self.notify()

    @property
    def has_power(self) -> bool:
        """Whether current comes through the cable."""
        return self.plugged and self.port_power

    # -- cable -------------------------------------------------------------------------------------------------------

    def _on_connection(self, connection: socket.socket) -> None:
        if self._booted is None:
            return
        with suppress(OSError):  # it is going down: the power event follows
            self._booted.pass_connection(connection)
            self._links += 1
        self.notify()

    async def _keep_plugged(self, adb: AdbClient) -> None:
        """Tell the adb server about this phone whenever it should know and does not (it may have been restarted)."""
        failures = 0
        while True:
            await self.until(lambda: self._wants_link and not self._links)
            with suppress(FarmError, TimeoutError):  # the server is away or still holds the old transport: ask again
                await adb.emulator(self.port)
                async with asyncio.timeout(_CONNECT_GRACE_S):
                    await self.until(lambda: self._links > 0)
                failures = 0
                continue
            failures += 1
            slower = max(0, failures - _QUICK_RETRIES)
            await asyncio.sleep(min(_FIRST_RETRY_S * 2**slower, _LAST_RETRY_S))

    @property
    def _wants_link(self) -> bool:
        return self.has_power and self.powered and not self._hung and not self.userland.cut_off

    async def drop_links(self) -> None:
        """Pull the cable for a moment."""
        if self.powered:
            with suppress(PhoneOffError):  # down by now: it has none
                await self.ask({"do": "drop"})
        self._links, self.online, self.key_shown = 0, False, ""
        self.notify()

    # -- the line to adbd --------------------------------------------------------------------------------------------

    def _on_message(self) -> None:
        assert self._booted is not None
        try:
            received = self._booted.line.receive()
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            # The power event follows on the other descriptor.
            asyncio.get_running_loop().remove_reader(self._watched[1])
            return
        message: dict[str, Any] = json.loads(received[0])
        if "event" in message:
            self._on_event(message)
            return
        request = self._requests.pop(message["id"], None)
        if request is not None and not request.done():
            request.set_result(message)

    def _on_event(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "online":
            self.online, self.key_shown = True, ""
        elif event == "key":
            self.key_shown = message["key"]
        elif event == "link_lost":
            self._links = max(0, self._links - 1)
            self.online = self.online and self._links > 0
            self.key_shown = ""
            if message.get("cut"):
                self.plugged, self._links, self.online = False, 0, False
                if self.replug_after_s is not None:
                    asyncio.get_running_loop().call_later(self.replug_after_s, self.plug)
        elif event == "reboot":
            self.reboot_into(message["into"], REBOOT_S)
        self.notify()

    def plug(self) -> None:
        """The cable is in."""
        self.plugged = True
        self.mind_supply()

    def _send_message(self, message: dict[str, Any]) -> None:
        assert self._booted is not None
        self._booted.line.send(json.dumps(message).encode())

    async def ask(self, message: dict[str, Any]) -> Any:
        """Have the phone's adbd do something; returns what it answers."""
        if not self.powered:
            raise PhoneOffError(f"virtual phone {self.spec.name} is off", hint="boot it first")
        self._last_request += 1
        number = self._last_request
        answer = self._requests[number] = asyncio.get_running_loop().create_future()
        try:
            self._send_message({**message, "id": number})
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                reply = await answer
        except TimeoutError as error:
            raise PhoneError(f"virtual phone {self.spec.name} did not answer in {_ANSWER_TIMEOUT_S:.0f} s") from error
        finally:
            self._requests.pop(number, None)
        if not reply["ok"]:
            raise PhoneError(f"virtual phone {self.spec.name}: {reply['message']}")
        return reply.get("value")

    async def configure(self, **changes: Any) -> None:
        """Change how the phone treats hosts, now and after every boot."""
        self.config = replace(self.config, **changes)
        if self.powered:
            with suppress(PhoneOffError):  # it boots with it
                await self.ask({"do": "configure", "config": self.config.to_record()})

    # -- sensors -----------------------------------------------------------------------------------------------------

    def state(self) -> PhoneState:
        """The state of sensors, battery and kernels now."""
        return read_state(state_folder(self.spec.directory))

    def set_state(self, **changes: Any) -> None:
        """Change it; the phone's programs and sysfs follow at once."""
        before = self.state()
        state = replace(before, **changes)
        if state != before:
            # The state last: who waits for it finds all else changed.
            self._show(state)
            write_state(self.spec.directory, state)

    def refresh(self) -> None:
        """Write every file from the state."""
        self._show(self.state())

    def _show(self, state: PhoneState) -> None:
        left = apply_state(self.spec.directory, self._profile, state, self.captured, self.userland.is_unheard)
        self.userland.shown(state, left)

    @property
    def has_own_data(self) -> bool:
        """Whether /data is a file system of its own, which can be filled."""
        isolated = self._booted is not None and self._booted.isolation is not Isolation.NONE
        return isolated and self.spec.data_bytes is not None

    @property
    def has_own_users(self) -> bool:
        """Whether its shell is another user than the lab, without the rights of root."""
        return self._booted is not None and self._booted.isolation is Isolation.FULL and not self.spec.rooted

    def path_inside(self, path: str) -> Path:
        """Where a path of the phone is for this process (phones in namespaces that are on)."""
        assert self._booted is not None
        return Path(f"/proc/{self._booted.pid}/root") / path.lstrip("/")

    # -- plumbing ----------------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Something changed: open or close the port, and let `until` look again."""
        self.adb_port.set_open(wanted=self._wants_link)
        self.on_change()
        self._changed.set()
        self._changed = asyncio.Event()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the phone lives."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
