"""A daemon that cannot have its port leaves no database behind."""

import socket

from farm.common.errors import Code
from farm.config import load
from farm.daemon.daemon import Daemon
from tests.support.errors import raises_code


async def test_a_taken_port_is_known_before_anything_is_written(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = {
            "state_dir": str(tmp_path / "state"),
            "runtime_dir": str(tmp_path / "run"),
            "tvm.port": taken.getsockname()[1],
        }
        config = load(environ={}, flags=flags)
        with raises_code(Code.PORT_TAKEN):
            await Daemon(config, lambda: config).run()
    assert not (tmp_path / "state" / "farm.db").exists()
