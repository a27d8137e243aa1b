"""A whole lab in tests: a PostgreSQL, processes `farm head`, and farms with virtual phones as its hosts."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.lab_judge import RULES
from farm.simulation.farm_process import FarmProcess
from farm.simulation.postgres import PostgresServer, new_server
from farm.simulation.virtual_farm import VirtualFarm
from tests.support import postgres
from tests.support.whole_farm import phones, running_farm, until

GO = "/data/local/tmp/go"
WAIT = f"until [ -e {GO} ]; do sleep 0.2; done; rm {GO}; echo done"
LISTEN = 'listen = "tcp://127.0.0.1:0"\n'  # behind [lab], where other hosts dial it
JOB_LIMIT_S = 600.0
DECIDES = "this head decides, in term"
OVERLAPS = (  # leases that were held; for hosts with one clock
    "SELECT a.id FROM lease a JOIN lease b ON a.device = b.device AND a.fence < b.fence AND a.armed_at IS NOT NULL "
    "AND b.armed_at IS NOT NULL AND (a.ended_at IS NULL OR a.ended_at > b.armed_at + 0.5)"
)
JUDGED = {
    **RULES,
    "overlapping leases that were held": OVERLAPS,
    "a job has not ended": "SELECT id FROM job WHERE ended_at IS NULL",
}


class HeadCommand(FarmProcess):
    """One `farm head`."""

    def __init__(self, folder: Path, url: str, number: int, config: str = "", wrapper: tuple[str, ...] = ()) -> None:
        """`config`: further TOML. `wrapper`: a command ahead of it, such as env."""
        file = folder / f"head-{number}.toml"
        lab = f'[store]\nurl = "{url}"\n[lab]\nhost = "head"\nhead = "apart"\n[web]\nhead_port = 0\n'
        file.write_text(f"{lab}{config}", encoding="utf-8")
        super().__init__(folder / f"head-{number}.log", "head", "--config", str(file))
        self.wrapper = wrapper
        self._running = self.launch()

    @property
    def terms(self) -> int:
        """How many times it has begun to decide."""
        return self.log.read_text().count(DECIDES)

    def decides(self, times: int = 1) -> None:
        """Return when it has begun to decide so many times."""
        until(lambda: self.terms >= times)

    def freeze(self) -> None:
        """Stop it, as a host does that has no processor for it."""
        self._running.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it continue after `freeze`."""
        self._running.send_signal(signal.SIGCONT)

    def end(self) -> str:
        """End it in order; returns its log. Its exit code is 0, unless it was killed."""
        if self.runs:
            self.wake()
            self._running.terminate()
            assert self._running.wait() == 0, self.log.read_text()
        return self.log.read_text()


class WholeLab:
    """The head and hosts of one database. `head` and `host` add to it."""

    def __init__(self, server: PostgresServer, folder: Path, stack: ExitStack) -> None:
        self.server = server
        self.url = postgres.new_database(server.url)
        self.heads: list[HeadCommand] = []
        self._folder = folder
        self._stack = stack

    def head(self, *wrapper: str) -> HeadCommand:
        """One more `farm head`, behind a command such as env; it waits if there is one that decides."""
        self.heads.append(HeadCommand(self._folder, self.url, len(self.heads), wrapper=wrapper))
        return self.heads[-1]

    def host(self, name: str, *profiles: str, config: str = "", url: str = "") -> VirtualFarm:
        """One more host with virtual phones, all ready. `url`: its way to the database; "": that of the heads."""
        lab = f'[store]\nurl = "{url or self.url}&connect_timeout=2"\n[lab]\nhost = "{name}"\nhead = "apart"\n'
        phones = {f"{name}-{number}": profile for number, profile in enumerate(profiles, 1)}  # with serials of its own
        return self._stack.enter_context(running_farm(config=lab + config, named=phones))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a select finds."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return connection.execute(query).fetchall()

    def judged(self) -> Mapping[str, list[tuple[Any, ...]]]:
        """The rows that break a rule, by the rule."""
        return {what: found for what, query in JUDGED.items() if (found := self.rows(query))}


class TwoHosts:
    """A lab of two hosts with a phone each, all ready, and a head if it has none."""

    def __init__(self, lab: WholeLab, *config: str, profiles: tuple[str, str] = ("galaxy-s9", "galaxy-a55")) -> None:
        """`config`: further TOML of the first host and of the second."""
        self.lab = lab
        if not lab.heads:
            lab.head()
        one, two = config or ("", "")
        self.one, self.two = lab.host("one", profiles[0], config=one), lab.host("two", profiles[1], config=two)
        self.here, self.there = phones(self.one)[0], phones(self.two)[0]
        self.until_ready()

    def until_ready(self) -> None:
        """Return when either phone is, as its own host sees it: that of the other may be ready first."""
        for phone in (self.here, self.there):
            serial, farm = phone.serial, phone.farm
            until(lambda: (serial, "ready") in [(row["serial"], row["state"]) for row in farm.status()["devices"]])  # noqa: B023 - at once

    def submit(self, at: VirtualFarm | None = None, **spec: Any) -> str:
        """Submit a job at a host, the first if not said; its id."""
        (row,) = (at or self.one).client.call("job.submit", spec=spec)["jobs"]
        return str(row["id"])

    def shell(self, on: str, command: str = WAIT, at: VirtualFarm | None = None, **spec: Any) -> str:
        """Submit a job of kind shell."""
        return self.submit(at, kind="shell", on=on, command=command, timeout_s=JOB_LIMIT_S, **spec)

    def job(self, job: str) -> Mapping[str, Any]:
        """What the first host shows of it."""
        return self.one.client.call("job.show", job=job)

    def until(self, job: str, state: str) -> None:
        """Return when it is in that state."""
        until(lambda: self.job(job)["job"]["state"] == state)

    def attempts(self, job: str) -> list[tuple[str, str]]:
        """The phones and ends of its attempts."""
        return [(each["device"], each["state"]) for each in self.job(job)["attempts"]]


@contextmanager
def whole_lab(running: PostgresServer | None = None) -> Iterator[WholeLab]:
    """A lab without head and hosts; afterwards nothing of it runs, and no log has a traceback.

    `running`: its server; None: a new one.
    """
    with (
        new_server() if running is None else nullcontext(running) as server,
        tempfile.TemporaryDirectory(prefix="farm-heads-") as folder,
        ExitStack() as hosts,
    ):
        lab = WholeLab(server, Path(folder), hosts)
        try:
            yield lab
            hosts.close()
            logs = [head.end() for head in lab.heads]
        finally:
            for head in lab.heads:
                head.kill()
    for log in logs:
        assert "Traceback" not in log, log
