"""A daemon's doors in a process of their own with few descriptors; `python -m ... FOLDER`. Ends with its input."""

import asyncio
import resource
import sys
from pathlib import Path

from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Accounts
from farm.control.listeners import CurveListener
from farm.control.server import ControlServer
from tests.support.web_desk import AccountStore

DESCRIPTORS = 2048  # libzmq waits for its monitor at a thousand unread events: fewer would be a race


async def main(folder):
    """Serve; print the port of the CURVE door, and at the end how many connections were cut."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    accounts = Accounts(AccountStore())
    remote = CurveListener("tcp://127.0.0.1:0", accounts, folder / "server.key")
    server = ControlServer(
        folder / "control.sock", artifacts=ArtifactFolder(folder / "artifacts"), accounts=accounts, remote=remote
    )
    await server.start()
    print(remote.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print("\n".join(server.problems()))
    await server.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
