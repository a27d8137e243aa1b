"""From a submit to jobs: its checks and warnings, its jobs, and their requests for phones.

Nothing is written here, and nothing but the store's jobs is read.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal

from farm.common.errors import Code, HostError, NoPhoneError, NotAllowedError, UserError
from farm.common.limits import MAX_JOBS_AT_ONCE
from farm.common.selector import Selector, natural
from farm.devices.identity.naming_rules import PoolingTraits, alike
from farm.devices.identity.targets import UnknownTargetError, target_on, why_not_on
from farm.head.allocator.explain import unleasable_reason
from farm.head.config import UserConfig
from farm.head.queue.model import NoSuchJobError
from farm.model.device import DeviceState, Life, Service
from farm.model.job import FINAL, Job, JobState
from farm.model.requests import LeaseClass, LeaseRequest, LeaseSource
from farm.model.specs import ALL, JobSpec, Kinds, ModelSpec
from farm.store.jobs import JobTable

_parsed = lru_cache(maxsize=1024)(Selector.parse)  # 100,000 jobs are asked for at the start, with few selectors
SHOWN_PHONES = 3  # in a warning
JOB_ID_BYTES = 6  # of chance in an id: 48 bits keep a million jobs apart


@dataclass(frozen=True, slots=True)
class Submission:
    """The jobs of one submit."""

    jobs: tuple[Job, ...]
    array: str = ""  # "": one job alone
    warnings: tuple[str, ...] = ()
    earlier: bool = False  # the user had used the key before: these are the jobs of that time

    @property
    def ids(self) -> tuple[str, ...]:
        """The jobs' ids."""
        return tuple(job.id for job in self.jobs)


def plan(
    spec: JobSpec, user: str, devices: Sequence[DeviceState], now: datetime, ids: Iterable[str], *, must_match: bool
) -> Submission:
    """The jobs that `spec` means: one, N that share no phone, or one for each adopted matching phone in service.

    A pooled kind is one job whatever number of phones it has at once.

    Args:
        spec: what was submitted.
        user: whose jobs they are.
        devices: every phone of the farm.
        now: wall clock; the deadline counts from here.
        ids: endless fresh ids: the first is the array's if there is one, then one per job.
        must_match: refuse what no phone could run now, instead of a warning.

    Raises:
        UserError: the selector does not follow the grammar.
        NoPhoneError: no phone matches, and one must.
        UserError: more jobs than one submit may have, or none of the phones has the compile target or the cores.
    """
    selector = _parsed(spec.on)
    matching = [view for view in devices if view.adopted and selector.matches(view.labels, view.aliases)]
    _check_target(spec, matching)
    _check_cores(spec, matching)
    places = _places(spec, matching)
    if len(places) > MAX_JOBS_AT_ONCE:
        raise UserError(f"that is {len(places)} jobs; at most {MAX_JOBS_AT_ONCE} are taken at once", Code.BAD_SPEC)
    warnings = _lacking(spec, selector, devices, matching, places, must_match=must_match) + _emulated(spec, matching)
    fresh = iter(ids)
    array = next(fresh) if spec.devices != 1 and not spec.pooled else ""
    wire = spec.to_wire()
    jobs = tuple(
        Job(
            id=next(fresh),
            kind=spec.kind,
            user=user,
            spec=wire,
            selector=str(selector),
            submitted_at=now,
            state=JobState.HELD if spec.hold else JobState.BLOCKED if spec.after else JobState.QUEUED,
            device=device,
            array=array,
            priority=spec.priority,
            lease_class=spec.leased_as(),
            timeout_s=spec.timeout_s,
            max_attempts=spec.max_attempts,
            deadline=None if spec.deadline_s is None else now + timedelta(seconds=spec.deadline_s),
            after=spec.after,
        )
        for device in places
    )
    return Submission(jobs, array, warnings)


def request_of(kinds: Kinds, job: Job, avoid: frozenset[str]) -> LeaseRequest:
    """The request for a phone of a queued job."""
    kind = kinds.get(job.kind)  # None: of another release; it fails when it runs
    return LeaseRequest(
        _parsed(job.selector),
        job.user,
        LeaseSource.JOB,
        priority=job.priority,
        lease_class=job.lease_class,
        device=job.device,
        avoid=avoid,
        worker=kind is None or kind.worker,
        traces=kind is None or kind.traces,
        quiet_hub=bool(job.spec.get("quiet_hub")),
        personal=kind is not None and kind.personal,
        longest_s=job.timeout_s if kind is None else float(job.spec[kind.lease_field]),
        job=job.id,
    )


def pooled(kinds: Kinds, job: Job) -> bool:
    """Whether the job's attempts have several phones at once, which come and go."""
    kind = kinds.get(job.kind)
    return kind is not None and kind.pooled


def preferring(request: LeaseRequest, views: Iterable[DeviceState], devices: int | Literal["all"]) -> LeaseRequest:
    """The request for a pool's first phone: rather one of which there are as many alike as wanted, else the most."""
    groups: dict[PoolingTraits, set[str]] = {}
    for view in views:
        matches = request.selector.matches(view.labels, view.aliases) and view.name not in request.avoid
        if matches and view.in_service and (like := alike(view.identity, view.bundle)) is not None:
            groups.setdefault(like, set()).add(view.name)
    most = max(map(len, groups.values()), default=0)
    enough = most if devices == "all" else min(most, devices)
    able = frozenset(name for names in groups.values() if len(names) >= enough for name in names)
    return replace(request, prefer=able)


def another_phone(job: Job, devices: Iterable[DeviceState], avoid: frozenset[str]) -> bool:
    """Whether a phone that may be waited for could run the job, besides those to `avoid`."""
    selector = _parsed(job.selector)
    return any(
        view.in_service and view.name not in avoid and selector.matches(view.labels, view.aliases) for view in devices
    )


def lost_the_last(job: Job, lost: DeviceState, devices: Iterable[DeviceState], avoid: frozenset[str]) -> bool:
    """Whether that phone, which cannot be used now, is one that the job waits for, and no other will do meanwhile."""
    if job.device:
        return job.device == lost.name
    return _parsed(job.selector).matches(lost.labels, lost.aliases) and not another_phone(job, devices, avoid)


def _lacking(
    spec: JobSpec,
    selector: Selector,
    devices: Sequence[DeviceState],
    matching: Sequence[DeviceState],
    places: Sequence[str],
    *,
    must_match: bool,
) -> tuple[str, ...]:
    """Warnings about phones that a submit lacks and waits for.

    Raises:
        NoPhoneError: it must not wait for them.
    """
    if not matching or (spec.devices == ALL and not places):
        error = _no_match(selector, devices, matching)
        if must_match or not places:
            raise error
        return (f"{error.message}; the job waits for one",)
    if spec.devices == ALL or (lacking := spec.devices - len(matching)) <= 0:
        return _withheld(matching, len(places), spec.leased_as())
    many = f"{len(matching)} phone{'s' * (len(matching) != 1)} match{'es' * (len(matching) == 1)} {selector}"
    if must_match:
        raise NoPhoneError(
            f"{many}, not {spec.devices}: nothing was submitted", hint="--devices all takes those that there are"
        )
    waits = "the job begins with what there is and waits" if spec.pooled else f"{lacking} of the jobs wait"
    return (f"{many}: {waits} for more",)


def _withheld(matching: Sequence[DeviceState], wanted: int, lease_class: LeaseClass) -> tuple[str, ...]:
    """A warning when fewer of the phones than are wanted come by themselves: the others are away, or withheld."""
    out = [view for view in matching if not view.in_service]
    if len(matching) - len(out) >= wanted:
        return ()
    able = len(matching) - len(out)
    which = f"only {able} matching phone{'s are' if able > 1 else ' is'}" if able else "no matching phone is"
    why = ", ".join(f"{view.name}: {unleasable_reason(view, lease_class)}" for view in out[:SHOWN_PHONES])
    more = f", {len(out) - SHOWN_PHONES} more" if len(out) > SHOWN_PHONES else ""
    return (f"{which} available, the job waits ({why}{more})",)


def _places(spec: JobSpec, matching: Sequence[DeviceState]) -> list[str]:
    """The phone that each of the jobs is pinned to; "": any."""
    if spec.pooled:  # whatever their number, they are one job's
        return [""] if spec.devices != ALL or any(view.service is Service.IN for view in matching) else []
    if spec.devices != ALL:
        return [""] * spec.devices
    return sorted((view.name for view in matching if view.service is Service.IN), key=natural)


def _check_target(spec: JobSpec, matching: Sequence[DeviceState]) -> None:
    """Refuse a compile target that no matching phone has; one that is not known yet may have any."""
    if not isinstance(spec, ModelSpec):
        return
    known = [(view.name, view.identity) for view in matching if view.identity is not None]
    if not known or len(known) < len(matching):
        return
    for text in dict.fromkeys(build.target for build in spec.builds()):
        refused = [error for name, each in known if (error := _refusal(text, each.targets, name)) is not None]
        if len(refused) < len(known):
            continue
        if not isinstance(refused[0], UnknownTargetError):
            raise refused[0]
        why, hint = why_not_on(text, [(name, each.targets, each.gpu.model or each.gpu.family) for name, each in known])
        raise UserError(f"no phone that matches {spec.on} has the target {text!r}: {why}", Code.BAD_SPEC, hint=hint)


def _emulated(spec: JobSpec, matching: Sequence[DeviceState]) -> tuple[str, ...]:
    """A warning when a phone's CPU computes half precision in software."""
    if not isinstance(spec, ModelSpec):
        return ()
    half = next((each.precision for each in spec.builds() if each.target == "cpu" and each.precision != "float32"), "")
    slow = [view.name for view in matching if half and view.identity is not None and _is_x86(view.identity.targets)]
    words = f"has an x86 CPU, which computes {half} in software: many times slower than float32"
    return (f"{slow[0]} {words}",) if slow else ()


def _is_x86(targets: Mapping[str, object]) -> bool:
    cpu = targets.get("cpu")
    return isinstance(cpu, Mapping) and str(cpu.get("mtriple")).startswith(("x86_64", "i686"))


def _check_cores(spec: JobSpec, matching: Sequence[DeviceState]) -> None:
    """Refuse cores or threads that no matching phone has; one that is not known yet may have any."""
    if not isinstance(spec, ModelSpec) or not matching:
        return
    refused: list[UserError] = []
    for view in matching:
        try:
            if view.identity is not None:
                spec.check_cores(view.identity.cpu, view.name)
        except UserError as error:
            refused.append(error)
    if len(refused) == len(matching):
        raise refused[0]


def _refusal(text: str, targets: Mapping[str, object], phone: str) -> UserError | None:
    try:
        target_on(text, targets, phone)
    except UserError as error:
        return error
    return None


def _no_match(selector: Selector, devices: Sequence[DeviceState], matching: Sequence[DeviceState]) -> NoPhoneError:
    if matching:
        out = ", ".join(f"{view.name} is {view.service.words}" for view in matching[:SHOWN_PHONES])
        more = f", and {len(matching) - SHOWN_PHONES} more" if len(matching) > SHOWN_PHONES else ""
        return NoPhoneError(
            f"no phone that matches {selector} is in service: {out}{more}",
            hint=f"back into service: farm device release {matching[0].name}",
        )
    adopted = [view for view in devices if view.adopted]
    strangers = [view.name for view in devices if view.life is Life.NEW]
    if strangers and not adopted:
        return NoPhoneError(
            f"no phone matches {selector}: none is adopted yet", hint=f"let one in: farm device adopt {strangers[0]}"
        )
    return selector.no_match((view.labels, view.aliases) for view in adopted)


def fresh_ids(kind: str) -> Iterator[str]:
    """Endless fresh ids of jobs; the array's, if there is one, is the first."""
    while True:
        yield f"{kind}-{secrets.token_hex(JOB_ID_BYTES)}"


def check_store(problem: str) -> None:
    """Refuse while the store cannot keep jobs.

    Raises:
        HostError: says what is wrong.
    """
    if problem:
        raise HostError(
            f"new jobs cannot be kept: {problem}",
            Code.STORE_UNWRITABLE,
            hint="running work continues; see `farm doctor`",
        )


def check_quota(quota: UserConfig, user: str, priority: int, has: int, adds: int) -> None:
    """Refuse jobs beyond a user's limits.

    Raises:
        NotAllowedError: the priority is too high.
        UserError: there would be too many jobs.
    """
    if priority > quota.priority:
        raise NotAllowedError(
            f"{user} may ask with priority {quota.priority} at most, not {priority}",
            hint=f"an operator sets it: [user.{user}] priority",
        )
    if has + adds > quota.jobs:
        raise UserError(
            f"{user} has {has} jobs that have not ended; {adds} more would be over the limit of {quota.jobs}",
            Code.QUOTA_EXCEEDED,
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
        (resolved,) = resolve_after(jobs, (name,))
        if resolved != name:
            raise UserError(f"after: {name!r} is no whole id", hint=f"write {resolved!r} if you mean that one")


def ended_before(jobs: JobTable, names: Collection[str]) -> Mapping[str, JobState | None]:
    """Those of `names` that have ended, and how; None: nothing is known of it."""
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
