"""Lets a lab's phone warm, throttle, drain and charge by the real work of its processes (physics.py is the model).

`Throttle` makes a phone slow: its sessions run only a share of the time, by SIGSTOP and SIGCONT every few milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.common.errors import UserError
from farm.simulation import physics
from farm.simulation.namespaces import uptime_of
from farm.simulation.power_rails import PowerRails
from farm.simulation.process_tree import is_stopped, read_tree, sessions_of
from farm.simulation.state import IDLE_LOAD, ThrottlingStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from farm.simulation.lab_phone import LabPhone
    from farm.simulation.state import PhoneState

_TICK_S = 0.2
_SIMULATED = frozenset({"init", "adbd"})  # programs of ours: what they cost is not the phone's load
# Of one update: a fuel gauge's converter hardly tells the same figure twice. Only while the battery feeds the phone:
# then the gauge serves as a power meter, and each new figure costs the lab 4 ms.
_GAUGE_NOISE_MA = 1.0
_BOOTS_FROM = 0.03  # of its charge: a phone that ran empty starts by itself
_RUN_S = 0.003  # one stretch of running
_MIN_STOP_S = 0.001  # an event loop's timers are no better; less is owed until it is more
_MAX_STOP_S = 0.05


@dataclass(frozen=True, slots=True)
class Climate:
    """How physics goes for one phone."""

    speed: float = 1.0  # how many of the model's seconds pass in one
    ambient_c: float = physics.AMBIENT_C
    watts_per_core: float = physics.WATTS_PER_CORE

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 10_000:
            raise UserError(f"physics cannot go {self.speed:g} times as fast", hint="give more than 0, at most 10000")
        if not 0 <= self.watts_per_core <= 100:
            raise UserError(f"a core does not draw {self.watts_per_core:g} W", hint="give 0 to 100")


class LivePhysics:
    """Of one phone; does nothing, and costs nothing, until it is started."""

    def __init__(self, phone: LabPhone) -> None:
        self.climate: Climate | None = None
        self.throttle = Throttle()
        self.rails = PowerRails(phone.spec.directory)
        self._phone = phone
        self._task: asyncio.Task[None] | None = None
        self._temps_c: dict[str, float] = {}
        self._shown_c: dict[str, float] = {}
        self._charge = 0.0
        self._cpu_s: dict[int, float] = {}
        self._load = IDLE_LOAD
        self._ran_empty = False
        self._watts: dict[str, float] = {}  # that its parts take

    def start(self, climate: Climate) -> None:
        """From now on the phone's sensors follow its load; from the temperatures and the charge it has."""
        self.climate = climate
        self._mind()

    def stop(self) -> None:
        """The sensors stay where they are; nothing is slowed down."""
        self.climate = None
        self._phone.set_state(cpu_busy=None, load=IDLE_LOAD)
        self._mind()

    def close(self) -> None:
        """The phone goes away."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.throttle.close()

    def went_down(self) -> None:
        """Every process of the phone is gone."""
        self.throttle.close()
        self._cpu_s.clear()

    @property
    def running(self) -> bool:
        """Whether the sensors follow the load."""
        return self.climate is not None

    def hold_still(self, *, on: bool) -> None:
        """Leave the sessions as they are: another process stops and continues them."""
        self.throttle.held = on
        self.throttle.set_share(self.throttle.share)

    def clocks_changed(self) -> None:
        """Somebody set the phone's clock: slow it down, with physics or without."""
        self._mind()

    def _mind(self) -> None:
        wanted = self.climate is not None or self._phone.clock_limit is not None
        if wanted and self._task is None:
            self._task = self._phone.spawn(self._run())
        elif not wanted:
            self.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            await asyncio.sleep(_TICK_S)
            now, uptime_s = loop.time(), uptime_of(self._phone.status().pid)
            state = self._phone.state()
            busy_cores = self._busy_cores(now - before)
            if self.climate is not None:
                self._load = physics.load(self._load, busy_cores, now - before)
                self._step(self.climate, state, busy_cores, (now - before) * self.climate.speed)
                self.rails.count(self._watts, now - before, uptime_s)
            self.throttle.set_share(self._phone.state().clock_scale)
            before = now

    def _busy_cores(self, seconds: float) -> float:
        """How many cores the phone kept busy since the last look; remembers its sessions."""
        if not self._phone.powered:
            return 0.0
        tree = read_tree(self._phone.status().pid)
        self.throttle.follow(sessions_of(tree))
        used = {
            process.pid: process.collected_s + (process.default_schedule_s if process.name not in _SIMULATED else 0.0)
            for process in tree
        }
        # What a process used before we first saw it was used since the last look, except at the very first one.
        spent = sum(now - self._cpu_s.get(pid, 0.0 if self._cpu_s else now) for pid, now in used.items())
        # A collected child's time moved to its parent: it was counted while the child lived.
        spent -= sum(was for pid, was in self._cpu_s.items() if pid not in used)
        self._cpu_s = used
        return max(0.0, spent) / seconds

    def _step(self, climate: Climate, state: PhoneState, busy_cores: float, seconds: float) -> None:
        phone = self._phone
        if state.temps_c != self._shown_c:  # the first step, or a fault set them
            self._temps_c = dict(state.temps_c)
        if abs(state.battery_level - self._charge * 100) > 1:
            self._charge = state.battery_level / 100
        watts = {}
        load_w, self._watts = 0.0, {}
        if phone.powered:
            watts = {
                "cpu": physics.cpu_watts(busy_cores, state.clock_scale, climate.watts_per_core),
                "gpu": physics.gpu_watts(state.gpu_busy or 0.0, state.clock_scale),
            }
            self._watts = {**watts, "screen": physics.SCREEN_W if phone.userland.screen_on else 0.0}
            load_w = sum(self._watts.values())
        powered = phone.has_power and not state.input_suspended
        cell = physics.Cell(self._charge, state.battery_full_uah, status=state.battery_status)
        cell = physics.drain(cell, load_w, powered=powered, charging=state.charging_enabled, seconds=seconds)
        watts["battery"] = physics.battery_watts(cell.current_ma)
        self._temps_c = physics.heat(self._temps_c, watts, climate.ambient_c, seconds)
        self._charge = cell.charge
        noise_ma = 0.0 if powered else random.gauss(0.0, _GAUGE_NOISE_MA)
        throttling, scale = physics.throttling_of(self._temps_c["skin"], state.throttling)
        # Rounded: what nobody could see is not written.
        self._shown_c = {node: round(degrees, 1) for node, degrees in self._temps_c.items()}
        phone.set_state(
            temps_c=self._shown_c,
            throttling=throttling,
            clock_scale=min(scale, phone.clock_limit or 1.0),
            load=tuple(round(each, 1) for each in self._load),
            cpu_busy=round(min(1.0, busy_cores), 1),
            battery_level=round(cell.charge * 100),
            battery_status=cell.status,
            battery_voltage_mv=round(cell.voltage_mv, -1),
            battery_current_ma=round(cell.current_ma + noise_ma, 1),
            usb_powered=powered,
        )
        self._mind_power(throttling, has_power=powered)

    def _mind_power(self, throttling: ThrottlingStatus, *, has_power: bool) -> None:
        phone = self._phone
        if phone.powered and (self._charge == 0 or throttling is ThrottlingStatus.SHUTDOWN):
            self._ran_empty = self._charge == 0
            phone.switch_off()
        elif self._ran_empty and has_power and self._charge >= _BOOTS_FROM:
            self._ran_empty = False
            phone.switch_on()


class Throttle:
    """Of one phone. `close` lets everything run again."""

    def __init__(self) -> None:
        self.share = 1.0  # of the time that sessions run
        self.held = False  # somebody else stops and continues the sessions now
        self._sessions: dict[int, int] = {}  # pid -> pidfd: a number that is another's by now is never signalled
        self._stopped: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._turned_at = 0.0
        self._owed_s = 0.0  # of standing still

    def follow(self, pids: Iterable[int]) -> None:
        """These are the phone's sessions now."""
        wanted = set(pids)
        for pid in self._sessions.keys() - wanted:
            self._forget(pid)
        for pid in wanted - self._sessions.keys():
            try:
                self._sessions[pid] = os.pidfd_open(pid)
            except OSError:
                continue  # it ended
        self._mind()

    def set_share(self, share: float) -> None:
        """Sessions get that share of the time from now on."""
        if share != self.share:
            self.share, self._owed_s = share, 0.0
        self._mind()

    def close(self) -> None:
        """Let everything run and forget it."""
        self._release()
        for pid in tuple(self._sessions):
            self._forget(pid)

    def _mind(self) -> None:
        needed = self.share < 1 and not self.held and bool(self._sessions)
        if needed and self._timer is None:
            self._run_on()
        elif not needed:
            self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._continue()

    def _run_on(self) -> None:
        """A stretch of running begins."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._stopped:
            self._owed_s -= now - self._turned_at
        self._continue()
        self._turned_at = now
        self._timer = loop.call_later(_RUN_S, self._stand_still)

    def _stand_still(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        # Timers come late: what was run too long is stood still longer, and the other way round.
        self._owed_s += (now - self._turned_at) * (1 - self.share) / self.share
        self._turned_at = now
        if self._owed_s < _MIN_STOP_S:
            self._timer = loop.call_later(_RUN_S, self._stand_still)
            return
        for pid, descriptor in self._sessions.items():
            if not is_stopped(pid) and _signal(descriptor, signal.SIGSTOP):
                self._stopped.add(pid)
        self._owed_s = min(self._owed_s, _MAX_STOP_S)
        self._timer = loop.call_later(self._owed_s, self._run_on)

    def _continue(self) -> None:
        for pid in self._stopped:
            if pid in self._sessions:
                _signal(self._sessions[pid], signal.SIGCONT)
        self._stopped.clear()

    def _forget(self, pid: int) -> None:
        descriptor = self._sessions.pop(pid)
        if pid in self._stopped:
            self._stopped.discard(pid)
            _signal(descriptor, signal.SIGCONT)
        os.close(descriptor)


def _signal(descriptor: int, number: signal.Signals) -> bool:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False  # it ended
    return True
