"""Everything a person (or a test) can do to a virtual phone from outside, as plain values.

One table says which faults exist, which arguments they take and what they do; the lab process performs them, and the
client offers them as methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.common.errors import UserError
from farm.common.selector import did_you_mean
from farm.simulation.power_rails import MODES
from farm.simulation.state import BatteryHealth, DriverFault

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a fault. `default` None means it must be given, unless `optional`."""

    kind: type
    default: float | str | bool | None = None
    optional: bool = False
    words: tuple[str, ...] = ()  # a text is one of these; none: any text
    signed: bool = False  # a number may be negative


@dataclass(frozen=True, slots=True)
class PhoneFault:
    """One thing that can be done to a phone."""

    meaning: str
    arguments: Mapping[str, Argument]


_KINDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a word"}
OFFLINE_MODES = ("offline", "silent", "refuse")
_SWITCH = {"on": Argument(bool, True)}

FAULTS: Mapping[str, PhoneFault] = {
    "unplug": PhoneFault("the cable is pulled; the phone runs on", {}),
    "plug": PhoneFault("the cable is back, and the link works", {}),
    "offline": PhoneFault(
        "the link is up and dead: `offline` never finishes the handshake, `silent` stays `device` and answers nothing,"
        " `refuse` closes whatever is opened",
        {"mode": Argument(str, "offline", words=OFFLINE_MODES)},
    ),
    "unauthorized": PhoneFault("the phone forgets all keys and asks for acceptance", {}),
    "accept": PhoneFault("the person at the phone accepts the key it shows, now and from then on", {}),
    "slow": PhoneFault(
        "the link moves that many bytes per second and takes that long, each way",
        {"bytes_per_s": Argument(float), "latency_s": Argument(float, 0.0)},
    ),
    "fast": PhoneFault("the link is as fast as it can be again", {}),
    "cut_push": PhoneFault(
        "the cable is pulled after that many bytes of pushed file contents",
        {"after_bytes": Argument(int), "replug_after_s": Argument(float, optional=True)},
    ),
    "full_disk": PhoneFault("/data has that many bytes left", {"free_bytes": Argument(int, 0)}),
    "free_disk": PhoneFault("/data has room again", {}),
    "server_crash": PhoneFault("every tvm_rpc process dies of SIGKILL", {}),
    "server_hang": PhoneFault("every tvm_rpc process is stopped by SIGSTOP", {}),
    "server_resume": PhoneFault("stopped tvm_rpc processes continue", {}),
    "segfault": PhoneFault("kernels die of SIGSEGV", {}),
    "ignore_sigterm": PhoneFault("kernels spin forever and ignore SIGTERM", {}),
    "wrong_numbers": PhoneFault("kernels return nonsense", {}),
    "good_kernels": PhoneFault("kernels work again", {}),
    "reboot": PhoneFault(
        "everything on the phone dies; it is back after that long", {"down_s": Argument(float, optional=True)}
    ),
    "power_cut": PhoneFault("everything on the phone dies and stays dead until `boot`", {}),
    "boot": PhoneFault("a dead phone starts", {}),
    "boot_hang": PhoneFault(
        "that many of the next boots hang: the phone is on and adb never sees it", {"boots": Argument(int, 1)}
    ),
    "boot_loop": PhoneFault(
        "the phone reboots now, and by itself after each of that many boots",
        {"boots": Argument(int, 3), "up_s": Argument(float, 1.0)},
    ),
    "port_off": PhoneFault("the USB port gives no current: as unplugged, and the cable stays in", {}),
    "port_on": PhoneFault("the USB port gives current again", {}),
    "dead_battery": PhoneFault("the battery holds nothing: without current from the cable the phone is off", _SWITCH),
    "slow_shell": PhoneFault("every shell begins that much later; 0 ends it", {"delay_s": Argument(float, 0.0)}),
    "dumpsys_hangs": PhoneFault("services do not answer dumpsys, which gives up after 10 s", _SWITCH),
    "unkillable": PhoneFault(
        "kernels hang, and for that long a child of theirs cannot be killed, as one in a driver (isolation `full`)",
        {"seconds": Argument(float, 20.0)},
    ),
    "gpu_fault": PhoneFault("the GPU's driver reports a page fault in the kernel log and resets the GPU", {}),
    "driver": PhoneFault(
        "the vendor's OpenCL driver is missing, wrong or misbehaves; `none`: it is good again (a phone with +opencl)",
        {"fault": Argument(str, words=tuple(fault.value for fault in DriverFault))},
    ),
    "gpu_load": PhoneFault(
        "the GPU is that busy, 0 to 1 (nothing on a virtual phone uses it)", {"busy": Argument(float)}
    ),
    "cpu_load": PhoneFault(
        "the load averages say that (who is busy on a virtual phone does not count by itself, without `physics`)",
        {"load": Argument(float)},
    ),
    "clock_stuck": PhoneFault("the clocks stay at that share of their highest; 1 ends it", {"share": Argument(float)}),
    "network": PhoneFault("adb reaches the phone over its radio: airplane mode cuts the link", _SWITCH),
    "airplane": PhoneFault("the person at the phone switches airplane mode", _SWITCH),
    "heat": PhoneFault(
        "the temperatures go there, in that time; `skin_c` decides about throttling",
        {
            "skin_c": Argument(float, signed=True),
            "cpu_c": Argument(float, optional=True, signed=True),
            "gpu_c": Argument(float, optional=True, signed=True),
            "battery_c": Argument(float, optional=True, signed=True),
            "ramp_s": Argument(float, 0.0),
        },
    ),
    "cool": PhoneFault("the temperatures of an idle phone, in that time", {"ramp_s": Argument(float, 0.0)}),
    "battery": PhoneFault(
        "the battery has that charge",
        {
            "level": Argument(int),
            "charging": Argument(bool, False),
            "temp_c": Argument(float, optional=True, signed=True),
        },
    ),
    "wear": PhoneFault(
        "the battery is that old: cycles, what it still holds of its design, and Android's verdict",
        {
            "cycles": Argument(int, 900),
            "full_share": Argument(float, 0.7),
            "health": Argument(str, "good", words=tuple(item.name.lower() for item in BatteryHealth)),
            "voltage_mv": Argument(int, optional=True),
        },
    ),
    "charge": PhoneFault(
        "`stop`: the cable feeds the phone but not the battery; `suspend`: it feeds nothing; `start`: as usual",
        {"mode": Argument(str, words=("start", "stop", "suspend"))},
    ),
    "physics": PhoneFault(
        "heat, throttling and battery follow what the phone does, that many times as fast as a phone's",
        {
            "speed": Argument(float, 1.0),
            "ambient_c": Argument(float, 25.0, signed=True),
            "watts_per_core": Argument(float, 3.0),
        },
    ),
    "power_rails": PhoneFault(
        "the phone counts the energy of its parts (by `physics`), or `perfetto`, which tells it, misbehaves",
        {"mode": Argument(str, words=MODES)},
    ),
    "physics_off": PhoneFault("sensors stay where they are, and nothing is slowed down", {}),
    "replay": PhoneFault(
        "the phone's files say what the trace says, that many times as fast, once or forever",
        {"path": Argument(str), "speed": Argument(float, 1.0), "repeat": Argument(bool, False)},
    ),
    "capture": PhoneFault(
        "a file of the phone (`dumpsys/battery`, `sys/class/...`) says what a file of the host holds",
        {"file": Argument(str), "path": Argument(str)},
    ),
    "replay_end": PhoneFault("ends `replay` and every `capture`", {}),
}


def parse_fault(name: str, given: Mapping[str, object]) -> dict[str, float | str | bool | None]:
    """The complete arguments of a fault, with defaults filled in."""
    fault = FAULTS.get(name)
    if fault is None:
        raise UserError(f"no such fault: {name}", hint=did_you_mean(name, FAULTS, f"use {', '.join(sorted(FAULTS))}"))
    unknown = sorted(set(given) - set(fault.arguments))
    if unknown:
        takes = ", ".join(fault.arguments) or "none"
        raise UserError(f"{name} has no argument {unknown[0]!r}", hint=f"its arguments: {takes}")
    arguments: dict[str, float | str | bool | None] = {}
    for key, argument in fault.arguments.items():
        value = given.get(key)
        if value is None:
            if argument.default is None and not argument.optional:
                known = " or ".join(argument.words) or _KINDS[argument.kind]
                raise UserError(f"{name} needs {key}", hint=f"give {key}=, {known}")
            arguments[key] = argument.default
        else:
            arguments[key] = _typed(name, key, argument, value)
    return arguments


def _typed(name: str, key: str, argument: Argument, value: object) -> float | str | bool:
    kind = argument.kind
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        if argument.words and value not in argument.words:
            raise UserError(f"no such {name} {key}: {value}", hint=f"use {', '.join(argument.words)}")
        return value
    if kind in {int, float} and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value) or (kind is int and value != int(value)):
            raise UserError(f"{key} of {name} cannot be {value}", hint=f"give {key}=, {_KINDS[kind]}")
        if value < 0 and not argument.signed:
            raise UserError(f"{key} of {name} cannot be negative", hint=f"got {value}")
        return int(value) if kind is int else float(value)
    raise UserError(f"{key} of {name} must be {_KINDS[kind]}, not {value!r}")
