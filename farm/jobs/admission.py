"""Whether a submit may come in: quotas, what it waits for, and what is left of an earlier one with its key."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from farm.config import UserConfig
from farm.core.errors import ExitCode, HostError, NotAllowedError, UserError
from farm.core.job import FINAL, Job, JobState
from farm.core.queue_model import NoSuchJobError
from farm.store.jobs import JobTable

JOB_ID_BYTES = 6  # of chance in an id: 48 bits keep a million jobs apart
Limits = Callable[[str], UserConfig]  # what a user may have


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submit."""

    jobs: tuple[str, ...]
    array: str = ""
    warnings: tuple[str, ...] = ()
    taken: tuple[Job, ...] = field(default=(), compare=False)  # as they were kept; none when the key had been used


class QuotaError(UserError):
    """The user has as many jobs as they may."""

    code = "quota"
    exit_code = ExitCode.NOT_ALLOWED


class StoreTroubleError(HostError):
    """The farm cannot keep new jobs now."""

    code = "store_problem"


def fresh_ids(kind: str) -> Iterator[str]:
    """Endless fresh ids of jobs; the array's, if there is one, is the first."""
    while True:
        yield f"{kind}-{secrets.token_hex(JOB_ID_BYTES)}"


def check_store(problem: str) -> None:
    """Refuse while the store cannot keep jobs.

    Raises:
        StoreTroubleError: says what is wrong.
    """
    if problem:
        raise StoreTroubleError(f"new jobs cannot be kept: {problem}", hint="running work goes on; see `farm doctor`")


def check_quota(limits: UserConfig, user: str, priority: int, has: int, adds: int) -> None:
    """Refuse what goes beyond a user's limits.

    Raises:
        NotAllowedError: the priority is too high.
        QuotaError: there would be too many jobs.
    """
    if priority > limits.priority:
        raise NotAllowedError(
            f"{user} may ask with priority {limits.priority} at most, not {priority}",
            hint=f"an operator sets it: [user.{user}] priority",
        )
    if has + adds > limits.jobs:
        raise QuotaError(
            f"{user} has {has} jobs that have not ended; {adds} more would be over the limit of {limits.jobs}",
            hint=f"wait or cancel some: farm job list --user {user}; an operator sets the limit: [user.{user}] jobs",
        )


def resolve_after(jobs: JobTable, names: Collection[str]) -> tuple[str, ...]:
    """The jobs and arrays meant by `names`: whole ids, or beginnings of one job's id.

    Raises:
        NoSuchJobError: one means nothing.
        UserError: one means several jobs.
    """
    return tuple(dict.fromkeys(_resolve(jobs, name) for name in dict.fromkeys(names)))


def check_whole(jobs: JobTable, names: Collection[str]) -> None:
    """Refuse names that only begin a job's id.

    Raises:
        NoSuchJobError: one means nothing.
        UserError: one is no whole id of a job or array.
    """
    for name in names:
        (meant,) = resolve_after(jobs, (name,))
        if meant != name:
            raise UserError(f"after: {name!r} is no whole id", hint=f"write {meant!r} if you mean that one")


def ended_before(jobs: JobTable, names: Collection[str]) -> Mapping[str, JobState | None]:
    """Those of `names` that have ended, and how; None: nothing is known of it. Call it in the turn that uses it."""
    ended: dict[str, JobState | None] = {}
    for name in names:
        job = jobs.get(name)
        if job is not None:
            if job.state in FINAL:
                ended[name] = job.state
            continue
        states = jobs.states(name)
        if unfinished := [state for state in (JobState.FAILED, JobState.CANCELLED) if state in states]:
            ended[name] = unfinished[0]
        elif states <= FINAL:
            ended[name] = JobState.DONE if states else None
    return ended


def ended_before_start(jobs: JobTable, live: Collection[Job]) -> Mapping[str, JobState | None]:
    """`ended_before` of whatever jobs that never ran wait for; `live`: every job that has not ended."""
    waited_for = {name for job in live if job.attempts == 0 for name in job.after}
    return ended_before(jobs, waited_for - {job.id for job in live})


def _resolve(jobs: JobTable, name: str) -> str:
    if jobs.get(name) is not None or jobs.states(name):
        return name
    found = jobs.find(name, limit=2)
    if len(found) > 1:
        raise UserError(f"several jobs begin with {name!r}: {found[0].id}, {found[1].id}", hint="write more of it")
    if not found:
        raise NoSuchJobError(f"there is no job or array {name!r} to wait for", hint="farm job list shows them")
    return found[0].id
