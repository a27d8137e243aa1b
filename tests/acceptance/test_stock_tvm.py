"""Unmodified TVM programs from the installed wheel against the farm's door."""

import asyncio
import json
import subprocess
import sys
import textwrap

import pytest

from farm.simulation.runtime import build_bundle_folder, is_launcher
from farm.tvm_server import wire
from tests.support.raw import RawTracker, encode_message
from tests.support.tvm import environment, free_port, process, server_process, stock_server, wait_for_port
from tests.support.tvm_port import TvmPort
from tests.support.waiting import HANG_S, until

SECRET = "per-start-secret"
CLIENT_LIMIT_S = 100.0  # importing TVM takes 10 s on a cold disk
STOCK_EXCHANGE_MS = 88.0  # of the stock tracker with the stock client


@pytest.fixture(scope="module")
def python_server():
    with stock_server(SECRET) as port:
        yield port


@pytest.fixture(scope="module")
def compiled_server(tmp_path_factory):
    folder = build_bundle_folder(tmp_path_factory.mktemp("bundle"))
    if is_launcher(folder / "tvm_rpc"):
        pytest.skip("no g++: the virtual phone's server is the Python one, which python_server covers")
    with server_process(folder, SECRET, tmp_path_factory.mktemp("work")) as port:
        yield port


@pytest.fixture(params=["python", "compiled"])
def phone_port(request):
    return request.getfixturevalue(f"{request.param}_server")


class Lab(TvmPort):
    """A door over one phone."""

    def __init__(self, port):
        super().__init__()
        if port:
            self.devices.add("pixel", "android", "adreno-740", port=port, secret=SECRET)

    async def run(self, script):
        """Run `script` with the door's port in `port`; what it printed, and what it passed to `tell`."""
        return await self.output("-c", PRELUDE + textwrap.dedent(script), str(self.door.port))

    async def output(self, *arguments):
        child = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(CLIENT_LIMIT_S):
                out, err = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        assert child.returncode == 0, err.decode()
        lines = out.decode().splitlines()
        return [line for line in lines if line[:1] != "@"], [json.loads(line[1:]) for line in lines if line[:1] == "@"]


PRELUDE = """
import json, sys
port = int(sys.argv[1])
def tell(value):
    print("@" + json.dumps(value), flush=True)
def close(session):
    session._sess.get_function("CloseRPCConnection")()
"""


async def test_request_open_use_and_close(phone_port):
    async with Lab(phone_port) as lab:
        _, (numbers, data, key, milliseconds) = await lab.run(
            """
            import statistics, time
            import numpy as np, tvm
            from tvm import rpc
            tracker = rpc.connect_tracker("127.0.0.1", port)
            session = tracker.request("adreno-740", priority=3, session_timeout=60.5)
            device = session.cpu(0)
            tensor = tvm.runtime.tensor(np.arange(1000, dtype="float32"), device)
            tell(float(tensor.numpy().sum()))
            session.upload(bytearray(b"x" * 3_000_000), "blob.bin")
            tell(len(session.download("blob.bin")))
            tell(tracker.summary()["queue_info"]["android"])
            times = []
            for _ in range(50):
                begun = time.perf_counter(); tracker.summary(); times.append(time.perf_counter() - begun)
            tell(1e3 * statistics.median(times))
            del tensor
            close(session)
            """
        )
        assert (numbers, data, key) == (499500.0, 3_000_000, {"free": 0, "pending": 0})
        assert milliseconds < STOCK_EXCHANGE_MS / 4  # less than one delayed acknowledgement takes
        await until(lambda: lab.kinds()[-1:] == ["lease.released"])
        assert lab.kinds() == ["lease.granted", "session.opened", "session.ended", "lease.released"]
        end = next(event.data for event in lab.events.since() if event.kind == "session.ended")
        assert end["outcome"] == "closed"
        assert end["bytes_up"] > 3_000_000 < end["bytes_down"]
        assert not lab.devices.broken


async def test_a_stock_server_registers_itself_is_used_and_offers_itself_again():
    async with Lab(0) as lab:
        port = free_port()
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1), "--key", "board"]
        with process(["-m", "tvm.exec.rpc_server", *arguments, "--tracker", f"127.0.0.1:{lab.door.port}", "--silent"]):
            await asyncio.to_thread(wait_for_port, port)
            free = {"free": 1, "pending": 0}
            async with asyncio.timeout(HANG_S):
                await until(lambda: lab.door.summary()["queue_info"].get("board") == free)
            assert lab.door.summary()["server_info"] == [{"key": "server:board", "addr": ["127.0.0.1", port]}]
            _, opened = await lab.run(
                """
                from tvm import rpc
                tracker = rpc.connect_tracker("127.0.0.1", port)
                for number in range(3):
                    close(tracker.request("board", session_timeout=60))
                    tell(number)
                """
            )
            assert opened == [0, 1, 2]
            await until(lambda: lab.door.summary()["queue_info"]["board"] == free)
            # A key that is taken and never used: the server notices by GET_PENDING_MATCHKEYS and offers a new one.
            client = await RawTracker.connect(lab.door.port)
            code, (_, _, unused) = await client.ask(wire.TrackerRequest("board", "", 1))
            assert code == 0
            assert lab.door.summary()["queue_info"]["board"] == {"free": 0, "pending": 0}
            code, (_, _, fresh) = await asyncio.wait_for(asyncio.shield(ask_patiently(client)), HANG_S)
            assert code == 0
            assert fresh != unused
            client.close()
        await until(lambda: lab.door.summary() == {"queue_info": {}, "server_info": []})
        assert lab.kinds() == []


async def ask_patiently(client):
    await client.send(encode_message(wire.TrackerRequest("board", "", 1)))
    loop = asyncio.get_running_loop()
    while (event := client.parser.next_event()) is None:
        client.parser.receive_data(await loop.sock_recv(client.sock, 4096))
    return event.value
