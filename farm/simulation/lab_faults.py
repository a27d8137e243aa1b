"""What can be done to a virtual phone from outside: one method per entry of `faults.FAULTS`."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farm.core.errors import PhoneError, UserError
from farm.simulation.faults import parse_fault
from farm.simulation.lab_phone import REBOOT_S, LabPhone
from farm.simulation.state import BatteryStatus, KernelFault, PhoneState, throttling_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

_RAMP_STEP_S = 0.1
_CPU_ABOVE_SKIN_C = 20.0  # under load; the idle phone has 5
_GPU_ABOVE_SKIN_C = 15.0
_BALLAST = "/data/.ballast"


class Saboteur:
    """Does faults to one phone."""

    def __init__(self, phone: LabPhone) -> None:
        self._phone = phone
        self._ramp: asyncio.Task[None] | None = None

    async def perform(self, name: str, given: Mapping[str, object]) -> object:
        """Do a fault; returns what it has to tell (the number of processes, the keys accepted).

        Raises:
            UserError: no such fault, or wrong arguments.
            PhoneError: the phone is in no state for it.
        """
        arguments = parse_fault(name, given)
        method: Callable[..., Awaitable[object]] = getattr(self, f"_do_{name}")
        result = await method(**arguments)
        self._phone.notify()
        return result

    # -- faults of the link ------------------------------------------------------------------------------------------

    async def _do_unplug(self) -> None:
        self._phone.plugged = False
        await self._phone.drop_links()

    async def _do_plug(self) -> None:
        if self._phone.config.mode != "normal":
            await self._phone.configure(mode="normal")
            await self._phone.drop_links()
        self._phone.plug()

    async def _do_offline(self, mode: str) -> None:
        await self._phone.configure(mode=mode)
        if mode == "offline":
            await self._phone.drop_links()

    async def _do_unauthorized(self) -> None:
        await self._phone.configure(secure=True, accepted_keys=())
        await self._phone.drop_links()

    async def _do_accept(self) -> object:
        keys: list[str] = await self._phone.ask({"do": "accept"})
        if not keys:
            raise PhoneError(f"virtual phone {self._phone.spec.name} shows no key to accept", hint="wait for key_shown")
        await self._phone.configure(accepted_keys=tuple(dict.fromkeys((*self._phone.config.accepted_keys, *keys))))
        return keys

    async def _do_slow(self, bytes_per_s: float, latency_s: float) -> None:
        candidate = replace(self._phone.config, bytes_per_s=bytes_per_s, latency_s=latency_s)
        assert candidate.pace is not None  # raises UserError for impossible values
        await self._phone.configure(bytes_per_s=bytes_per_s, latency_s=latency_s)

    async def _do_fast(self) -> None:
        await self._phone.configure(bytes_per_s=None, latency_s=0.0)

    async def _do_cut_push(self, after_bytes: int, replug_after_s: float | None) -> None:
        self._phone.replug_after_s = replug_after_s
        await self._phone.ask({"do": "cut_push", "after_bytes": after_bytes})

    # -- faults of the machine ---------------------------------------------------------------------------------------

    async def _do_full_disk(self, free_bytes: int) -> None:
        self._phone.set_state(disk_free_bytes=free_bytes)
        if self._data_is_small:
            _fill(self._ballast, free_bytes)
        else:
            await self._phone.configure(free_bytes=free_bytes)

    async def _do_free_disk(self) -> None:
        self._phone.set_state(disk_free_bytes=None)
        if self._data_is_small:
            self._ballast.unlink(missing_ok=True)
        else:
            await self._phone.configure(free_bytes=None)

    @property
    def _data_is_small(self) -> bool:
        return self._phone.has_own_data and self._phone.powered

    @property
    def _ballast(self) -> Path:
        return self._phone.path_inside(_BALLAST)

    async def _do_server_crash(self) -> object:
        return await self._phone.ask({"do": "signal_server", "signal": signal.SIGKILL})

    async def _do_server_hang(self) -> object:
        return await self._phone.ask({"do": "signal_server", "signal": signal.SIGSTOP})

    async def _do_server_resume(self) -> object:
        return await self._phone.ask({"do": "signal_server", "signal": signal.SIGCONT})

    async def _do_segfault(self) -> None:
        self._phone.set_state(kernel_fault=KernelFault.SEGFAULT)

    async def _do_ignore_sigterm(self) -> None:
        self._phone.set_state(kernel_fault=KernelFault.IGNORE_SIGTERM)

    async def _do_wrong_numbers(self) -> None:
        self._phone.set_state(kernel_fault=KernelFault.WRONG_NUMBERS)

    async def _do_good_kernels(self) -> None:
        self._phone.set_state(kernel_fault=KernelFault.NONE)

    async def _do_reboot(self, down_s: float | None) -> None:
        self._phone.reboot_into("", REBOOT_S if down_s is None else down_s)

    async def _do_power_cut(self) -> None:
        self._phone.switch_off()

    async def _do_boot(self) -> None:
        self._phone.switch_on()

    # -- sensors -----------------------------------------------------------------------------------------------------

    async def _do_heat(
        self, skin_c: float, cpu_c: float | None, gpu_c: float | None, battery_c: float | None, ramp_s: float
    ) -> None:
        targets = {
            "skin": skin_c,
            "cpu": skin_c + _CPU_ABOVE_SKIN_C if cpu_c is None else cpu_c,
            "gpu": skin_c + _GPU_ABOVE_SKIN_C if gpu_c is None else gpu_c,
        }
        if battery_c is not None:
            targets["battery"] = battery_c
        self._start_ramp(targets, ramp_s)

    async def _do_cool(self, ramp_s: float) -> None:
        self._start_ramp(dict(PhoneState().temps_c), ramp_s)

    async def _do_battery(self, level: int, charging: bool, temp_c: float | None) -> None:
        status = BatteryStatus.CHARGING if charging else BatteryStatus.DISCHARGING
        changes: dict[str, Any] = {"battery_level": level, "battery_status": status, "usb_powered": charging}
        if temp_c is not None:
            changes["temps_c"] = {**self._phone.state().temps_c, "battery": temp_c}
        self._phone.set_state(**changes)

    def _start_ramp(self, targets: Mapping[str, float], ramp_s: float) -> None:
        if self._ramp is not None:
            self._ramp.cancel()
        if ramp_s == 0:
            self._set_temperatures(targets)
        else:
            self._ramp = self._phone.spawn(self._run_ramp(targets, ramp_s))

    async def _run_ramp(self, targets: Mapping[str, float], ramp_s: float) -> None:
        loop = asyncio.get_running_loop()
        began, start = loop.time(), dict(self._phone.state().temps_c)
        share = 0.0
        while share < 1:
            share = min(1.0, (loop.time() - began) / ramp_s)
            self._set_temperatures(
                {group: start[group] + (goal - start[group]) * share for group, goal in targets.items()}
            )
            await asyncio.sleep(_RAMP_STEP_S)

    def _set_temperatures(self, targets: Mapping[str, float]) -> None:
        temps_c = {**self._phone.state().temps_c, **targets}
        throttling, clock_scale = throttling_of(temps_c["skin"])
        self._phone.set_state(temps_c=temps_c, throttling=throttling, clock_scale=clock_scale)


def _fill(ballast: Path, free_bytes: int) -> None:
    """Leave `free_bytes` on the file system of `ballast`."""
    ballast.unlink(missing_ok=True)
    space = os.statvfs(ballast.parent)
    size = space.f_bavail * space.f_frsize - free_bytes
    if size <= 0:
        raise UserError(f"/data has only {size + free_bytes} bytes left already", hint="ask for fewer")
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
