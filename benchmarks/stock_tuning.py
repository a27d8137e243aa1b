"""Stock TVM's way to tune on phones: its tracker, servers that register themselves over adb reverse, its RPCRunner.

The phones are the farm's virtual ones, and so are adb server and `tvm_rpc`: only what farm replaces is stock's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from farm.common.errors import HostError
from farm.simulation.virtual_farm import VirtualFarm
from tests.support.tvm import free_port, stock_tracker

KEY = "stock"
FOLDER = "/data/local/tmp/stock"
START_LIMIT_S = 30.0


@contextlib.contextmanager
def stock_phones(farm: VirtualFarm, serials: Sequence[str]) -> Iterator[Any]:
    """An RPCConfig that leads to these phones."""
    from tvm.s_tir import meta_schedule as ms

    with stock_tracker() as tracker, contextlib.ExitStack() as stack:
        for serial in serials:
            stack.enter_context(_server(farm, serial, tracker))
        config = ms.runner.RPCConfig("127.0.0.1", tracker, KEY, session_timeout_sec=10)
        deadline_s = time.monotonic() + START_LIMIT_S
        while config.count_num_servers(allow_missing=True) < len(serials):
            if time.monotonic() > deadline_s:
                raise HostError("the stock servers did not register at the stock tracker")
            time.sleep(0.1)
        yield config


@contextlib.contextmanager
def _server(farm: VirtualFarm, serial: str, tracker: int) -> Iterator[None]:
    port = free_port()
    for direction, of in (("reverse", tracker), ("forward", port)):
        _adb(farm, serial, direction, f"tcp:{of}", f"tcp:{of}")
    runtime = _adb(farm, serial, "shell", "echo /data/local/tmp/farm/bundles/*/tvm_rpc").split()[0].rpartition("/")[0]
    line = (
        f"mkdir -p {FOLDER} && cd {FOLDER} && LD_LIBRARY_PATH={runtime} exec {runtime}/tvm_rpc server --host=127.0.0.1 "
        f"--port={port} --port-end={port + 1} --tracker=127.0.0.1:{tracker} --key={KEY} --work-dir={FOLDER}"
    )
    environment = os.environ | {"ADB_SERVER_SOCKET": farm.adb_socket}
    shell = subprocess.Popen(
        ["adb", "-s", serial, "shell", line],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        shell.kill()
        shell.wait()
        _adb(farm, serial, "shell", f"pkill -9 -f work-dir={FOLDER}; rm -rf {FOLDER}", check=False)
        _adb(farm, serial, "forward", "--remove", f"tcp:{port}", check=False)
        _adb(farm, serial, "reverse", "--remove", f"tcp:{tracker}", check=False)


def _adb(farm: VirtualFarm, serial: str, *arguments: str, check: bool = True) -> str:
    done = farm.adb("-s", serial, *arguments)
    if check and done.returncode:
        raise HostError(f"adb {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def serials(farm: VirtualFarm) -> list[str]:
    """The serials of its phones."""
    return [each["serial"] for each in farm.status()["devices"]]


def export_so(module: Any) -> str:
    """For LocalBuilder: a linked library, because a phone has no compiler to make one of the default .tar."""
    path = str(Path(tempfile.mkdtemp()) / "candidate.so")
    module.export_library(path)
    return path


def answered(futures: Sequence[Any]) -> list[Any]:
    """All results.

    Raises:
        HostError: one of them is an error.
    """
    results = [future.result() for future in futures]
    failed = [str(each.error_msg) for each in results if each.error_msg is not None]
    if failed:
        raise HostError(f"{len(failed)} of {len(results)} candidates failed: {failed[0][:300]}")
    return results
