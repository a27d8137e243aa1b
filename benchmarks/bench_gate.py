"""A session through the gate beside the same phone through `adb forward`, and thirty sessions at once.

Both ways end at the same server on the same virtual phone, are measured in turns, and driven by the unmodified client.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from benchmarks.harness import Context, Figure, under, until
from farm.common.errors import HostError
from farm.simulation.control import running_lab
from farm.simulation.runtime import build_bundle_folder, is_launcher
from tests.adb_server import AdbServer, adb_binaries
from tests.support.tvm import farm_door, server_process

PHONE_PORT = 5000
PHONE_FOLDER = "/data/local/tmp/bench"
SECRET = "bench-secret"
ROUNDS = 15  # of each way, in turns
READS = 200
BLOB_BYTES = 16 << 20
SESSIONS = 30
MANY_READS = 200
START_LIMIT_S = 20.0
GOAL_SHARE = 0.95
GOAL_ADDED_MS = 0.2
GOAL_LOOP_DELAY_MS = 100.0


def run(context: Context) -> list[Figure]:
    """All figures."""
    with contextlib.ExitStack() as stack:
        return _run(context, stack)


def _run(context: Context, stack: contextlib.ExitStack) -> list[Figure]:
    bundle = build_bundle_folder(context.folder / "bundle")
    if is_launcher(bundle / "tvm_rpc"):
        raise HostError("no g++, so no compiled server to measure", hint="install g++")
    context.say("one phone: adb forward and the gate in turns")
    with phone(context.folder, bundle) as (adb, serial):
        forwarded = int(adb.text("forward", "tcp:0", f"tcp:{PHONE_PORT}"))
        row = f"pixel:{PHONE_PORT}:{SECRET}:{serial}"
        with farm_door(row, adb=adb.socket, child=True) as door:
            direct, gated = in_turns(forwarded, door.port)
    context.say(f"{SESSIONS} sessions at once")
    ports = []
    for number in range(SESSIONS):
        work = context.folder / f"work-{number}"
        work.mkdir()
        ports.append(stack.enter_context(server_process(bundle, SECRET, work)))
    direct_rate = many(lambda number: _connect(ports[number]))
    phones = [f"phone-{number}:{port}:{SECRET}" for number, port in enumerate(ports)]
    with farm_door(*phones, child=True) as door:
        door.state()
        rate = many(lambda number: _request(door.port, f"phone-{number}"))
        delay_ms = 1e3 * door.state()["loop_delay_s"]
        (gate,) = psutil.Process(door.pid).children()
        memory_bytes = gate.memory_info().rss
    return [
        *_figures(direct, gated),
        Figure(f"{SESSIONS} sessions at once (stock: without gate)", rate, "round trips/s", direct_rate),
        under(f"loop delay of the daemon with {SESSIONS} sessions", delay_ms, "ms", GOAL_LOOP_DELAY_MS),
        Figure("memory of the gate", memory_bytes / 1e6, "MB"),
    ]


def _figures(direct: Way, gated: Way) -> list[Figure]:
    """The way through the gate beside the way without."""
    added_ms = gated.read_ms - direct.read_ms
    up, down = gated.up_mb_s / direct.up_mb_s, gated.down_mb_s / direct.down_mb_s
    share, rtt = f"at least {100 * GOAL_SHARE:g} % of adb forward", f"adds under {GOAL_ADDED_MS} ms"
    return [
        Figure("round trip", gated.read_ms, "ms", direct.read_ms, rtt, added_ms < GOAL_ADDED_MS),
        under("added round trip", added_ms, "ms", GOAL_ADDED_MS),
        Figure("upload", gated.up_mb_s, "MB/s", direct.up_mb_s, share, up >= GOAL_SHARE),
        Figure("download", gated.down_mb_s, "MB/s", direct.down_mb_s, share, down >= GOAL_SHARE),
    ]


class Way:
    """What was measured of one way to the phone: the best round, because everything else on the host only adds."""

    def __init__(self) -> None:
        self.reads: list[float] = []
        self.ups: list[float] = []
        self.downs: list[float] = []

    @property
    def read_ms(self) -> float:
        return 1e3 * min(self.reads)

    @property
    def up_mb_s(self) -> float:
        return BLOB_BYTES / 1e6 / min(self.ups)

    @property
    def down_mb_s(self) -> float:
        return BLOB_BYTES / 1e6 / min(self.downs)

    def measure(self, session: object) -> None:
        """One round over an open session, which is closed."""
        read = _reader(session)
        times = []
        for _ in range(READS):
            begun = time.perf_counter()
            read()
            times.append(time.perf_counter() - begun)
        self.reads.append(statistics.median(times))
        blob = bytearray(BLOB_BYTES)
        begun = time.perf_counter()
        session.upload(blob, "blob.bin")  # type: ignore[attr-defined]
        self.ups.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        session.download("blob.bin")  # type: ignore[attr-defined]
        self.downs.append(time.perf_counter() - begun)
        close(session)


def in_turns(forwarded: int, door: int) -> tuple[Way, Way]:
    """Measure both ways, one session after the other: the server serves one at a time."""
    direct, gated = Way(), Way()
    for _ in range(ROUNDS):
        direct.measure(_connect(forwarded))
        gated.measure(_request(door, "pixel"))
    return direct, gated


def many(connect: Callable[[int], object]) -> float:
    """Round trips per second of all sessions together, one thread each."""
    sessions = [connect(number) for number in range(SESSIONS)]
    gate = threading.Barrier(SESSIONS + 1)

    def work(session: object) -> None:
        read = _reader(session)
        gate.wait()
        for _ in range(MANY_READS):
            read()

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    gate.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    for session in sessions:
        close(session)
    return SESSIONS * MANY_READS / seconds


@contextlib.contextmanager
def phone(folder: Path, bundle: Path) -> Iterator[tuple[AdbServer, str]]:
    """A virtual phone behind a private adb server, its RPC server running: the adb server and the phone's serial."""
    adb = AdbServer(next(iter(adb_binaries().values())), folder / "adb", unix=True)
    adb.start()
    try:
        with running_lab(folder / "lab", {"pixel": "oneplus-12"}, adb_socket=adb.socket) as lab:
            lab.wait("pixel", "online")
            serial = next(iter(adb.states()))
            files = sorted(str(path) for path in bundle.iterdir() if path.is_file())
            adb.text("shell", f"mkdir -p {PHONE_FOLDER}")
            adb.text("push", *files, f"{PHONE_FOLDER}/")
            adb.text(
                "shell",
                f"cd {PHONE_FOLDER} || exit 1; chmod 755 tvm_rpc; mkdir -p work; LD_LIBRARY_PATH={PHONE_FOLDER} setsid "
                f"./tvm_rpc server --host=127.0.0.1 --port={PHONE_PORT} --port-end={PHONE_PORT + 1} --key={SECRET} "
                f"--work-dir={PHONE_FOLDER}/work </dev/null >log 2>&1 &",
            )
            log = f"{PHONE_FOLDER}/log"
            until(
                lambda: "Bind to" in adb.text("shell", f"cat {log}"),
                START_LIMIT_S,
                "the virtual phone's server does not start",
            )
            yield adb, serial
    finally:
        adb.stop()


def _connect(port: int) -> object:
    from tvm import rpc

    return rpc.connect("127.0.0.1", port, key=SECRET)


def _request(port: int, key: str) -> object:
    from tvm import rpc

    return rpc.connect_tracker("127.0.0.1", port).request(key)


def _reader(session: object) -> Callable[[], object]:
    """A read of four bytes from the phone: one round trip."""
    import numpy as np
    import tvm

    tensor = tvm.runtime.tensor(np.zeros(1, dtype="float32"), session.cpu(0))  # type: ignore[attr-defined]
    return tensor.numpy  # type: ignore[no-any-return]


def close(session: object) -> None:
    """The one way that ends a stock session at once."""
    session._sess.get_function("CloseRPCConnection")()  # type: ignore[attr-defined] # noqa: SLF001
