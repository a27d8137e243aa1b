"""Workers and their material: bundles, toolchains, artifacts, the supervisor, and the server that workers report to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from farm.builders.process import BuildersProcess
from farm.bundle.library import BundleLibrary
from farm.common.tasks import LastingTasks, end_tasks
from farm.config import FarmConfig
from farm.control.artifact_rules import DAY_S, GB, ArtifactRules
from farm.control.artifacts import ArtifactFolder
from farm.control.listeners import group_to_admit
from farm.control.server import WorkerServer
from farm.daemon.persistence import Persistence
from farm.daemon.sharing import Sharing, open_sharing
from farm.jobs.supervisor import Supervisor
from farm.jobs.toolchains import Toolchains
from farm.jobs.worker_user import RunAs, workers_as


@dataclass(frozen=True, slots=True)
class Workers:
    """The parts that work."""

    bundles: BundleLibrary
    toolchains: Toolchains
    artifacts: ArtifactFolder
    run_as: RunAs
    supervisor: Supervisor
    server: WorkerServer
    gid: int | None  # the group that may use the daemon's sockets
    builders: BuildersProcess | None  # None: this farm takes none
    sharing: Sharing | None  # with the other hosts; None: this is the only one

    def problems(self) -> list[str]:
        """Why there are no workers, or no builders."""
        return [*self.supervisor.problems(), *(self.builders.problems() if self.builders else ())]

    def builder_slots(self) -> Mapping[str, int]:
        """Counts: ready builders, candidates that they can build at once, and those that they build now."""
        return self.builders.slots() if self.builders else {"builders": 0, "slots": 0, "building": 0}

    def use(self, config: FarmConfig) -> None:
        """Keep artifacts as it says, from now on."""
        self.artifacts.allow(_rules(config))


async def start_workers(
    config: FarmConfig, stack: contextlib.AsyncExitStack, persistence: Persistence, lasting: LastingTasks
) -> Workers:
    """Open the workers' server and begin importing TVM in the background.

    Raises:
        FarmError: a toolchain is configured wrongly, or the server cannot be opened.
    """
    bundles = await asyncio.to_thread(BundleLibrary, config.state_dir / "bundles")
    toolchains = Toolchains(config.toolchain, persistence.store.toolchains, persistence.events, bundles)
    artifacts = ArtifactFolder(config.state_dir / "artifacts", _rules(config), persistence.store.artifact_use)
    sharing = open_sharing(config, stack, persistence, artifacts)

    pythons = [toolchain.python for toolchain in toolchains.all()]
    run_as = await asyncio.to_thread(workers_as, config.jobs.user, config.state_dir, pythons, config.jobs.first_uid)
    # The runtime folder is closed to workers of another user: adb's socket is in it.
    sockets = config.state_dir / "work" if run_as.user else config.runtime_dir
    own_gid = run_as.user.gid if run_as.user else None
    server = WorkerServer(sockets / "worker.sock", artifacts, gid=own_gid)
    await server.start()
    stack.push_async_callback(server.stop)
    supervisor = Supervisor(toolchains.all(), config.state_dir / "work", server, run_as=run_as)
    await supervisor.start()
    stack.push_async_callback(supervisor.stop)
    builders = None
    if config.builders.listen:
        builders = BuildersProcess(
            config, persistence.store, persistence.events, socket=sockets / "builders.sock", gid=own_gid
        )
        stack.push_async_callback(end_tasks, lasting.start("builders", builders.run))
    if sharing is not None:
        stack.push_async_callback(end_tasks, lasting.start("copies of artifacts", sharing.copies.run))
    gid = group_to_admit()
    return Workers(bundles, toolchains, artifacts, run_as, supervisor, server, gid, builders, sharing)


def _rules(config: FarmConfig) -> ArtifactRules:
    return ArtifactRules(int(config.artifacts.budget_gb * GB), config.artifacts.keep_days * DAY_S)
