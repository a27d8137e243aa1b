"""Everything a person (or a test) can do to a virtual phone from outside, as plain values.

One table says which faults exist, which arguments they take and what they do; the lab process performs them, and the
client offers them as methods.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a fault. `default` None means it must be given, unless `optional`."""

    kind: type
    default: float | str | bool | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that can be done to a phone."""

    meaning: str
    arguments: Mapping[str, Argument]


FAULTS: Mapping[str, Fault] = {
    "unplug": Fault("the cable is pulled; the phone runs on", {}),
    "plug": Fault("the cable is back, and the link works", {}),
    "offline": Fault(
        "the link is up and dead: `offline` never finishes the handshake, `silent` stays `device` and answers nothing,"
        " `refuse` closes whatever is opened",
        {"mode": Argument(str, "offline")},
    ),
    "unauthorized": Fault("the phone forgets all keys and asks for acceptance", {}),
    "accept": Fault("the person at the phone accepts the key it shows, now and from then on", {}),
    "slow": Fault(
        "the link moves that many bytes per second and takes that long, each way",
        {"bytes_per_s": Argument(float), "latency_s": Argument(float, 0.0)},
    ),
    "fast": Fault("the link is as fast as it can be again", {}),
    "cut_push": Fault(
        "the cable is pulled after that many bytes of pushed file contents",
        {"after_bytes": Argument(int), "replug_after_s": Argument(float, optional=True)},
    ),
    "full_disk": Fault("/data has that many bytes left", {"free_bytes": Argument(int, 0)}),
    "free_disk": Fault("/data has room again", {}),
    "server_crash": Fault("every tvm_rpc process dies of SIGKILL", {}),
    "server_hang": Fault("every tvm_rpc process is stopped by SIGSTOP", {}),
    "server_resume": Fault("stopped tvm_rpc processes go on", {}),
    "segfault": Fault("kernels die of SIGSEGV", {}),
    "ignore_sigterm": Fault("kernels spin for ever and ignore SIGTERM", {}),
    "wrong_numbers": Fault("kernels return nonsense", {}),
    "good_kernels": Fault("kernels work again", {}),
    "reboot": Fault(
        "everything on the phone dies; it is back after that long", {"down_s": Argument(float, optional=True)}
    ),
    "power_cut": Fault("everything on the phone dies and stays dead until `boot`", {}),
    "boot": Fault("a dead phone starts", {}),
    "heat": Fault(
        "the temperatures go there, in that time; `skin_c` decides about throttling",
        {
            "skin_c": Argument(float),
            "cpu_c": Argument(float, optional=True),
            "gpu_c": Argument(float, optional=True),
            "battery_c": Argument(float, optional=True),
            "ramp_s": Argument(float, 0.0),
        },
    ),
    "cool": Fault("the temperatures of an idle phone, in that time", {"ramp_s": Argument(float, 0.0)}),
    "battery": Fault(
        "the battery has that charge",
        {"level": Argument(int), "charging": Argument(bool, False), "temp_c": Argument(float, optional=True)},
    ),
}
OFFLINE_MODES = ("offline", "silent", "refuse")


def parse_fault(name: str, given: Mapping[str, object]) -> dict[str, float | str | bool | None]:
    """The complete arguments of a fault, with defaults filled in.

    Raises:
        UserError: no such fault or argument, one is missing, or one has the wrong type.
    """
    fault = FAULTS.get(name)
    if fault is None:
        near = difflib.get_close_matches(name, FAULTS, n=1)
        raise UserError(
            f"no such fault: {name}", hint=f"did you mean {near[0]}?" if near else f"use {', '.join(sorted(FAULTS))}"
        )
    unknown = sorted(set(given) - set(fault.arguments))
    if unknown:
        takes = ", ".join(fault.arguments) or "none"
        raise UserError(f"{name} has no argument {unknown[0]!r}", hint=f"its arguments: {takes}")
    arguments: dict[str, float | str | bool | None] = {}
    for key, argument in fault.arguments.items():
        value = given.get(key)
        if value is None:
            if argument.default is None and not argument.optional:
                raise UserError(f"{name} needs {key}", hint=f"give {key} as {argument.kind.__name__}")
            arguments[key] = argument.default
        else:
            arguments[key] = _typed(name, key, argument.kind, value)
    if name == "offline" and arguments["mode"] not in OFFLINE_MODES:
        raise UserError(f"no such offline mode: {arguments['mode']}", hint=f"use {', '.join(OFFLINE_MODES)}")
    return arguments


def _typed(name: str, key: str, kind: type, value: object) -> float | str | bool:
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value
    if kind in {int, float} and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value) or (kind is int and value != int(value)):
            raise UserError(f"{key} of {name} cannot be {value}", hint=f"give {key} as {kind.__name__}")
        if key in {"free_bytes", "after_bytes", "down_s", "replug_after_s", "ramp_s"} and value < 0:
            raise UserError(f"{key} of {name} cannot be negative", hint=f"got {value}")
        return int(value) if kind is int else float(value)
    raise UserError(f"{key} of {name} must be {kind.__name__}, not {value!r}")
