"""What can be done to a virtual phone from outside: one method per entry of `faults.FAULTS`."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from farm.core.errors import PhoneError, UserError
from farm.simulation.faults import parse_fault
from farm.simulation.lab_phone import REBOOT_S
from farm.simulation.sensor_faults import SensorFaults
from farm.simulation.state import KernelFault
from farm.simulation.stuck_driver import install_stuck_driver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

_BALLAST = "/data/.ballast"


class Saboteur(SensorFaults):
    """Does faults to one phone."""

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
        self._phone.mind_supply()

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
        self._phone.physics.hold_still(on=True)  # else our own throttling would wake what is stopped here
        return await self._phone.ask({"do": "signal_server", "signal": signal.SIGSTOP})

    async def _do_server_resume(self) -> object:
        self._phone.physics.hold_still(on=False)
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

    async def _do_unkillable(self, seconds: float) -> None:
        if not self._phone.has_own_users:
            raise PhoneError(
                f"virtual phone {self._phone.spec.name} cannot have what its shell may not kill",
                hint="that needs isolation `full`, and a phone without root",
            )
        install_stuck_driver(self._phone.spec.directory)
        self._phone.set_state(kernel_fault=KernelFault.UNKILLABLE, unkillable_s=seconds)

    async def _do_slow_shell(self, delay_s: float) -> None:
        await self._phone.configure(shell_delay_s=delay_s)

    async def _do_dumpsys_hangs(self, on: bool) -> None:
        self._phone.set_state(dumpsys_hangs=on)

    # -- power and boots ---------------------------------------------------------------------------------------------

    async def _do_boot_hang(self, boots: int) -> None:
        self._phone.boots_that_hang = boots

    async def _do_boot_loop(self, boots: int, up_s: float) -> None:
        self._phone.boots_that_loop, self._phone.loop_after_s = boots, up_s
        self._phone.reboot_into("", REBOOT_S)

    async def _do_port_off(self) -> None:
        await self._phone.set_port_power(on=False)

    async def _do_port_on(self) -> None:
        await self._phone.set_port_power(on=True)

    async def _do_dead_battery(self, on: bool) -> None:
        self._phone.dead_battery = on
        self._phone.mind_supply()

    async def _do_network(self, on: bool) -> None:
        self._phone.userland.over_network = on
        if self._phone.userland.cut_off:
            await self._phone.drop_links()

    async def _do_airplane(self, on: bool) -> None:
        self._phone.userland.set_radio("airplane", str(int(on)))


def _fill(ballast: Path, free_bytes: int) -> None:
    """Leave `free_bytes` on the file system of `ballast`."""
    ballast.unlink(missing_ok=True)
    space = os.statvfs(ballast.parent)
    size = space.f_bavail * space.f_frsize - free_bytes
    if size <= 0:
        raise UserError(f"/data has only {size + free_bytes} bytes left already", hint="ask for fewer")
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
