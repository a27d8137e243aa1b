"""Who has an adb server's socket."""

import os
import socket
import threading

from farm.adb.connection import ServerAddress
from farm.adb.program import server_pid
from tests.support.waiting import HANG_S


def test_a_server_that_is_too_busy_to_take_a_connection_is_waited_for(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(path)
        listener.listen(0)
        listener.settimeout(HANG_S)
        other.connect(path)  # and the backlog is full
        found = []
        asking = threading.Thread(target=lambda: found.append(server_pid(ServerAddress("", 0, path))))
        asking.start()
        asking.join(0.05)  # it may not have come so far: then nothing is proven, and nothing is wrong
        for _ in range(2):
            listener.accept()[0].close()
        asking.join()
    assert found == [os.getpid()]
