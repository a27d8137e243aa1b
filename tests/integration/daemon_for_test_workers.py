"""A daemon in miniature: one zygote, one stuck worker. Prints both pids, then waits to be killed."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.integration.test_workers import Host, lab_in, without_tvm


async def main():
    folder = Path(sys.argv[1])
    async with lab_in(folder, without_tvm(folder)) as lab:
        host = Host()
        running = asyncio.create_task(lab.run("stop_itself", host))
        _, facts = await host.heard.get()
        print((await lab.zygote()).pid, facts["pid"], flush=True)
        await running


if __name__ == "__main__":
    asyncio.run(main())
