"""The web page in the daemon: built over the job door's desk, served in its loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from farm.control.server import ControlServer
from farm.core.events import EventLog
from farm.core.web_policy import WebConfig
from farm.daemon.problems import Problems
from farm.web.app import create_app
from farm.web.server import WebPortError, WebServer

log = logging.getLogger("farm")


class WebDoor:
    """The page's address, once it is open: `farm status` tells it."""

    def __init__(self, config: WebConfig, problems: Problems) -> None:
        self._config = config
        self._problems = problems
        self.url = ""  # "": there is no page
        self.parts: Sequence[asyncio.Task[None]] = ()  # what runs for as long as it is open

    def open(
        self,
        stack: contextlib.AsyncExitStack,
        desk: ControlServer,
        events: EventLog,
        *,
        metrics: Callable[[str], tuple[bytes, str]],
    ) -> None:
        """Serve until `stack` ends.

        A port that is taken is a problem that `farm status` tells: phones are served without a page.

        Raises:
            WebPortError: the port is taken, and `[web] required` says that there must be a page.
        """
        if not self._config.enabled or desk.accounts is None:
            return
        try:
            server = WebServer(self._config.host, self._config.port)
        except WebPortError as error:
            if self._config.required:
                raise
            said = f"{error} ({error.hint})"
            log.warning("%s", said)
            self._problems.sources.append(lambda: [said])
            return
        app = create_app(desk, desk.accounts, events, metrics, self._config)
        server.start(app)
        stack.push_async_callback(server.stop)
        stack.callback(app.state.hints.close)
        self.url, self.parts = server.url, server.parts
        log.info("the web page is at %s", self.url)
