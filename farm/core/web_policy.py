"""What the web page's server is told."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_WEB_PORT = 9191  # beside the TVM port


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The web page and /metrics."""

    enabled: bool = True  # false: no page and no metrics
    host: str = "127.0.0.1"  # the address they are served at
    port: int = DEFAULT_WEB_PORT  # 0: the kernel chooses
    allow_hosts: tuple[str, ...] = ()  # names the page is asked for by, beside loopback's and `host`; no ports
    required: bool = False  # whether the daemon ends when the port is taken; else it serves phones without a page


def mistake(config: WebConfig) -> tuple[str, str] | None:
    """What is wrong with it, and what to write instead."""
    if not 0 <= config.port <= 65535:
        return f"web.port: {config.port} is not a port", "0 to 65535; 0 lets the kernel choose"
    if not config.host:
        return "web.host: an address is missing", 'e.g. "127.0.0.1"; enabled = false for no page at all'
    for name in config.allow_hosts:
        if not name or "/" in name or name.strip("[]").count(":") == 1 or name != name.strip():
            return f"web.allow_hosts: {name!r} is no host name", 'a bare name, e.g. "farm.lab.example"'
    return None
