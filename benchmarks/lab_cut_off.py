"""A lab of two hosts with a network each, of which the first can be cut off from the database and from the other host.

The first host has two phones: a stock client, which is a program of that host, holds a session on one; a job runs on
the other. The second host has one phone, on which the job runs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import lab_chaos
from farm.simulation.postgres import new_server
from tests.support.host_network import SWITCH, HostNetwork
from tests.support.stock_client import Clients, StockClient
from tests.support.whole_farm import Phone, phones
from tests.support.whole_lab import GO, whole_lab

PORT = 5432
CUT, OTHER = "one", "two"  # the hosts
LIMIT_S = 900.0  # of a job
# A session whose bytes are compared until the client is told to continue; it tells how many rounds there were, and how
# many were wrong.
COMPARES = """
import random, select
session = connect().request({key!r})
tell(add_one(session))
rounds = wrong = 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    sent = bytearray(random.randbytes(100_000))
    session.upload(sent, "compared")
    wrong += session.download("compared") != sent
    rounds += 1
tell([rounds, wrong])
"""


class CutOffLab:
    """The lab, all phones ready; `network` loses packets of its host `CUT`."""

    def __init__(self, network: HostNetwork, stack: ExitStack, kernel: Path, folder: Path) -> None:
        """Begin it on a network of `CUT` and `OTHER`; `stack` ends it. `folder`: for what it is judged by."""
        self.network = network
        with network.inside(SWITCH):
            trust = f"host all all {network.address(SWITCH)}/24 trust\n"
            server = stack.enter_context(new_server(port=PORT, address=network.address(SWITCH), hba=trust))
        self.lab = stack.enter_context(whole_lab(server))
        self.lab.head()
        database = self.lab.url.partition("?")[0].rpartition("/")[2]
        url = f"postgresql://farm@/{database}?host={network.address(SWITCH)}&port={PORT}"
        farms = []
        for name, profiles in ((CUT, ("galaxy-s9", "galaxy-note20")), (OTHER, ("galaxy-a55",))):
            with network.inside(name):
                listen = f'listen = "tcp://{network.address(name)}:0"\n'
                farms.append(self.lab.host(name, *profiles, config=listen, url=url))
        self.cut, self.other = farms
        self.used, self.left = phones(self.cut)
        (self.elsewhere,) = phones(self.other)
        lab_chaos.begin_logs(farms)
        self._kernel = kernel
        self.told = lab_chaos.Told(folder)

    @contextmanager
    def session(self) -> Iterator[StockClient]:
        """A client at the host to be cut off, its session open."""
        key = self.used.name
        with self.network.inside(CUT):
            client = ExitStack()
            begun = client.enter_context(Clients(self.cut, self._kernel).running(COMPARES.format(key=key)))
        with client:
            assert begun.hear() is True
            yield begun

    def submit(self, on: str, before: str = "") -> str:
        """A job that the log of its phone tells of; it begins with `before`. Returns its id."""
        return self.told.submit(self.other, on, before, timeout_s=LIMIT_S, max_attempts=2)

    def wrong(self) -> dict[str, Any]:
        """The rules that were broken."""
        return dict(lab_chaos.verdict(self.lab, (self.cut, self.other), self.told.folder)["wrong"])

    def attempts(self, job: str) -> list[tuple[Any, ...]]:
        """Phone and state of each attempt, by the database."""
        return self.lab.rows(f"SELECT device, state FROM attempt WHERE job = '{job}' ORDER BY number")

    def events(self, kind: str) -> int:
        """How many there are of a kind, in the database."""
        return int(self.lab.rows(f"SELECT count(*) FROM event WHERE kind = '{kind}'")[0][0])

    def database_problems(self) -> list[str]:
        """The problems of the database that the host shows which is cut off."""
        return [each for each in self.cut.status()["problems"] if "database" in each]

    def go(self, *those: Phone) -> None:
        """Let the jobs that wait on these phones continue."""
        for phone in those:
            phone.shell(f"touch {GO}")
