"""Whether `farm memory` finds what a model needs, and disturbs nothing: models that need known megabytes.

The models run on a virtual phone, whose RPC server is a real process. What a reading costs is seen in a session of its
own: steady runs after a reading and steady runs without one, each far shorter than a job's, take turns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Context, Figure, under
from benchmarks.undisturbed import undisturbed_s
from farm.common.errors import HostError
from farm.compiler.build import BuildRequest, build
from farm.compiler.compile import Recipe
from farm.devices.server.phone_paths import MEMORY
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm
from farm.worker.session import PhoneSession, first_run
from farm.worker.timing import Timer, timer_of
from farm.zoo import small_cnn
from tests.support.known_memory import MIB, known_memory_onnx

KNOWN = (32, 64, 128, 256)  # MiB
GOAL_PERCENT = 2.0
DISTURBED_PERCENT = 0.5
ROUNDS, RUNS = 80, 300  # steady runs of each kind, and single runs in one: far fewer than a job takes
CPU = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}


def run(context: Context) -> list[Figure]:
    """The error of each known size, and the cost of a reading."""
    with virtual_farm({"phone": "galaxy-s9"}, report=context.say) as farm:
        farm.wait_ready(1)
        found = [_error_percent(farm, context.folder, each) for each in KNOWN]
        context.say("steady runs with and without readings in turns")
        disturbed = _disturbed_percent(farm, context)
    return [
        *(under(f"{size} MiB, off by", error, "%", GOAL_PERCENT) for size, error in zip(KNOWN, found, strict=True)),
        under("a run in a steady run after a reading, other by", disturbed, "%", DISTURBED_PERCENT),
    ]


def _error_percent(farm: VirtualFarm, folder: Path, size: int) -> float:
    model = folder / f"known-{size}.onnx"
    model.write_bytes(known_memory_onnx(size))
    done = farm.farm("memory", str(model), "--on", "android", "--measure", "2", "--json", timeout_s=170)
    if done.returncode != 0:
        raise HostError(f"the job of {size} MiB failed", evidence=done.stdout + done.stderr)
    (result,) = json.loads(done.stdout)["results"]
    run_row = next(row for row in result["phases"] if row["phase"] == "first run")
    grown = run_row["peak_rss_bytes"] - run_row["rss_before_bytes"]
    return 100 * abs(int(grown) / (size * MIB) - 1)


def _disturbed_percent(farm: VirtualFarm, context: Context) -> float:
    from tvm import rpc

    recipe = Recipe(CPU, "float32", None, False, ())
    wanted = BuildRequest(recipe=recipe, shapes={}, dtypes={}, npz=None, fill="random", require_all_inputs=False)
    data = small_cnn().SerializeToString(deterministic=True)
    built = build(data, "small_cnn.onnx", wanted, context.folder / "cache", context.say)
    session = PhoneSession(rpc.connect_tracker(*farm.tracker()).request("android"))
    try:
        ran = first_run(built, session, context.say)
        plain = timer_of(ran.machine, ran.device)
        plain_s, after_s = undisturbed_s((plain, _after_reading(farm, plain)), rounds=ROUNDS, runs=RUNS)
    finally:
        session.close()
    return 100 * abs(after_s / plain_s - 1)


def _after_reading(farm: VirtualFarm, plain: Timer) -> Timer:
    serial = farm.lab.phone("phone").serial

    def timed(number: int, repeat: int) -> Sequence[float]:
        said = farm.adb("-s", serial, "shell", f"sh {MEMORY} cpu").stdout
        if "peaks reset" not in said:
            raise HostError("the phone does not show the session's memory", evidence=said)
        return plain(number, repeat)

    return timed
