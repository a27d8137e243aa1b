"""Throttling stops what it should, for the share it should, and always lets go."""

import asyncio
import contextlib
import os
import signal
import subprocess

import pytest

from farm.simulation.lab_physics import Throttle
from farm.simulation.process_tree import is_stopped, read_tree, runs_server, sessions_of
from tests.support.waiting import until


@pytest.fixture
def busy():
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as process:
        yield process.pid
        process.kill()


async def share_of_looks(pid, looks):
    """At how many looks the process was not stopped."""
    running = 0
    for number in range(looks):
        await asyncio.sleep(0.0007 * (1 + number % 3))  # out of step with the throttle
        running += not is_stopped(pid)
    return running / looks


@pytest.fixture
async def throttle(busy):
    made = Throttle()
    yield made
    made.close()


async def test_a_session_runs_and_stands_still_by_turns(busy, throttle):
    throttle.follow([busy])
    for share in (0.2, 0.2, 0.8):
        throttle.set_share(share)
        await until(lambda: is_stopped(busy))
        await until(lambda: not is_stopped(busy))


@pytest.mark.parametrize("end", ["full share", "held", "gone", "closed"])
async def test_it_lets_go_for_good(busy, throttle, end):
    throttle.follow([busy])
    throttle.set_share(0.1)
    await until(lambda: is_stopped(busy))
    if end == "full share":
        throttle.set_share(1.0)
    elif end == "held":
        throttle.held = True
        throttle.set_share(throttle.share)
    elif end == "gone":
        throttle.follow([])
    else:
        throttle.close()
    await until(lambda: not is_stopped(busy))
    assert await share_of_looks(busy, 50) == 1


async def test_what_somebody_else_stopped_stays_stopped(busy, throttle):
    os.kill(busy, signal.SIGSTOP)
    await until(lambda: is_stopped(busy))
    throttle.follow([busy])
    throttle.set_share(0.5)
    assert await share_of_looks(busy, 50) == 0
    throttle.close()
    assert is_stopped(busy)


async def test_a_process_that_ended_is_no_problem(throttle):
    with subprocess.Popen(["sleep", "60"]) as process:  # noqa: ASYNC220 (it starts at once)
        throttle.follow([process.pid])
        throttle.set_share(0.5)
        await until(lambda: is_stopped(process.pid))
        process.kill()
    await share_of_looks(process.pid, 20)
    throttle.follow([process.pid])


async def test_the_tree_knows_sessions_from_the_server(tmp_path):
    program = tmp_path / "tvm_rpc"
    program.write_text('[ "$1" = session ] && { sleep 60 & wait; exit; }\nsh "$0" session & wait\n')
    with subprocess.Popen(["sh", str(program)], start_new_session=True) as server:  # noqa: ASYNC220
        try:
            kinds = [True, True, False]  # the last one is a server until it becomes `sleep`
            await until(lambda: [process.is_server for process in read_tree(server.pid)] == kinds)
            tree = read_tree(server.pid)
            assert tree[0].pid == server.pid
            assert sessions_of(tree) == {process.pid for process in tree[1:]}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("command_line", "wanted"),
    [
        (b"/data/local/tmp/farm/bundles/x/tvm_rpc\0server\0", True),
        (b"sh\0/data/tvm_rpc\0server\0", True),
        (b"qemu-aarch64\0/data/tvm_rpc\0", True),
        (b"/x/ld-linux-x86-64.so.2\0--library-path\0/x\0/x/tvm_rpc\0server\0", True),
        (b"/x/ld-linux-aarch64.so.1\0/x/ld-linux-aarch64.so.1\0--library-path\0/x\0/x/tvm_rpc\0server\0", True),
        (b"/x/ld-linux-x86-64.so.2\0--library-path\0/x/tvm_rpc\0/bin/sh\0", False),
        (b"cat\0-n\0/data/tvm_rpc\0", False),
        (b"tvm_rpc_old\0", False),
        (b"", False),
    ],
)
def test_what_runs_the_server(command_line, wanted):
    assert runs_server(command_line) is wanted
