"""How soon a lab continues after its head, a host, or its database has died: two hosts with virtual phones.

The database is a primary with a synchronous standby. Each time is counted from the blow; that of the standby from its
promotion, which an operator or Patroni does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import lab_chaos
from benchmarks.harness import Context, Figure, under, until
from farm.common.errors import FarmError, HostError
from farm.simulation.postgres import PostgresServer, server_folder
from tests.support.stock_client import Clients, compile_kernel
from tests.support.whole_farm import phones
from tests.support.whole_lab import GO, WAIT, WholeLab, whole_lab

PROFILES = ("galaxy-a55", "galaxy-s9")
LIMIT_S = 120.0
GOAL_S = 12.0
GOAL_STANDBY_S = 5.0
JOBS = 8  # that are queued at each blow: more than there are phones
DEAD_S = 5.0  # until somebody promotes the standby
HOLD = "session = connect().request({key!r}); tell(add_one(session)); wait(); tell(outcome(add_one, session)); wait()"


def run(context: Context) -> list[Figure]:
    """The time of each, and what was lost."""
    with server_folder() as folder, ExitStack() as after, whole_lab() as lab, ExitStack() as stack:
        standby = _standby(lab, folder)
        after.callback(standby.stop)  # once the hosts have ended, which need it
        trial = _Trial(lab, standby, context)
        context.say("the head is killed")
        head_s = trial.head_killed()
        context.say(f"another one granted after {head_s:.1f} s; a host is killed")
        host_s = trial.host_killed()
        context.say(f"its job ran elsewhere after {host_s:.1f} s; the primary dies, and the standby is promoted")
        client = stack.enter_context(
            Clients(trial.one, compile_kernel(context.folder)).running(HOLD.format(key=trial.phone_of_client))
        )
        if client.hear() is not True:
            raise HostError("a stock client's session computed wrong numbers")
        standby_s = trial.standby_promoted()
        context.say(f"a phone was granted {standby_s:.1f} s after that")
        client.go()
        ended = client.hear()
        client.finish()
        wrong = trial.wrong()
    for rule, cases in wrong.items():
        context.say(f"{rule}: {cases[:5]}")
    return [
        under("head killed: the next grant of another one", head_s, "s", GOAL_S),
        under("host killed: its job runs on another host", host_s, "s", GOAL_S),
        under("standby promoted: the next grant", standby_s, "s", GOAL_STANDBY_S),
        Figure("sessions ended", float(bool(ended)), "", None, "0", not ended),
        Figure("rules broken", len(wrong), "", None, "0", not wrong),
    ]


class _Trial:
    """A lab of two hosts with two phones each."""

    def __init__(self, lab: WholeLab, standby: PostgresServer, context: Context) -> None:
        self._lab = lab
        self._standby = standby
        self._told = lab_chaos.Told(context.folder)
        self._heads = [lab.head(), lab.head()]
        context.say("two hosts begin")
        self.one, self._two = (lab.host(name, *PROFILES) for name in ("one", "two"))
        lab_chaos.begin_logs((self.one, self._two))
        self.phone_of_client = phones(self.one)[1].name

    def head_killed(self) -> float:
        """Seconds until another head has granted a phone that was armed."""
        self._submit(JOBS)
        before = self._highest_fence() >> 32
        deciding = max(self._heads, key=lambda head: head.terms)
        begun_s = time.monotonic()
        deciding.kill()
        self._until(lambda: self._highest_fence() >> 32 > before, "no other head has granted anything")
        took_s = time.monotonic() - begun_s
        self._heads.append(self._lab.head())
        self._ended()
        return took_s

    def host_killed(self) -> float:
        """Seconds until a job of the host runs elsewhere: the phones of the other one are free by then."""
        others = phones(self.one)
        first = [self._submit(1, WAIT, on=phone.name)[0] for phone in others]
        self._until(lambda: self._states(first) == {"running"}, "no job runs")
        (job,) = self._submit(1, WAIT, on="android")
        self._until(lambda: self._states([job]) == {"running"}, "no job runs")
        for phone in others:
            phone.shell(f"touch {GO}")
        self._until(lambda: self._states(first) == {"done"}, "no job ends")
        self._until(lambda: all(phone.row["state"] == "ready" for phone in others), "the phones are not ready again")
        moved = f"SELECT 1 FROM attempt WHERE job = '{job}' AND number > 1"
        begun_s = time.monotonic()
        self._two.daemon.kill()
        self._until(lambda: bool(self._lab.rows(moved)), "the job of the dead host does not run elsewhere")
        took_s = time.monotonic() - begun_s
        for phone in others:
            phone.shell(f"touch {GO}")
        self._two.client.close()
        self._two.daemon.start().close()
        self._ended()
        for phone in others:
            phone.shell(f"rm -f {GO}")
        return took_s

    def standby_promoted(self) -> float:
        """Seconds from the promotion to the next grant that was armed."""
        self._submit(JOBS)
        self._lab.server.stop()
        time.sleep(DEAD_S)
        before = self._highest_fence()
        self._standby.promote()
        begun_s = time.monotonic()
        self._until(lambda: self._highest_fence() > before, "nothing is granted after the promotion")
        took_s = time.monotonic() - begun_s
        self._ended()
        return took_s

    def wrong(self) -> dict[str, Any]:
        """The rules that were broken."""
        return dict(lab_chaos.verdict(self._lab, (self.one, self._two), self._told.folder)["wrong"])

    def _submit(self, count: int, command: str = "", on: str = "android") -> list[str]:
        """Jobs that the logs of phones tell of; they begin with the command."""
        return [self._told.submit(self.one, on, command, max_attempts=10) for _ in range(count)]

    def _ended(self) -> None:
        self._until(lambda: not self._lab.rows("SELECT id FROM job WHERE ended_at IS NULL"), "some jobs do not end")

    def _states(self, jobs: list[str]) -> set[str]:
        return {self.one.client.call("job.show", job=job)["job"]["state"] for job in jobs}

    def _highest_fence(self) -> int:
        return int(self._lab.rows("SELECT coalesce(max(fence), 0) FROM lease WHERE armed_at IS NOT NULL")[0][0])

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        def holds() -> bool:
            try:
                return condition()
            except (psycopg.OperationalError, FarmError):  # in the middle of a blow
                return False

        until(holds, LIMIT_S, otherwise)


def _standby(lab: WholeLab, folder: Path) -> PostgresServer:
    """A synchronous standby of the lab's server, which the lab's URL names too."""
    standby = PostgresServer(folder)
    lab.server.copy_to(standby)
    standby.start()
    with psycopg.connect(lab.server.url_of("postgres"), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        connection.execute("SELECT pg_reload_conf()")
    lab.url += f"&host={folder}"
    return standby
