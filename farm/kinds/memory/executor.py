"""Jobs of kind `memory`: the phases of a model's life on a phone, with its memory in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from farm.adb.client import AdbClient
from farm.common.verbs import Count, verb
from farm.devices.server.phone_paths import MEMORY
from farm.devices.server.rpc_server import script_error
from farm.jobs.executor import AttemptContext
from farm.kinds.execution import MeasuringHost, ModelExecutor, measured, quiet_lease
from farm.kinds.memory.phases import MemoryReading, read_lines

WORKER = "farm.kinds.memory.worker"
READ_LIMIT_S = 20.0  # two of the phone's services are asked, each for at most 4 s


class MemoryExecutor(ModelExecutor):
    """Runs attempts of kind memory."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate."""
        task = await self.task(context)
        host = MemoryHost(context, self.parts, quiet_lease(self.parts, context))
        return await measured(self.parts.work, context, WORKER, task.to_wire(), host)


@dataclass(frozen=True, slots=True)
class MemoryHost(MeasuringHost):
    """The daemon's side of the worker: reads the memory of its session's processes on the phone while it is idle."""

    @verb("memory")
    async def read(self, gpu: bool, since: Count = 0) -> Mapping[str, Any]:
        """A reading of the session's processes, whose peaks count from then on."""
        serial = self.context.view.serial
        return asdict(await read_memory(self.parts.client, serial, gpu=gpu, since_s=since))


async def read_memory(client: AdbClient, serial: str, *, gpu: bool, since_s: int) -> MemoryReading:
    """Read the session's memory on a phone.

    Args:
        client: of the adb server.
        serial: the phone's.
        gpu: also the GPU's.
        since_s: report apps that were killed since then, by the phone's clock; 0: none.
    """
    words = ["gpu" if gpu else "cpu", *([str(since_s)] if since_s else [])]
    said = await client.shell(serial, f"sh {MEMORY} {' '.join(words)}", timeout_s=READ_LIMIT_S)
    reading = read_lines(said.text)
    if not reading.processes or not reading.rss:
        raise script_error(
            "the phone does not show the memory of the process that serves the session",
            hint="`farm shell --on NAME -- ls -l /proc/self` shows what its shell may read",
            evidence=said.output[:2000],
        )  # fmt: skip
    return reading
