"""What farm costs an OpenCL model: a virtual phone beside this host, the same module, driver and runtime, in turns.

Each sample is the mean of some runs by TVM's timer, which adds up the driver's times of kernels. The host runs the
module in a process without farm, over a plain TVM server like the phone's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Context, Figure, under
from farm.bundle.model import SERVER_PROGRAM, Abi, Platform
from farm.compiler.link import exporter
from farm.simulation.opencl import opencl_runtime
from farm.simulation.runtime import build_bundle_folder
from farm.simulation.virtual_farm import phones_of, virtual_farm
from tests.support.tvm import free_port, wait_for_port

PROFILE = "oneplus-12+opencl"
PAIRS, NUMBER = 300, 2
KEY = "bench"
SESSION_LIMIT_S = 600
END_LIMIT_S = 10.0
SIZE = 256  # of the square matrices that are multiplied: some milliseconds on two cores
GOAL_PERCENT = 3.0


def run(context: Context) -> list[Figure]:
    """The median of the ratios of neighbouring samples: other load on this host slows both.

    Raises:
        HostError: this host has no OpenCL driver, or no compiler for the runtime.
    """
    from tvm import rpc

    library = _compiled(context.folder)
    bundle = build_bundle_folder(context.folder / "bundle")
    shutil.copy2(opencl_runtime(context.say), bundle)
    with virtual_farm(phones_of([PROFILE]), report=context.say) as farm:
        farm.wait_ready(1)
        [name] = farm.names()
        phone = rpc.connect_tracker(*farm.tracker()).request(name, session_timeout=SESSION_LIMIT_S)
        with _host_server(bundle, context.folder) as host:
            pairs = _pairs(_sampler(phone, library), _sampler(host, library))
    overhead = statistics.median(on_phone / on_host for on_phone, on_host in pairs) - 1
    on_phone_ms, on_host_ms = (1e3 * statistics.median(samples) for samples in zip(*pairs, strict=True))
    return [
        Figure(f"a product of two {SIZE} x {SIZE} matrices", on_phone_ms, "ms", on_host_ms),
        under("more than on this host", 100 * overhead, "%", GOAL_PERCENT),
    ]


def _pairs(phone: Callable[[], float], host: Callable[[], float]) -> list[tuple[float, float]]:
    pairs = []
    for index in range(PAIRS):
        if index % 2 == 0:
            on_phone, on_host = phone(), host()
        else:
            on_host, on_phone = host(), phone()
        pairs.append((on_phone, on_host))
    return pairs


def _compiled(folder: Path) -> Path:
    """A product of two matrices for OpenCL, with a plain schedule for GPUs."""
    import tvm
    from tvm import te
    from tvm.s_tir import dlight

    a, b = (te.placeholder((SIZE, SIZE), name=name) for name in "ab")
    k = te.reduce_axis((0, SIZE), name="k")
    c = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    target = tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    module = tvm.IRModule({"multiply": te.create_prim_func([a, b, c]).with_attr("global_symbol", "multiply")})
    with target:
        module = dlight.ApplyDefaultSchedule(dlight.gpu.Matmul(), dlight.gpu.Fallback())(module)
    library = folder / "multiply.so"
    tvm.compile(module, target=target).export_library(str(library), fcompile=exporter(Abi.X86_64, Platform.LINUX))
    return library


@contextlib.contextmanager
def _host_server(bundle: Path, folder: Path) -> Iterator[Any]:
    """A session with the phone's RPC server, started on this host as it is on the phone.

    It is a session of processes of its own, as the kernel shares its processors out among these (autogroup); and the
    driver counts processors and memory as opencl_driver.c states them.
    """
    from tvm import rpc

    port = free_port()
    words = (f"--port={port}", f"--port-end={port + 1}", f"--key={KEY}", f"--work-dir={folder / 'work'}")
    settings = {
        "LD_LIBRARY_PATH": str(bundle),
        "POCL_CACHE_DIR": str(folder / "kernels"),
        "HWLOC_SYNTHETIC": f"numa:1(memory={4 << 30}) core:{len(os.sched_getaffinity(0))} pu:1",
    }
    command = [str(bundle / SERVER_PROGRAM), "server", "--host=127.0.0.1", *words]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | settings, stderr=log, start_new_session=True)
    try:
        wait_for_port(port)
        yield rpc.connect("127.0.0.1", port, KEY)
    finally:
        server.terminate()
        server.wait(END_LIMIT_S)


def _sampler(session: Any, library: Path) -> Callable[[], float]:
    """Gives the mean seconds of some runs, again at each call."""
    import numpy as np
    import tvm

    session.upload(str(library))
    function, device = session.load_module(library.name), session.cl(0)
    tensors = [tvm.runtime.tensor(np.ones((SIZE, SIZE), "float32"), device) for _ in range(3)]
    evaluate = function.time_evaluator("multiply", device, number=NUMBER)
    evaluate(*tensors)  # the driver compiles
    return lambda: float(evaluate(*tensors).mean)
