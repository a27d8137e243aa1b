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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.storm_weather import Tally, Weather
from farm.cli.virtual_farm import VirtualFarm
from farm.control.client import ControlClient
from farm.core.errors import FarmError, HostError, PhoneError
from farm.simulation.control import LabClient
from farm.simulation.phone_status import PhoneOffError

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


class PhoneStorm(threading.Thread):
    """What one phone goes through."""

    def __init__(
        self, weather: Weather, tally: Tally, lab: Path, phone: str, farm: VirtualFarm, seed: int, pause_s: float
    ) -> None:
        """`pause_s`: at most so long between two faults."""
        super().__init__(name=f"storm {phone}", daemon=True)
        self._pause_s = pause_s
        self._weather = weather
        self._tally = tally
        self._lab = PatientLab(lab)
        self._phone = phone
        self._farm = VirtualFarm(farm.daemon, ControlClient(farm.socket), self._lab, farm.adb_path)  # of this thread
        self._random = random.Random(f"{seed} {phone}")
        self.failure: FarmError | None = None

    def run(self) -> None:
        faults: list[Callable[[], AbstractContextManager[None]]] = [
            self.unplugged, self.unplugged, self.offline, self.unauthorized, self.slow, self.wiped, self.full,
            self.server_crash, self.server_hang, self.segfault, self.endless, self.reboot, self.dark, self.hot,
            self.low_battery, self.hot_battery, self.stuck, self.supervisor_killed, self.corrupted, self.boot_loop,
            self.port_off, self.mute_services, self.slow_shell, self.held_clock,
        ]  # fmt: skip
        if self._lab.phone(self._phone).isolation != "full":
            faults.remove(self.stuck)
        try:
            self._farm.status()  # its connection is there before anybody counts
            while True:
                self._weather.pause(self._random.uniform(0.0, self._pause_s))
                with self._weather.turn() as goes_on:
                    if not goes_on:
                        return
                    fault = self._random.choice(faults)
                    self._lab.wait(self._phone, "on", timeout_s=BOOT_LIMIT_S)  # the last one may have been a reboot
                    self._tally.blow(self._phone, fault.__name__)
                    with fault():
                        self._weather.pause(self._random.uniform(0.0, 3.0))
        except FarmError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - whoever waits for the storm must hear of it
            self.failure = HostError(f"{self.name}: {error!r}")
        finally:
            self._farm.client.close()
            self._lab.close()

    @contextlib.contextmanager
    def unplugged(self) -> Iterator[None]:
        self._lab.unplug(self._phone)
        yield
        self._lab.plug(self._phone)

    @contextlib.contextmanager
    def offline(self) -> Iterator[None]:
        self._lab.offline(self._phone, self._random.choice(("offline", "silent", "refuse")))
        yield
        self._lab.plug(self._phone)

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
    def slow(self) -> Iterator[None]:
        bytes_per_s, latency_s = self._random.uniform(1e6, 2e7), self._random.uniform(0.0, 0.05)
        self._lab.fault(self._phone, "slow", bytes_per_s=bytes_per_s, latency_s=latency_s)
        yield
        self._lab.fault(self._phone, "fast")

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
    def server_crash(self) -> Iterator[None]:
        self._lab.server_crash(self._phone)
        yield

    @contextlib.contextmanager
    def server_hang(self) -> Iterator[None]:
        self._lab.server_hang(self._phone)
        yield

    @contextlib.contextmanager
    def segfault(self) -> Iterator[None]:
        self._lab.fault(self._phone, "segfault")
        yield
        self._lab.good_kernels(self._phone)

    @contextlib.contextmanager
    def endless(self) -> Iterator[None]:
        self._lab.ignore_sigterm(self._phone)
        yield
        self._lab.good_kernels(self._phone)

    @contextlib.contextmanager
    def reboot(self) -> Iterator[None]:
        self._lab.reboot(self._phone, down_s=self._random.uniform(0.1, 2.0))
        yield

    @contextlib.contextmanager
    def dark(self) -> Iterator[None]:
        self._lab.fault(self._phone, "power_cut")
        yield
        self._lab.fault(self._phone, "boot")

    @contextlib.contextmanager
    def hot(self) -> Iterator[None]:
        self._lab.heat(self._phone, self._random.uniform(38.0, 55.0))
        yield
        self._lab.cool(self._phone)

    @contextlib.contextmanager
    def low_battery(self) -> Iterator[None]:
        self._lab.battery(self._phone, self._random.randrange(1, 15))
        yield
        self._lab.battery(self._phone, 100, charging=True)

    @contextlib.contextmanager
    def hot_battery(self) -> Iterator[None]:
        self._lab.fault(self._phone, "wear", cycles=10, full_share=1.0, health="overheat")
        yield
        self._lab.fault(self._phone, "wear", cycles=10, full_share=1.0, health="good")

    @contextlib.contextmanager
    def stuck(self) -> Iterator[None]:
        """A kernel hangs in a driver: SIGKILL waits for the driver."""
        self._lab.fault(self._phone, "unkillable", seconds=self._random.uniform(1.0, 10.0))
        yield
        self._lab.good_kernels(self._phone)

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

    @contextlib.contextmanager
    def boot_loop(self) -> Iterator[None]:
        self._lab.fault(self._phone, "boot_loop", boots=2, up_s=0.5)
        yield

    @contextlib.contextmanager
    def port_off(self) -> Iterator[None]:
        self._lab.fault(self._phone, "port_off")
        yield
        self._lab.fault(self._phone, "port_on")

    @contextlib.contextmanager
    def mute_services(self) -> Iterator[None]:
        self._lab.fault(self._phone, "dumpsys_hangs")
        yield
        self._lab.fault(self._phone, "dumpsys_hangs", on=False)

    @contextlib.contextmanager
    def slow_shell(self) -> Iterator[None]:
        self._lab.fault(self._phone, "slow_shell", delay_s=self._random.uniform(0.1, 1.0))
        yield
        self._lab.fault(self._phone, "slow_shell", delay_s=0.0)

    @contextlib.contextmanager
    def held_clock(self) -> Iterator[None]:
        self._lab.fault(self._phone, "clock_stuck", share=0.5)
        yield
        self._lab.fault(self._phone, "clock_stuck", share=1.0)

    def _farm_adb(self, *arguments: str) -> None:
        self._farm.adb("-s", self._lab.phone(self._phone).serial, *arguments)


class FarmStorm(threading.Thread):
    """What the farm as a whole goes through."""

    def __init__(self, weather: Weather, tally: Tally, farm: VirtualFarm, seed: int, hubs: Sequence[str]) -> None:
        super().__init__(name="storm farm", daemon=True)
        self._weather = weather
        self._tally = tally
        self._client = ControlClient(farm.socket)
        self._lab = LabClient(farm.lab.directory)
        self._farm = VirtualFarm(farm.daemon, self._client, self._lab, farm.adb_path)  # of this thread
        self._hubs = hubs
        self._random = random.Random(f"{seed} farm")
        self.failure: FarmError | None = None

    def run(self) -> None:
        faults = [
            self.adb_killed, self.adb_stops, self.toolchain_killed, self.hub_lost, self.hub_lost, self.kicked,
            self.kicked,
        ]  # fmt: skip
        try:
            self._farm.status()  # its connection is there before anybody counts
            while True:
                self._weather.pause(self._random.uniform(5.0, 20.0))
                with self._weather.turn() as goes_on:
                    if not goes_on:
                        return
                    fault = self._random.choice(faults)
                    self._tally.blow("", fault.__name__)
                    fault()
        except FarmError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - whoever waits for the storm must hear of it
            self.failure = HostError(f"{self.name}: {error!r}")
        finally:
            self._lab.close()
            self._client.close()

    def adb_killed(self) -> None:
        self._farm.adb("kill-server")

    def adb_stops(self) -> None:
        """It hangs for a moment: no reason to replace it."""
        daemon = psutil.Process(self._client.call("status")["pid"])
        for child in daemon.children():
            if child.name() == "adb":
                with contextlib.suppress(psutil.NoSuchProcess):
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
        daemon = psutil.Process(self._client.call("status")["pid"])
        for child in daemon.children():
            if child.name() != "adb":
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGKILL)

    def kicked(self) -> None:
        leases = self._client.call("lease.list")["leases"]
        if leases:
            with contextlib.suppress(FarmError):  # it may have ended by itself
                self._client.call("lease.kick", device=self._random.choice(leases)["id"])
