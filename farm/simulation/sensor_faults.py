"""What can be done to a virtual phone's sensors, battery and GPU from outside."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.core.errors import UserError
from farm.simulation.lab_physics import Climate
from farm.simulation.physics import throttling_of
from farm.simulation.state import BatteryHealth, BatteryStatus, PhoneState
from farm.simulation.trace import parse_trace, play, torn_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm.simulation.lab_phone import LabPhone

log = logging.getLogger(__name__)

_RAMP_STEP_S = 0.1
_CPU_ABOVE_SKIN_C = 20.0  # under load; the idle phone has 5
_GPU_ABOVE_SKIN_C = 15.0
# As kgsl of kernels 4.14 to 5.15 words it; the numbers mean nothing.
_GPU_FAULT = (
    "[{uptime:12.6f}] kgsl kgsl-3d0: GPU PAGE FAULT: addr = 5C0DE000 pid= {pid} name=tvm_rpc",
    "[{uptime:12.6f}] kgsl kgsl-3d0: |a6xx_reset| GPU reset complete",
)


class SensorFaults:
    """Does them to one phone; `lab_faults.Saboteur` has the rest."""

    def __init__(self, phone: LabPhone) -> None:
        self._phone = phone
        self._ramp: asyncio.Task[None] | None = None
        self._replay: asyncio.Task[None] | None = None

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


def _host_text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UserError(f"cannot read {path}", hint="give a file of this host", evidence=str(error)) from error
