"""Faults and orders for a virtual phone from outside: one method per entry of `faults.FAULTS`."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.common.errors import HostError, PhoneError, UserError
from farm.simulation.faults import parse_fault
from farm.simulation.lab_phone import REBOOT_S
from farm.simulation.lab_physics import Climate
from farm.simulation.machine import VENDOR_OPENCL
from farm.simulation.phone_processes import VENDOR
from farm.simulation.physics import throttling_of
from farm.simulation.state import BatteryHealth, BatteryStatus, DriverFault, KernelFault, PhoneState, state_folder
from farm.simulation.trace import parse_trace, play, torn_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from farm.simulation.lab_phone import LabPhone

log = logging.getLogger(__name__)

_BALLAST = "/data/.ballast"
_FOREIGN_ELF = b"\x7fELF\x01\x01\x01".ljust(16, b"\0") + b"\x03\x00\x28\x00\x01".ljust(36, b"\0")  # ARM, 32 bits
_STUCK_DRIVER = Path(__file__).with_name("stuck_driver.c")
_COMPILE_LIMIT_S = 60.0


_RAMP_STEP_S = 0.1
_CPU_ABOVE_SKIN_C = 20.0  # under load; the idle phone has 5
_GPU_ABOVE_SKIN_C = 15.0
# As kgsl of kernels 4.14 to 5.15 words it; the numbers mean nothing.
_GPU_FAULT = (
    "[{uptime:12.6f}] kgsl kgsl-3d0: GPU PAGE FAULT: addr = 5C0DE000 pid= {pid} name=tvm_rpc",
    "[{uptime:12.6f}] kgsl kgsl-3d0: |a6xx_reset| GPU reset complete",
)


class FaultInjector:
    """Does faults to one phone: its links, processes and boots, then its sensors, battery and GPU."""

    def __init__(self, phone: LabPhone) -> None:
        self._phone = phone
        self._ramp: asyncio.Task[None] | None = None
        self._replay: asyncio.Task[None] | None = None

    async def perform(self, name: str, given: Mapping[str, object]) -> object:
        """Cause a fault; returns its answer (the number of processes, the keys accepted)."""
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

    # -- faults of sensors, battery and GPU -------------------------------------------------------------------------

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
        current_ma = abs(PhoneState().battery_current_ma)
        changes: dict[str, Any] = {
            "battery_level": level,
            "battery_status": status,
            "battery_current_ma": current_ma if charging else -current_ma,
            "usb_powered": charging,
        }
        if temp_c is not None:
            changes["temps_c"] = {**self._phone.state().temps_c, "battery": temp_c}
        self._phone.set_state(**changes)

    async def _do_wear(self, cycles: int, full_share: float, health: str, voltage_mv: int | None) -> None:
        state = self._phone.state()
        changes: dict[str, Any] = {
            "battery_cycles": cycles,
            "battery_full_uah": max(1, round(state.battery_design_uah * full_share)),
            "battery_health": BatteryHealth[health.upper()],
        }
        if voltage_mv is not None:
            changes["battery_voltage_mv"] = voltage_mv
        self._phone.set_state(**changes)

    async def _do_charge(self, mode: str) -> None:
        state = self._phone.state()
        status = state.battery_status
        if not self._phone.physics.running:
            # Nothing else would let the status follow.
            idle = {"start": BatteryStatus.CHARGING, "stop": BatteryStatus.NOT_CHARGING}
            status = idle.get(mode, BatteryStatus.DISCHARGING)
        self._phone.set_state(
            charging_enabled=mode != "stop",
            input_suspended=mode == "suspend",
            usb_powered=mode != "suspend",
            battery_status=status,
            battery_current_ma={"start": PhoneState().battery_current_ma, "stop": 0.0}.get(mode, -200.0),
        )

    async def _do_gpu_fault(self) -> None:
        state = self._phone.state()
        uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME) - state.booted_at_s
        lines = (line.format(uptime=uptime_s, pid=4321) for line in _GPU_FAULT)
        self._phone.set_state(kernel_log=(*state.kernel_log, *lines), gpu_resets=state.gpu_resets + 1)

    async def _do_driver(self, fault: str) -> None:
        spec = self._phone.spec
        if spec.opencl is None:
            raise PhoneError(f"virtual phone {spec.name} has no OpenCL driver", hint="boot it with +opencl")
        library = spec.directory / VENDOR / VENDOR_OPENCL
        library.unlink(missing_ok=True)
        wanted = DriverFault(fault)
        if wanted is DriverFault.FOREIGN:
            library.write_bytes(_FOREIGN_ELF)
        elif wanted is not DriverFault.MISSING:
            shutil.copy2(spec.opencl / VENDOR_OPENCL, library)
        self._phone.set_state(driver_fault=wanted)

    async def _do_gpu_load(self, busy: float) -> None:
        if busy > 1:
            raise UserError(f"a GPU is not {busy:g} times busy", hint="give 0 to 1")
        self._phone.set_state(gpu_busy=busy)

    async def _do_cpu_load(self, load: float) -> None:
        if load < 0:
            raise UserError(f"a load average cannot be {load:g}", hint="an idle phone has 0.4")
        self._phone.set_state(load=(load, load, load))

    async def _do_clock_stuck(self, share: float) -> None:
        if not 0 < share <= 1:
            raise UserError(f"a clock cannot be {share:g} of its highest", hint="give more than 0, at most 1")
        self._phone.clock_limit = share if share < 1 else None
        heat_allows = throttling_of(self._phone.state().temps_c["skin"])[1]
        self._phone.set_state(clock_scale=min(share, heat_allows))
        self._phone.physics.clocks_changed()

    async def _do_physics(self, speed: float, ambient_c: float, watts_per_core: float) -> None:
        self._phone.physics.start(Climate(speed, ambient_c, watts_per_core))

    async def _do_power_rails(self, mode: str) -> None:
        self._phone.physics.rails.set_mode(mode)

    async def _do_physics_off(self) -> None:
        self._phone.physics.stop()

    # -- traces and captures -----------------------------------------------------------------------------------------

    async def _do_replay(self, path: str, speed: float, repeat: bool) -> None:
        text = _host_text(path)
        moments = parse_trace(text)
        if torn_line(text)[1]:
            log.warning("the last line of %s is incomplete and is not played: the recording was cut", path)
        if speed <= 0:
            raise UserError("a replay cannot stand still", hint="give a speed above 0")
        await self._do_replay_end()
        self._replay = self._phone.spawn(play(self._phone, moments, speed=speed, repeat=repeat))

    async def _do_capture(self, file: str, path: str) -> None:
        if not file.startswith(("dumpsys/", "sys/", "proc/meminfo")) or ".." in file:
            raise UserError(f"{file} is no file of a phone's sensors", hint="as in dumpsys/battery or sys/class/...")
        self._phone.captured[file] = _host_text(path)
        self._phone.refresh()

    async def _do_replay_end(self) -> None:
        if self._replay is not None:
            self._replay.cancel()
            self._replay = None
        self._phone.captured.clear()
        self._phone.refresh()

    # -- plumbing ----------------------------------------------------------------------------------------------------

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
        clock_scale = min(clock_scale, self._phone.clock_limit or 1.0)
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


def install_stuck_driver(phone_directory: Path) -> None:
    """Put it where the phone's programs find it, set-uid root. For phones whose shell is another user than the lab."""
    target = state_folder(phone_directory) / "stuck_driver"
    if target.exists():
        return
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        raise HostError("there is no C compiler on this host", hint="apt install gcc")
    temporary = target.with_name(".stuck_driver")
    command = [compiler, "-O1", "-x", "c", str(_STUCK_DRIVER), "-o", str(temporary)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError("cannot compile stuck_driver.c", hint="is libc6-dev installed?", evidence=str(error)) from error
    temporary.chmod(0o4755)
    temporary.replace(target)


def _host_text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UserError(f"cannot read {path}", hint="give a file of this host", evidence=str(error)) from error
