"""From request to a usable session, with the unmodified client: the farm's door beside the stock tracker and server."""

from __future__ import annotations

import statistics
import time

from benchmarks.bench_gate import close
from benchmarks.harness import Context, Figure
from farm.simulation.runtime import build_bundle_folder, is_launcher
from tests.support.tvm import farm_door, free_port, process, server_process, stock_server, stock_tracker, wait_for_port

SESSIONS = 60
STOCK_SESSIONS = 20
SECRET = "bench-secret"
FREE_LIMIT_S = 20.0
GOAL_MS = 10.0
GOAL_FACTOR = 8


def run(context: Context) -> list[Figure]:
    """Medians with the device free, and sessions per second back to back."""
    context.say("stock tracker and stock server")
    with stock_tracker() as tracker_port:
        port = free_port()
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1), "--key", "android"]
        with process(["-m", "tvm.exec.rpc_server", *arguments, "--tracker", f"127.0.0.1:{tracker_port}", "--silent"]):
            wait_for_port(port)
            stock_free_ms = open_ms(tracker_port, STOCK_SESSIONS)
            stock_rate = sessions_per_s(tracker_port, STOCK_SESSIONS)
    context.say("farm's door, stock Python server")
    with stock_server(SECRET) as port, farm_door(f"pixel:{port}:{SECRET}", child=True) as door:
        python_ms = open_ms(door.port, SESSIONS)
        python_rate = sessions_per_s(door.port, SESSIONS)
    # Without a goal: this server forks its 200 MB for each session, which is not the door's time, and no phone runs it.
    figures = [
        Figure("request to session, Python server", python_ms, "ms", stock_free_ms),
        Figure("sessions back to back, Python server", python_rate, "1/s", stock_rate),
    ]
    folder = build_bundle_folder(context.folder / "bundle")
    if is_launcher(folder / "tvm_rpc"):
        context.say("no g++: the compiled server is left out")
        return figures
    context.say("stock tracker, compiled server that registers itself")
    with stock_tracker() as tracker_port, server_process(folder, "android", context.folder, tracker=tracker_port):
        stock_compiled_ms = open_ms(tracker_port, STOCK_SESSIONS)
        stock_compiled_rate = sessions_per_s(tracker_port, STOCK_SESSIONS)
    context.say("farm's door, compiled server")
    with (
        server_process(folder, SECRET, context.folder) as port,
        farm_door(f"pixel:{port}:{SECRET}", child=True) as door,
    ):
        compiled_ms = open_ms(door.port, SESSIONS)
        compiled_rate = sessions_per_s(door.port, SESSIONS)
    goal = _goal(compiled_ms, stock_compiled_ms)
    return [
        Figure("request to session, compiled server", compiled_ms, "ms", stock_compiled_ms, *goal),
        Figure("sessions back to back, compiled server", compiled_rate, "1/s", stock_compiled_rate),
        *figures,
    ]


def _goal(value_ms: float, stock_ms: float) -> tuple[str, bool]:
    words = f"under {GOAL_MS:g} and {GOAL_FACTOR} times faster than stock"
    return words, value_ms < GOAL_MS and value_ms * GOAL_FACTOR <= stock_ms


def open_ms(port: int, count: int) -> float:
    """Median from REQUEST to the open session, the device being free each time."""
    from tvm import rpc

    tracker = rpc.connect_tracker("127.0.0.1", port)
    times = []
    for _ in range(count):
        _until_free(tracker)
        begun = time.perf_counter()
        session = tracker.request("android")
        times.append(time.perf_counter() - begun)
        close(session)
    tracker.close()
    return 1e3 * statistics.median(times)


def sessions_per_s(port: int, count: int) -> float:
    """Opened and closed one after the other."""
    from tvm import rpc

    tracker = rpc.connect_tracker("127.0.0.1", port)
    begun = time.perf_counter()
    for _ in range(count):
        close(tracker.request("android"))
    seconds = time.perf_counter() - begun
    tracker.close()
    return count / seconds


def _until_free(tracker: object) -> None:
    deadline = time.monotonic() + FREE_LIMIT_S
    while tracker.summary()["queue_info"].get("android", {}).get("free") != 1:  # type: ignore[attr-defined]
        if time.monotonic() > deadline:
            raise TimeoutError("the device was not offered again")
        time.sleep(0.005)
