"""What happens in a storm to each phone, and to the farm as a whole.

Each thread has a random generator of its own, so what a phone goes through is the same for the same seed; how it meets
what the others do is not.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.storm_weather import Tally, Weather
from farm.common.errors import FarmError, HostError, PhoneError
from farm.control.client import ControlClient
from farm.simulation.control import LabClient, PhoneOffError
from farm.simulation.faults import OFFLINE_MODES
from farm.simulation.virtual_farm import VirtualFarm

PATIENCE_S = 60.0  # a phone's hub may be unplugged meanwhile, and the adb server killed
BOOT_LIMIT_S = 30.0
FARM_ROOT = "/data/local/tmp/farm"
# A phone that is cooled is open again within a second, not after two probes and 20 s.
COOLS_AT_ONCE = """
[probe]
every_s = 1.0
[heat]
cool_for_s = 0.5
"""


class Order:
    """A fault of the lab (farm.simulation.faults) with its arguments."""

    def __init__(self, name: str, **arguments: object) -> None:
        self.name, self.arguments = name, arguments


# What the lab alone does to a phone, and what ends it; None: it passes.
BY_LAB: Mapping[str, Callable[[random.Random], tuple[Order, Order | None]]] = {
    "unplugged": lambda _: (Order("unplug"), Order("plug")),
    "offline": lambda chance: (Order("offline", mode=chance.choice(OFFLINE_MODES)), Order("plug")),
    "slow": lambda chance: (
        Order("slow", bytes_per_s=chance.uniform(1e6, 2e7), latency_s=chance.uniform(0.0, 0.05)), Order("fast")
    ),
    "server_crash": lambda _: (Order("server_crash"), None),
    "server_hang": lambda _: (Order("server_hang"), None),
    "segfault": lambda _: (Order("segfault"), Order("good_kernels")),
    "endless": lambda _: (Order("ignore_sigterm"), Order("good_kernels")),
    # A kernel hangs in a driver: SIGKILL waits for the driver.
    "stuck": lambda chance: (Order("unkillable", seconds=chance.uniform(1.0, 10.0)), Order("good_kernels")),
    "reboot": lambda chance: (Order("reboot", down_s=chance.uniform(0.1, 2.0)), None),
    "boot_loop": lambda _: (Order("boot_loop", boots=2, up_s=0.5), None),
    "dark": lambda _: (Order("power_cut"), Order("boot")),
    "port_off": lambda _: (Order("port_off"), Order("port_on")),
    "hot": lambda chance: (Order("heat", skin_c=chance.uniform(38.0, 55.0)), Order("cool")),
    "low_battery": lambda chance: (
        Order("battery", level=chance.randrange(1, 15)), Order("battery", level=100, charging=True)
    ),
    "hot_battery": lambda _: (
        Order("wear", cycles=10, full_share=1.0, health="overheat"),
        Order("wear", cycles=10, full_share=1.0, health="good"),
    ),
    "mute_services": lambda _: (Order("dumpsys_hangs"), Order("dumpsys_hangs", on=False)),
    "slow_shell": lambda chance: (
        Order("slow_shell", delay_s=chance.uniform(0.1, 1.0)), Order("slow_shell", delay_s=0.0)
    ),
    "held_clock": lambda _: (Order("clock_stuck", share=0.5), Order("clock_stuck", share=1.0)),
}  # fmt: skip


class PatientLab(LabClient):
    """What a phone did not get because recovery or its hub took it down that moment, it gets when it is on again."""

    def fault(self, phone: str, name: str, **arguments: object) -> dict[str, Any]:
        """See LabClient."""
        given_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().fault(phone, name, **arguments)
            except PhoneOffError:
                if time.monotonic() > given_up_at:
                    raise
                self.wait(phone, "on", timeout_s=BOOT_LIMIT_S)


class StormThread(threading.Thread):
    """Does `storm` until the weather ends; `failure` is what went wrong with the storm itself."""

    def __init__(self, weather: Weather, tally: Tally, farm: VirtualFarm, lab: LabClient, of: str, seed: int) -> None:
        super().__init__(name=f"storm {of}", daemon=True)
        self._weather = weather
        self._tally = tally
        self._lab = lab
        self._farm = VirtualFarm(farm.daemon, ControlClient(farm.socket), lab, farm.adb_path)  # of this thread
        self._random = random.Random(f"{seed} {of}")
        self.failure: FarmError | None = None

    def run(self) -> None:
        try:
            self._farm.status()  # its connection is there before anybody counts
            self.storm()
        except FarmError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - whoever waits for the storm must hear of it
            self.failure = HostError(f"{self.name}: {error!r}")
        finally:
            self._farm.client.close()
            self._lab.close()

    def storm(self) -> None:
        """What happens until the weather ends."""
        raise NotImplementedError


class PhoneStorm(StormThread):
    """What one phone goes through."""

    def __init__(
        self, weather: Weather, tally: Tally, lab: Path, phone: str, farm: VirtualFarm, seed: int, pause_s: float
    ) -> None:
        """`pause_s`: at most so long between two faults."""
        super().__init__(weather, tally, farm, PatientLab(lab), phone, seed)
        self._pause_s = pause_s
        self._phone = phone

    def storm(self) -> None:
        faults: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "unauthorized": self.unauthorized, "wiped": self.wiped, "full": self.full, "corrupted": self.corrupted,
            "supervisor_killed": self.supervisor_killed, **{name: partial(self.by_lab, name) for name in BY_LAB},
        }  # fmt: skip
        if self._lab.phone(self._phone).isolation != "full":
            del faults["stuck"]
        names = [*faults, "unplugged"]  # which is twice as frequent
        while True:
            self._weather.pause(self._random.uniform(0.0, self._pause_s))
            with self._weather.turn() as goes_on:
                if not goes_on:
                    return
                fault = self._random.choice(names)
                self._lab.wait(self._phone, "on", timeout_s=BOOT_LIMIT_S)  # the last one may have been a reboot
                self._tally.blow(self._phone, fault)
                with faults[fault]():
                    self._weather.pause(self._random.uniform(0.0, 3.0))

    @contextlib.contextmanager
    def by_lab(self, name: str) -> Iterator[None]:
        begin, end = BY_LAB[name](self._random)
        self._lab.fault(self._phone, begin.name, **begin.arguments)
        yield
        if end is not None:
            self._lab.fault(self._phone, end.name, **end.arguments)

    @contextlib.contextmanager
    def unauthorized(self) -> Iterator[None]:
        self._lab.fault(self._phone, "unauthorized")
        yield
        given_up_at = time.monotonic() + PATIENCE_S
        while True:
            self._lab.wait(self._phone, "key_shown", timeout_s=PATIENCE_S)
            try:
                self._lab.accept(self._phone)
            except PhoneError:  # its link was cut since: the key is shown again
                if time.monotonic() > given_up_at:
                    raise
            else:
                return

    @contextlib.contextmanager
    def wiped(self) -> Iterator[None]:
        """Everything of ours is removed from the phone, and the cable goes in the middle of the new push."""
        self._lab.cut_push(self._phone, self._random.randrange(60_000_000), replug_after_s=0.5)
        self._farm_adb("shell", f"rm -rf {FARM_ROOT}")
        self._lab.reboot(self._phone)
        self._lab.wait(self._phone, "on", timeout_s=BOOT_LIMIT_S)
        yield

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        self._lab.full_disk(self._phone)
        self._lab.server_crash(self._phone)
        yield
        self._lab.free_disk(self._phone)

    @contextlib.contextmanager
    def supervisor_killed(self) -> Iterator[None]:
        pid = f"$(sed -n s/^pid=//p {FARM_ROOT}/run/state)"
        self._farm_adb("shell", f"kill -9 $(sed -n s/^PPid://p /proc/{pid}/status)")
        yield

    @contextlib.contextmanager
    def corrupted(self) -> Iterator[None]:
        """A library loses its first pages, and is read again."""
        damage = "dd if=/dev/zero of=$f bs=4096 count=8 conv=notrunc"
        self._farm_adb("shell", f"for f in {FARM_ROOT}/bundles/*/libtvm_runtime.so; do {damage}; done")
        self._lab.server_crash(self._phone)
        yield

    def _farm_adb(self, *arguments: str) -> None:
        self._farm.adb("-s", self._lab.phone(self._phone).serial, *arguments)


class FarmStorm(StormThread):
    """What the farm as a whole goes through."""

    def __init__(self, weather: Weather, tally: Tally, farm: VirtualFarm, seed: int, hubs: Sequence[str]) -> None:
        super().__init__(weather, tally, farm, LabClient(farm.lab.directory), "farm", seed)
        self._hubs = hubs

    def storm(self) -> None:
        faults = [
            self.adb_killed, self.adb_stops, self.toolchain_killed, self.hub_lost, self.hub_lost, self.kicked,
            self.kicked,
        ]  # fmt: skip
        while True:
            self._weather.pause(self._random.uniform(5.0, 20.0))
            with self._weather.turn() as goes_on:
                if not goes_on:
                    return
                fault = self._random.choice(faults)
                self._tally.blow("", fault.__name__)
                fault()

    def adb_killed(self) -> None:
        self._farm.adb("kill-server")

    def adb_stops(self) -> None:
        """It hangs for a moment: no reason to replace it."""
        daemon = psutil.Process(self._farm.client.call("status")["pid"])
        for child in daemon.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "adb":
                    child.suspend()
                    self._weather.pause(self._random.uniform(0.5, 2.0))
                    child.resume()

    def hub_lost(self) -> None:
        hub = self._random.choice(self._hubs)
        self._lab.unplug_hub(hub)
        self._weather.pause(self._random.uniform(0.5, 3.0))
        self._lab.plug_hub(hub)

    def toolchain_killed(self) -> None:
        """The zygote dies; checks wait until the next one has imported TVM."""
        daemon = psutil.Process(self._farm.client.call("status")["pid"])
        for child in daemon.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "farm.worker.zygote" in child.cmdline():
                    child.send_signal(signal.SIGKILL)

    def kicked(self) -> None:
        leases = self._farm.client.call("lease.list")["leases"]
        if leases:
            with contextlib.suppress(FarmError):  # it may have ended by itself
                self._farm.client.call("lease.kick", device=self._random.choice(leases)["id"])
