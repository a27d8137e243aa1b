"""A control socket that cannot be opened."""

import errno

import pytest
import zmq

from farm.control.limits import ConnectionLimiter
from tests.integration.control.served import ServedControl


async def test_a_socket_without_descriptors_leaves_nothing_open(tmp_path, monkeypatch):
    def refuse(limiter, context, watched):
        contexts.append(context)
        raise zmq.ZMQError(errno.EMFILE)

    contexts = []
    monkeypatch.setattr(ConnectionLimiter, "watch", refuse)
    with pytest.raises(zmq.ZMQError, match="Too many open files"):
        await ServedControl(tmp_path).server.start()
    with pytest.raises(zmq.ZMQError):  # it has been terminated
        contexts[0].socket(zmq.PAIR)
