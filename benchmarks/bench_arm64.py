"""What qemu costs an arm64 virtual phone: the same steps and the same network beside an x86-64 one, on this host."""

from __future__ import annotations

import json
import statistics
import sys

from benchmarks.harness import Context, Figure
from benchmarks.whole_farm import Journal, about
from farm.model.device import Life
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm

PROFILE = "oneplus-12"
PHONES = {"arm64": f"{PROFILE}+arm64", "x86-64": PROFILE}
REBOOTS = 9
SAMPLES = 50
STEPS = {"server up": (Life.STARTING, Life.CHECKING), "golden kernels": (Life.CHECKING, Life.READY)}


def run(context: Context) -> list[Figure]:
    """Medians; the x86-64 phone stands where other benchmarks have stock TVM."""
    with virtual_farm(phones_of(PHONES.values()), report=context.say) as farm:
        farm.wait_ready(len(PHONES))
        serials = [phone.serial for phone in farm.lab.status().values()]
        context.say(f"{REBOOTS} reboots of each")
        arm64, x86 = (_starts(farm, nickname) for nickname in farm.lab.status())
        context.say(f"small_cnn, {SAMPLES} samples on each")
        model = farm.folder / "small_cnn.onnx"
        farm.run(sys.executable, "-m", "farm.zoo", "small_cnn", str(model)).check_returncode()
        emulated_ms, native_ms = (_median_ms(farm, str(model), serial) for serial in serials)
    return [
        *(Figure(step, 1e3 * arm64[step], "ms", 1e3 * x86[step]) for step in STEPS),
        Figure("small_cnn", emulated_ms, "ms", native_ms),
        Figure("small_cnn: how many times slower", emulated_ms / native_ms, "times"),
    ]


def _starts(farm: VirtualFarm, nickname: str) -> dict[str, float]:
    """Median seconds of each step after a reboot."""
    journal = Journal(farm)
    times: dict[str, list[float]] = {step: [] for step in STEPS}
    for _ in range(REBOOTS):
        seq, serial = journal.mark(), farm.lab.phone(nickname).serial
        farm.lab.reboot(nickname)
        seq = journal.first(seq, about(serial, "device.gone")).seq
        for step, (begin, end) in STEPS.items():
            began = journal.first(seq, about(serial, f"device.{begin}"))
            ended = journal.first(began.seq, about(serial, f"device.{end}"))
            times[step].append(ended.at - began.at)
    return {step: statistics.median(each) for step, each in times.items()}


def _median_ms(farm: VirtualFarm, model: str, serial: str) -> float:
    name = next(row["name"] for row in farm.status()["devices"] if row["serial"] == serial)
    done = farm.farm("bench", model, "--on", name, "--repeat", str(SAMPLES), "--json", timeout_s=300)
    done.check_returncode()
    return float(json.loads(done.stdout)["results"][0]["latency"]["median_ms"])
