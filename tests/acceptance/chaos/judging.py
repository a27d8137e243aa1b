"""What became of everything after a storm, and what of it may not be."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.simulation.virtual_farm import VirtualFarm
from tests.acceptance.chaos import check_log
from tests.acceptance.chaos.orders import ATTEMPTS, Taken
from tests.support.whole_farm import phones

if TYPE_CHECKING:
    from tests.acceptance.chaos.chaos import Chaos
    from tests.acceptance.chaos.stock_load import StockLoad

READY_LIMIT_S = 90.0  # for every phone after the last job
LOOK_S = 0.2
INTERRUPTIONS = 10  # of a job, by dying daemons: more of them and it is taken for their cause
FINAL = ("done", "failed", "cancelled")


@dataclass
class Verdict:
    """What became of everything."""

    problems: list[str] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)


def judge(farm: VirtualFarm, chaos: Chaos, load: StockLoad, kept: Path) -> Verdict:
    """Look at phones, jobs and results, stop the daemon, and give its database to the independent checker.

    `kept`: a folder for the database, for whoever looks into a failure.
    """
    verdict = Verdict()
    if missing := chaos.missing():
        verdict.problems.append(f"these blows never fell: {', '.join(sorted(missing))}")
    verdict.problems += load.problems
    _wait_ready(farm)
    for phone in phones(farm):
        deadline = time.monotonic() + READY_LIMIT_S
        while len(phone.programs()) != 1 and time.monotonic() < deadline:
            time.sleep(LOOK_S)  # a session's own process ends a moment after its session
        if len(programs := phone.programs()) != 1:
            verdict.problems.append(f"{phone.name} runs {len(programs)} RPC processes")
    leases = farm.client.call("lease.list")
    if leases["leases"] or leases["waiting"]:
        verdict.problems.append(f"leases are left: {leases}")
    shown = {job: farm.client.call("job.show", job=job) for taken in chaos.taken.values() for job in taken.jobs}
    for taken in chaos.taken.values():
        if len(taken.jobs) != taken.order.count:
            verdict.problems.append(f"order {taken.order.key} made {len(taken.jobs)} jobs of {taken.order.count}")
        for job in taken.jobs:
            verdict.problems += _outcome(taken, shown[job], len(chaos.nicknames))
            before = chaos.taken[taken.order.follows].jobs if taken.order.follows else ()
            verdict.problems += _follows(taken, shown[job], [shown[each]["job"]["state"] for each in before])
    attempts = farm.folder / "state" / "work" / "attempts"
    if left := list(attempts.iterdir()):
        verdict.problems.append(f"folders of attempts are left: {left}")
    farm.daemon.stop()
    database = kept / "farm.db"
    for name in ("farm.db", "farm.db-wal"):
        with suppress(FileNotFoundError):
            shutil.copyfile(farm.folder / "state" / name, kept / name)
    with closing(check_log.opened(database)) as told:
        verdict.problems += check_log.broken(told)
        logged = {job for (job,) in told.execute("SELECT job FROM submitted")}
        [(through_tvm_door,)] = told.execute("SELECT count(*) FROM granted WHERE job = ''")
        verdict.states.update(state for (state,) in told.execute("SELECT state FROM over"))
        verdict.attempts.update(state for (state,) in told.execute("SELECT state FROM ended"))
    if logged != set(shown):
        verdict.problems.append(f"the log and the answers differ in jobs: {sorted(logged ^ set(shown))}")
    if through_tvm_door < load.sessions:
        verdict.problems.append(f"{load.sessions} stock sessions computed under {through_tvm_door} leases")
    return verdict


def _wait_ready(farm: VirtualFarm) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while late := [row for row in farm.status()["devices"] if row["state"] != "ready"]:
        if time.monotonic() > deadline:
            shown = "; ".join(f"{row['name']} is {row['state']}: {row['reason']}" for row in late)
            raise AssertionError(f"{READY_LIMIT_S:g} s after the last job {shown}")
        time.sleep(LOOK_S)


def _outcome(taken: Taken, shown: Mapping[str, Any], phones_there: int) -> Iterator[str]:
    """What is wrong with the end of one job."""
    row, order = shown["job"], taken.order
    told = f"{row['id']} ({order.spec['kind']}) is {row['state']}: {row['error']}"
    if row["state"] not in FINAL:
        yield f"{told}; it should have ended"
    elif row["state"] == "cancelled":
        if not taken.cancelled and not order.follows:  # else see `_follows`
            yield f"{told}; nobody cancelled it"
    elif row["state"] == "failed":
        if not order.fails and not taken.cancelled and not _all_tried(shown["attempts"], phones_there):
            yield f"{told}; nothing is wrong with it, and it was not tried as often as it may be: {shown['attempts']}"
    elif order.fails:
        yield f"{told}; it should have failed"
    elif order.spec["kind"] == "shell" and order.spec["command"].split("; ")[1].split()[1] not in str(shown["result"]):
        yield f"{told}; its result is {shown['result']}"
    if row["state"] == "done" and shown["result"] is None and order.spec["kind"] != "lease":
        yield f"{told}; it has no result"


def _follows(taken: Taken, shown: Mapping[str, Any], before: Sequence[str]) -> Iterator[str]:
    """What is wrong with the end of a job when those it had to wait for ended as `before` says."""
    row = shown["job"]
    unfit = {"failed", "cancelled"} & set(before)
    if row["state"] == "cancelled" and before and not taken.cancelled and not unfit:
        yield f"{row['id']} is cancelled, but nobody did that and all it waited for are done: {row['error']}"
    if unfit and (row["state"] == "done" or shown["attempts"]):
        yield f"{row['id']} is {row['state']} after {len(shown['attempts'])} attempts; it waited for {before}"


def _all_tried(attempts: Sequence[Mapping[str, Any]], phones_there: int) -> bool:
    """Whether the storm ended so many attempts of a job that there may be no further one."""
    failed = [attempt for attempt in attempts if attempt["state"] == "failed"]
    interrupted = [attempt for attempt in attempts if attempt["state"] == "interrupted"]
    unlucky = {attempt["device"] for attempt in failed if attempt["error"]["fault"] == "phone"}
    return len(failed) >= ATTEMPTS or len(interrupted) >= INTERRUPTIONS or len(unlucky) >= phones_there
