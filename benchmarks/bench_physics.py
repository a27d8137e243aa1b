"""What the lab of virtual phones costs: phones that stand still, phones with physics, one throttled phone.

And how much longer a kernel takes on a slower clock, measured by farm itself. What else the host does counts.
"""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from benchmarks.harness import Context, Figure, cpu_percent, under
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm

PHONES = 10
SECONDS = 5.0
SLOW = 0.25


# A server with a session that never rests.
_SESSION = '#!/system/bin/sh\n[ "$1" = session ] && while :; do sleep 0.01; done\nsh "$0" session\n'


def run(context: Context) -> list[Figure]:
    """Figures per phone, in per cent of one core, and a kernel's time with its clock's share."""
    phones = {f"phone-{number}": "oneplus-12" for number in range(PHONES)}
    with virtual_farm(phones, config="[probe]\nevery_s = 3600\n[heat]\nstale_s = 7200\n", report=context.say) as farm:
        farm.wait_ready(PHONES)
        lab = _lab(farm)
        still = cpu_percent([lab], SECONDS)[0] / PHONES
        farm.lab.fault("*", "physics")
        moving = cpu_percent([lab], SECONDS)[0] / PHONES
        farm.lab.fault("*", "physics_off")
        model = farm.folder / "small_cnn.onnx"
        farm.farm("model", "make", "small_cnn", "-o", str(model))
        fast_ms = _median_ms(farm, model)
        farm.lab.fault("*", "clock_stuck", share=SLOW)
        slow_ms = _median_ms(farm, model)
        farm.lab.fault("*", "clock_stuck", share=1.0)
        throttled = _one_throttled(farm, context.folder, lab)
    return [
        under("lab, each phone that stands still", still, "% of a core", 0.1),
        Figure("lab, each phone with physics", moving, "% of a core"),
        Figure("lab, a throttled phone", throttled, "% of a core"),
        Figure("small_cnn, median", fast_ms, "ms"),
        Figure(f"small_cnn on {SLOW:g} of the clock, median", slow_ms, "ms", fast_ms, "slower", slow_ms > fast_ms),
    ]


def _one_throttled(farm: VirtualFarm, folder: Path, lab: psutil.Process) -> float:
    program = folder / "tvm_rpc"
    program.write_text(_SESSION, encoding="utf-8")
    serial = farm.lab.phone("phone-0").serial
    farm.adb("-s", serial, "push", str(program), "/data/local/tmp/tvm_rpc")
    farm.adb("-s", serial, "shell", "setsid sh /data/local/tmp/tvm_rpc server </dev/null >/dev/null 2>&1 &")
    farm.lab.fault("phone-0", "clock_stuck", share=0.5)
    return cpu_percent([lab], SECONDS)[0]


def _median_ms(farm: VirtualFarm, model: Path) -> float:
    done = farm.farm(
        "bench", str(model), "--on", "android", "--devices", "1", "--repeat", "30", "--json", timeout_s=120
    )
    medians: list[float] = []
    _collect(json.loads(done.stdout), medians)
    return medians[0]


def _collect(value: object, medians: list[float]) -> None:
    if isinstance(value, dict):
        medians += [found for key, found in value.items() if key == "median_ms" and isinstance(found, float)]
        for below in value.values():
            _collect(below, medians)
    elif isinstance(value, list):
        for below in value:
            _collect(below, medians)


def _lab(farm: VirtualFarm) -> psutil.Process:
    """The process above the phones' outer processes."""
    hardware = psutil.Process(farm.lab.phone("phone-0").pid).ppid()
    return psutil.Process(psutil.Process(hardware).ppid())
