"""A lab of several hosts without a real phone: a PostgreSQL server, heads, and daemons with virtual phones.

The hosts are processes of this machine, each with its own adb server, ports and folders. The end of the context stops
and deletes all of it. For the demo and tests.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from farm.simulation.farm_process import FarmProcess
from farm.simulation.postgres import PostgresServer, check_programs, new_server
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm

DATABASE = "farm"
HEADS = 2  # the one that decides, and one that waits to take over

HOST_CONFIG = """\
[store]
url = "{url}"
[lab]
host = "{host}"
head = "apart"
"""


class VirtualHosts:
    """The hosts of a lab, their heads and their database."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.server = server
        self.url = server.url_of(DATABASE)
        self.farms: dict[str, VirtualFarm] = {}  # by the host's name; a host that was killed stays
        self.heads = [FarmProcess(folder / f"head-{each}.log", "head", "--config", str(folder / "head.toml"))
                      for each in range(1, HEADS + 1)]  # fmt: skip
        lab = HOST_CONFIG.format(url=self.url, host="head")
        (folder / "head.toml").write_text(f"{lab}[web]\nhead_port = 0\n", encoding="utf-8")

    def wait_ready(self, on_step: Callable[[Mapping[str, Any]], None]) -> None:
        """Return when every phone of every host is ready; `on_step` takes each `device.*` event of the lab."""
        first = next(iter(self.farms.values()))  # every host has the events of all
        first.wait_ready(sum(len(farm.lab.status()) for farm in self.farms.values()), on_step, since=0)


@contextlib.contextmanager
def virtual_hosts(
    hosts: Mapping[str, Mapping[str, str]], *, config: str = "", isolation: str = "", report: Callable[[str], None]
) -> Iterator[VirtualHosts]:
    """Hosts with virtual phones, plugged in and on their way to ready.

    Args:
        hosts: a host's name -> its phones, as `virtual_farm` takes them.
        config: further TOML for each daemon, first for `[lab]`.
        isolation: as `virtual_farm` takes it.
        report: takes a line about each step.
    """
    check_programs()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farm-lab-")))
        report("starting a PostgreSQL server ...")
        server = stack.enter_context(new_server())
        server.run("createdb", f"--host={server.folder}", f"--username={server.superuser}", DATABASE)
        lab = VirtualHosts(folder, server)
        report(f"starting {len(lab.heads)} heads: one decides, the others wait to take over ...")
        for head in lab.heads:
            stack.callback(head.stop)
            head.launch()
        bundles = None
        for host, phones in hosts.items():
            report(f"host {host}:")
            own = HOST_CONFIG.format(url=lab.url, host=host) + config
            farm = virtual_farm(
                phones, config=own, isolation=isolation, bundles=bundles, report=lambda line: report(f"  {line}")
            )
            lab.farms[host] = stack.enter_context(farm)
            bundles = bundles or lab.farms[host].folder / "state" / "bundles" / "objects"
        yield lab
