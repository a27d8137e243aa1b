"""/metrics of this daemon: where the collector finds each part."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from farm import __version__
from farm.config import FarmConfig
from farm.control.server import ControlServer
from farm.daemon.memory import Memory
from farm.daemon.phones import Phones
from farm.daemon.sharing import Sharing
from farm.daemon.workers import Workers
from farm.metrics.collector import FarmCollector
from farm.metrics.exposition import exposition
from farm.metrics.loop_delay import LoopDelay
from farm.metrics.sources import Sources
from farm.watchdog import Pulse


class Metering:
    """Counts from now on."""

    def __init__(
        self,
        config: FarmConfig,
        memory: Memory,
        workers: Workers,
        phones: Phones,
        sharing: Sharing,
        desk: ControlServer,
        pulses: Sequence[Pulse],
    ) -> None:
        self.loop_delay = LoopDelay()
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        GCCollector(registry=self._process)
        store, leasing, supervisor, accounts = memory.store, sharing.leasing, workers.supervisor, desk.accounts
        recoveries = phones.fleet.care.log
        self._collector = FarmCollector(
            Sources(
                version=__version__,
                epoch=store.epoch,
                state_dir=config.state_dir,
                database=store.path,
                views=phones.fleet.views,
                quarantined=lambda: {serial: row.ailment for serial, row in recoveries.quarantined.items()},
                probe_failures=phones.fleet.probes.failed,
                adb_up=lambda: not phones.watcher.server_lost,
                round_trips=phones.client.round_trips,
                holders=leasing.holders,
                depth=leasing.depth,
                longest_s=leasing.longest_s,
                servable=leasing.servable,
                draining=lambda: bool(leasing.drained),
                decisions=leasing.decisions,
                sessions=lambda: sharing.door.sessions,
                jobs=sharing.dispatcher.count,
                toolchains=supervisor.standing,
                zygote_starts=supervisor.starts,
                worker_ends=supervisor.ends,
                store_problem=lambda: store.problem,
                commits=store.database.writer.commits,
                calls=desk.calls,
                auth_failures=lambda: 0 if accounts is None else accounts.tokens.wrong + accounts.keys.wrong,
                pulses=lambda: [(pulse.part, pulse.silent_s(), pulse.limit_s) for pulse in pulses],
                loop_delay=self.loop_delay.seconds,
            )
        )
        self._collector.follow(memory.events, phones.fleet.subscribe)

    def answer(self, accept: str) -> tuple[bytes, str]:
        """The body of /metrics for that Accept header, and its content type."""
        return exposition(self._collector, accept, process=self._process)
