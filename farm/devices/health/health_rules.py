"""Findings of probes: those that recovery should act on, and those that people should know.

Pure. One probe alone may catch a phone in an odd moment, so whatever is not written down for good (a line in a log)
must be found by two in a row before it counts (`advance`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Annotated

from pydantic import Field

from farm.bundle.model import SERVER_PROGRAM
from farm.common.selector import of_model
from farm.model.health import ClusterReading, DeviceFault, Finding, FindingKind, Health, ProcessReading, ThrottleStatus

_BY_TIME = "btime-"  # how device_scripts/probe.sh names a boot where boot_id cannot be read
_HALF_FULL_MV = 3700  # a lithium cell at rest at 3.7 V is about half full
_NO_BATTERY, _SET_BY_HAND = "present: false", "UPDATES STOPPED"  # raw texts of farm.devices.health.probe.battery
_KERNEL_TIME = re.compile(r"\[\s*[0-9]{1,10}\.[0-9]{1,9}\]")


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """The settings of one phone model that differ."""

    ignore: tuple[FindingKind, ...] = ()  # findings that this model makes for nothing


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """`[health]`: from which figures on something is wrong, and how often a phone's arithmetic is checked."""

    check_every_h: Amount = 6.0  # golden kernels on an idle phone, 0.1 s each time; 0: never
    data_full_mb: Count = 200  # quarantine: a runtime is 100 MB, a model with its inputs as much again
    data_low_mb: Count = 1000  # warning: Android itself warns at 500 MB
    memory_low_mb: Count = 250  # available; Android's low-memory killer ends cached apps there, then what it finds
    # quarantine: cells are made for up to 60 °C; leases end at [heat.end_leases]
    battery_hot_c: Annotated[float, Field(ge=20, le=80)] = 55.0
    battery_cold_c: Amount = 0.0  # charging below 0 °C plates lithium
    # warning, unless it charges: Android itself warns there; an empty phone turns off
    battery_low_percent: Annotated[int, Field(ge=0, le=100)] = 15
    battery_margin_c: Amount = 8.0  # so far below `battery_hot_c` it must fall again
    # of the design capacity: makers call 80 % the end, a lab can wait a little
    worn_percent: Annotated[int, Field(ge=0, le=100)] = 65
    worn_cycles: Count = 1200  # makers promise 80 % after 500 to 1600
    # of its highest: a cluster allowed less is not the phone that was bought
    clock_share: Annotated[float, Field(ge=0, le=1)] = 0.7
    load: Amount = 1.5  # 1 min average from which a foreign process disturbs: an idle Android has 0.2 to 1
    foreign_percent: Amount = 20.0  # of a core, over its whole life (ps prints no other share): services stay below
    model: Mapping[str, ModelHealth] = field(default_factory=dict)  # by ro.product.model

    def ignored(self, model: str) -> frozenset[FindingKind]:
        """Kinds of findings that count for nothing on that model (`ro.product.model`)."""
        return frozenset((of_model(self.model, model) or ModelHealth()).ignore)


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts about the phone at the time of the probe."""

    ready: bool = True  # its server should run
    held: bool = False  # a lease has it
    in_hands: bool = False  # a person has it, with a shell: what runs is theirs
    acknowledged_gpu_faults: Collection[str] | None = None  # before it last passed its check; None: unknown
    adb: str = "adb"  # how a person begins a call of adb for it, with server and serial
    known: Collection[FindingKind] = ()  # what the probe before found: limits of these are left by a margin


def findings(now: Health, before: Health | None, policy: HealthConfig, situation: Situation) -> tuple[Finding, ...]:
    """Every finding of a probe; an unread value is none.

    Args:
        now: the probe.
        before: the one before, if the phone's server has been the same since; else None.
        policy: the limits.
        situation: what the farm knows of the phone.
    """
    return (
        *_storage(now, policy, situation),
        *_processes(now, before, situation),
        *_gpu(now, situation),
        *_boot(now, before),
        *_battery(now, policy, situation),
        *_clocks(now, before, policy),
        *_foreign(now, before, policy, situation),
    )


def has_evidence(now: Health, fault: DeviceFault) -> bool:
    """Whether this probe has the reading that shows the end of a fault."""
    match fault:
        case DeviceFault.STORAGE:
            return now.data_free_bytes is not None
        case DeviceFault.HOT:
            return now.battery.celsius is not None or bool(now.battery.health)
        case _:
            return False


def kinds_of(fault: DeviceFault) -> frozenset[FindingKind]:
    """The kinds of findings that show this fault, if it ends by itself."""
    found = {DeviceFault.STORAGE: FindingKind.DATA_FULL, DeviceFault.HOT: FindingKind.BATTERY_HOT}
    return frozenset({found[fault]}) if fault in found else frozenset()


def _storage(now: Health, policy: HealthConfig, situation: Situation) -> Iterable[Finding]:
    free, available = now.data_free_bytes, now.memory_available_bytes
    if free is not None:
        free_mb = free / 1e6
        # Once full it must become clearly better: a phone on the edge would come and go with every log line.
        full_mb = policy.data_full_mb * (1.5 if FindingKind.DATA_FULL in situation.known else 1.0)
        if free_mb < full_mb:
            yield Finding(
                FindingKind.DATA_FULL,
                f"/data has {free_mb:.0f} MB left, {full_mb:.0f} MB are needed",
                f"remove files or apps on the phone: {situation.adb} shell du -h -d 1 /data/local/tmp",
                DeviceFault.STORAGE,
                "It comes back by itself.",
            )
        elif free_mb < policy.data_low_mb:
            text = f"/data has {free_mb:.0f} MB left, less than {policy.data_low_mb} MB"
            yield Finding(
                FindingKind.DATA_LOW,
                text,
                f"remove files or apps on the phone: {situation.adb} shell du -h -d 1 /data/local/tmp",
            )
    if available is not None and available / 1e6 < policy.memory_low_mb:
        total = f" of {now.memory_total_bytes / 1e6:.0f}" if now.memory_total_bytes else ""
        yield Finding(
            FindingKind.MEMORY_LOW,
            f"{available / 1e6:.0f}{total} MB of memory are available",
            "close apps on the phone, or use smaller models",
            evidence=f"Less than {policy.memory_low_mb} MB: Android kills processes now, tvm_rpc among them.",
        )


def _processes(now: Health, before: Health | None, situation: Situation) -> Iterable[Finding]:
    if "processes" in now.missing:
        return
    then = {each.pid: each for each in before.server} if before is not None and same_boot(now, before) else {}

    def still(state: str) -> list[ProcessReading]:
        return [
            each for each in now.server if each.state == state and each.pid in then and then[each.pid].state == state
        ]

    if stuck := still("D"):
        yield Finding(
            FindingKind.STUCK_PROCESS,
            f"process {stuck[0].pid} hangs in a driver (state D)",
            "reboot the phone: farm device reboot NAME",
            DeviceFault.STUCK,
            f"{_named(stuck[0])}, since the probe before. SIGKILL works once the driver returns.",
        )
    if dead := still("Z"):
        cause = f"process {dead[0].pid} ended and was not reaped (state Z)"
        yield Finding(FindingKind.ZOMBIE, cause, evidence=_named(dead[0]))
    sessions = {each.pid for each in _sessions(now)}
    if then and not situation.held and (left := [each for each in still("R") if each.pid in sessions]):
        yield Finding(
            FindingKind.ORPHAN,
            f"process {left[0].pid} of a session that ended continues computing",
            fault=DeviceFault.STUCK,
            evidence=_named(left[0]),
        )
    gone = not any(each.name == SERVER_PROGRAM and each.state != "Z" for each in now.server)
    gone_before = before is not None and not any(each.name == SERVER_PROGRAM for each in before.server)
    if situation.ready and gone and gone_before and "processes" not in before.missing:  # type: ignore[union-attr]
        yield Finding(FindingKind.SERVER_GONE, "no tvm_rpc runs on it", fault=DeviceFault.SERVER)


def _sessions(now: Health) -> list[ProcessReading]:
    """Processes that the RPC server forked for sessions."""
    servers = {each.pid for each in now.server if each.name == SERVER_PROGRAM}
    return [each for each in now.server if each.ppid in servers]


def _gpu(now: Health, situation: Situation) -> Iterable[Finding]:
    if situation.acknowledged_gpu_faults is None:
        return
    new = [line for line in now.gpu_faults if line not in situation.acknowledged_gpu_faults]
    if new:
        lines = f" ({len(new)} lines since its last check)" if len(new) > 1 else ""
        yield Finding(
            FindingKind.GPU_FAULT,
            "the GPU's driver reports a fault",
            "look for a kernel that reads or writes out of its bounds",
            DeviceFault.GPU,
            f"{_KERNEL_TIME.sub('', new[-1]).strip()[:200]}{lines}",
        )


def same_boot(now: Health, before: Health) -> bool:
    """Whether the phone has not started again in between, as far as it reports.

    A boot named by its time is called otherwise whenever the phone's clock is set: there its uptime decides.
    """
    if not now.boot_id or not before.boot_id or now.boot_id == before.boot_id:
        return True
    if not now.boot_id.startswith(_BY_TIME) or now.uptime_s is None or before.uptime_s is None:
        return False
    return now.uptime_s >= before.uptime_s


def _boot(now: Health, before: Health | None) -> Iterable[Finding]:
    if before is not None and not same_boot(now, before):
        up = f" {now.uptime_s:.0f} s ago" if now.uptime_s is not None else ""
        yield Finding(
            FindingKind.REBOOTED,
            f"it rebooted{up}, and adb did not notice",
            "check its cable and battery, unless it was rebooted by hand",
            DeviceFault.SERVER,
        )


def _battery(now: Health, policy: HealthConfig, situation: Situation) -> Iterable[Finding]:
    battery = now.battery
    hot_c = policy.battery_hot_c
    if FindingKind.BATTERY_HOT in situation.known:
        hot_c -= policy.battery_margin_c
    if battery.health == "overheat" or (battery.celsius is not None and battery.celsius > hot_c):
        figure = "" if battery.celsius is None else f" {battery.celsius:.1f} °C"
        limit = "the phone calls it overheated" if battery.health == "overheat" else f"above {hot_c:g} °C"
        yield Finding(
            FindingKind.BATTERY_HOT,
            f"battery too hot:{figure}{',' if figure else ''} {limit}",
            "let it cool",
            DeviceFault.HOT,
            "It comes back by itself. If it was idle, look at the battery.",
        )
    elif battery.health == "cold" or (battery.celsius is not None and battery.celsius < policy.battery_cold_c):
        figure = "the phone calls it cold" if battery.celsius is None else f"{battery.celsius:.1f} °C"
        yield Finding(
            FindingKind.BATTERY_COLD, f"battery too cold to be charged: {figure}", "move it to a warmer place"
        )
    if battery.health in ("dead", "failure", "over-voltage"):
        yield Finding(
            FindingKind.BATTERY_BAD,
            f"the phone calls its battery {battery.health.replace('-', ' ')}",
            "look at it now, and unplug it if it bulges or is hot",
            DeviceFault.BATTERY,
        )
    resting = battery.status in ("discharging", "not-charging")
    if resting and battery.percent is not None and battery.percent < policy.battery_low_percent:
        yield Finding(
            FindingKind.BATTERY_LOW,
            f"battery at {battery.percent} %, and it does not charge",
            "try another cable, or a charger: its port gives it too little power" if battery.powered_by
            else "plug it into a charger or a hub with a power supply",
            evidence=f"Less than {policy.battery_low_percent} %: it turns off when it is empty.",
        )  # fmt: skip
    yield from _gauge(now, situation)


def _gauge(now: Health, situation: Situation) -> Iterable[Finding]:
    battery = now.battery
    hint, evidence = "charge it full, which often sets the gauge right", "Its charge is not known."
    odd = [each for each in now.dropped if each.source == "battery" and each.raw != _NO_BATTERY]
    if odd:
        text, evidence = f"battery gauge says {odd[0].sensor}={odd[0].raw}", odd[0].reason
        if odd[0].raw == _SET_BY_HAND:
            text, hint = "the battery's values were set by hand", f"{situation.adb} shell dumpsys battery reset"
            evidence = ""
    elif battery.percent == 0 and battery.voltage_mv is not None and battery.voltage_mv > _HALF_FULL_MV:
        text = f"battery gauge says 0 % at {battery.voltage_mv} mV"
    else:
        return
    yield Finding(FindingKind.GAUGE, text, hint, evidence=evidence)


def _clocks(now: Health, before: Health | None, policy: HealthConfig) -> Iterable[Finding]:
    """Held far below the hardware's highest clock, in both probes, while the phone says that it does not throttle."""
    if now.throttle is None or now.throttle > ThrottleStatus.NONE or before is None or not same_boot(now, before):
        return
    then = {each.cores: each for each in before.cpu}
    for cluster in now.cpu:
        if _held(cluster, policy) and cluster.cores in then and _held(then[cluster.cores], policy):
            yield Finding(
                FindingKind.CLOCK_HELD,
                f"CPU {cluster.span} held at {_ghz(cluster.max_khz)} of {_ghz(cluster.hardware_max_khz)} GHz",
                HELD_HINT,
                evidence="The phone does not throttle: a battery saver, a power mode or a limit set by hand.",
            )
            return
    gpu = now.gpu
    if gpu.throttled is False and gpu.max_hz and gpu.hardware_max_hz and gpu.min_hz != gpu.max_hz:
        was = before.gpu
        if max(gpu.max_hz, was.max_hz or gpu.hardware_max_hz) < policy.clock_share * gpu.hardware_max_hz:
            yield Finding(
                FindingKind.CLOCK_HELD,
                f"GPU held at {gpu.max_hz / 1e6:.0f} of {gpu.hardware_max_hz / 1e6:.0f} MHz",
                HELD_HINT,
                evidence="It is not throttled: a power mode or a limit set by hand.",
            )


def _held(cluster: ClusterReading, policy: HealthConfig) -> bool:
    """Not where a person pinned the clock: then its lowest equals its highest, on purpose."""
    if not cluster.max_khz or not cluster.hardware_max_khz or cluster.min_khz == cluster.max_khz:
        return False
    return cluster.max_khz < policy.clock_share * cluster.hardware_max_khz


def _foreign(now: Health, before: Health | None, policy: HealthConfig, situation: Situation) -> Iterable[Finding]:
    if situation.in_hands or before is None or not same_boot(now, before):
        return
    if now.load_1min is None or now.load_1min < policy.load:
        return
    ours = {each.pid for each in now.server}
    then = {each.pid for each in before.busiest if each.state == "R"}
    running = [
        each
        for each in now.busiest
        if each.state == "R"
        and each.pid not in ours
        and each.pid in then
        and (each.cpu_percent or 0.0) >= policy.foreign_percent
    ]
    if running:
        worst = max(running, key=lambda each: each.cpu_percent or 0.0)
        yield Finding(
            FindingKind.FOREIGN_LOAD,
            f"{worst.name} keeps the phone busy",
            f"stop that app on the phone: {situation.adb} shell am force-stop {quote(worst.name)}",
            evidence=f"{_named(worst)}, load {now.load_1min:.1f}: measurements are disturbed.",
        )


def _named(process: ProcessReading) -> str:
    share = f", {process.cpu_percent:.0f} % of a core" if process.cpu_percent else ""
    return f"{process.name} (pid {process.pid}{share})"


def _ghz(khz: int | None) -> str:
    return "?" if khz is None else f"{khz / 1e6:.2f}"


HELD_HINT = "reboot it, which often ends that: farm device reboot NAME"
MISSES = 3  # probes in a row without a finding, then it is over: a finding that comes and goes is reported once
# Found in two probes already, or written down for good: they count at once.
_SURE = frozenset(
    {
        FindingKind.STUCK_PROCESS, FindingKind.ORPHAN, FindingKind.ZOMBIE, FindingKind.GPU_FAULT, FindingKind.REBOOTED,
        FindingKind.SERVER_GONE, FindingKind.CLOCK_HELD, FindingKind.FOREIGN_LOAD,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FindingHistory:
    """The findings of the last probes of one phone."""

    first: Mapping[FindingKind, Finding] = field(default_factory=dict)  # found once: the next probe decides
    held: Mapping[FindingKind, Finding] = field(default_factory=dict)  # true now, in its latest words
    missed: Mapping[FindingKind, int] = field(default_factory=dict)  # probes in a row that did not find a held one
    news: tuple[Finding, ...] = ()  # that hold since the last probe
    over: tuple[Finding, ...] = ()  # that held until the last probe
    fresh: tuple[Finding, ...] = ()  # that hold and were found by the last probe: recovery acts on these only

    @property
    def known(self) -> frozenset[FindingKind]:
        """Kinds that hold now."""
        return frozenset(self.held)

    @property
    def faults(self) -> frozenset[DeviceFault]:
        """Faults that recovery should repair now."""
        return frozenset(each.fault for each in self.held.values() if each.fault is not None)


def advance(account: FindingHistory, found: Iterable[Finding]) -> FindingHistory:
    """Take the findings of one more probe."""
    now = {each.kind: each for each in found}
    held: dict[FindingKind, Finding] = {}
    missed: dict[FindingKind, int] = {}
    over = []
    for kind, finding in account.held.items():
        if kind in now:
            held[kind] = now[kind]
        elif (misses := account.missed.get(kind, 0) + 1) < MISSES:
            held[kind], missed[kind] = finding, misses
        else:
            over.append(finding)
    sure = {
        kind: finding for kind, finding in now.items() if kind not in held and (kind in _SURE or kind in account.first)
    }
    first = {kind: finding for kind, finding in now.items() if kind not in held and kind not in sure}
    held |= sure
    fresh = tuple(finding for kind, finding in held.items() if kind in now)
    return FindingHistory(first, held, missed, tuple(sure.values()), tuple(over), fresh)
