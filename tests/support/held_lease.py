"""What the holder of a lease does with it: adb and TVM clients with its ports and key."""

import os
import socket
import subprocess
import sys

from tests.adb_server import adb_binaries
from tests.support.whole_farm import answer

LIMIT_S = 60.0

# What a script does with a lease: TVM sessions one after another, then through a tracker with the lease's key.
USE_TVM = """
import os, sys
import numpy as np
from tvm import rpc
from tvm.runtime import tensor
host, port, key = os.environ["TVM_TRACKER_HOST"], int(os.environ["TVM_TRACKER_PORT"]), os.environ["TVM_TRACKER_KEY"]
def use(session):
    there = tensor(np.arange(8, dtype="float32"), session.cpu(0))
    assert there.numpy().sum() == 28
    del there
    session._sess.get_function("CloseRPCConnection")()
for _ in range(3):
    use(rpc.connect(host, port, key=key))
for _ in range(2):
    use(rpc.connect_tracker(host, port).request(key, session_timeout=60))
print("used")
"""


def acquire(farm, on, *options):
    return answer(farm.farm("lease", "acquire", "--on", on, "--json", *options))


def environment(held, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ADB_", "ANDROID_"))}
    return kept | {
        "ANDROID_ADB_SERVER_PORT": str(held["adb_port"]), "TVM_TRACKER_HOST": held["tvm_host"],
        "TVM_TRACKER_PORT": str(held["tvm_port"]), "TVM_TRACKER_KEY": held["tvm_key"], **more,
    }  # fmt: skip


def adb(held, *words, binary="", **options):
    return subprocess.run(
        [binary or next(iter(adb_binaries().values())), *words], env=environment(held, HOME="/tmp"),
        capture_output=True, text=True, timeout=LIMIT_S, check=False, **options,
    )  # fmt: skip


def use_tvm(held):
    return subprocess.run(
        [sys.executable, "-c", USE_TVM], env=environment(held), capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


def closed(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
