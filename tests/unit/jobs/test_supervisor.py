"""What an attempt hears of its toolchain before it has a worker."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

from farm.jobs.attempt import Task
from farm.jobs.supervisor import Supervisor
from farm.jobs.zygote import Toolchain


async def test_waiting_for_a_cold_toolchain_is_a_step_of_its_own(tmp_path):
    supervisor = Supervisor((Toolchain("default", Path("python")),), tmp_path, door=None)  # never started
    told = []
    host = SimpleNamespace(progressed=lambda step, fields: told.append((step, fields)))
    task = Task("bench-1.1", 7, "farm.worker.bench", {}, timeout_s=0.0)
    attempt = asyncio.create_task(supervisor.run("default", task, host))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not attempt.done()  # its time has not begun
    assert told == [("waiting for toolchain default", {})]
    attempt.cancel()
    await asyncio.gather(attempt, return_exceptions=True)
