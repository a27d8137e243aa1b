"""A virtual phone whose adbd is a real one (Debian's, of AOSP's sources): programs and files are the virtual phone's.

FARM_ADBD names a folder with `adbd`, a loader of its C library (ld-linux-*) and its libraries. Debian 13 has the
package; on an older Debian its files are taken out of the packages:

    apt-get download adbd android-libbase android-libboringssl android-libcutils android-liblog libbrotli1 libc6 \\
        libcap2 libgcc-s1 liblz4-1 libprotobuf32t64 libstdc++6 libsystemd0 libxxhash0 libzstd1 zlib1g
"""

import os
import select
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from farm.simulation.world import WorldSpec, boot
from tests.support.tvm import free_port, wait_for_port

FOLDER = "FARM_ADBD"
ON_PHONE = Path("/data/local/tmp/adbd")
CHUNK_BYTES = 1 << 16


@contextmanager
def phone_with_real_adbd(folder, profile):
    """Boots one; its address for `adb connect`."""
    if not (given := os.environ.get(FOLDER)):
        pytest.skip(f"{FOLDER} names no folder with a real adbd")
    spec = WorldSpec("real-adbd", folder, profile)
    shutil.copytree(given, folder / "data" / ON_PHONE.relative_to("/data"))
    booted = boot(spec, partial(be_real_adbd, free_port()))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taker = threading.Thread(target=pass_connections, args=(listener, booted))
        taker.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            taker.join()
            booted.close()


def pass_connections(listener, booted):
    """Give the phone what connects, until the listener ends."""
    with suppress(OSError):  # the listener's end
        while True:
            connection, _ = listener.accept()
            with connection:
                booted.pass_connection(connection)


def be_real_adbd(port, source):
    """In the phone: keep adbd running, and carry the connections that come from outside to its port."""
    threading.Thread(target=keep_running, args=(port,), daemon=True).start()
    wait_for_port(port)
    while True:
        select.select([source], [], [])
        received = source.receive()
        if received is None:
            return
        _, outside = received
        assert outside is not None
        with suppress(ConnectionRefusedError):  # adbd has just died
            inside = socket.create_connection(("127.0.0.1", port))
            outside.setblocking(True)
            for ends in ((outside, inside), (inside, outside)):
                threading.Thread(target=carry, args=ends, daemon=True).start()


def keep_running(port):
    """Start adbd again whenever it ends, as init does."""
    loader = next(ON_PHONE.glob("ld-linux-*"))
    command = [loader, "--library-path", ON_PHONE, ON_PHONE / "adbd"]
    while True:
        subprocess.run(command, env={**os.environ, "ADBD_PORT": str(port)}, check=False)


def carry(come, go):
    """Send on what comes; the end of one is the end of both."""
    with suppress(OSError):
        while data := come.recv(CHUNK_BYTES):
            go.sendall(data)
    for each in (come, go):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
