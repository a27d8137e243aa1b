"""What a submit means: its jobs, and what is said about phones it may have to wait for. Pure.

Also what those jobs ask leasing for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from farm.core.device import DeviceView, Life, Service
from farm.core.errors import NoPhoneError, UserError
from farm.core.job import Job, JobState
from farm.core.limits import MAX_JOBS_AT_ONCE
from farm.core.requests import Door, LeaseClass, LeaseRequest
from farm.core.selector import Selector
from farm.fleet.named_targets import ForeignTargetError, target_on, why_not_on
from farm.jobs.specs import ALL, KINDS, AnySpec, BadSpecError, LeaseSpec, ModelSpec

# A phone in one of these lives is ready, or will be without anybody's help.
READY_OR_SOON = frozenset(
    {Life.READY, Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING}
)

_parsed = lru_cache(maxsize=1024)(Selector.parse)  # 100,000 jobs are asked for at the start, with few selectors


@dataclass(frozen=True, slots=True)
class Submission:
    """The jobs of one submit."""

    jobs: tuple[Job, ...]
    array: str  # "": one job alone
    warnings: tuple[str, ...]


def plan(
    spec: AnySpec, user: str, devices: Sequence[DeviceView], now: datetime, ids: Iterable[str], *, must_match: bool
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
        SelectorError: the selector does not follow the grammar.
        NoPhoneError: no phone matches, and one must.
        BadSpecError: more jobs than one submit may have, or none of the phones has the compile target.
    """
    selector = _parsed(spec.on)
    matching = [view for view in devices if view.adopted and selector.matches(view.labels, view.aliases)]
    _check_target(spec, matching)
    places = _places(spec, matching)
    if len(places) > MAX_JOBS_AT_ONCE:
        raise BadSpecError(f"that is {len(places)} jobs; at most {MAX_JOBS_AT_ONCE} are taken at once")
    warnings = []
    if not matching or (spec.devices == ALL and not places):
        error = _no_match(selector, devices, matching)
        if must_match or not places:
            raise error
        warnings.append(f"{error.message}; the job waits for one")
    elif spec.devices != ALL and (lacking := spec.devices - len(matching)) > 0:
        many = f"{len(matching)} phone{'s' * (len(matching) != 1)} match{'es' * (len(matching) == 1)} {selector}"
        if must_match:
            raise NoPhoneError(
                f"{many}, not {spec.devices}: nothing was submitted", hint="--devices all takes those that there are"
            )
        waits = "the job begins with what there is and waits" if spec.pooled else f"{lacking} of the jobs wait"
        warnings.append(f"{many}: {waits} for more")
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
            lease_class=lease_class_of(spec),
            timeout_s=spec.timeout_s,
            max_attempts=spec.max_attempts,
            deadline=None if spec.deadline_s is None else now + timedelta(seconds=spec.deadline_s),
            after=spec.after,
        )
        for device in places
    )
    return Submission(jobs, array, tuple(warnings))


def request_of(job: Job, avoid: frozenset[str]) -> LeaseRequest:
    """What a queued job asks leasing for."""
    kind = KINDS.get(job.kind)  # None: of another release; it fails when it runs
    return LeaseRequest(
        _parsed(job.selector),
        job.user,
        Door.JOB,
        priority=job.priority,
        lease_class=job.lease_class,
        device=job.device,
        avoid=avoid,
        worker=kind is None or kind.worker,
        traces=kind is None or kind.traces,
        quiet_hub=bool(job.spec.get("quiet_hub")),
        personal=kind is not None and kind.personal,
        longest_s=longest_s(job),
        job=job.id,
    )


def lease_class_of(spec: AnySpec) -> LeaseClass:
    """What its leases are for: a script that tunes yields as a tune job does."""
    return LeaseClass.TUNE if isinstance(spec, LeaseSpec) and spec.tuning else spec.lease_class


def pooled(job: Job) -> bool:
    """Whether the job's attempts have several phones at once, which come and go."""
    kind = KINDS.get(job.kind)
    return kind is not None and kind.pooled


def longest_s(job: Job) -> float:
    """How long an attempt may keep its phone: a person's lease its own time, all else its time limit."""
    return float(job.spec["seconds"]) if job.kind == LeaseSpec.kind else job.timeout_s


def usable(view: DeviceView) -> bool:
    """Whether a job may wait for that phone: it is ready, or will be without anybody's help."""
    return view.adopted and view.service is Service.IN and view.life in READY_OR_SOON


def another_phone(job: Job, devices: Iterable[DeviceView], avoid: frozenset[str]) -> bool:
    """Whether a phone that may be waited for could run the job, besides those to `avoid`."""
    selector = _parsed(job.selector)
    return any(
        usable(view) and view.name not in avoid and selector.matches(view.labels, view.aliases) for view in devices
    )


def _places(spec: AnySpec, matching: Sequence[DeviceView]) -> list[str]:
    """The phone that each of the jobs is pinned to; "": any."""
    if spec.pooled:  # whatever their number, they are one job's
        return [""] if spec.devices != ALL or any(view.service is Service.IN for view in matching) else []
    if spec.devices != ALL:
        return [""] * spec.devices
    return sorted(view.name for view in matching if view.service is Service.IN)


def _check_target(spec: AnySpec, matching: Sequence[DeviceView]) -> None:
    """Refuse a compile target that no matching phone has; one that is not known yet may have any."""
    if not isinstance(spec, ModelSpec):
        return
    known = [(view.name, view.identity) for view in matching if view.identity is not None]
    if not known or len(known) < len(matching):
        return
    for text in filter(None, (spec.target, getattr(spec, "target_b", None))):
        refused = [error for name, each in known if (error := _refusal(text, each.targets, name)) is not None]
        if len(refused) < len(known):
            continue
        if isinstance(refused[0], ForeignTargetError):
            raise refused[0]
        why, hint = why_not_on(text, [(name, each.targets, each.gpu.model or each.gpu.family) for name, each in known])
        raise BadSpecError(f"no phone that matches {spec.on} has the target {text!r}: {why}", hint=hint)


def _refusal(text: str, targets: Mapping[str, object], phone: str) -> UserError | None:
    try:
        target_on(text, targets, phone)
    except UserError as error:
        return error
    return None


def _no_match(selector: Selector, devices: Sequence[DeviceView], matching: Sequence[DeviceView]) -> NoPhoneError:
    if matching:
        out = ", ".join(f"{view.name} is {view.service}" for view in matching)
        return NoPhoneError(
            f"no phone that matches {selector} is in service: {out}", hint="`farm device list` shows every phone"
        )
    adopted = [view for view in devices if view.adopted]
    strangers = [view.name for view in devices if view.life is Life.NEW]
    if strangers and not adopted:
        return NoPhoneError(
            f"no phone matches {selector}: none is adopted yet", hint=f"let one in: farm device adopt {strangers[0]}"
        )
    return selector.no_match((view.labels, view.aliases) for view in adopted)
