"""One `farm head`: the process that decides, its /metrics, and the reload of its configuration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from dataclasses import replace
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from farm import __version__
from farm.common.errors import FarmError
from farm.common.systemd import Notifier
from farm.common.tasks import LastingTasks, SharedCall, end_tasks
from farm.config import FarmConfig
from farm.config.lease_policy import lease_policy
from farm.daemon.reload import plan
from farm.daemon.shared_config import LoadConfig, SharedConfig
from farm.head.process import HeadProcess, HeadSettings
from farm.kinds import KINDS
from farm.metrics.exposition import content_type_of, rendered
from farm.metrics.ledger import Ledger
from farm.metrics.process import ProcessSources, head_page, heap_bytes, measure_loop_delay, queue_figures
from farm.store.store import Store
from farm.web.guard import Guard, Pace, network_of
from farm.web.server import WebPortError, WebServer

READ = ("store", "quota", "user", "jobs", "control", "web")  # the tables that a head reads

FOLLOW_EVERY_S = 5.0  # the lab's configuration, as the hosts do

log = logging.getLogger("farm")


def head_settings(config: FarmConfig) -> HeadSettings:
    """The configuration of a head."""
    keep = config.store
    return HeadSettings(lease_policy(config), keep.keep_days, keep.max_mb, config.control.audit_days)


class HeadService:
    """One `farm head`."""

    def __init__(self, config: FarmConfig, load: LoadConfig, notifier: Notifier | None = None) -> None:
        """`load` reads the configuration again, as `config` was read; `notifier`: the way to the service manager."""
        self._config = config
        self._load = load
        self._notifier = notifier or Notifier()
        self._head = HeadProcess(config.store.url, head_settings(config), KINDS, self._notifier)
        self._ledger = Ledger()
        self._head.on_event = self._ledger.take
        self._head.on_term = self._begin_term
        self._lab: SharedConfig | None = None  # of the latest term; None: there was none
        self._scrape = SharedCall(self._render)
        self._pace = Pace()
        self._sources = ProcessSources(version=__version__, heap_bytes=heap_bytes, progress=self._head.checks)

    async def run(self) -> None:
        """Decide, or wait to, until SIGTERM or SIGINT; SIGHUP reads the configuration again.

        Raises:
            HostError: the database cannot be used, or with `[web] required` the port of /metrics.
        """
        stop, hang_up = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)
        if not sys.stderr.isatty():  # in a terminal it means that the terminal is gone
            loop.add_signal_handler(signal.SIGHUP, hang_up.set)
        async with contextlib.AsyncExitStack() as stack:
            self._open_metrics(stack)
            lasting = LastingTasks()
            for name, begin in (
                ("loop delay", partial(measure_loop_delay, self._sources.loop_delay)),
                ("reload", partial(self._reload_at, hang_up)), ("configuration of the lab", partial(self._follow_lab)),
            ):  # fmt: skip
                stack.push_async_callback(end_tasks, lasting.start(name, begin))
            await self._head.run(stop)

    async def reload(self) -> None:
        """Read the configuration again, apply the changes that can be, name those that need a restart in the log.

        Raises:
            ConfigError: there is a mistake in it; the old configuration stays in force.
        """
        self._notifier.reloading()
        try:
            lab, load = self._lab, self._load
            loaded = await (asyncio.to_thread(load, "") if lab is None else lab.load(load))
            decided = plan(self._config, loaded)
            self._config = decided.effective
            self._head.use(head_settings(self._config))
        finally:
            self._notifier.ready(self._head.status)
        for what, names in (("in force now", decided.applied), ("after a restart", decided.restart)):
            read = [name for name in names if name.split(".")[0] in READ]
            log.info("configuration: %s: %s", what, ", ".join(read) or "nothing")

    async def _reload_at(self, hang_up: asyncio.Event) -> None:
        while True:
            await hang_up.wait()
            hang_up.clear()
            await self._reload()

    async def _reload(self) -> None:
        try:
            await self.reload()
        except FarmError as error:
            log.error("the configuration is refused, the old one stays in force: %s", error)  # noqa: TRY400 (a mistake in a file is no traceback)
        except Exception:
            log.exception("the configuration could not be read again, the old one stays in force")

    async def _begin_term(self, store: Store) -> None:
        self._lab = SharedConfig(store)
        try:
            self._config = await self._lab.load(self._load)
        except FarmError as error:  # a mistake in this host's file must not keep the lab without a head
            log.error("the configuration is refused, the old one stays in force: %s", error)  # noqa: TRY400
        self._head.use(head_settings(self._config))

    async def _follow_lab(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            if self._head.term is not None and self._lab is not None and await self._lab.changed():
                await self._reload()

    def _open_metrics(self, stack: contextlib.AsyncExitStack) -> None:
        """Serve /metrics until `stack` ends; without its port the head decides all the same."""
        web = self._config.web
        if not web.enabled:
            return
        try:
            server = WebServer(web.host, web.head_port, "head_port")
        except WebPortError as error:
            if web.required:
                raise
            log.warning("no /metrics of this head: %s ([web] head_port)", error)
            return
        app = Starlette(routes=[Route("/metrics", self._metrics)])
        guard = Guard(
            app, host=web.host, allow_hosts=web.allow_hosts, on_forged=_ignore, pace=self._pace, client=_client
        )
        server.start(guard)
        stack.push_async_callback(server.stop)
        log.info("/metrics of this head: %smetrics", server.url)

    async def _metrics(self, request: Request) -> Response:
        begun_s = time.monotonic()
        body, content_type = await self._scrape(content_type_of(request.headers.get("accept", "")))
        self._pace.charge(_client(request.scope), time.monotonic() - begun_s)
        return Response(body, headers={"content-type": content_type})

    async def _render(self, accept: str) -> tuple[bytes, str]:
        sources, queue = replace(self._sources, store_problem=None), None
        if (term := self._head.term) is not None:
            writer, queue = term.store.database.writer, queue_figures(term.head)
            sources = replace(sources, store_problem=lambda: writer.problem, commits=writer.commits)
        page = head_page(sources, queue, self._ledger)
        return await asyncio.to_thread(rendered, page, accept)


def _client(scope: Scope) -> str:
    """Where a request comes from."""
    return network_of(scope["client"][0]) if scope["client"] else "nowhere"


async def _ignore(_: Scope) -> None:
    """A forged request changes nothing here."""
